"""Sizes that a PyTorch export asks of its inputs, answered before it is cut.

An export computes with the sizes of its inputs: `view(x, [batch * heads, 64])`. As a tensor that is
made once and read everywhere, a size would cross every cut. But when the items' shapes are fixed,
every size is a number, save the batch, which each stage can ask of its own inputs. So a size node
becomes a constant, or a `BATCH_SIZE` node that reads nothing; both are static for whoever cuts, and
each stage repeats what it needs of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from headrace.catalog.onnx_graph import GraphNode, OnnxGraph, static_names
from headrace.catalog.pt2_calls import BATCH_SIZE, EXPECT, GUARDS, SIZE, TORCH_DOMAIN
from headrace.catalog.pt2_guards import Shapes, broken_guard
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec


def with_known_sizes(graph: OnnxGraph, inputs: Sequence[TensorSpec], batched: bool) -> OnnxGraph:
    """The model with the sizes of its inputs known, but for the batch.

    Args:
        graph: as its file has it; only one that calls PyTorch is changed.
        inputs: its inputs as they are served, each with its `batch_axis` in the file.
        batched: False: an item is a whole tensor of the file.
    """
    if graph.format != "torch":
        return graph
    shapes = {spec.name: _shape(spec, batched) for spec in inputs}
    _check_guards(graph, shapes)
    constants: dict[str, Any] = {}
    nodes = []
    for node in graph.nodes:
        shape = shapes.get(node.reads[0]) if _asks_size(node) else None
        if shape is None:
            nodes.append(node)
            continue
        size = shape[onnx.helper.get_attribute_value(node.proto.attribute[0])]
        if size is None:
            proto = onnx.helper.make_node(BATCH_SIZE, [], list(node.writes), domain=TORCH_DOMAIN)
            nodes.append(GraphNode(proto=proto, reads=(), writes=node.writes))
        else:
            value = numpy_helper.from_array(np.array(size, np.int64), node.writes[0])
            constants[node.writes[0]] = value
    initialisers = graph.initialisers | constants
    return replace(
        graph,
        nodes=tuple(nodes),
        initialisers=initialisers,
        static=static_names(graph.path, tuple(nodes), initialisers, set(shapes)),
    )


def _shape(spec: TensorSpec, batched: bool) -> list[int | None]:
    """In the file; None: the batch."""
    shape: list[int | None] = list(spec.item_shape)
    if batched:
        shape.insert(spec.batch_axis, None)
    return shape


def _check_guards(graph: OnnxGraph, shapes: Shapes) -> None:
    """
    Raises:
        ModelError: sizes are not as the export takes for granted.
    """
    stated = (
        [text.decode() for text in attribute.strings]
        for node in graph.nodes
        if node.proto.domain == TORCH_DOMAIN and node.proto.op_type == EXPECT
        for attribute in node.proto.attribute
        if attribute.name == GUARDS
    )
    if (broken := broken_guard(next(stated, []), shapes)) is not None:
        guard, sizes = broken
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in sizes.items())
        raise ModelError(
            f"{graph.path}: was exported for inputs with {guard[:200]}, which {shown} does not"
            " fulfil; give other sizes (--shape), or export it with such an example"
        )


def _asks_size(node: GraphNode) -> bool:
    return bool(node.proto.domain == TORCH_DOMAIN and node.proto.op_type == SIZE)
