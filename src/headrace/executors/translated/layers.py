"""Convolutions, pools, products, norms, reductions and what quantised models do."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from headrace.executors.translated.attributes import Attributes, Function, for_pad, ints


def _pads(at: Attributes, x: Any, kernel: Sequence[int], strides: Any, dilations: Any) -> list[int]:
    """Begins, then ends, of the spatial dimensions."""
    mode, pads = at.get("auto_pad", "NOTSET"), at.get("pads")
    n = len(kernel)
    if mode in ("NOTSET", ""):
        return list(pads) if pads else [0] * 2 * n
    if mode == "VALID":
        return [0] * 2 * n
    begins, ends = [], []
    for i in range(n):
        size = x.shape[2 + i]
        reach = dilations[i] * (kernel[i] - 1) + 1
        total = max((-(-size // strides[i]) - 1) * strides[i] + reach - size, 0)
        small = total // 2
        begins.append(small if mode == "SAME_UPPER" else total - small)
        ends.append(total - begins[-1])
    return begins + ends


def _conv(at: Attributes) -> Function:
    import torch.nn.functional as F

    strides, dilations, group = at.get("strides"), at.get("dilations"), at.get("group", 1)
    at.get("kernel_shape")
    _pads_asked(at)

    def conv(x: Any, w: Any, b: Any = None) -> Any:
        n = w.dim() - 2
        s, d = strides or [1] * n, dilations or [1] * n
        pads = _pads(at, x, w.shape[2:], s, d)
        if pads[:n] != pads[n:]:
            x, pads = F.pad(x, for_pad(pads)), [0] * 2 * n
        return (F.conv1d, F.conv2d, F.conv3d)[n - 1](x, w, b, s, pads[:n], d, group)

    return conv


def _pads_asked(at: Attributes) -> None:
    at.get("auto_pad")
    at.get("pads")


def _conv_transpose(at: Attributes) -> Function:
    import torch.nn.functional as F

    strides, dilations, group = at.get("strides"), at.get("dilations"), at.get("group", 1)
    at.get("kernel_shape")
    at.require("auto_pad", "NOTSET", "NOTSET")
    pads, extra = at.get("pads"), at.get("output_padding")

    def conv(x: Any, w: Any, b: Any = None) -> Any:
        n = w.dim() - 2
        p = list(pads) if pads else [0] * 2 * n
        if p[:n] != p[n:]:
            raise at.refused(f"with pads={p}")
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
        s, d = strides or [1] * n, dilations or [1] * n
        return function(x, w, b, s, p[:n], extra or [0] * n, group, d)

    return conv


def _max_pool(at: Attributes) -> Function:
    import torch.nn.functional as F

    kernel, n = at.get("kernel_shape"), len(at.get("kernel_shape"))
    strides, dilations = at.get("strides", [1] * n), at.get("dilations", [1] * n)
    at.require("ceil_mode", 0, 0)
    at.require("storage_order", 0, 0)
    _pads_asked(at)
    if at.get("auto_pad", "NOTSET") not in ("NOTSET", "") and any(d != 1 for d in dilations):
        # ONNX Runtime pads, and counts answers, as if there were none.
        raise at.refused("with auto_pad and dilations")
    if len(at.node.output) > 1:
        raise at.refused("with indices")
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]

    def pool(x: Any) -> Any:
        pads = _pads(at, x, kernel, strides, dilations)
        if any(pads):
            x = F.pad(x, for_pad(pads), value=float("-inf"))
        return function(x, kernel, strides, 0, dilations)

    return pool


def _average_pool(at: Attributes) -> Function:
    import torch.nn.functional as F

    kernel, n = at.get("kernel_shape"), len(at.get("kernel_shape"))
    strides = at.get("strides", [1] * n)
    at.require("ceil_mode", 0, 0)
    if any(dilation != 1 for dilation in at.get("dilations", [])):
        raise at.refused("with dilations")
    include = bool(at.get("count_include_pad", 0))
    _pads_asked(at)
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]

    def pool(x: Any) -> Any:
        pads = _pads(at, x, kernel, strides, [1] * n)
        if pads[:n] != pads[n:] and not include:
            raise at.refused(f"with pads={pads}")
        if include and any(pads):
            x, pads = F.pad(x, for_pad(pads)), [0] * 2 * n
        return function(x, kernel, strides, pads[:n], False, include)

    return pool


def _global_pool(name: str) -> Callable[[Attributes], Function]:
    return lambda at: lambda x: getattr(x, name)(list(range(2, x.dim())), keepdim=True)


def _batch_norm(at: Attributes) -> Function:
    import torch.nn.functional as F

    epsilon = at.get("epsilon", 1e-5)
    at.get("momentum")
    at.require("training_mode", 0, 0)
    at.require("spatial", 1, 1)
    return lambda x, scale, b, mean, var: F.batch_norm(x, mean, var, scale, b, False, 0.0, epsilon)


def _layer_norm(at: Attributes) -> Function:
    import torch.nn.functional as F

    axis, epsilon = at.get("axis", -1), at.get("epsilon", 1e-5)
    at.require("stash_type", 1, 1)
    if len([name for name in at.node.output if name]) > 1:
        raise at.refused("with its mean as an output")

    def norm(x: Any, scale: Any, b: Any = None) -> Any:
        shape = x.shape[axis % x.dim() :]
        if scale.shape == shape and (b is None or b.shape == shape):
            return F.layer_norm(x, shape, scale, b, epsilon)
        y = F.layer_norm(x, shape, eps=epsilon) * scale
        return y if b is None else y + b

    return norm


def _instance_norm(at: Attributes) -> Function:
    import torch

    epsilon = at.get("epsilon", 1e-5)
    # Not by `torch.nn.functional`, which takes one pixel for an error in training.
    return lambda x, scale, b: torch.instance_norm(
        x, scale, b, None, None, True, 0.0, epsilon, torch.backends.cudnn.enabled
    )


def _gemm(at: Attributes) -> Function:
    import torch

    alpha, beta = at.get("alpha", 1.0), at.get("beta", 1.0)
    trans_a, trans_b = at.get("transA", 0), at.get("transB", 0)

    def gemm(x: Any, w: Any, c: Any = None) -> Any:
        x, w = (x.t() if trans_a else x), (w.t() if trans_b else w)
        if c is None:
            return alpha * (x @ w) if alpha != 1.0 else x @ w
        return torch.addmm(c, x, w, beta=beta, alpha=alpha)

    return gemm


def _integer_product(at: Attributes) -> Function:
    """Exact in double precision: products of bytes, fewer than 2^37 of them."""
    import torch

    def product(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
        a, b = a.double(), b.double()
        if a_zero is not None:
            a = a - _per_row(a_zero)
        if b_zero is not None:
            b = b - b_zero.double()
        return (a @ b).to(torch.int32)

    return product


def _per_row(zero: Any) -> Any:
    return zero.double().unsqueeze(-1) if zero.dim() == 1 and zero.numel() > 1 else zero.double()


def _along(scale: Any, x: Any, axis: int) -> Any:
    """One value per index of a dimension, in the shape that it meets `x` in."""
    if scale.numel() == 1:
        return scale.reshape(())
    shape = [1] * x.dim()
    shape[axis] = scale.numel()
    return scale.reshape(shape)


def _quantize(at: Attributes) -> Function:
    import torch

    axis = at.get("axis", 1)
    at.get("saturate")
    at.require("block_size", 0, 0)
    at.require("output_dtype", 0, 0, onnx.TensorProto.UINT8, onnx.TensorProto.INT8)

    def quantize(x: Any, scale: Any, zero: Any = None) -> Any:
        dtype = torch.uint8 if zero is None else zero.dtype
        if dtype not in (torch.uint8, torch.int8):
            raise at.refused(f"to {dtype}")
        limits = torch.iinfo(dtype)
        y = torch.round(x / _along(scale, x, axis))
        if zero is not None:
            y = y + _along(zero, x, axis).to(y.dtype)
        return y.clamp(limits.min, limits.max).to(dtype)

    return quantize


def _dequantize(at: Attributes) -> Function:
    axis = at.get("axis", 1)
    at.require("block_size", 0, 0)

    def dequantize(x: Any, scale: Any, zero: Any = None) -> Any:
        y = x.to(scale.dtype)
        if zero is not None:
            y = y - _along(zero, x, axis).to(scale.dtype)
        return y * _along(scale, x, axis)

    return dequantize


def _dynamic_quantize(at: Attributes) -> Function:
    import torch

    def quantize(x: Any) -> tuple[Any, Any, Any]:
        least, most = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
        scale = (most - least) / 255.0
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        zero = torch.round((0.0 - least) / scale).clamp(0, 255)
        y = (torch.round(x / scale) + zero).clamp(0, 255)
        return y.to(torch.uint8), scale, zero.to(torch.uint8)

    return quantize


def _reduce(name: str) -> Callable[[Attributes], Function]:
    def build(at: Attributes) -> Function:
        stated, keep = at.get("axes"), bool(at.get("keepdims", 1))
        empty_is_all = not at.get("noop_with_empty_axes", 0)

        def reduce(x: Any, given: Any = None) -> Any:
            axes = ints(given) if given is not None else list(stated or ())
            if name in ("mean", "norm") and not x.is_floating_point():
                raise at.refused(f"of {x.dtype}")
            if not axes and not empty_is_all:
                return x.abs() if name == "norm" else x
            axes = [axis % x.dim() for axis in axes] or list(range(x.dim()))
            if name == "prod":
                for axis in sorted(axes, reverse=True):
                    x = x.prod(axis, keepdim=keep, dtype=x.dtype)
                return x
            if name == "norm":
                return x.norm(2, axes, keepdim=keep)
            if name == "sum":
                return x.sum(axes, keepdim=keep, dtype=x.dtype)
            return getattr(x, name)(axes, keepdim=keep)

        return reduce

    return build


def _softmax(name: str) -> Callable[[Attributes], Function]:
    def build(at: Attributes) -> Function:
        import torch

        axis = at.get("axis", -1 if at.opset >= 13 else 1)
        function = getattr(torch, name)

        def softmax(x: Any) -> Any:
            if at.opset >= 13 or axis % x.dim() == x.dim() - 1:
                return function(x, axis)
            # Earlier versions take all dimensions from the axis on together.
            return function(x.flatten(axis % x.dim()), -1).reshape(x.shape)

        return softmax

    return build


LAYERS: dict[str, Callable[[Attributes], Function]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool("mean"),
    "GlobalMaxPool": _global_pool("amax"),
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax("log_softmax"),
    "MatMulInteger": _integer_product,
    "MaxPool": _max_pool,
    "QuantizeLinear": _quantize,
    "ReduceL2": _reduce("norm"),
    "ReduceMax": _reduce("amax"),
    "ReduceMean": _reduce("mean"),
    "ReduceMin": _reduce("amin"),
    "ReduceProd": _reduce("prod"),
    "ReduceSum": _reduce("sum"),
    "Softmax": _softmax("softmax"),
}
