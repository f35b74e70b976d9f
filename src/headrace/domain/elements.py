"""One element of a tensor in memory, of the same size whatever the tensor holds.

    number   itself
    string   its length, 4 bytes, little-endian | its bytes | the rest of its room

A string has room for the longest that its tensor allows (`TensorSpec.max_bytes`), so that strings
lie in memory, travel and are batched as numbers do: a tensor's size follows from its shape alone.
In numpy a string's element is a record of `length` and `room`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.tensors import TensorSpec

LENGTH = Struct("<I")
NEUTRAL = b"0"
"""What stands for a string where any will do: it can be split into words, and read as a number."""


def element_dtype(spec: TensorSpec) -> np.dtype[Any]:
    """
    Raises:
        TypeError: the tensor has a type that does not exist.
    """
    if spec.dtype == "bytes":
        return np.dtype([("length", "<u4"), ("room", f"V{spec.max_bytes}")])
    return number_dtype(spec.dtype)


def number_dtype(name: str) -> np.dtype[Any]:
    """Of a tensor of numbers.

    Raises:
        TypeError: there is no such type.
    """
    if name == "bfloat16":
        import ml_dtypes  # comes with onnx; numpy has no such type of its own

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def item_bytes(spec: TensorSpec) -> int:
    """Of one item in memory."""
    return spec.item_count * element_dtype(spec).itemsize


def is_text(array: NDArray[Any]) -> bool:
    """Whether its elements are strings, each in its room."""
    return array.dtype.names is not None


def raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of a C-contiguous array, which share its memory."""
    return array.reshape(-1).view(np.uint8)


def pack(texts: Sequence[bytes], rooms: NDArray[Any]) -> None:
    """Put one string into each room of a C-contiguous array.

    Raises:
        ValueError: one is longer than its room, or there is not one for each.
    """
    if len(texts) != rooms.size:
        raise ValueError(f"{len(texts)} strings for {rooms.size} places")
    memory, width = raw(rooms).data, rooms.dtype.itemsize
    for index, text in enumerate(texts):
        start = index * width + LENGTH.size
        if LENGTH.size + len(text) > width:
            raise ValueError(
                f"a string of {len(text)} bytes; there is room for {width - LENGTH.size}"
            )
        LENGTH.pack_into(memory, index * width, len(text))
        memory[start : start + len(text)] = text


def unpack(rooms: NDArray[Any]) -> list[bytes]:
    """The strings of a C-contiguous array, in order.

    Raises:
        ValueError: a length is larger than its room.
    """
    memory, width = raw(rooms).data, rooms.dtype.itemsize
    texts = []
    for start in range(0, len(memory), width):
        (length,) = LENGTH.unpack_from(memory, start)
        if LENGTH.size + length > width:
            raise ValueError(f"a string of {length} bytes in a room of {width - LENGTH.size}")
        texts.append(bytes(memory[start + LENGTH.size : start + LENGTH.size + length]))
    return texts


def joined(texts: Sequence[bytes]) -> memoryview:
    """Strings as they travel: each behind its length."""
    return memoryview(b"".join(LENGTH.pack(len(text)) + text for text in texts))


def texts_of(rooms: NDArray[Any]) -> NDArray[Any]:
    """The strings of a C-contiguous array as `str` objects, in the same shape.

    Raises:
        ValueError: one is not UTF-8, or longer than its room.
    """
    found = np.empty(rooms.size, dtype=object)
    found[:] = [text.decode() for text in unpack(rooms)]
    return found.reshape(rooms.shape)


def in_rooms(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """`str` objects of a tensor, each in its room.

    Raises:
        ValueError: one is longer than its room.
    """
    rooms = np.zeros(array.shape, element_dtype(spec))
    pack([text.encode() for text in array.ravel()], rooms)
    return rooms


def fill_neutral(array: NDArray[Any]) -> None:
    """Zeros; strings NEUTRAL."""
    raw(array).fill(0)
    if is_text(array):
        pack([NEUTRAL] * array.size, array)
