"""Operators that move, cut, join and fill tensors without computing with them."""

from collections.abc import Callable
from typing import Any

from onnx import numpy_helper

from headrace.executors.translated.attributes import Attributes, Function, for_pad, ints


def _reshape(at: Attributes) -> Function:
    keep_zero = at.get("allowzero", 0)

    def reshape(x: Any, shape: Any) -> Any:
        wanted = ints(shape)
        if not keep_zero:
            wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
        try:
            return x.reshape(wanted)
        except RuntimeError as error:
            # As ONNX Runtime says it: a name may tell what to do (`onnx_rooms`).
            raise RuntimeError(f"Reshape {at.name!r}: {error}") from error

    return reshape


def _squeeze(at: Attributes) -> Function:
    stated = at.get("axes")

    def squeeze(x: Any, given: Any = None) -> Any:
        axes = ints(given) if given is not None else stated
        return x.squeeze() if axes is None else x.squeeze(tuple(axes))

    return squeeze


def _unsqueeze(at: Attributes) -> Function:
    stated = at.get("axes")

    def unsqueeze(x: Any, given: Any = None) -> Any:
        axes = ints(given) if given is not None else stated
        rank = x.dim() + len(axes)
        for axis in sorted(axis % rank for axis in axes):
            x = x.unsqueeze(axis)
        return x

    return unsqueeze


def _slice(at: Attributes) -> Function:
    import torch

    stated = at.get("starts"), at.get("ends"), at.get("axes")

    def cut(
        x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
    ) -> Any:
        begin, end, along = (
            ints(given) if given is not None else list(other) if other is not None else None
            for given, other in zip((starts, ends, axes), stated, strict=True)
        )
        assert begin is not None
        assert end is not None
        along = list(range(len(begin))) if along is None else along
        stride = ints(steps) if steps is not None else [1] * len(begin)
        for first, last, axis, step in zip(begin, end, along, stride, strict=True):
            size = x.shape[axis]
            # A start before the first element is the first, also of a slice that goes backwards.
            places = range(size)[max(first, -size) : last : step]
            if step > 0:
                x = x.narrow(axis, places.start, max(0, places.stop - places.start))
                x = x[(slice(None),) * (axis % x.dim()) + (slice(None, None, step),)]
            elif places:
                chosen = torch.arange(places.start, places.stop, step, device=x.device)
                x = x.index_select(axis, chosen)
            else:
                x = x.narrow(axis, 0, 0)
        return x

    return cut


def _gather(at: Attributes) -> Function:
    axis = at.get("axis", 0)

    def gather(x: Any, indices: Any) -> Any:
        size = x.shape[axis]
        flat = indices.reshape(-1).long()
        taken = x.index_select(axis, flat.where(flat >= 0, flat + size))
        dim = axis % x.dim()
        return taken.reshape((*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))

    return gather


def _gather_elements(at: Attributes) -> Function:
    axis = at.get("axis", 0)

    def gather(x: Any, indices: Any) -> Any:
        indices = indices.long()
        return x.gather(axis, indices.where(indices >= 0, indices + x.shape[axis]))

    return gather


def _split(at: Attributes) -> Function:
    axis, stated = at.get("axis", 0), at.get("split")
    at.get("num_outputs")
    count = len(at.node.output)

    def split(x: Any, given: Any = None) -> Any:
        sizes = ints(given) if given is not None else stated
        return x.split(list(sizes) if sizes else -(-x.shape[axis] // count), axis)

    return split


def _pad(at: Attributes) -> Function:
    import torch.nn.functional as F

    mode = at.require("mode", "constant", "constant", "reflect", "edge")
    stated, filling = at.get("pads"), at.get("value", 0.0)

    def pad(x: Any, given: Any = None, value: Any = None, axes: Any = None) -> Any:
        pads = ints(given) if given is not None else list(stated)
        if axes is not None:
            n, named = x.dim(), ints(axes)
            spread = [0] * 2 * n
            for i, axis in enumerate(named):
                spread[axis % n], spread[n + axis % n] = pads[i], pads[len(named) + i]
            pads = spread
        order = for_pad(pads)
        if mode == "constant":
            return F.pad(x, order, value=float(value) if value is not None else filling)
        while order and order[-2:] == [0, 0]:
            order = order[:-2]
        if len(order) not in (2 * (x.dim() - 2), 2 * (x.dim() - 1)) or min(order, default=0) < 0:
            raise at.refused(f"with pads={pads}")
        return F.pad(x, order, mode="replicate" if mode == "edge" else "reflect")

    return pad


def _resize(at: Attributes) -> Function:
    import torch.nn.functional as F

    mode = at.require("mode", "nearest", "nearest", "linear")
    how = at.get("coordinate_transformation_mode", "half_pixel")
    rounding = at.get("nearest_mode", "round_prefer_floor")
    at.require("antialias", 0, 0)
    at.require("exclude_outside", 0, 0)
    at.get("cubic_coeff_a")
    at.get("extrapolation_value")
    at.require("keep_aspect_ratio_policy", "stretch", "stretch")
    if mode == "nearest" and (how, rounding) != ("asymmetric", "floor"):
        raise at.refused(f"of the nearest by {how}, {rounding}")
    if mode == "linear" and how not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise at.refused(f"by {how}")

    def resize(x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
        if sizes is not None and sizes.numel():
            whole = ints(sizes)
        else:
            exact = [n * f for n, f in zip(x.shape, scales.tolist(), strict=True)]
            whole = [int(size) for size in exact]
            if exact != whole:
                raise at.refused("by scales that do not give whole sizes")
        size = whole[2:]
        if whole[:2] != list(x.shape[:2]):
            raise at.refused("of the batch or the channels")
        if how == "pytorch_half_pixel" and 1 in size:
            raise at.refused(f"to {size}")
        if mode == "nearest":
            return F.interpolate(x, size=size, mode="nearest")
        kind = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.dim()]
        return F.interpolate(x, size=size, mode=kind, align_corners=how == "align_corners")

    return resize


def _constant_of_shape(at: Attributes) -> Function:
    import torch

    tensor = at.get("value")
    filling = torch.zeros(1) if tensor is None else torch.tensor(numpy_helper.to_array(tensor))
    dtype, value = filling.dtype, filling.item()
    device = at.device
    return lambda shape: torch.full(ints(shape), value, dtype=dtype, device=device)


def _range(at: Attributes) -> Function:
    import torch

    device = at.device

    def arange(start: Any, end: Any, step: Any) -> Any:
        numbers = start.item(), end.item(), step.item()
        return torch.arange(*numbers, dtype=start.dtype, device=device)

    return arange


def _shape(at: Attributes) -> Function:
    import torch

    start, end = at.get("start", 0), at.get("end")
    return lambda x: torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


def _flatten(at: Attributes) -> Function:
    axis = at.get("axis", 1)

    def flatten(x: Any) -> Any:
        rows = 1
        for size in x.shape[: axis % x.dim() if axis < 0 else axis]:
            rows *= size
        return x.reshape(rows, -1)

    return flatten


def _transpose(at: Attributes) -> Function:
    order = at.get("perm")
    return lambda x: x.permute(order if order is not None else list(range(x.dim()))[::-1])


def _concat(at: Attributes) -> Function:
    import torch

    axis = at.get("axis")
    return lambda *tensors: torch.cat(tensors, axis)


def _expand(at: Attributes) -> Function:
    import torch

    return lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(ints(shape))))


def _cum_sum(at: Attributes) -> Function:
    at.require("exclusive", 0, 0)
    at.require("reverse", 0, 0)
    return lambda x, axis: x.cumsum(int(axis), dtype=x.dtype)


def _tril(at: Attributes) -> Function:
    import torch

    function = torch.triu if at.get("upper", 1) else torch.tril
    return lambda x, k=None: function(x, 0 if k is None else int(k))


def _tile(at: Attributes) -> Function:
    return lambda x, repeats: x.tile(tuple(ints(repeats)))


SHAPES: dict[str, Callable[[Attributes], Function]] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cum_sum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _tril,
    "Unsqueeze": _unsqueeze,
}
