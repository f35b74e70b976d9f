"""An answer put together: at once, or piece by piece where much of it is JSON.

A number takes the gateway about 0.1 us as text: a million hold up everybody for 0.1 s, unless
others have their turns meanwhile (`answer_turns`).
"""

import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.domain.elements import is_text, unpack
from headrace.serving.core.signature import Fault, InvalidError, not_utf8
from headrace.serving.front.http_messages import BINARY, Response

AT_ONCE_BYTES = 1 << 17
"""Of a tensor's text: up to here it is written at once, in 0.5 ms."""
_PIECE_BYTES = 1 << 15
"""Of text, before it is escaped."""
_AROUND_TEXT = len('"",')
_LONGEST_ESCAPE = len("\\u0001")
_OBJECT_BYTES = sys.getsizeof(b"")
"""Of a string in memory, beside its bytes."""
_UTF8 = getincrementaldecoder("utf-8")


class JsonNumbers(msgspec.Struct):
    """A large tensor, to be written as a flat list of its values."""

    flat: NDArray[Any]
    listed: Callable[[NDArray[Any]], list[Any]]
    """A part of it as values."""
    reckoned_bytes: int
    """Of its text, numbers at their longest."""

    @property
    def held_bytes(self) -> int:
        """In memory, beside its text."""
        return self.flat.nbytes

    @property
    def most_bytes(self) -> int:
        """Of its text."""
        return self.reckoned_bytes

    def pieces(self) -> Iterator[bytes]:
        step = max(1, _PIECE_BYTES * self.flat.size // self.reckoned_bytes)
        before = b"["
        for start in range(0, self.flat.size, step):
            text = msgspec.json.encode(self.listed(self.flat[start : start + step]))
            yield before + text[1:-1]
            before = b","
        yield b"]"


class JsonTexts(msgspec.Struct):
    """The same of strings, whose sizes differ: they are looked at when their turn comes."""

    flat: NDArray[Any]
    name: str
    """The output's."""
    reckoned_bytes: int
    """Of its text, without escapes."""

    @property
    def held_bytes(self) -> int:
        if is_text(self.flat):
            return self.flat.nbytes
        return self.flat.nbytes + self.flat.size * _OBJECT_BYTES + self.reckoned_bytes

    @property
    def most_bytes(self) -> int:
        return _LONGEST_ESCAPE * self.reckoned_bytes

    def pieces(self) -> Iterator[bytes]:
        """
        Raises:
            InvalidError: a string is not UTF-8.
        """
        before = b"["
        try:
            for short, long in self._gathered():
                if short:
                    yield before + msgspec.json.encode([each.decode() for each in short])[1:-1]
                    before = b","
                if long is not None:
                    yield before
                    yield from _cut(long)
                    before = b","
        except UnicodeDecodeError as error:
            raise not_utf8(self.name) from error
        yield b"]"

    def _gathered(self) -> Iterator[tuple[list[bytes], bytes | None]]:
        """As many as make a piece, and then one that makes several, if there is one."""
        short: list[bytes] = []
        left_bytes = _PIECE_BYTES
        step = max(1, _PIECE_BYTES // self.flat.dtype.itemsize)
        for start in range(0, self.flat.size, step):
            part = self.flat[start : start + step]
            for string in unpack(part) if is_text(part) else part.tolist():
                if len(string) > _PIECE_BYTES:
                    yield short, string
                else:
                    short.append(string)
                    left_bytes -= len(string) + _AROUND_TEXT
                    if left_bytes > 0:
                        continue
                    yield short, None
                short, left_bytes = [], _PIECE_BYTES
        yield short, None


def _cut(string: bytes) -> Iterator[bytes]:
    """One long text."""
    decoder = _UTF8()
    yield b'"'
    for start in range(0, len(string), _PIECE_BYTES):
        end = start + _PIECE_BYTES
        text = decoder.decode(string[start:end], end >= len(string))
        yield msgspec.json.encode(text)[1:-1]
    yield b'"'


JsonValues = JsonNumbers | JsonTexts
Sent = bytes | JsonValues | memoryview
"""A tensor as JSON, as JSON that is still to be written, or binary."""


class LongAnswer:
    """Its JSON is still to be written."""

    __slots__ = ("_most_bytes", "_pieces", "_tail", "_text", "_written_bytes", "held_bytes")

    def __init__(
        self, parts: Sequence[bytes | JsonValues], tail: Sequence[memoryview], most_bytes: int
    ) -> None:
        """
        Args:
            most_bytes: of its text.

        Raises:
            InvalidError: it may have more, as far as that can be told without a look at each value.
        """
        values = [part for part in parts if isinstance(part, JsonValues)]
        around_bytes = sum(len(part) for part in parts if isinstance(part, bytes))
        check_length(
            around_bytes + sum(each.reckoned_bytes for each in values),
            most_bytes,
            "not-representable",
        )
        text_bytes = min(most_bytes, around_bytes + sum(each.most_bytes for each in values))
        self.held_bytes = text_bytes + sum(each.held_bytes for each in values)
        """In memory, at most, until it is written."""
        self.held_bytes += sum(data.nbytes for data in tail)
        self._most_bytes = most_bytes
        self._written_bytes = 0
        self._pieces = chain.from_iterable(
            part.pieces() if isinstance(part, JsonValues) else (part,) for part in parts
        )
        self._text: list[bytes] = []
        self._tail = tail

    def write(self, enough: Callable[[], bool]) -> Response | None:
        """One piece after the other, until it is `enough`. None: some are left.

        Raises:
            InvalidError: a string is not UTF-8, or all of it is longer than the most.
        """
        written: list[bytes] = []
        for piece in self._pieces:
            written.append(piece)
            self._written_bytes += len(piece)
            check_length(self._written_bytes, self._most_bytes, "not-representable")
            if enough():
                break
        else:
            texts = [*self._text, b"".join(written)]
            behind = [*(memoryview(text) for text in texts[1:]), *self._tail]
            if self._tail:
                return _with_tail(texts[0], sum(map(len, texts)), behind)
            return Response(200, texts[0], tail=behind)
        self._text.append(b"".join(written))
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
        InvalidError: the JSON has more than `most_bytes`, or may have, as `LongAnswer` says.
    """
    text = frame[0]
    tail = [data for data in sent if isinstance(data, memoryview)]
    if request is not None:
        text = b'{"id":' + msgspec.json.encode(request) + b"," + text[1:]
    if len(frame) > 1:
        values: list[Any] = [data for data in sent if not isinstance(data, memoryview)]
        parts = (text, *chain.from_iterable(zip(values, frame[1:], strict=True)))
        if any(isinstance(value, JsonValues) for value in values):
            return LongAnswer(parts, tail, most_bytes)
        text = b"".join(parts)
    check_length(len(text), most_bytes, "not-representable")
    return _with_tail(text, len(text), tail) if tail else Response(200, text)


def _with_tail(text: bytes, json_bytes: int, tail: Sequence[memoryview]) -> Response:
    """
    Args:
        json_bytes: of `text`, and of what of `tail` is JSON too.
    """
    header = b"Inference-Header-Content-Length: %d\r\n" % json_bytes
    return Response(200, text, content_type=BINARY, headers=header, tail=tail)


def large_values(
    array: NDArray[Any],
    listed: Callable[[NDArray[Any]], list[Any]],
    name: str,
    most_bytes: int,
) -> JsonValues | None:
    """What writes a flat array in pieces; None: it is written at once.

    Args:
        array: numbers, strings in their rooms, or `bytes` objects.
        listed: a part of it as values.
        name: the output's.
        most_bytes: of its text.

    Raises:
        InvalidError: it may have more, as far as that can be told without a look at each value, or
            by the lengths of strings.
    """
    strings = array.dtype.kind == "O" or is_text(array)
    size_bytes = array.size * (_AROUND_TEXT if strings else number_bytes(array.dtype))
    if size_bytes > AT_ONCE_BYTES:
        check_length(size_bytes, most_bytes, "not-representable")
    if strings:
        # A look at each object takes 12 ns, beside the 300 in which it was read from its frame.
        lengths = array["length"].sum() if is_text(array) else sum(map(len, array.flat))
        size_bytes += int(lengths)
    if size_bytes <= AT_ONCE_BYTES:
        return None
    if strings:
        return JsonTexts(array, name, size_bytes)
    return JsonNumbers(array, listed, size_bytes)


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
