"""Outputs whose size depends on what is in the inputs, and the most that it can be.

A few operators choose by content: NonMaxSuppression, NonZero, Compress, Unique, TopK by a computed
number. The most that each can give follows from the shapes it reads. So they are taken out of the
graph one by one, in order, and what they give becomes an input of that size; ONNX's shape inference
does the rest. Done for the most and for nothing at all, it tells which dimensions vary:

    dimension = most, if inferred alike from the most and from nothing
                varies up to what is inferred from the most, otherwise

Cost: one shape inference per such operator.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence

from onnx import TensorProto, numpy_helper

from headrace.catalog.onnx_graph import MAX_ITEM_COUNT, GraphNode, OnnxGraph
from headrace.catalog.onnx_rooms import LEAST_OPSET
from headrace.catalog.onnx_shapes import Known, infer_shapes
from headrace.catalog.onnx_types import elem_type
from headrace.domain.errors import ModelError
from headrace.domain.tensors import VARIES

MAX_CHOOSING = 64
"""Operators that choose by content; with more, the most is not looked for."""

Dims = tuple[int, ...]


def rooms_of(
    graph: OnnxGraph,
    inputs: Mapping[str, Dims],
    seen: Mapping[str, Sequence[Dims]],
    by_content: Sequence[Mapping[str, Dims]],
    named: Mapping[str, Dims],
    strings: Container[str],
) -> dict[str, tuple[Dims, tuple[str, ...]]]:
    """Room for each output that varies: its shape, and `TensorSpec.dims`.

    Args:
        inputs: shapes of the file's inputs.
        seen: output -> its shapes in several runs.
        by_content: output -> its shape with other numbers where it is computed from what the inputs
            hold (`content_lengths`); these tell that it varies, not how far.
        named: output -> the most of each of its dimensions that vary, or of each that it has, as
            the user says.
        strings: the outputs of strings.

    Raises:
        ModelError: an output varies and the most that it can be is not known, is named for
            another number of dimensions, or was seen to be more; or it is of strings.
    """
    most, none = _inferred(graph, inputs)
    found = {}
    for name, runs in seen.items():
        shapes = [*runs, *(shapes[name] for shapes in by_content)]
        lengths = list(zip(*shapes, strict=False))
        if len(set(map(len, shapes))) > 1 or (name in named and not lengths):
            raise ModelError(f"{graph.path}: output {name!r} has no dimension to vary in")
        high = most.get(name) or (None,) * len(lengths)
        low = none.get(name) or (None,) * len(lengths)
        varying = [
            axis
            for axis, each in enumerate(lengths)
            if len(set(each)) > 1 or 0 in each or high[axis] != low[axis]
        ]
        wanted = named.get(name) or tuple(high[axis] or 0 for axis in varying)
        if len(wanted) == len(lengths):
            varying = list(range(len(lengths)))
        if varying and name in strings:
            raise ModelError(
                f"{graph.path}: output {name!r} holds strings, and how many depends on what is in"
                " the inputs; only numbers may vary so: export the model with their indices as its"
                " output, and look the strings up in the client or in an app"
            )
        if varying or name in named:
            largest = [max(each) for each in zip(*runs, strict=True)]
            found[name] = _room(graph, name, shapes, largest, varying, wanted)
    return found


def _room(
    graph: OnnxGraph,
    name: str,
    shapes: Sequence[Dims],
    largest: Sequence[int],
    varying: Sequence[int],
    wanted: Dims,
) -> tuple[Dims, tuple[str, ...]]:
    """
    Args:
        shapes: of the output, for several inputs.
        largest: of each dimension, what it is for inputs at hand.
        varying: dimensions that do.
        wanted: their most; 0: not known.
    """
    where = f"{graph.path}: output {name!r}"
    tried = [max(1, *lengths) for lengths in zip(*shapes, strict=True)]
    try_this, of_all = (
        "x".join(str(tried[axis]) for axis in axes) for axes in (varying, range(len(tried)))
    )
    if not varying:
        raise ModelError(
            f"{where} was not seen to vary, so --max-output needs the most of every dimension:"
            f" {name}={of_all}"
        )
    if len(wanted) != len(varying):
        raise ModelError(
            f"{where} has {len(varying)} dimensions whose length depends on what is in the inputs;"
            f" --max-output needs one most of each: {name}={try_this}"
            + (f", or of every dimension: {name}={of_all}" if of_all != try_this else "")
        )
    if not all(wanted):
        other = next((shape for shape in shapes if shape != shapes[0]), None)
        if other is None:
            raise ModelError(
                f"{where} may vary in size, though it is {list(shapes[0])} for all inputs tried,"
                " and the most is not known from the graph; give others by --inputs, or name it:"
                f" --max-output {name}={try_this}, or more where your inputs may give more"
            )
        raise ModelError(
            f"{where} has another size for other inputs ({list(shapes[0])}, {list(other)}), and the"
            f" most is not known from the graph; name it: --max-output {name}={try_this}, which is"
            " the most seen here, or more where your inputs may give more"
        )
    room = list(largest)
    for axis, most in zip(varying, wanted, strict=True):
        if most < largest[axis]:
            raise ModelError(
                f"{where}: has {largest[axis]} in dimension {axis} for some inputs, so"
                f" --max-output {most} is too small"
            )
        room[axis] = most
    if math.prod(room) > MAX_ITEM_COUNT:
        raise ModelError(
            f"{where} may be as large as {room}, {math.prod(room):,} elements, and at most"
            f" {MAX_ITEM_COUNT:,} are served; say what it really is: --max-output {name}={try_this}"
        )
    if graph.opset < LEAST_OPSET:
        raise ModelError(
            f"{where} varies in size, and the file's operator set is {graph.opset}; export it"
            f" with {LEAST_OPSET} or later"
        )
    return tuple(room), tuple(VARIES if axis in varying else "" for axis in range(len(room)))


def _inferred(
    graph: OnnxGraph, inputs: Mapping[str, Dims]
) -> tuple[dict[str, Known], dict[str, Known]]:
    """Shapes of the outputs, as far as they can be inferred, if every choosing operator gives the
    most that it can, and if none gives anything."""
    choosing = [node for node in graph.dynamic_nodes() if node.proto.op_type in _MOST]
    if not choosing or len(choosing) > MAX_CHOOSING or graph.format != "onnx":
        return {}, {}
    kinds = {tensor.name: elem_type(tensor.dtype) for tensor in graph.inputs}
    given: dict[str, tuple[int, Known]] = {n: (kinds[n], dims) for n, dims in inputs.items()}
    nothing = dict(given)
    shapes = infer_shapes(graph, given)
    for node in choosing:
        if all(_is_known(shapes.get(name)) for name in node.writes):
            continue  # a TopK by a number that is known after all
        reads = [_shape(graph, shapes, name) for name in node.proto.input]
        most = _MOST[node.proto.op_type](graph, node, reads)
        if most is None:
            continue
        for name, (dims, axis) in zip(node.proto.output, most, strict=False):
            kind = shapes[name][0] if name in shapes else int(TensorProto.INT64)
            given[name] = kind, dims
            nothing[name] = kind, tuple(0 if at == axis else dim for at, dim in enumerate(dims))
        shapes = infer_shapes(graph, given)
    none = infer_shapes(graph, nothing)
    return (
        {name: shapes[name][1] for name in graph.outputs if name in shapes},
        {name: none[name][1] for name in graph.outputs if name in none},
    )


def _shape(graph: OnnxGraph, shapes: Mapping[str, tuple[int, Known]], name: str) -> Known | None:
    if name in graph.initialisers:
        return tuple(graph.initialisers[name].dims)
    return shapes[name][1] if name in shapes else None


def _is_known(found: tuple[int, Known] | None) -> bool:
    return found is not None and None not in found[1]


Most = list[tuple[Dims, int]] | None
"""Of each output its shape, and which dimension of that varies; None: not known."""
Reads = Sequence[Known | None]


def _number(graph: OnnxGraph, name: str) -> int | None:
    """The constant number of this name."""
    tensor = graph.initialisers.get(name)
    if tensor is None or tensor.external_data:
        return None
    values = numpy_helper.to_array(tensor).ravel()
    return int(values[0]) if values.size == 1 else None


def _most_boxes(graph: OnnxGraph, node: GraphNode, reads: Reads) -> Most:
    scores = reads[1]  # [batch, classes, boxes]
    if scores is None or None in scores or len(scores) != 3:
        return None
    batch, classes, boxes = (int(dim or 0) for dim in scores)
    limit = _number(graph, node.proto.input[2]) if len(node.proto.input) > 2 else 0
    per_class = boxes if limit is None else max(0, min(limit, boxes))
    return [((batch * classes * per_class, 3), 0)]


def _most_nonzero(graph: OnnxGraph, node: GraphNode, reads: Reads) -> Most:
    x = reads[0]
    if x is None or None in x:
        return None
    return [((len(x), math.prod(int(dim or 0) for dim in x)), 1)]


def _most_along(graph: OnnxGraph, node: GraphNode, reads: Reads) -> Most:
    """All of one dimension, or of the flat tensor where none is named (never of TopK)."""
    x = reads[0]
    if x is None or None in x:
        return None
    dims = tuple(int(dim or 0) for dim in x)
    top = node.proto.op_type == "TopK"
    axis = next((a.i for a in node.proto.attribute if a.name == "axis"), -1 if top else None)
    if axis is None:
        return [((math.prod(dims),), 0)] * 4
    if node.proto.op_type == "Unique":
        return None
    return [(dims, axis % len(dims))] * 2


_MOST: Mapping[str, Callable[[OnnxGraph, GraphNode, Reads], Most]] = {
    "NonMaxSuppression": _most_boxes,
    "NonZero": _most_nonzero,
    "Compress": _most_along,
    "Unique": _most_along,
    "TopK": _most_along,
}
