"""What a model's tensors really are: batched or not, and how large.

Inference from the graph is asked first; what it cannot tell is run at batch sizes 1 and 2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_cuts import Cut
from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_shapes import NOT_BATCHED, NotBatched, batched_spec, infer_specs
from headrace.catalog.onnx_stage import probe_model
from headrace.catalog.onnx_types import array_dtype, crosses_cuts
from headrace.domain.base import Record
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.onnx_session import first_line
from headrace.profiling.item_shapes import open_content
from headrace.profiling.items import Arrays, input_specs, tiled

PROBED_AT_ONCE = 64
"""Extra outputs per run: bounds the memory that a probe of hundreds of tensors holds."""


class UsableCut(Record, frozen=True, kw_only=True):
    """A cut whose tensors all have the batch, and only the batch, as their first dimension."""

    position: int
    """How many dynamic nodes stand before it."""
    tensors: tuple[TensorSpec, ...]


class Observed(Record, frozen=True, kw_only=True):
    """A model at fixed item shapes."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    cuts: tuple[UsableCut, ...]


def observe(
    graph: OnnxGraph, shapes: Mapping[str, tuple[int, ...]], cuts: Sequence[Cut], items: Arrays
) -> Observed:
    """Find the outputs' shapes and the cuts that can be used.

    Args:
        items: input name -> items, shape [n >= 1, ...].

    Raises:
        ModelError: the model does not run at two items per batch, or an output is not batched.
    """
    inputs = input_specs(graph, shapes)
    names = dict.fromkeys(name for cut in cuts for name in cut.tensors)
    found = infer_specs(graph, shapes, names)
    unknown = [name for name in names if name not in found]
    for start in range(0, max(1, len(unknown)), PROBED_AT_ONCE):
        probed = unknown[start : start + PROBED_AT_ONCE]
        single, double = _run_twice(graph, inputs, [*graph.outputs, *probed], items)
        for name in single:
            found[name] = _spec(name, single[name], double[name])
        if start == 0:
            outputs = _output_specs(graph, single, double)
    return Observed(inputs=inputs, outputs=outputs, cuts=_usable(cuts, found))


def relative_error(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    """max |got - wanted| / max |wanted|; infinite where only one of them is finite.

    >>> relative_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    0.5
    """
    if got.dtype == object or wanted.dtype == object:  # strings
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    difference = np.max(np.abs(a - b), initial=0.0, where=finite)
    largest = np.max(np.abs(b), initial=0.0, where=finite)
    return float(difference / largest) if largest > 0 else float(difference)


def _usable(
    cuts: Sequence[Cut], found: Mapping[str, TensorSpec | NotBatched]
) -> tuple[UsableCut, ...]:
    usable = []
    for cut in cuts:
        specs = [found[name] for name in cut.tensors]
        tensors = tuple(spec for spec in specs if isinstance(spec, TensorSpec))
        if len(tensors) == len(specs):
            usable.append(UsableCut(position=cut.position, tensors=tensors))
    return tuple(usable)


def _spec(name: str, single: Any, double: Any) -> TensorSpec | NotBatched:
    dtype = array_dtype(single)
    if not crosses_cuts(dtype) or array_dtype(double) != dtype:
        return NOT_BATCHED
    return batched_spec(name, dtype, single.shape, double.shape)


def _run_twice(
    graph: OnnxGraph, inputs: Sequence[TensorSpec], names: Sequence[str], items: Arrays
) -> tuple[dict[str, NDArray[Any]], ...]:
    """The named tensors for one item, and for two in one batch."""
    names = list(dict.fromkeys(names))
    probe = probe_model(graph, inputs, names).SerializeToString()
    session = open_content(graph, probe)
    results = []
    both = tiled(items, 2)
    for size in (1, 2):
        batch = {name: array[:size] for name, array in both.items()}
        try:
            arrays = session.run(names, batch)
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            item = ", ".join(f"{spec.name} {list(spec.item_shape)}" for spec in inputs)
            step = (
                "check --shape"
                if size == 1
                else "export it with a free first dimension (dynamic_axes) on inputs and outputs"
            )
            raise ModelError(
                f"{graph.path}: does not run at batch size {size} ({item}):"
                f" {first_line(error)}; {step}"
            ) from error
        results.append(dict(zip(names, arrays, strict=True)))
    return tuple(results)


def _output_specs(graph: OnnxGraph, single: Arrays, double: Arrays) -> tuple[TensorSpec, ...]:
    specs = []
    for name in graph.outputs:
        one, two = single[name], double[name]
        dtype = array_dtype(one)
        assert dtype is not None, "its batch was settled with it"
        spec = batched_spec(name, dtype, one.shape, two.shape)
        if not isinstance(spec, TensorSpec):
            raise ModelError(
                f"{graph.path}: output {name!r} does not have one entry per item first: it is"
                f" {list(one.shape)} for one item and {list(two.shape)} for two;"
                " export the model with the batch as first dimension of every output"
            )
        specs.append(
            graph.spec(name, dtype, spec.item_shape, batch_axis=graph.output_axes.get(name, 0))
        )
    return tuple(specs)
