"""Operators that compute element by element."""

import functools
from collections.abc import Callable
from typing import Any

import onnx

from headrace.executors.translated.attributes import Attributes, Function


def _plain(name: str) -> Callable[[Attributes], Function]:
    """An operator without attributes that is a function of torch's."""

    def build(_: Attributes) -> Function:
        import torch

        function: Function = getattr(torch, name)
        return function

    return build


def _of_many(name: str) -> Callable[[Attributes], Function]:
    def build(_: Attributes) -> Function:
        import torch

        function = getattr(torch, name)
        return lambda *tensors: functools.reduce(function, tensors)

    return build


def _clip(at: Attributes) -> Function:
    low, high = at.get("min"), at.get("max")

    def clip(x: Any, least: Any = None, most: Any = None) -> Any:
        least, most = least if least is not None else low, most if most is not None else high
        for bound, name in ((least, "clamp_min"), (most, "clamp_max")):
            if bound is not None:
                x = getattr(x, name)(bound)
        return x

    return clip


def _cast(at: Attributes) -> Function:
    import torch

    names = {
        onnx.TensorProto.FLOAT: "float32",
        onnx.TensorProto.FLOAT16: "float16",
        onnx.TensorProto.DOUBLE: "float64",
        onnx.TensorProto.BFLOAT16: "bfloat16",
        onnx.TensorProto.BOOL: "bool",
        onnx.TensorProto.UINT8: "uint8",
        onnx.TensorProto.INT8: "int8",
        onnx.TensorProto.INT16: "int16",
        onnx.TensorProto.INT32: "int32",
        onnx.TensorProto.INT64: "int64",
    }
    kind = at.get("to")
    at.get("saturate")
    at.get("round_mode")
    if kind not in names:
        raise at.refused(f"to element type {kind}")
    dtype = getattr(torch, names[kind])
    return lambda x: x.to(dtype)


def _div(at: Attributes) -> Function:
    import torch

    def div(x: Any, y: Any) -> Any:
        return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")

    return div


def _mod(at: Attributes) -> Function:
    import torch

    function = torch.fmod if at.require("fmod", 0, 0, 1) else torch.remainder
    return lambda x, y: function(x, y)


def _dropout(at: Attributes) -> Function:
    at.get("ratio")
    at.get("seed")
    if len([name for name in at.node.output if name]) > 1:
        raise at.refused("with its mask as an output")

    def dropout(x: Any, ratio: Any = None, training: Any = None) -> Any:
        if training is not None and bool(training):
            raise at.refused("in training")
        return x

    return dropout


def _gelu(at: Attributes) -> Function:
    import torch.nn.functional as F

    how = at.require("approximate", "none", "none", "tanh")
    return lambda x: F.gelu(x, approximate=how)


def _leaky_relu(at: Attributes) -> Function:
    import torch.nn.functional as F

    slope = at.get("alpha", 0.01)
    return lambda x: F.leaky_relu(x, slope)


def _hard_sigmoid(at: Attributes) -> Function:
    alpha, beta = at.get("alpha", 0.2), at.get("beta", 0.5)
    return lambda x: (alpha * x + beta).clamp(0, 1)


def _elu(at: Attributes) -> Function:
    import torch.nn.functional as F

    alpha = at.get("alpha", 1.0)
    return lambda x: F.elu(x, alpha)


def _arg_max(at: Attributes) -> Function:
    axis, keep = at.get("axis", 0), bool(at.get("keepdims", 1))
    at.require("select_last_index", 0, 0)
    return lambda x: x.argmax(axis, keepdim=keep)


def _where(at: Attributes) -> Function:
    import torch

    function: Function = torch.where
    return function


def _pow(at: Attributes) -> Function:
    import torch

    return lambda x, y: torch.pow(x, y).to(x.dtype)


ELEMENTS: dict[str, Callable[[Attributes], Function]] = {
    **{
        kind: _plain(name)
        for kind, name in {
            "Abs": "abs",
            "Add": "add",
            "And": "logical_and",
            "Ceil": "ceil",
            "Cos": "cos",
            "Equal": "eq",
            "Erf": "erf",
            "Exp": "exp",
            "Floor": "floor",
            "Greater": "gt",
            "GreaterOrEqual": "ge",
            "Less": "lt",
            "LessOrEqual": "le",
            "Log": "log",
            "MatMul": "matmul",
            "Mul": "mul",
            "Neg": "neg",
            "Not": "logical_not",
            "Or": "logical_or",
            "Reciprocal": "reciprocal",
            "Relu": "relu",
            "Round": "round",
            "Sigmoid": "sigmoid",
            "Sign": "sign",
            "Sin": "sin",
            "Sqrt": "sqrt",
            "Sub": "sub",
            "Tanh": "tanh",
            "IsNaN": "isnan",
        }.items()
    },
    "ArgMax": _arg_max,
    "Cast": _cast,
    "Clip": _clip,
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda at: lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    "Identity": lambda at: lambda x: x,
    "LeakyRelu": _leaky_relu,
    "Max": _of_many("maximum"),
    "Min": _of_many("minimum"),
    "Mod": _mod,
    "PRelu": lambda at: lambda x, slope: x.where(x >= 0, x * slope),
    "Pow": _pow,
    "Sum": _of_many("add"),
    "Where": _where,
}
