"""Outputs whose size depends on what is in the inputs: a detector's boxes.

Such an output gets room for the most that there may be, so that its memory is planned as any other,
and beside it goes a tensor with its true shape, by which the front cuts it back:

    x [n, 4], n <= 100     --Pad------> x [100, 4]        zeros behind the n
                           --Shape----> x::shape [2] = (n, 4)

Numbers of a type that ONNX Runtime's Pad does not take go through it as another that holds them.
A run that gives more than there is room for fails, and says so by the name of the last node.
"""

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from headrace.catalog.onnx_graph import GraphNode
from headrace.catalog.onnx_types import elem_type
from headrace.domain.tensors import VARIES, TensorSpec

SHAPE_SUFFIX = "::shape"
LEAST_OPSET = 11
"""Of ONNX, whose Pad takes how much as a tensor."""
_PADDED_AS = {"bool": "uint8", "int16": "int32", "uint16": "int32", "bfloat16": "float32"}
"""Of what Pad takes not at all, or in later operator sets only: bool from 13, bfloat16 from 21."""


def shape_spec(spec: TensorSpec) -> TensorSpec:
    """The tensor beside an output with room that holds its true shape."""
    return TensorSpec(
        name=spec.name + SHAPE_SUFFIX,
        dtype="int64",
        item_shape=(len(spec.item_shape),),
        shape_of=spec.name,
    )


def room_nodes(spec: TensorSpec, read: str, constants: dict[str, Any]) -> list[GraphNode]:
    """The nodes that make an output with room, and its true shape, from what the file makes.

    Args:
        spec: the output, of numbers; its varying dimensions are as long as there is room.
        read: what the file makes.
        constants: what the nodes need joins it.
    """
    rank = len(spec.item_shape)

    def part(name: str) -> str:
        return f"{spec.name}::{name}"

    def constant(name: str, values: list[int]) -> str:
        array = np.array(values, np.int64)
        constants[part(name)] = numpy_helper.from_array(array, part(name))
        return part(name)

    def node(kind: str, reads: tuple[str, ...], write: str, name: str = "", **more: Any) -> Any:
        proto = onnx.helper.make_node(kind, list(reads), [write], name=name, **more)
        return GraphNode(proto=proto, reads=reads, writes=(write,))

    room = constant("room", list(spec.item_shape))
    varies = constant("varies", [int(name == VARIES) for name in spec.dims])
    before = constant("before", [0] * rank)
    row, whole = constant("row", [1, rank]), constant("whole", [1, *spec.item_shape])
    size, lacking, open_, behind, pads, filled = map(
        part, ("size", "lacking", "open", "behind", "pads", "filled")
    )

    def cast(reads: str, write: str, dtype: str) -> Any:
        return node("Cast", (reads,), write, to=elem_type(dtype))

    pad_as = _PADDED_AS.get(spec.dtype)
    if pad_as is None:
        padding = [node("Pad", (read, pads), filled)]
    else:
        held, wide = part("held"), part("wide")
        padding = [
            cast(read, held, pad_as),
            node("Pad", (held, pads), wide),
            cast(wide, filled, spec.dtype),
        ]
    return [
        node("Shape", (read,), size),
        node("Reshape", (size, row), shape_spec(spec).name),
        node("Sub", (room, size), lacking),
        node("Mul", (lacking, varies), open_),
        # Of what is too long the opposite is added, so that it does not fit at the end.
        node("Abs", (open_,), behind),
        node("Concat", (before, behind), pads, axis=0),
        *padding,
        node("Reshape", (filled, whole), spec.name, f"more of {spec.name} than --max-output says"),
    ]
