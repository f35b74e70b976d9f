"""Whether a model takes several requests in one run, and where its tensors have their batch.

What its file declares is a guess (`onnx_graph`), or the user's word. Here it is tried: the model
runs as its file has it, with one item and with two. An output's batch is at the one dimension that
went from 1 to 2 while all others stayed, whatever is in the items. A model that does not run so, or
has a tensor without such a dimension, is served one request per run, which every model can be.

So is one whose items influence each other, such as one that normalises over its batch, or are
answered by their place in it: requests of strangers share a batch, and each would be answered by
who else is there. That is measured (`influence`), and such a model is batched only where the user
names the batch.

Then an output may also vary in size with what is in the inputs; it gets room for the most
(`output_sizes`, `onnx_rooms`). That it varies is seen in runs, with other items and with other
numbers where its size is computed from what they hold (`content_lengths`).

Cost: one session, ten runs of one or two items, four of the largest batch and, of a model that
takes one request per run, eleven more of one item at most; and what `content_lengths` needs.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.catalog.onnx_batch import as_filed, batch_first
from headrace.catalog.onnx_graph import OnnxGraph, no_tensor
from headrace.catalog.onnx_rooms import shape_spec
from headrace.catalog.onnx_types import array_dtype
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.onnx_session import first_line
from headrace.profiling.batch_hint import batch_hint
from headrace.profiling.content_lengths import Shapes, shapes_by_content
from headrace.profiling.influence import influence_between
from headrace.profiling.item_shapes import open_whole
from headrace.profiling.items import Arrays, input_specs, is_measured, tiled
from headrace.profiling.large_numbers import large_numbers
from headrace.profiling.output_sizes import rooms_of
from headrace.profiling.quantisation import quantisation
from headrace.profiling.repeatable import require_repeatable

TRIED_ITEMS = 8
"""Items with which one request at a time is tried, for outputs that vary in size."""

Room = tuple[tuple[int, ...], tuple[str, ...]]
"""Of an output that varies: the shape with room for the most, and `TensorSpec.dims`."""

Axes = Mapping[str, int | None]
"""Tensor name -> where it has its batch dimension; None: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A model with the batch first, and items that fit it."""

    graph: OnnxGraph
    items: Arrays
    outputs: tuple[TensorSpec, ...]
    notice: str | None
    """Why it is served one request per run; None: it is not, or the user said so."""
    influence: str | None
    """What its items do to each other in a batch that the user asks for; None: nothing."""
    untried: str | None = None
    """What was not found out of sizes that are computed from what inputs hold; None: nothing."""


class _NotBatchedError(Exception):
    """Why a model does not take several items."""


def settle_batch(
    graph: OnnxGraph,
    shapes: Mapping[str, tuple[int, ...]],
    items: Arrays,
    named: Axes,
    most: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    *,
    max_batch: int,
) -> Settled:
    """Find out how the model takes items, by running it.

    Args:
        graph: as its file has it.
        shapes: input name -> item shape.
        items: input name -> items, shape [n >= 1, ...].
        named: what the user says of inputs and outputs.
        most: of outputs that vary in size, the most of each dimension that does; of those that are
            not named it is found.
        max_batch: the largest batch that will be served.

    Raises:
        ModelError: it does not run at all, an output is not a tensor of numbers or strings, is
            another for the same item, varies in size and nobody knows how far, or has no batch
            dimension where the user says.
    """
    _require_names(graph, most, named)
    session = open_whole(graph)
    single = _run(session, graph, items, 1)
    if isinstance(single, str):
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        hint = batch_hint(graph)
        raise ModelError(
            f"{graph.path}: does not run at batch size 1 ({given}): {single}; check --shape,"
            f"{f' {hint},' if hint else ''}"
            " or give items that it takes: --inputs NAME=FILE.npy"
        )
    _require_tensors(graph, single)
    require_repeatable(session, graph, as_filed(graph, tiled(items, 1)))
    inputs = input_specs(graph, shapes)
    by_content, untried = shapes_by_content(graph, items)
    try:
        outputs = _batched_outputs(session, graph, items, single, named)
        _require_one_size(single, by_content)
        run = partial(_run, session, graph)
        large = large_numbers(run, graph, items)
        changes = influence_between(run, inputs, outputs, items, max_batch, large)
        influence = changes.reason(quantisation(graph))
        if influence and not _named_batch(named):
            first = graph.inputs[0]
            raise _NotBatchedError(
                f"{influence}, and a batch holds requests of strangers; --batch-axis"
                f" {first.name}={first.batch_axis} batches them all the same"
            )
    except _NotBatchedError as error:
        if _named_batch(named):
            raise ModelError(f"{graph.path}: {error}; leave out --batch-axis") from error
        seen = _sizes_seen(session, graph, items, single)
        filed = {name: array.shape for name, array in as_filed(graph, tiled(items, 1)).items()}
        strings = {name for name, array in single.items() if array_dtype(array) == "bytes"}
        rooms = rooms_of(graph, filed, seen, by_content, most, strings)
        reason = None if None in named.values() else str(error)
        alone = _one_at_a_time(graph, inputs, items, single, rooms, reason)
        return dataclasses.replace(alone, untried=untried)
    if most:
        raise ModelError(
            f"--max-output {min(most)}: {graph.path} is batched, and its outputs have one size;"
            " leave it out"
        )
    arranged = batch_first(graph, inputs, outputs, batched=True)
    return Settled(
        graph=arranged,
        items=items,
        outputs=outputs,
        notice=None,
        influence=influence,
        untried=untried,
    )


def _require_names(graph: OnnxGraph, most: Iterable[str], named: Iterable[str]) -> None:
    if unknown := sorted({*most} - {*graph.outputs}):
        raise ModelError(
            f"--max-output {unknown[0]}: {graph.path} has no such output; it has"
            f" {', '.join(graph.outputs)}"
        )
    known = {tensor.name for tensor in graph.inputs} | {*graph.outputs}
    if unknown := sorted({*named} - known):
        raise ModelError(
            f"--batch-axis {unknown[0]}: {graph.path} has no such input or output; it has"
            f" {', '.join(sorted(known))}"
        )


def _named_batch(named: Axes) -> bool:
    """Whether the user says of some tensor where its batch is."""
    return any(axis is not None for axis in named.values())


def _batched_outputs(
    session: Any,
    graph: OnnxGraph,
    items: Arrays,
    single: Mapping[str, NDArray[Any]],
    named: Axes,
) -> tuple[TensorSpec, ...]:
    """
    Raises:
        _NotBatchedError: it does not take two items, or an output has no dimension for them.
    """
    for name in (tensor.name for tensor in graph.inputs if tensor.batch_axis is None):
        raise _NotBatchedError(f"input {name!r} has no batch dimension")
    double = _run(session, graph, items, 2)
    if isinstance(double, str):
        hint = batch_hint(graph)
        raise _NotBatchedError(
            f"it does not run with two items in one batch ({double}); an export whose batch is free"
            f" (dynamic_shapes) would be batched{f'; {hint}' if hint else ''}"
        )
    found = tuple(_output(graph, name, single[name], double[name], named) for name in graph.outputs)
    empty = _run(session, graph, _emptied(items), 2)
    if not isinstance(empty, str):
        for name in graph.outputs:
            if empty[name].shape != double[name].shape:
                raise _NotBatchedError(
                    f"output {name!r} is {list(double[name].shape)} for two items and"
                    f" {list(empty[name].shape)} for two others"
                )
    return found


def _require_one_size(single: Arrays, by_content: Sequence[Shapes]) -> None:
    """
    Raises:
        _NotBatchedError: the size of an output follows from what the inputs hold.
    """
    for shapes in by_content:
        for name, shape in shapes.items():
            if shape != single[name].shape:
                raise _NotBatchedError(
                    f"the size of output {name!r} is computed from what the inputs hold: it is"
                    f" {list(single[name].shape)} for one item and {list(shape)} for another"
                )


def _output(
    graph: OnnxGraph, name: str, one: NDArray[Any], two: NDArray[Any], named: Axes
) -> TensorSpec:
    grew = [
        axis
        for axis, (a, b) in enumerate(zip(one.shape, two.shape, strict=False))
        if (a, b) == (1, 2) and one.ndim == two.ndim
    ]
    axis = named.get(name, grew[0] if grew else None)
    if 0 in one.shape:
        raise _NotBatchedError(
            f"output {name!r} is {list(one.shape)} for one item, with nothing in it, so that it may"
            " vary in size"
        )
    if axis is None or axis not in grew:
        first = graph.inputs[0]
        dims = [None if dim is None else str(dim) for dim in first.item_dims]
        dims.insert(first.batch_axis or 0, None)
        raise _NotBatchedError(
            f"output {name!r} has no batch dimension: it is {list(one.shape)} for one item and"
            f" {list(two.shape)} for two; if what was taken for the batch of {first.name!r} is"
            f" another size, --batch-axis {first.name}=none --shape"
            f" {first.name}={','.join(dim or '?' for dim in dims)} serves it, with numbers for ?"
        )
    item = (*one.shape[:axis], *one.shape[axis + 1 :])
    if item != (*two.shape[:axis], *two.shape[axis + 1 :]):
        raise _NotBatchedError(
            f"output {name!r} has more than one dimension that follows the batch: it is"
            f" {list(one.shape)} for one item and {list(two.shape)} for two"
        )
    return graph.spec(name, str(array_dtype(one)), item, axis)


def _one_at_a_time(
    graph: OnnxGraph,
    inputs: tuple[TensorSpec, ...],
    items: Arrays,
    single: Mapping[str, NDArray[Any]],
    rooms: Mapping[str, Room],
    reason: str | None,
) -> Settled:
    """Whole tensors as items, the batch of one that the file may have among their dimensions."""
    whole = {tensor.name: tensor.batch_axis for tensor in graph.inputs}
    specs = []
    grown = {}
    for spec in inputs:
        axis = whole[spec.name]
        shape = spec.item_shape
        grown[spec.name] = items[spec.name]
        if axis is not None:
            shape = (*shape[:axis], 1, *shape[axis:])
            grown[spec.name] = np.expand_dims(items[spec.name], axis + 1)
        specs.append(graph.spec(spec.name, spec.dtype, shape))
    outputs = tuple(
        _with_room(graph.spec(name, str(array_dtype(array)), array.shape), rooms.get(name))
        for name, array in single.items()
    )
    outputs += tuple(shape_spec(spec) for spec in outputs if spec.name in rooms)
    return Settled(
        graph=batch_first(graph, specs, outputs, batched=False),
        items=grown,
        outputs=outputs,
        notice=f"served one request per run, without batching: {reason}" if reason else None,
        influence=None,
    )


def _with_room(spec: TensorSpec, room: Room | None) -> TensorSpec:
    if room is None:
        return spec
    shape, dims = room
    return replace(spec, item_shape=shape, dims=dims)


def _sizes_seen(
    session: Any, graph: OnnxGraph, items: Arrays, single: Mapping[str, NDArray[Any]]
) -> dict[str, list[tuple[int, ...]]]:
    """Shapes of each output for several inputs: they may depend on what is in them.

    Tried with each item, and with nothing in it: noise may give as many boxes as there may be. And
    with zeros throughout, as a worker tries it before it serves.
    """
    count = min(TRIED_ITEMS, len(next(iter(items.values()))))
    others: list[Arrays] = [
        {n: array[i : i + 1] for n, array in items.items()} for i in range(1, count)
    ]
    first = tiled(items, 1)
    others += [_emptied(first), {name: _zeros(array) for name, array in first.items()}]
    seen = {name: [array.shape] for name, array in single.items()}
    for each in others:
        again = _run(session, graph, each, 1)
        if not isinstance(again, str):
            for name, array in again.items():
                seen[name].append(array.shape)
    return seen


def _emptied(items: Arrays) -> Arrays:
    """As many items with nothing in them, texts of one word: what depends on the values then has
    another size."""
    return {
        name: _zeros(array) if is_measured(array) or array.dtype == object else array
        for name, array in items.items()
    }


def _zeros(array: NDArray[Any]) -> NDArray[Any]:
    return np.full_like(array, "0") if array.dtype == object else np.zeros_like(array)


def _run(
    session: Any, graph: OnnxGraph, items: Arrays, count: int
) -> dict[str, NDArray[Any]] | str:
    """Outputs for the first items, as the file has them; or why it does not run."""
    try:
        found = session.run(list(graph.outputs), as_filed(graph, tiled(items, count)))
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        return first_line(error)
    return dict(zip(graph.outputs, found, strict=True))


def _require_tensors(graph: OnnxGraph, outputs: Mapping[str, Any]) -> None:
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            raise ModelError(no_tensor(graph.path, name))
        if array_dtype(value) is None:
            raise ModelError(
                f"{graph.path}: output {name!r} is not a tensor of numbers or strings;"
                " serve such post-processing outside the model"
            )
