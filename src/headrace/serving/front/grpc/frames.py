"""HTTP/2 frames as bytes (RFC 9113, section 4), and header blocks that we send (RFC 7541).

A frame is 9 bytes (length, kind, flags, stream) and a payload. What we send needs few different
header fields, so they are written as literals that enter no table, and whole blocks are made once.
The one thing of our encoding that has state is the size of that table (`NO_TABLE`).
"""

import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

HEADER = struct.Struct("!BHBBI")
"""Length (8 + 16 bits), kind, flags, stream."""
SETTING = struct.Struct("!HI")
WORD = struct.Struct("!I")
GONE = struct.Struct("!II")
"""Of GOAWAY: last stream, error code."""

HEADER_TABLE_SIZE = 1
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6
"""Numbers of settings."""

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
FLOW_CONTROL_ERROR = 0x3
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

MAX_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 1 << 14
DEFAULT_TABLE_BYTES = 4096
NO_TABLE = b"\x20"
"""Begins a header block: from here on the table has 0 bytes (RFC 7541, section 6.3)."""
MOST_FRAME_BYTES = (1 << 24) - 1


class Http2Error(Exception):
    """The peer does not keep to HTTP/2: the connection ends."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload), kind, flags, stream) + payload


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """
    >>> frame_head(5, DATA, END_STREAM, 3)
    b'\\x00\\x00\\x05\\x00\\x01\\x00\\x00\\x00\\x03'
    """
    return HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*value) for value in values))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, WORD.pack(size))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, WORD.pack(code))


def goaway(last_stream: int, code: int, sentence: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, GONE.pack(last_stream, code) + sentence.encode()[:1024])


def header_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Literals without indexing, new names (RFC 7541, section 6.2.2), no Huffman code.

    >>> header_block([(b"a", b"bc")])
    b'\\x00\\x01a\\x02bc'
    """
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    length -= 127
    digits = bytearray((127,))
    while length >= 128:
        digits.append(length & 127 | 128)
        length >>= 7
    digits.append(length)
    return bytes(digits) + text


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload without padding, and without the priority of HEADERS.

    Raises:
        Http2Error: it is shorter than they say.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Http2Error(FRAME_SIZE_ERROR, "a padded frame is empty")
        start, end = 1, end - payload[0]
    if flags & PRIORITISED:
        start += 5
    if start > end:
        raise Http2Error(PROTOCOL_ERROR, "a frame is shorter than its padding")
    return payload[start:end]
