"""An answer put together: at once, or piece by piece where much of it is JSON.

A number takes the gateway about 0.1 us as text: a million hold up everybody for 0.1 s, unless
others have their turns meanwhile (`answer_turns`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.serving.core.signature import Fault, InvalidError
from headrace.serving.front.http_messages import BINARY, Response

AT_ONCE_BYTES = 1 << 17
"""Of a tensor's text: up to here it is written at once, in 0.5 ms."""
_PIECE_BYTES = 1 << 15
"""Of text."""
_AROUND_TEXT = len('"",')


class JsonValues(msgspec.Struct):
    """A large tensor, to be written as a flat list of its values."""

    flat: NDArray[Any] | list[str]
    listed: Callable[[Any], list[Any]]
    """A part of it as values."""
    text_bytes: int
    """At most; of strings without escapes."""

    def pieces(self) -> Iterator[bytes]:
        step = max(1, _PIECE_BYTES * len(self.flat) // self.text_bytes)
        before = b"["
        for start in range(0, len(self.flat), step):
            text = msgspec.json.encode(self.listed(self.flat[start : start + step]))
            yield before + text[1:-1]
            before = b","
        yield b"]"


Sent = bytes | JsonValues | memoryview
"""A tensor as JSON, as JSON that is still to be written, or binary."""


class LongAnswer:
    """Its JSON is still to be written."""

    __slots__ = ("_pieces", "_tail", "_text", "left_bytes")

    def __init__(self, parts: Iterable[bytes | JsonValues], tail: Sequence[memoryview]) -> None:
        self.left_bytes = 0
        """Of text, at most."""
        pieces: list[Iterable[bytes]] = []
        for part in parts:
            if isinstance(part, JsonValues):
                self.left_bytes += part.text_bytes
                pieces.append(part.pieces())
            else:
                self.left_bytes += len(part)
                pieces.append((part,))
        self._pieces = chain.from_iterable(pieces)
        self._text: list[bytes] = []
        self._tail = tail

    def write(self, enough: Callable[[], bool]) -> Response | None:
        """One piece after the other, until it is `enough`. None: some are left."""
        written: list[bytes] = []
        for piece in self._pieces:
            written.append(piece)
            if enough():
                break
        else:
            texts = [*self._text, b"".join(written)]
            behind = [*(memoryview(text) for text in texts[1:]), *self._tail]
            if self._tail:
                return _with_tail(texts[0], sum(map(len, texts)), behind)
            return Response(200, texts[0], tail=behind)
        self._text.append(b"".join(written))
        self.left_bytes -= len(self._text[-1])
        return None


def filled(
    frame: list[bytes], sent: Sequence[Sent], request: str | None, most_bytes: int
) -> Response | LongAnswer:
    """
    Args:
        frame: the JSON, but for the tensors that are part of it, which stand between its parts.
        sent: those, and the tensors behind it.
        request: its id.

    Raises:
        InvalidError: the JSON has more than `most_bytes`.
    """
    text = frame[0]
    tail = [data for data in sent if isinstance(data, memoryview)]
    if request is not None:
        text = b'{"id":' + msgspec.json.encode(request) + b"," + text[1:]
    if len(frame) > 1:
        values: list[Any] = [data for data in sent if not isinstance(data, memoryview)]
        parts = (text, *chain.from_iterable(zip(values, frame[1:], strict=True)))
        if JsonValues in map(type, values):
            long = LongAnswer(parts, tail)
            check_length(long.left_bytes, most_bytes, "not-representable")
            return long
        text = b"".join(parts)
    return _with_tail(text, len(text), tail) if tail else Response(200, text)


def _with_tail(text: bytes, json_bytes: int, tail: Sequence[memoryview]) -> Response:
    """
    Args:
        json_bytes: of `text`, and of what of `tail` is JSON too.
    """
    header = b"Inference-Header-Content-Length: %d\r\n" % json_bytes
    return Response(200, text, content_type=BINARY, headers=header, tail=tail)


def large_values(
    array: NDArray[Any], listed: Callable[[NDArray[Any]], list[Any]]
) -> JsonValues | None:
    """What writes a flat array in pieces; None: it is written at once.

    Args:
        array: numbers, strings in their rooms, or `bytes` objects.
        listed: a part of it as values.

    Raises:
        InvalidError: by `listed`, of strings: all are made texts now, before anything is written.
    """
    if array.dtype.kind == "O":
        size_bytes = sum(map(len, array.tolist())) + _AROUND_TEXT * array.size
    elif array.dtype.names is not None:
        size_bytes = int(array["length"].sum()) + _AROUND_TEXT * array.size
    else:
        size_bytes = array.size * number_bytes(array.dtype)
    if size_bytes <= AT_ONCE_BYTES:
        return None
    if array.dtype.kind in "OV":
        return JsonValues(listed(array), list, size_bytes)
    return JsonValues(array, listed, size_bytes)


def number_bytes(dtype: np.dtype[Any]) -> int:
    """Of the longest number as text, and a comma."""
    if dtype.kind == "b":
        return len("false,")
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return max(len(f"{whole.min},"), len(f"{whole.max},"))
    return len("-2.2250738585072014e-308,")


def check_length(needed_bytes: int, most_bytes: int, fault: Fault) -> None:
    """
    Raises:
        InvalidError: an answer's JSON may be longer than the most.
    """
    if needed_bytes > most_bytes:
        raise InvalidError(
            f"the answer's JSON may have {needed_bytes} bytes, the most is {most_bytes}; ask for"
            " binary data (`binary_data_output`), for fewer items or outputs at a time, or over"
            " gRPC",
            fault,
        )
