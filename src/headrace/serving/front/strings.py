"""Strings (BYTES) as clients send them.

    binary   each string's length, 4 bytes, little-endian, and the string, in turn
    JSON     a list of texts, flat or nested as the shape is

Of a model each comes into a room of fixed size (`domain.elements`), and is text: UTF-8, as ONNX has
it. An app's are any bytes of any length.
"""

import math
import re
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

_TEXT = re.compile(rb'"[^"]*"')
"""In JSON without its escaped quotes."""
_HALF = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:"
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""In JSON, where a character beyond 16 bits is two escapes (UTF-16): one that stands alone."""


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
        InvalidError: it is not as many texts as the shape needs, or holds something else.
    """
    needed, text = math.prod(tensor.shape), bytes(data)
    # Counted first, because a text takes 3 bytes here and 50 as an object.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    # Where there are as many values as are needed, the one that is no text is named below.
    if texts > needed or (texts < needed and _TEXT.sub(b"", plain).count(b",") != needed - 1):
        raise wrong_count(tensor, texts)
    values = read_list(str, text, tensor.shape, tensor.name)
    if len(values) != needed:
        raise wrong_count(tensor, len(values))
    return [value.encode() for value in values]


def half_character(text: bytes) -> int | None:
    """Where in JSON half a character (a lone surrogate) stands first; None: nowhere."""
    found = _HALF.search(text)
    return None if found is None else found.start()


def without_halves(text: bytes) -> bytes:
    """JSON of the same length, with whole characters in their place."""
    return _HALF.sub(rb"\1\\ufffd", text)


def texts_before(text: bytes, at: int) -> int:
    """How many texts of JSON end before `at`, which lies in one."""
    return text[:at].replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2


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
