"""The head of a gRPC call: header blocks in (HPACK, RFC 7541), what gRPC needs of them out.

Decoding is the library's. In front of it stands one shortcut: a client that asks the same again
sends the same block, made of references to the table alone. Such a block neither changes the
table nor depends on anything else, so its meaning is kept until a block comes that is not like
it.
"""

import re

from hpack import Decoder, HPACKError

from headrace.serving.front.grpc.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Error
from headrace.serving.front.grpc.status import INVALID_ARGUMENT, RESOURCE_EXHAUSTED

Headers = dict[bytes, bytes]

_ONCE = frozenset(
    (
        b":method",
        b":path",
        b":authority",
        b"host",
        b"origin",
        b"authorization",
        b"content-type",
        b"grpc-timeout",
        b"grpc-encoding",
    )
)
"""Fields that decide how a call is read or who sent it: two of them are one too many."""
_UNIT_US = {b"H": 3_600_000_000, b"M": 60_000_000, b"S": 1_000_000, b"m": 1_000, b"u": 1}
_KEPT_MAX = 64
_FIELD_BYTES = 32
_READ_TIMES = 2
"""How much larger than a call's a block may be that is read. Proxies carry the calls of many
clients on one connection, and let up to 60 KiB pass (Envoy); 64 KiB of Huffman code take
20 ms to read."""
_RESIZED_THRICE = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
"""A block that begins with more changes of the table's size than ever are needed (RFC 7541, section
4.2): they cost a byte each, and count for nothing in the list of fields, which is bounded."""


class MalformedError(Exception):
    """The head is no call's; one sentence for the client."""

    def __init__(self, sentence: str, code: int = INVALID_ARGUMENT) -> None:
        """`code`: gRPC's."""
        super().__init__(sentence)
        self.code = code


class HeadDecoder:
    """Of one connection: a table goes with it. Every block must pass through, in order: so one that
    is too large is read all the same, up to `most_bytes`, and costs its own call only."""

    def __init__(self, head_bytes: int, fields: int) -> None:
        """
        Args:
            head_bytes, fields: most of one call, as HTTP/2 counts them: names and values, and 32
                bytes for each field (RFC 9113, section 6.5.2).
        """
        self.most_bytes = _READ_TIMES * head_bytes
        """Of a block, as sent and as read; beyond, the connection ends."""
        self._decoder = Decoder(max_header_list_size=self.most_bytes)
        self._head_bytes = head_bytes
        self._fields_max = fields
        self._kept: dict[bytes, Headers | MalformedError] = {}

    def decode(self, block: bytes) -> Headers:
        """Header fields by name; one that came several times is joined by commas.

        Raises:
            Http2Error: the block cannot be read, so no later one could be.
            MalformedError: it was read, and is not as it should be.
        """
        kept = self._kept.get(block)
        if kept is None:
            kept = self._read(block)
            if not _only_references(block):
                self._kept.clear()
            elif len(self._kept) < _KEPT_MAX:
                self._kept[block] = kept
        if isinstance(kept, MalformedError):
            raise kept
        return kept

    def _read(self, block: bytes) -> Headers | MalformedError:
        if _RESIZED_THRICE.match(block):
            raise Http2Error(COMPRESSION_ERROR, "a header block changes the table's size thrice")
        try:
            fields = tuple(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            large = type(error).__name__ == "OversizedHeaderListError"
            code = ENHANCE_YOUR_CALM if large else COMPRESSION_ERROR
            # The library puts objects into some sentences, and with them addresses of memory.
            said = str(error).partition(": <")[0]
            raise Http2Error(code, f"the header block cannot be read: {said}") from error
        if sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields) > self._head_bytes:
            sentence = f"the call's metadata has more than {self._head_bytes} bytes"
            return MalformedError(sentence, RESOURCE_EXHAUSTED)
        if len(fields) > self._fields_max:
            return MalformedError(f"the call has more than {self._fields_max} header fields")
        headers: Headers = {}
        for name, value in fields:
            if name in headers:
                if name in _ONCE:
                    return MalformedError(f"the header {name.decode('latin-1')!r} is there twice")
                value = headers[name] + b", " + value
            elif name != name.lower():
                return MalformedError("a header's name has an upper-case letter")
            headers[name] = value
        return headers


def _only_references(block: bytes) -> bool:
    """Whether it is made of indexed fields of one byte each (section 6.1)."""
    return bool(block) and min(block) >= 0x80 and max(block) < 0xFF


def timeout_us(text: bytes) -> int:
    """What `grpc-timeout` says: up to eight digits and a unit.

    >>> timeout_us(b"250m"), timeout_us(b"1S"), timeout_us(b"1n")
    (250000, 1000000, 1)

    Raises:
        MalformedError: it says something else.
    """
    digits, unit = text[:-1], text[-1:]
    if not digits.isdigit() or len(digits) > 8 or unit not in (*_UNIT_US, b"n"):
        raise MalformedError(
            f"grpc-timeout {text[:32]!a} is no number of at most 8 digits and unit"
        )
    if unit == b"n":
        return -(-int(digits) // 1_000)
    return int(digits) * _UNIT_US[unit]
