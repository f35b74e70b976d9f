"""Blocks as models of their own: everything between two cuts, with the weights it needs.

A tensor that crosses a cut at half precision travels under its own name plus `HALF_SUFFIX`: the
producing stage ends with a cast to it and the consuming stage begins with a cast back, so that
nothing inside either stage has to be renamed.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import onnx

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_quantised import UNSIGNED_SUFFIX, make_unsigned, unsigned_spec
from headrace.catalog.onnx_types import dtype_name, elem_type, tensor_bytes
from headrace.domain.errors import ModelError
from headrace.domain.tensors import OTHERWISE, VARIES, TensorSpec

Boundary = Literal["float32", "float16"]

BATCH = "batch"
"""Name of the free first dimension in every extracted stage."""

HALF_SUFFIX = "::float16"


def wire_spec(graph: OnnxGraph, spec: TensorSpec, boundary: Boundary) -> TensorSpec:
    """How a cut tensor travels: at half precision where that is asked and it is float32, a::float16
    for a; as `onnx_quantised` has it where it is quantised."""
    if boundary == "float16" and spec.dtype == "float32":
        name = spec.name + HALF_SUFFIX
        return msgspec.structs.replace(spec, name=name, dtype="float16")
    return unsigned_spec(graph, spec)


def plain_name(spec: TensorSpec) -> str:
    """A model's own name of a tensor that may travel under another.

    >>> plain_name(TensorSpec(name="a::float16", dtype="float16", item_shape=(2,)))
    'a'
    """
    return spec.name.removesuffix(HALF_SUFFIX).removesuffix(UNSIGNED_SUFFIX)


def extract_stage(
    graph: OnnxGraph, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Any:
    """The part of `graph` that computes `outputs` from `inputs`, as a ModelProto.

    Walks backwards from the outputs and stops at the inputs, so nodes that stand between two cuts
    in the file but belong to neither side cannot slip in. Item shapes become fixed, which lets the
    runtime plan its memory; the batch stays free, and so do dynamic dimensions (`TensorSpec.dims`),
    so that one file serves all buckets of a model. Of a model that is not batched, inputs stay as
    its file has them, and of outputs no size is stated: one that an input says may be another, and
    ONNX Runtime believes what is stated (it makes one Reshape of two, to that shape).

    Args:
        inputs: tensors as they arrive: model inputs, or what crosses the cut before.
        outputs: tensors as they leave: what crosses the cut behind, or model outputs.

    Raises:
        ModelError: the outputs need a model input that is not among `inputs`, or a tensor is
            not in the graph.
    """
    known = graph.tensors()
    inside = {spec.name: _inside_name(spec, known, graph) for spec in (*inputs, *outputs)}
    taken = {spec.name for spec in inputs}
    # A tensor that is both taken and given passes through: it needs no node and no cast.
    made = [spec for spec in outputs if spec.name not in taken]
    model = _between(
        graph, {inside[spec.name] for spec in inputs}, {inside[spec.name] for spec in made}
    )
    for spec in (*inputs, *made):
        if spec.name.endswith(UNSIGNED_SUFFIX):
            make_unsigned(model, inside[spec.name])
    wraps = [
        onnx.helper.make_node("Cast", [spec.name], [inside[spec.name]], to=elem_type("float32"))
        for spec in inputs
        if inside[spec.name] + HALF_SUFFIX == spec.name
    ]
    unwraps = [
        onnx.helper.make_node("Cast", [inside[spec.name]], [spec.name], to=elem_type("float16"))
        for spec in made
        if inside[spec.name] + HALF_SUFFIX == spec.name
    ]
    nodes = [*wraps, *model.graph.node, *unwraps]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    free = {} if graph.batched else {tensor.name: tensor.item_dims for tensor in graph.inputs}
    model.graph.input.extend(_value_info(spec, free.get(spec.name)) for spec in inputs)
    for spec in outputs:
        open_dims = None if graph.batched else (None,) * len(spec.item_shape)
        model.graph.output.append(_value_info(spec, open_dims))
    return model


def probe_model(graph: OnnxGraph, inputs: Sequence[TensorSpec], names: Sequence[str]) -> Any:
    """The whole model from its inputs to `names`, any of its tensors, for ONNX Runtime to run.

    The outputs state no type and no shape: that is what one runs it for.
    """
    model = _between(graph, {spec.name for spec in inputs}, set(names))
    model.graph.input.extend(_value_info(spec) for spec in inputs)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model


def filed_model(
    graph: OnnxGraph, names: Sequence[str], taken: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """The whole model as its file has it, for any shapes of its inputs: they state none.

    Args:
        names: any of its tensors, which become the outputs.
        taken: tensors inside that are inputs too -> their element types.
    """
    dtypes = {tensor.name: tensor.dtype for tensor in graph.inputs} | dict(taken)
    model = _between(graph, set(dtypes), set(names))
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, elem_type(dtype), None)
        for name, dtype in dtypes.items()
    )
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model


def weights_bytes(stage: Any) -> int:
    """Bytes of all initialisers of an extracted stage."""
    return sum(tensor_bytes(tensor) for tensor in stage.graph.initializer)


def _between(graph: OnnxGraph, starts: set[str], wanted: set[str]) -> Any:
    """Nodes and weights that compute `wanted` from `starts`, as a model without interface."""
    needed = wanted - starts
    kept = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.writes):
            needed.update(name for name in node.reads if name not in starts)
            kept.append(node.proto)
    missing = sorted({tensor.name for tensor in graph.inputs} & needed)
    if missing:
        raise ModelError(
            f"{graph.path}: {sorted(wanted)} cannot be computed from {sorted(starts)} alone, they"
            f" also need model input {missing[0]!r}; cut elsewhere"
        )
    model = onnx.ModelProto()
    model.CopyFrom(graph.header)
    model.producer_name = "headrace"
    model.graph.name = "stage"
    model.graph.node.extend(reversed(kept))
    model.graph.initializer.extend(t for n, t in graph.initialisers.items() if n in needed)
    inside = {name for node in kept for name in node.output} - wanted - starts
    model.graph.value_info.extend(
        graph.stated[name] for name in sorted(inside & graph.stated.keys())
    )
    return model


def _inside_name(spec: TensorSpec, known: frozenset[str], graph: OnnxGraph) -> str:
    """The graph's name of a tensor that may travel under another, `wire_spec`'s."""
    if spec.name in known:
        return spec.name
    for suffix, dtype in ((HALF_SUFFIX, "float16"), (UNSIGNED_SUFFIX, "uint8")):
        plain = spec.name.removesuffix(suffix)
        if plain in known and spec.dtype == dtype:
            return plain
    raise ModelError(
        f"{graph.path}: has no tensor {spec.name!r}; was the profile made from another model?"
        " run `headrace profile` again"
    )


def _value_info(spec: TensorSpec, dims: tuple[int | str | None, ...] | None = None) -> Any:
    """`dims`: of the item, where it is not `item_shape`; None: free."""
    assert dtype_name(elem_type(spec.dtype)) == spec.dtype
    if dims is None:
        named = zip(spec.dims or ("",) * len(spec.item_shape), spec.item_shape, strict=True)
        fixed = {"", VARIES}
        dims = tuple(
            None if name == OTHERWISE else size if name in fixed else name for name, size in named
        )
    return onnx.helper.make_tensor_value_info(spec.name, elem_type(spec.dtype), [BATCH, *dims])
