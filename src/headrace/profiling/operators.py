"""How many floating-point operations each ONNX operator needs, and of which kind it is."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

OperatorClass = Literal["conv3x3", "conv", "grouped", "matmul", "memory"]
"""conv3x3  3x3, stride 1, undilated, ungrouped: the one for which runtimes know Winograd
conv     all other ungrouped convolutions, and transposed ones
grouped  grouped and depthwise convolutions
matmul   matrix products and recurrent layers
memory   everything else: bound by the bytes it moves
"""

CLASSES: tuple[OperatorClass, ...] = ("conv3x3", "conv", "grouped", "matmul", "memory")


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEAVY = _named("Conv ConvTranspose Einsum Gemm MatMul")
"""Operators that take epilogues."""

POINTWISE = _named(
    """
    Abs Add BatchNormalization BitShift Cast Ceil Celu Clip Cos Div Dropout Elu Equal Erf Exp
    Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish LeakyRelu Less LessOrEqual Log Max
    Mean Min Mish Mod Mul Neg Not Or And Xor Pow PRelu Reciprocal Relu Round Selu Sigmoid Sign
    Sin Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where QuantizeLinear
    DequantizeLinear
    """
)
"""Element by element: a chain of them is one kernel."""

EPILOGUES = _named("Add BatchNormalization Cast Clip Dropout LeakyRelu PRelu Relu")
"""Pointwise operators that a convolution or matrix product applies to its result on the way out:
biases, residual sums and piecewise linear activations. Sigmoids, GELUs and norms are kernels of
their own in the runtimes we know."""

RENAMING = _named("Flatten Identity Reshape Squeeze Unsqueeze")
"""The same bytes under another shape: free."""

PICKING = _named("Gather GatherElements GatherND Slice")
"""What reads of its first input as much as it writes, such as a few rows of a table of words."""

UNCOUNTED = _named(
    """
    ConvInteger MatMulInteger QLinearConv QLinearMatMul DeformConv If Loop Scan Attention
    GridSample RoiAlign NonMaxSuppression STFT DFT
    """
)
"""Operators with work beyond the bytes they move for which there is no rule here."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class TensorSize(NamedTuple):
    """Shape of one tensor at some batch size."""

    itemsize: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.itemsize * self.elements


Sizes = Mapping[str, TensorSize]
"""Tensor name -> its size; initialisers included."""


def classify(node: Any, sizes: Sizes) -> OperatorClass:
    """The class of an operator that is not pointwise."""
    match node.op_type:
        case "Conv":
            return _conv_class(node, sizes)
        case "ConvTranspose":
            return "conv" if _int(node, "group", 1) == 1 else "grouped"
        case "Gemm" | "MatMul" | "Einsum" | "LSTM" | "GRU" | "RNN":
            return "matmul"
        case _:
            return "memory"


def flops(node: Any, sizes: Sizes) -> int:
    """Floating-point operations of one node; a multiplication and an addition are two.

    Operators of class "memory" count none: their bytes bound them.

    Args:
        node: an ONNX NodeProto.
        sizes: its tensors at the batch size in question; absent ones count as empty.
    """
    read = [sizes.get(name, _NOTHING) for name in node.input]
    made = sizes.get(node.output[0], _NOTHING) if node.output else _NOTHING
    match node.op_type:
        case "Conv":
            # weights [out, in / group, kernel...]: each output element takes in/group x kernel
            return 2 * made.elements * math.prod(read[1].shape[1:])
        case "ConvTranspose":
            # weights [in, out / group, kernel...]: each input element is spread over them
            return 2 * read[0].elements * math.prod(read[1].shape[1:])
        case "Gemm":
            depth = read[0].shape[0 if _int(node, "transA", 0) else -1] if read[0].shape else 0
            return 2 * made.elements * depth
        case "MatMul":
            return 2 * made.elements * (read[0].shape[-1] if read[0].shape else 0)
        case "Einsum":
            return _einsum_flops(node, read)
        case "LSTM" | "GRU" | "RNN":
            return _recurrent_flops(node, read)
        case _:
            return 0


def _conv_class(node: Any, sizes: Sizes) -> OperatorClass:
    if _int(node, "group", 1) != 1:
        return "grouped"
    kernel = sizes.get(node.input[1], _NOTHING).shape[2:]
    steps = {*_ints(node, "strides"), *_ints(node, "dilations")}
    return "conv3x3" if kernel == (3, 3) and steps <= {1} else "conv"


def _einsum_flops(node: Any, read: list[TensorSize]) -> int:
    """The product of all distinct dimensions, as one contraction; no ellipsis."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
    terms = equation.replace(" ", "").split("->")[0].split(",")
    dims: dict[str, int] = {}
    for term, size in zip(terms, read, strict=True):
        dims.update(zip(term, size.shape, strict=False))
    return 2 * math.prod(dims.values())


def _recurrent_flops(node: Any, read: list[TensorSize]) -> int:
    """input [steps, batch, width], recurrent weights [directions, gates x hidden, hidden]."""
    if len(read[0].shape) != 3 or len(read[2].shape) != 3:
        return 0
    steps, batch, width = read[0].shape
    directions, _, hidden = read[2].shape
    gates = _GATES[node.op_type]
    return 2 * steps * batch * directions * gates * hidden * (width + hidden)


def _int(node: Any, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _ints(node: Any, name: str) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), [])


_NOTHING = TensorSize(0, ())
"""`math.prod(())` is 1, but no formula multiplies only this: an unknown tensor counts one
element of no bytes."""
