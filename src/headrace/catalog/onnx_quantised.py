"""Cuts at tensors of 8-bit integers, kept so that ONNX Runtime rounds as in the whole model.

Of a model quantised by QDQ, ONNX Runtime computes an operator between its DequantizeLinear and
QuantizeLinear in integers. On x86 its integer kernels take uint8, and it makes a pair of int8 one
of uint8 where nothing else reads what is between the two:

    op -> Q -> x (int8, zero point z) -> DQ -> op      becomes      x (uint8, z + 128)

A cut parts such a pair, and a half of a pair stays as it is: the operator beside it would be
computed in floats and round otherwise, now and then by one step. So such a tensor travels as uint8,
and both stages have their half as ONNX Runtime would have made it.
"""

from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from headrace.catalog.onnx_graph import GraphNode, OnnxGraph
from headrace.domain.tensors import TensorSpec

UNSIGNED_SUFFIX = "::uint8"
"""Behind the name of an int8 tensor that travels as uint8."""


def unsigned_spec(graph: OnnxGraph, spec: TensorSpec) -> TensorSpec:
    """How a cut tensor travels: as uint8 where ONNX Runtime would make its pair one of uint8."""
    if spec.dtype != "int8" or not _is_lone_pair(graph, spec.name):
        return spec
    return msgspec.structs.replace(spec, name=spec.name + UNSIGNED_SUFFIX, dtype="uint8")


def make_unsigned(model: Any, name: str) -> None:
    """Let the stage `model` (ModelProto) have the int8 tensor `name` as uint8, in place."""
    unsigned = name + UNSIGNED_SUFFIX
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] == name:
            node.output[0] = unsigned
        elif node.op_type == "DequantizeLinear" and node.input[0] == name:
            node.input[0] = unsigned
        else:
            continue
        zero = node.input[2]
        node.input[2] = f"{zero}{UNSIGNED_SUFFIX}"
        if node.input[2] not in held:
            shifted = numpy_helper.to_array(held[zero]).astype(np.int16) + 128
            held[node.input[2]] = numpy_helper.from_array(shifted.astype(np.uint8), node.input[2])
            model.graph.initializer.append(held[node.input[2]])
    for value in model.graph.value_info:
        if value.name == name:
            value.name, value.type.tensor_type.elem_type = unsigned, onnx.TensorProto.UINT8


def _is_lone_pair(graph: OnnxGraph, name: str) -> bool:
    """Whether a QuantizeLinear makes the tensor, and one operator alone reads what its one
    DequantizeLinear makes of it; both with a zero point that the file holds itself."""
    writers = [node for node in graph.nodes if name in node.writes]
    readers = _readers(graph, name)
    pair = [*writers, *readers]
    if [node.proto.op_type for node in pair] != ["QuantizeLinear", "DequantizeLinear"]:
        return False
    held = (graph.initialisers.get(zero) for node in pair for zero in node.proto.input[2:])
    zeros = [zero for zero in held if zero is not None and not zero.external_data]
    return len(zeros) == 2 and len(_readers(graph, readers[0].writes[0])) == 1


def _readers(graph: OnnxGraph, name: str) -> list[GraphNode]:
    return [node for node in graph.nodes if name in node.reads]
