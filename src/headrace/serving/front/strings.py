"""Strings (BYTES) as clients send them.

    binary   each string's length, 4 bytes, little-endian, and the string, in turn
    JSON     a list of texts, flat or nested as the shape is

Of a model each comes into a room of fixed size (`domain.elements`), and is text: UTF-8, as ONNX has
it. An app's are any bytes of any length.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.domain.elements import LENGTH, pack, raw
from headrace.serving.core.signature import (
    GivenTensor,
    InvalidError,
    TensorLayout,
    quoted,
    shape_text,
)
from headrace.serving.front.v2_tensors import read_list


def split(tensor: GivenTensor, data: memoryview) -> list[bytes]:
    """A tensor's binary data as strings: at most one more than its shape has.

    Raises:
        InvalidError: a length is larger than what follows it.
    """
    found: list[bytes] = []
    at, needed = 0, math.prod(tensor.shape)
    while at < len(data) and len(found) <= needed:
        end = at + LENGTH.size
        length = LENGTH.unpack_from(data, at)[0] if end <= len(data) else len(data)
        if end + length > len(data):
            raise InvalidError(
                f"input {quoted(tensor.name)}: string {len(found)} (from 0) is cut off: its length"
                f" says more bytes than the {max(0, len(data) - end)} that follow"
            )
        found.append(bytes(data[end : end + length]))
        at = end + length
    return found


def from_json(tensor: GivenTensor, data: msgspec.Raw) -> list[bytes]:
    """A tensor's strings from a list of texts.

    Raises:
        InvalidError: it is not as many texts as the shape needs.
    """
    needed, text = math.prod(tensor.shape), bytes(data)
    # Counted first, because a text takes 3 bytes here and 50 as an object.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') != 2 * needed:
        raise wrong_count(tensor, plain.count(b'"') // 2)
    values = read_list(str, text, tensor.shape, tensor.name)
    return [value.encode() for value in values]


def in_rooms(tensor: GivenTensor, layout: TensorLayout, texts: Sequence[bytes]) -> NDArray[Any]:
    """A model's strings as the engine takes them: bytes, a room for each.

    Raises:
        InvalidError: there are others than the shape needs, or one is too long, or no text.
    """
    needed = math.prod(tensor.shape)
    if len(texts) != needed:
        raise wrong_count(tensor, len(texts))
    for number, text in enumerate(texts):
        where = f"input {quoted(tensor.name)}: string {number} (from 0)"
        if len(text) > layout.max_bytes:
            raise InvalidError(
                f"{where} has {len(text)} bytes, the model takes {layout.max_bytes} at most"
            )
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidError(
                f"{where} is not UTF-8: {error.reason} at byte {error.start}"
            ) from error
    rooms = np.zeros(needed, layout.dtype)
    pack(texts, rooms)
    return raw(rooms)


def as_objects(tensor: GivenTensor, texts: Sequence[bytes]) -> NDArray[Any]:
    """An app's strings, in the tensor's shape.

    Raises:
        InvalidError: there are others than the shape needs.
    """
    if len(texts) != math.prod(tensor.shape):
        raise wrong_count(tensor, len(texts))
    return np.array([*texts, None], dtype=object)[:-1].reshape(tensor.shape)


def wrong_count(tensor: GivenTensor, count: int) -> InvalidError:
    needed = math.prod(tensor.shape)
    got = count if count < needed else "more"
    return InvalidError(
        f"input {quoted(tensor.name)}: shape {shape_text(tensor.shape)} needs {needed} strings,"
        f" got {got}"
    )
