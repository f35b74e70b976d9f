"""Tensors in JSON: numbers as text into arrays, checked before they are converted; and back."""

import math
import types
from collections.abc import Sequence
from functools import cache
from itertools import chain
from math import nextafter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.domain.base import JSON_ERRORS
from headrace.domain.elements import raw
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import (
    FLOATS,
    InvalidError,
    TensorLayout,
    layout_of,
    not_finite,
    quoted,
    shape_text,
)
from headrace.serving.front.v2_answers import AT_ONCE_BYTES, JsonValues, large_values

_FEW = 128
"""So many floats are compared sooner one by one than numpy is asked to look out for them."""

_SMALL_BYTES = AT_ONCE_BYTES // 16
"""So much in memory is no more than AT_ONCE_BYTES of text: a number of 2 bytes has at most 25."""


def sized(spec: TensorLayout, shape: Sequence[int]) -> TensorLayout:
    """A tensor of an app, whose shape has no batch dimension and may be open, as one of `shape`."""
    own = TensorSpec(name=spec.name, dtype=spec.dtype.name, item_shape=tuple(shape[1:]))
    return layout_of(spec.index, own)


def read_json_tensor(
    name: str, shape: Sequence[int], data: msgspec.Raw, spec: TensorLayout, items: int
) -> NDArray[Any]:
    """Read a tensor's numbers: a flat list, one nested as the shape is, or one bare number of none.

    Args:
        shape: (items, *item shape), checked already.
        data: any JSON value.

    Raises:
        InvalidError: it is not as many numbers of the right kind as the shape needs.
    """
    needed = items * spec.item_count
    text = bytes(data)
    # Commas part numbers and lists alike: a list of n numbers, nested or not, has n - 1. Checked
    # first, because a number takes 2 bytes as text and 32 as an object.
    if needed and text.count(b",") != needed - 1:
        raise _wrong_count(name, shape, needed)
    kind: type = float if spec.datatype in FLOATS else bool if spec.dtype.kind == "b" else int
    values = read_list(kind, text, shape, name)
    if len(values) != needed:
        raise _wrong_count(name, shape, needed)
    return _to_array(values, spec, name)


def _wrong_count(name: str, shape: Sequence[int], needed: int) -> InvalidError:
    return InvalidError(
        f"input {quoted(name)}: shape {shape_text(shape)} needs {needed} numbers in `data`"
    )


def read_list(kind: type, text: bytes, shape: Sequence[int], name: str) -> list[Any]:
    """The values of `data`: flat, nested as `shape` is, or a bare one of no dimensions.

    Args:
        text: any JSON value; of one of a shape with elements the caller has bounded how many.

    Raises:
        InvalidError: it is another, or holds values of another kind.
    """
    nested = list(shape)
    if 0 in nested:  # as `tolist` has it: nothing stands behind a dimension of length 0
        del nested[nested.index(0) + 1 :]
        if text.count(b",") >= math.prod(nested[:-1]):
            raise _nested_otherwise(name, shape)
    depth = text[: len(text) - len(text.lstrip(b"[ \t\r\n"))].count(b"[")
    if depth not in (1, len(nested)):
        sentence = f"input {quoted(name)}: `data` must be a flat list, or nested as its shape is"
        raise InvalidError(sentence)
    try:
        values = _list_decoder(kind, depth).decode(text)
    except JSON_ERRORS as error:
        raise InvalidError(f"input {quoted(name)}: `data`: {error}") from error
    if depth == 0:  # the one value of a tensor without dimensions, as `tolist` gives it
        return [values]
    return values if depth == 1 else _flatten(values, nested, name)


def _flatten(values: list[Any], shape: Sequence[int], name: str) -> list[Any]:
    """Undo the nesting, if it is the shape's."""
    fits = len(values) == shape[0]
    for length in shape[1:]:
        if not fits or any(len(inner) != length for inner in values):
            raise _nested_otherwise(name, shape)
        values = list(chain.from_iterable(values))
    return values


def _nested_otherwise(name: str, shape: Sequence[int]) -> InvalidError:
    return InvalidError(
        f"input {quoted(name)}: `data` is nested otherwise than shape {shape_text(shape)}"
    )


def _to_array(values: list[Any], spec: TensorLayout, name: str) -> NDArray[Any]:
    kind, fits = spec.dtype.kind, True
    if kind in "iu" or (kind == "f" and len(values) <= _FEW):
        least, most = _limits(spec.dtype)
        if not values or (least <= min(values) and max(values) <= most):
            return np.array(values, dtype=spec.dtype)
        fits = False
    with np.errstate(over="ignore"):
        array = np.array(values, dtype=spec.dtype) if fits else None
    if array is None or (spec.datatype in FLOATS and not np.isfinite(array).all()):
        raise InvalidError(f"input {quoted(name)}: a number does not fit into {spec.datatype}")
    return raw(array) if spec.datatype == "BF16" else array


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The least and the largest number of which it has a finite one."""
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return whole.min, whole.max
    info = np.finfo(dtype)
    # What lies half a step beyond its largest one is rounded to infinity.
    half_step = float(info.eps) * 2.0 ** (int(info.maxexp) - 2)
    most = nextafter(float(info.max) + half_step, 0.0)
    return -most, most


def write_json_tensor(
    spec: TensorLayout, data: memoryview, items: int, most_bytes: int
) -> bytes | JsonValues:
    """What the engine gave, as a flat list.

    Raises:
        InvalidError: a large one may have more than `most_bytes` as text; a number is NaN or
            infinite, or a string of few is not UTF-8; of many that is found when they are written
            (`JsonTexts.pieces`).
    """
    if data.nbytes > _SMALL_BYTES:
        large = large_values(spec.as_array(data, items), spec.listed, spec.name, most_bytes)
        if large is not None:
            if spec.datatype in FLOATS and not np.isfinite(large.flat).all():
                raise not_finite(spec.name)
            return large
    text = msgspec.json.encode(spec.as_values(data, items))
    # Those are written as null, and nothing else in a list of numbers has such a letter.
    if spec.datatype in FLOATS and b"n" in text:
        raise not_finite(spec.name)
    return text


@cache
def _list_decoder(kind: type, depth: int) -> msgspec.json.Decoder[Any]:
    """Of `list[list[… float]]`; ranks come from models, so there are few."""
    nested: Any = kind
    for _ in range(depth):
        nested = types.GenericAlias(list, (nested,))
    return msgspec.json.Decoder(nested)
