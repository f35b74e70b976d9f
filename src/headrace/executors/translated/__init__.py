"""ONNX's operators by PyTorch, for devices that ONNX Runtime is not installed for.

Each has one entry in a table of this package: from a node's attributes to a function of its inputs
(None where one is left out). An operator that is not here, an attribute that its entry does not ask
for, or a value of one that PyTorch computes otherwise is refused by name when the stage is opened:
no node is computed nearly.

Shapes (`HOST_ARGUMENTS`) come as tensors in the machine's own memory; see `torch_program`.
"""

from typing import Any

from headrace.executors.translated.attributes import Attributes, Function
from headrace.executors.translated.elements import ELEMENTS
from headrace.executors.translated.layers import LAYERS
from headrace.executors.translated.shapes import SHAPES

OPERATORS = {**ELEMENTS, **LAYERS, **SHAPES}

HOST_ARGUMENTS = {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Dropout": (2,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"), (1,)
    ),
}
"""Operator -> which of its inputs are read as numbers: shapes, axes, counts, what a pad is filled
with."""

SHAPE_MATHS = frozenset(
    "Abs Add Cast Ceil Concat ConstantOfShape Div Equal Expand Floor Gather Greater Identity Less"
    " Max Min Mod Mul Neg Not Range ReduceProd Reshape Slice Squeeze Sub Tile Unsqueeze"
    " Where".split()
)
"""What shapes are computed with."""


def onnx_operator(node: Any, opset: int, device: Any) -> Function:
    """What a node of ONNX's operator sets computes.

    Raises:
        ModelError: it is not served, or not with these attributes.
    """
    attributes = Attributes(node, opset, device)
    if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
        raise attributes.refused(f"of the set {node.domain or 'ai.onnx'!r}")
    function: Function = OPERATORS[node.op_type](attributes)
    attributes.require_all_asked()
    return function
