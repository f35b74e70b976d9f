"""What an app's code gives, in the data type that is declared: the same values, or an error.

Numbers may come as any type of numbers, and are rounded where the declared type is the coarser one:
float64 or int64 for float32. What would become another value is refused: 300 for uint8, a float for
an integer, 1e300 for float32 (infinity); and so is what is no real number: complex numbers, dates,
texts.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.domain.elements import element_dtype
from headrace.domain.tensors import TensorSpec


class UnfitValueError(ValueError):
    """A value is not of the declared type, and cannot become so unchanged."""


def converted(role: str, spec: TensorSpec, value: ArrayLike) -> NDArray[Any]:
    """A contiguous array of the declared type, of the value's own shape; a number alone has one
    dimension. "bytes" are `bytes` objects: of texts, `bytes`, `bytearray`, `memoryview`, and
    one-dimensional uint8 arrays.

    Args:
        role: what the tensor is, for messages: "output".

    Raises:
        UnfitValueError: a value does not fit.
        ValueError: nested lists are not of one shape.
    """
    if spec.dtype == "bytes":
        return _strings(role, spec, value)
    given, wanted = np.asarray(value), element_dtype(spec)
    if given.dtype == object and given.size:
        # Python's numbers: in the type that holds them all, where there is one.
        given = np.array(given.tolist())
    if not given.size or np.can_cast(given.dtype, wanted):
        return np.ascontiguousarray(given, dtype=wanted)
    if given.dtype.kind not in "biu" and (wanted.kind in "biu" or not _is_float(given.dtype)):
        raise UnfitValueError(_told(role, spec, given.dtype))
    if wanted.kind in "biu":
        low, high = int(given.min()), int(given.max())
        least, most = (0, 1) if wanted.kind == "b" else (np.iinfo(wanted).min, np.iinfo(wanted).max)
        if low < least or high > most:
            raise UnfitValueError(_told(role, spec, low if low < least else high))
    # bfloat16 overflows without a floating-point error.
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(given, dtype=wanted)
    infinite = np.isinf(made)
    if infinite.any() and np.isfinite(given[infinite.reshape(given.shape)]).any():
        raise UnfitValueError(_told(role, spec, f"{given.dtype} out of range"))
    return made


def _told(role: str, spec: TensorSpec, given: object) -> str:
    return f"{role} {spec.name!r}: {given} where {spec.dtype} is declared"


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _strings(role: str, spec: TensorSpec, value: Any) -> NDArray[Any]:
    array = np.array(_with_buffers_whole(value), dtype=object)
    for text in array.ravel():
        if not (isinstance(text, str | bytes) or _is_buffer(text)):
            raise UnfitValueError(_told(role, spec, type(text).__name__))
    flat = [text.encode() if isinstance(text, str) else bytes(text) for text in array.ravel()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(array.shape)


def _with_buffers_whole(value: Any) -> Any:
    """Nested lists in which numpy finds no bytes to take apart."""
    if isinstance(value, list | tuple):
        return [_with_buffers_whole(one) for one in value]
    return bytes(value) if _is_buffer(value) else value


def _is_buffer(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 1
    return isinstance(value, bytearray | memoryview)
