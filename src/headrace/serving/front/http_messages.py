"""What is answered over HTTP, and the limits on what is asked."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

log = logging.getLogger("headrace.http")

JSON = b"application/json"
BINARY = b"application/octet-stream"

_COPY_BYTES = 1 << 16
"""Up to here one write of a joined copy is cheaper than several writes."""

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

_UNKNOWN_VERSION = "Invalid HTTP version"
"""What the parser says of digits in their places that no version has which it reads, such as 3.0;
of anything else it says what it expected there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client, and all clients together, may ask of the server before it has said who
    it is. Every limit is checked before memory is taken."""

    body_bytes: int = 64 << 20
    """Of one request, as sent and after decompression."""
    open_body_bytes: int = 4 << 10
    """The same, of requests that need no token: probes send next to nothing."""
    buffered_bytes: int = 1 << 30
    """Of all bodies that the server holds at once."""
    json_bytes: int = 16 << 20
    """Of the JSON part of one request: parsed, it may grow tenfold."""
    answer_json_bytes: int = 64 << 20
    """Of the JSON part of one answer: numbers are reckoned at their longest before any is written,
    strings as they are written, with their escapes."""
    target_bytes: int = 4096
    head_bytes: int = 32 << 10
    head_fields: int = 100
    connections: int = 1024
    connections_per_stranger: int = 256
    """Of one user or address that has shown no token."""
    reserved_connections: int = 64
    """Beyond `connections`: for the owner, for those with the token, and for health probes."""
    turned_away: int = 1024
    """Connections without a seat at a time that are told so; more are cut off."""
    pipelined: int = 16
    """Requests read ahead on one connection; beyond, the server stops reading from it."""
    calls: int = 1024
    """Of gRPC: open on one connection."""
    calls_of_strangers: int = 8
    """The same, before the token was shown: health probes."""
    calls_streamed: int = 64
    """Inferences of one stream that are answered at once; beyond, the server stops reading it."""
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0
    """Between two requests on one connection."""
    write_timeout_s: float = 30.0
    """While the client does not take its answer: `write_bytes` of it, or all that is left."""
    write_bytes: int = 64 << 10
    """Less in `write_timeout_s` is too slow: whoever takes a byte now and then holds memory."""
    untaken_bytes: int = 1 << 30
    """Of all answers that clients have still to take; beyond, those who hold the most are cut off:
    each may be quick enough, and all together take the memory. Long JSON answers that are still to
    be written may hold as much again, tensors and text; beyond, those of the peer that holds most
    give way, or the next one is refused, unless no other waits."""
    linger_timeout_s: float = 2.0
    """After a refusal whose body is still under way."""
    linger_bytes: int = 16 << 20


class Response(msgspec.Struct, eq=False):
    """One answer. `tail` follows `body`; its buffers must not change after they are handed over."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: bytes = b""
    """Further header lines, each ended by CRLF."""
    tail: Sequence[memoryview] = ()

    @property
    def content_length(self) -> int:
        length = len(self.body)
        for buffer in self.tail:
            length += buffer.nbytes
        return length

    def encode(self, keep_alive: bool, *, head_only: bool) -> list[bytes | memoryview]:
        """The message as it goes over the wire, in one piece unless copying would be dear.

        Args:
            head_only: the answer to HEAD, which never has a body (RFC 9110, section 9.3.2): the
                client would take it for the beginning of the next answer.
        """
        length = self.content_length
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
            _STATUS_LINES[self.status],
            self.content_type,
            length,
            self.headers,
            b"" if keep_alive else b"Connection: close\r\n",
        )
        if head_only:
            return [head]
        if length > _COPY_BYTES:
            return [head + self.body, *self.tail]
        return [b"".join((head, self.body, *self.tail))]


def json_response(value: Any, status: int = 200, headers: bytes = b"") -> Response:
    return Response(status, msgspec.json.encode(value), headers=headers)


def problem(status: int, sentence: str, headers: bytes = b"", **fields: Any) -> Response:
    """An error in the one shape that all errors have: `{"error": sentence, …}`."""
    return json_response({"error": sentence, **fields}, status, headers)


def internal_error() -> Response:
    """Tell the client an id, and the log the rest. Call it while an exception is handled."""
    log_id = secrets.token_hex(8)
    log.exception("internal error %s", log_id)
    return problem(500, f"internal error; the server's log has the details under {log_id}")


def check_head(
    method: bytes, target: bytes, headers: dict[bytes, bytes], head_bytes: int, limits: Limits
) -> Response | None:
    """What HTTP itself has against a request whose head is complete.

    Args:
        head_bytes: what was read since the last request, with what belongs to its body.
    """
    if method == b"CONNECT":
        return problem(400, "this server is no proxy: it answers CONNECT with no tunnel")
    if head_bytes > limits.head_bytes:
        size = len(target) + sum(len(n) + len(v) + 4 for n, v in headers.items())
        if size > limits.head_bytes:
            return head_too_large(limits)
    length = headers.get(b"content-length")
    if length is not None and int(length) > limits.body_bytes:
        return body_too_large(limits.body_bytes)
    coding = headers.get(b"transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":
        return problem(501, "the only transfer encoding known here is `chunked`")
    expected = headers.get(b"expect")
    if expected is not None and expected.lower() != b"100-continue":
        return problem(417, "the only expectation known here is `100-continue`")
    return None


def head_too_large(limits: Limits) -> Response:
    return problem(
        431,
        f"the request's head is larger than {limits.head_bytes} bytes"
        f" or {limits.head_fields} fields",
    )


def frames_too_large(limits: Limits) -> Response:
    sentence = f"there are more than {limits.head_bytes} bytes around a piece of the body"
    return problem(431, f"{sentence}: extensions of chunks, or trailers")


def newer_version(version: str) -> Response | None:
    """For a head that is read like HTTP/1.1 and says that it is another protocol's."""
    if version[:2] in ("0.", "1."):
        return None
    return _not_spoken(version)


def _not_spoken(version: str) -> Response:
    return problem(505, f"this server speaks HTTP/1.1, not HTTP/{version}")


def no_http(error: Exception, version: str, beginning: bytes) -> Response:
    """
    Args:
        version: as the parser has read it, if it came as far.
        beginning: of what was read last.
    """
    lines = str(error).splitlines()
    said = lines[0] if lines else type(error).__name__
    if said == _UNKNOWN_VERSION:
        return _not_spoken(version)
    if beginning[:2] == b"\x16\x03":
        said = "it begins like TLS; ask for http://, or serve with --tls-cert"
    elif beginning[:14] == b"PRI * HTTP/2.0":
        said = "it begins like HTTP/2; gRPC has a port of its own (--grpc-port)"
    return problem(400, f"this is not HTTP/1.1: {said}")


def body_too_large(most_bytes: int) -> Response:
    return problem(413, f"the body is larger than {most_bytes} bytes, the most that is taken here")
