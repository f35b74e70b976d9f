"""Tensors in JSON: numbers as text into arrays, checked before they are converted."""

import types
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.domain.profile import TensorSpec

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bytes": "BYTES",
}
"""numpy's name -> the protocol's. Strings (BYTES) belong to apps; models have numbers only."""

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is not the JSON asked for."""


class RequestError(Exception):
    """The request cannot be served as it stands; one sentence for the client."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Tensor:
    """A `TensorSpec` with everything that decoding needs at hand."""

    index: int
    name: str
    datatype: str
    dtype: np.dtype[Any]
    item_shape: list[int]
    item_count: int
    item_bytes: int
    rank: int


def tensor_of(index: int, spec: TensorSpec) -> Tensor:
    dtype = np.dtype(spec.dtype)
    return Tensor(
        index=index,
        name=spec.name,
        datatype=DATATYPES[spec.dtype],
        dtype=dtype,
        item_shape=list(spec.item_shape),
        item_count=spec.item_count,
        item_bytes=spec.item_count * dtype.itemsize,
        rank=len(spec.item_shape) + 1,
    )


def sized(spec: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of an app, whose shape has no batch dimension and may be open, as one of `shape`."""
    own = TensorSpec(name=spec.name, dtype=spec.dtype.name, item_shape=tuple(shape[1:]))
    return tensor_of(spec.index, own)


def read_json_tensor(
    name: str, shape: Sequence[int], data: msgspec.Raw, spec: Tensor, items: int
) -> NDArray[Any]:
    """Read a tensor's numbers, from a flat list or one nested as the shape is.

    Args:
        shape: (items, *item shape), checked already.
        data: any JSON value.

    Raises:
        RequestError: it is not as many numbers of the right kind as the shape needs.
    """
    needed = items * spec.item_count
    where = f"input {quoted(name)}: "
    text = bytes(data)
    # Commas part numbers and lists alike: a list of n numbers, nested or not, has n - 1. Checked
    # first, because a number takes 2 bytes as text and 32 as an object.
    if text.count(b",") != max(0, needed - 1):
        raise RequestError(f"{where}shape {shape_text(shape)} needs {needed} numbers in `data`")
    depth = 0
    for byte in text[: 4 * spec.rank + 64]:
        if byte == 0x5B:  # [
            depth += 1
        elif byte not in b" \t\r\n":
            break
    if depth not in (1, spec.rank):
        raise RequestError(f"{where}`data` must be a flat list, or nested as its shape is")
    try:
        values = msgspec.json.decode(text, type=_list_type(spec.dtype.kind, depth))
    except JSON_ERRORS as error:
        raise RequestError(f"{where}`data`: {error}") from error
    if depth > 1:
        values = _flatten(values, shape, where)
    if len(values) != needed:
        raise RequestError(f"{where}shape {shape_text(shape)} needs {needed} numbers in `data`")
    return _to_array(values, spec, where)


def _flatten(values: list[Any], shape: Sequence[int], where: str) -> list[Any]:
    """Undo the nesting, if it is the shape's."""
    for length in shape[1:]:
        if any(len(inner) != length for inner in values):
            raise RequestError(f"{where}`data` is nested otherwise than shape {shape_text(shape)}")
        values = list(chain.from_iterable(values))
    return values


def _to_array(values: list[Any], spec: Tensor, where: str) -> NDArray[Any]:
    if spec.dtype.kind in "iu":
        limits = np.iinfo(spec.dtype)
        if values and not (limits.min <= min(values) and max(values) <= limits.max):
            raise RequestError(f"{where}a number does not fit into {spec.datatype}")
        return np.array(values, dtype=spec.dtype)
    with np.errstate(over="ignore"):
        array = np.array(values, dtype=spec.dtype)
    if spec.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"{where}a number does not fit into {spec.datatype}")
    return array


_LIST_TYPES: dict[tuple[str, int], Any] = {}


def _list_type(kind: str, depth: int) -> Any:
    """`list[list[… float]]`; ranks come from models, so there are few."""
    known = _LIST_TYPES.get((kind, depth))
    if known is None:
        known = {"f": float, "i": int, "u": int, "b": bool}[kind]
        for _ in range(depth):
            known = types.GenericAlias(list, (known,))
        _LIST_TYPES[kind, depth] = known
    return known


def check_bools(name: str, data: memoryview) -> None:
    if data.nbytes and int(np.frombuffer(data, dtype=np.uint8).max()) > 1:
        raise RequestError(f"input {quoted(name)}: a BOOL is one byte, 0 or 1")


def quoted(text: str) -> str:
    """A client's text in an error message: short, and free of control characters."""
    return ascii(text if len(text) <= 64 else text[:61] + "...")


def shape_text(dims: Sequence[int]) -> str:
    shown = [str(dim) if abs(dim) < 1 << 64 else "..." for dim in dims[:8]]
    return "[" + ", ".join(shown + (["..."] if len(dims) > 8 else [])) + "]"
