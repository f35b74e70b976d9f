"""Models whose batch is not the first dimension of every tensor, brought into the form that is.

Everything else of Headrace knows one form: tensors [batch, item...]. Where a file has another, its
inputs and outputs get a node each that stands between the two forms, and keep their names outside;
the name inside gets `INSIDE`. So does an output that is no operator's, but a weight.

    batch at axis k    x [batch, a, b] --Transpose--> x::inside [a, batch, b]     k = 1
    no batch           x [1, a, b]     --Reshape----> x::inside [a, b]
                       y::inside [a, b] --Unsqueeze-> y [1, a, b]

A model of which one tensor has no batch axis runs one request at a time: its batch is 1, and an
item is all of what its file calls a tensor. An output that has another shape after all keeps it, so
that it is seen: a Reshape would pass any with as many elements, its rows torn apart. Cost: at most
a copy of the inputs and outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from headrace.catalog.onnx_graph import GraphNode, OnnxGraph, OpenTensor
from headrace.catalog.onnx_names import rename
from headrace.catalog.onnx_rooms import SHAPE_SUFFIX, room_nodes
from headrace.catalog.pt2_sizes import with_known_sizes
from headrace.domain.errors import ModelError
from headrace.domain.tensors import VARIES, TensorSpec

INSIDE = "::inside"

UNSQUEEZE_BY_TENSOR = 13
"""From this operator set on its axes are a tensor."""


def batch_first(
    graph: OnnxGraph, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batched: bool
) -> OnnxGraph:
    """The model with the batch as the first dimension of every input and output.

    Of a PyTorch export, the other sizes of its inputs become constants (`pt2_sizes`).

    Args:
        graph: as its file has it.
        inputs: of the result, each with its `batch_axis` in the file.
        outputs: likewise.
        batched: False: an item is a whole tensor of the file, and there is one in a batch.

    Raises:
        ModelError: an input or output is called as what is added for another.
    """
    graph = with_known_sizes(graph, inputs, batched)
    moved = [
        spec.name
        for spec in (*inputs, *outputs)
        if (spec.batch_axis or not batched) and not spec.shape_of
    ]
    if not moved:
        return graph
    filed = {tensor.name: tensor for tensor in graph.inputs}
    inside = {name: name + INSIDE for name in moved}
    names = inside | _out_of_the_way(graph, moved)
    shapes: dict[str, Any] = {}
    before, behind = [], []
    for spec in inputs:
        if spec.name not in inside:
            continue
        if not batched and None in _filed_dims(filed[spec.name]):
            before += _opened_inwards(spec, inside[spec.name], shapes)
        else:
            before.append(_into(spec, inside[spec.name], batched, shapes))
    for spec in outputs:
        if VARIES in spec.dims:
            behind += room_nodes(spec, inside[spec.name], shapes)
        elif spec.name in inside:
            behind.append(_out_of(graph, spec, inside[spec.name], batched, shapes))
    made = {name for node in (*before, *behind) for name in node.writes} - {*graph.outputs}
    if clash := sorted(_interface(graph) & {*inside.values(), *shapes, *made}):
        raise ModelError(
            f"{graph.path}: the name {clash[0]!r} is needed beside that of another input or output;"
            " give this one another name"
        )
    return replace(
        graph,
        inputs=tuple(_opened(spec, filed[spec.name], batched) for spec in inputs),
        nodes=(*before, *(_renamed(node, names) for node in graph.nodes), *behind),
        initialisers=_named(graph.initialisers, names) | shapes,
        static=frozenset(names.get(name, name) for name in graph.static) | shapes.keys(),
        stated={name: value for name, value in graph.stated.items() if name not in names},
        batched=batched,
        output_axes={spec.name: spec.batch_axis for spec in outputs},
        outputs=tuple(spec.name for spec in outputs),
        rooms={spec.name: spec.item_shape for spec in outputs if VARIES in spec.dims},
    )


def as_filed(graph: OnnxGraph, items: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Inputs [items, ...] in the form that the model's file takes.

    Inputs without a batch axis get the first item.
    """
    return {
        tensor.name: np.asarray(
            items[tensor.name][0]
            if tensor.batch_axis is None
            else np.moveaxis(items[tensor.name], 0, tensor.batch_axis),
            order="C",
        )
        for tensor in graph.inputs
    }


def filed_outputs(graph: OnnxGraph) -> tuple[str, ...]:
    """The outputs that the model's file has itself."""
    ours = {name + SHAPE_SUFFIX for name in graph.rooms}
    return tuple(name for name in graph.outputs if name not in ours)


def from_filed(graph: OnnxGraph, outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """All outputs as the graph gives them, the batch first, from what the model's file gives.

    Raises:
        ModelError: one is larger than there is room for.
    """
    if graph.batched:
        return {
            name: np.moveaxis(output, graph.output_axes.get(name, 0), 0)
            for name, output in outputs.items()
        }
    found = {name: output[np.newaxis] for name, output in outputs.items()}
    for name, room in graph.rooms.items():
        output = outputs[name]
        if any(size > most for size, most in zip(output.shape, room, strict=True)):
            raise ModelError(
                f"{graph.path}: output {name!r} is {list(output.shape)} for some inputs, and there"
                f" is room for {list(room)}; name more by --max-output"
            )
        filled = np.zeros((1, *room), output.dtype)
        filled[0][tuple(map(slice, output.shape))] = output
        found[name] = filled
        found[name + SHAPE_SUFFIX] = np.array([output.shape], np.int64)
    return found


def _opened(spec: TensorSpec, filed: OpenTensor, batched: bool) -> OpenTensor:
    return OpenTensor(
        name=spec.name,
        dtype=spec.dtype,
        batch=None if batched else 1,
        item_dims=spec.item_shape if batched else _filed_dims(filed),
        batch_axis=spec.batch_axis if batched else None,
    )


def _filed_dims(filed: OpenTensor) -> tuple[int | None, ...]:
    """All dimensions of an input as its file has them."""
    dims, axis = filed.item_dims, filed.batch_axis
    return dims if axis is None else (*dims[:axis], filed.batch, *dims[axis:])


def _opened_inwards(spec: TensorSpec, write: str, constants: dict[str, Any]) -> list[GraphNode]:
    """As `_into`, for an input whose file leaves dimensions free: they stay so. A model with
    branches for other shapes than this one may not be valid with this one fixed."""
    size, shape = f"{spec.name}::size", f"{spec.name}::shape"
    own = tuple(range(1, 1 + len(spec.item_shape)))
    indices = _constant(f"{spec.name}::indices", own, constants)
    return [
        _node("Shape", (spec.name,), size),
        _node("Gather", (size, indices), shape),
        _node("Reshape", (spec.name, shape), write),
    ]


def _into(spec: TensorSpec, write: str, batched: bool, constants: dict[str, Any]) -> GraphNode:
    """The node from an input to the form that the file takes; what it needs joins `constants`."""
    if batched:
        return _node("Transpose", (spec.name,), write, perm=_filed_order(spec))
    shape = _constant(f"{spec.name}::shape", spec.item_shape, constants)
    return _node("Reshape", (spec.name, shape), write)


def _out_of(
    graph: OnnxGraph, spec: TensorSpec, read: str, batched: bool, constants: dict[str, Any]
) -> GraphNode:
    """The node from what the file gives to an output; what it needs joins `constants`."""
    if batched:
        order = [int(axis) for axis in np.argsort(_filed_order(spec))]
        return _node("Transpose", (read,), spec.name, perm=order)
    if 0 < graph.opset < UNSQUEEZE_BY_TENSOR:
        return _node("Unsqueeze", (read,), spec.name, axes=[0])
    axes = _constant(f"{spec.name}::axes", (0,), constants)
    return _node("Unsqueeze", (read, axes), spec.name)


def _filed_order(spec: TensorSpec) -> list[int]:
    """Of each dimension in the file, where it is with the batch first."""
    axis, rank = spec.batch_axis, len(spec.item_shape) + 1
    return [*range(1, axis + 1), 0, *range(axis + 1, rank)]


def _constant(name: str, values: tuple[int, ...], constants: dict[str, Any]) -> str:
    constants[name] = numpy_helper.from_array(np.array(values, np.int64), name)
    return name


def _node(kind: str, reads: tuple[str, ...], write: str, **attributes: Any) -> GraphNode:
    proto = onnx.helper.make_node(kind, list(reads), [write], **attributes)
    return GraphNode(proto=proto, reads=reads, writes=(write,))


def _out_of_the_way(graph: OnnxGraph, moved: Sequence[str]) -> dict[str, str]:
    """Other names for tensors inside that are called as what is added here, `x::shape`."""
    taken = set(graph.tensors())
    added = tuple(f"{name}::" for name in moved)
    own = taken - _interface(graph)
    found: dict[str, str] = {}
    for name in sorted(name for name in own if name.startswith(added)):
        other = name + "'"
        while other in taken:
            other += "'"
        taken.add(other)
        found[name] = other
    return found


def _interface(graph: OnnxGraph) -> set[str]:
    return {tensor.name for tensor in graph.inputs} | set(graph.outputs)


def _named(initialisers: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = dict(initialisers)
    for name in sorted(found.keys() & names.keys()):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(found.pop(name))
        tensor.name = names[name]
        found[tensor.name] = tensor
    return found


def _renamed(node: GraphNode, names: Mapping[str, str]) -> GraphNode:
    if names.keys().isdisjoint((*node.reads, *node.writes)):
        return node
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    rename(proto, names)
    return GraphNode(
        proto=proto,
        reads=tuple(names.get(name, name) for name in node.reads),
        writes=tuple(names.get(name, name) for name in node.writes),
    )
