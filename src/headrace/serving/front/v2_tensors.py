"""Tensors in JSON: numbers as text into arrays, checked before they are converted."""

import types
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.domain.elements import raw
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import (
    FLOATS,
    InvalidError,
    TensorLayout,
    layout_of,
    quoted,
    shape_text,
)

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is not the JSON asked for."""


def sized(spec: TensorLayout, shape: Sequence[int]) -> TensorLayout:
    """A tensor of an app, whose shape has no batch dimension and may be open, as one of `shape`."""
    own = TensorSpec(name=spec.name, dtype=spec.dtype.name, item_shape=tuple(shape[1:]))
    return layout_of(spec.index, own)


def read_json_tensor(
    name: str, shape: Sequence[int], data: msgspec.Raw, spec: TensorLayout, items: int
) -> NDArray[Any]:
    """Read a tensor's numbers, from a flat list or one nested as the shape is.

    Args:
        shape: (items, *item shape), checked already.
        data: any JSON value.

    Raises:
        InvalidError: it is not as many numbers of the right kind as the shape needs.
    """
    needed = items * spec.item_count
    where = f"input {quoted(name)}: "
    text = bytes(data)
    # Commas part numbers and lists alike: a list of n numbers, nested or not, has n - 1. Checked
    # first, because a number takes 2 bytes as text and 32 as an object.
    if text.count(b",") != max(0, needed - 1):
        raise InvalidError(f"{where}shape {shape_text(shape)} needs {needed} numbers in `data`")
    depth = 0
    for byte in text[: 4 * spec.rank + 64]:
        if byte == 0x5B:  # [
            depth += 1
        elif byte not in b" \t\r\n":
            break
    if depth not in (1, spec.rank):
        raise InvalidError(f"{where}`data` must be a flat list, or nested as its shape is")
    try:
        kind: type = float if spec.datatype in FLOATS else bool if spec.dtype.kind == "b" else int
        values = msgspec.json.decode(text, type=list_type(kind, depth))
    except JSON_ERRORS as error:
        raise InvalidError(f"{where}`data`: {error}") from error
    if depth > 1:
        values = flatten(values, shape, where)
    if len(values) != needed:
        raise InvalidError(f"{where}shape {shape_text(shape)} needs {needed} numbers in `data`")
    return _to_array(values, spec, where)


def flatten(values: list[Any], shape: Sequence[int], where: str) -> list[Any]:
    """Undo the nesting, if it is the shape's."""
    for length in shape[1:]:
        if any(len(inner) != length for inner in values):
            raise InvalidError(f"{where}`data` is nested otherwise than shape {shape_text(shape)}")
        values = list(chain.from_iterable(values))
    return values


def _to_array(values: list[Any], spec: TensorLayout, where: str) -> NDArray[Any]:
    if spec.dtype.kind in "iu":
        limits = np.iinfo(spec.dtype)
        if values and not (limits.min <= min(values) and max(values) <= limits.max):
            raise InvalidError(f"{where}a number does not fit into {spec.datatype}")
        return np.array(values, dtype=spec.dtype)
    with np.errstate(over="ignore"):
        array = np.array(values, dtype=spec.dtype)
    if spec.datatype in FLOATS and not np.isfinite(array).all():
        raise InvalidError(f"{where}a number does not fit into {spec.datatype}")
    return raw(array) if spec.datatype == "BF16" else array


@cache
def list_type(kind: type, depth: int) -> Any:
    """`list[list[… float]]`; ranks come from models, so there are few."""
    nested: Any = kind
    for _ in range(depth):
        nested = types.GenericAlias(list, (nested,))
    return nested
