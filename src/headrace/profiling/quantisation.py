"""How a model is quantised: why it may answer differently although nothing is wrong."""

from typing import Literal

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_inner import every_node

Quantisation = Literal["quantised dynamically", "quantised", "quantised in its weights"]
"""Scales of activations are found in each run, of a whole tensor and so of the whole batch; or are
fixed; or there are none in the file."""


def quantisation(graph: OnnxGraph) -> Quantisation | None:
    """None: it is not quantised."""
    kinds = {node.op_type for node in every_node(graph)}
    if any(kind.startswith("DynamicQuantize") for kind in kinds):
        return "quantised dynamically"
    if "QuantizeLinear" in kinds:
        return "quantised"
    return "quantised in its weights" if "DequantizeLinear" in kinds else None
