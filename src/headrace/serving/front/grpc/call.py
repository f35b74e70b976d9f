"""One call: a stream of HTTP/2 that carries gRPC messages both ways.

A message is a byte (compressed or not), its length in four, and its bytes; it may begin and end
anywhere in the frames. The length is compared with the limits before anything is kept. An answer
goes out as far as the peer's windows allow (RFC 9113, section 5.2); the rest waits here.

    reading   open ──END_STREAM──▶ whole
    answering nothing ──▶ headers, messages ──▶ trailers: over
"""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.serving.front.grpc import frames
from headrace.serving.front.grpc.request_heads import Headers
from headrace.serving.front.grpc.status import (
    ENDED_WELL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    Status,
)

if TYPE_CHECKING:
    from headrace.serving.front.grpc.http2 import Http2Connection

RECEIVE_WINDOW = 1 << 20
"""Bytes of one call that may be under way to us."""
MESSAGE_BYTES = 128
"""What a message takes besides its bytes, until it is released."""
_PREFIX_BYTES = 5
_NO_MESSAGE = "a message begins with 0, or with 1 where it is compressed, and its length"
_JOIN_BYTES = 1 << 16
"""Up to here a joined copy is cheaper than several pieces."""

_HEAD = frames.header_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
_OK = ENDED_WELL.trailers()


class Call:
    """The handler hears of each `message` and of the `whole`; it answers by `send` and `finish`."""

    __slots__ = (
        "_body",
        "_compressed",
        "_headed",
        "_last",
        "_needed",
        "_owed",
        "_prefix",
        "_taken_bytes",
        "arrived_at_us",
        "connection",
        "deadline_at_us",
        "deadline_s",
        "headers",
        "held_bytes",
        "id",
        "message_bytes",
        "over",
        "paused",
        "pending",
        "receive_window",
        "send_window",
        "whole",
        "work",
    )

    def __init__(self, connection: "Http2Connection", number: int, headers: Headers) -> None:
        self.connection = connection
        self.id = number
        self.headers = headers
        self.arrived_at_us: int | None = None
        """When the last message that is whole reached this machine."""
        self.deadline_at_us: int | None = None
        """Of the call itself, on the same clock."""
        self.work: Any = None
        """For the handler: what it does for this call."""
        self.whole = False
        """The client has sent all that it will."""
        self.over = False
        """Everything was answered, or the client went away."""
        self.paused = False
        """The handler has enough: the client's window is not opened again."""
        self.held_bytes = 0
        self.message_bytes = connection.limits.body_bytes
        """Most in one message, as sent and after decompression."""
        self.deadline_s = connection.tick_s + connection.limits.body_timeout_s
        self.receive_window = RECEIVE_WINDOW
        self.send_window = connection.out.call_window
        self.pending: deque[memoryview] = deque()
        """What the peer's windows do not let out yet."""
        self._owed = 0
        self._prefix = b""
        self._body = bytearray()
        self._needed = -1
        """Bytes that the message under way has; -1: none is."""
        self._compressed = False
        self._headed = False
        self._last: bytes | None = None
        """Trailers that wait for what is pending."""
        self._taken_bytes = 0
        """Let out since the client's time to take more began."""

    # -- reading ------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """The next bytes of the client's, without padding."""
        self._owed += len(data)
        if not self.paused:
            self.open_window()
        if self._needed < 0 and not self._prefix and len(data) >= _PREFIX_BYTES:
            # The usual case: a frame is a message.
            needed = int.from_bytes(data[1:_PREFIX_BYTES])
            whole = len(data) == _PREFIX_BYTES + needed and data[0] <= 1
            if whole and self.may_hold(needed):
                self._deliver(data[_PREFIX_BYTES:], data[0] == 1)
                return
        self._receive_pieces(memoryview(data))

    def _receive_pieces(self, data: memoryview) -> None:
        if self.between_messages:
            self.deadline_s = self.connection.tick_s + self.connection.limits.body_timeout_s
        while data and not self.over:
            if self._needed < 0:
                missing = _PREFIX_BYTES - len(self._prefix)
                self._prefix += data[:missing]
                data = data[missing:]
                if len(self._prefix) < _PREFIX_BYTES:
                    return
                self._needed = int.from_bytes(self._prefix[1:])
                self._compressed = self._prefix[0] == 1
                odd, self._prefix = self._prefix[0] > 1, b""
                if odd:
                    self.finish(Status(INVALID_ARGUMENT, _NO_MESSAGE))
                    return
                if not self.may_hold(0):
                    return
            piece = data[: self._needed - len(self._body)]
            data = data[len(piece) :]
            if not self.may_hold(len(piece)):
                return
            self._body += piece
            if len(self._body) == self._needed:
                body, self._body, self._needed = self._body, bytearray(), -1
                self._deliver(body, self._compressed)

    def may_hold(self, size: int) -> bool:
        """Takes so many bytes more; False: it is refused, and over."""
        limits, server = self.connection.limits, self.connection.server
        if max(size, self._needed) > self.message_bytes:
            sentence = f"the message is larger than {self.message_bytes} bytes, the most"
            self.finish(Status(RESOURCE_EXHAUSTED, f"{sentence} that is taken here"))
        elif server.buffered_bytes + size > limits.buffered_bytes:
            sentence = f"the server holds {limits.buffered_bytes} bytes of requests already"
            pushback = ((b"grpc-retry-pushback-ms", b"1000"),)
            self.finish(Status(UNAVAILABLE, f"{sentence}; try again in a second", pushback))
        else:
            server.buffered_bytes += size
            self.held_bytes += size
            return True
        return False

    def _deliver(self, body: bytes | bytearray, compressed: bool) -> None:
        if not self.may_hold(MESSAGE_BYTES):
            return
        connection = self.connection
        self.arrived_at_us = connection.arrived_at_us
        self.deadline_s = connection.tick_s + connection.limits.body_timeout_s
        connection.handler.message(self, body, compressed)

    @property
    def between_messages(self) -> bool:
        return self._needed < 0 and not self._prefix

    def end_reading(self) -> None:
        """The client has sent its last byte."""
        self.whole = True
        if self.between_messages:
            self.connection.handler.whole(self)
        else:
            self.finish(Status(INVALID_ARGUMENT, "the call ends within a message"))

    def open_window(self) -> None:
        """Let the client send as much again as was taken, once that is worth a frame."""
        if self._owed >= RECEIVE_WINDOW // 2 and not (self.whole or self.over):
            self.connection.out.write(frames.window_update(self.id, self._owed))
            self.receive_window += self._owed
            self._owed = 0

    def release(self, size: int) -> None:
        """So many bytes of the messages that were delivered are needed no more."""
        size = min(size, self.held_bytes)
        self.held_bytes -= size
        self.connection.server.buffered_bytes -= size

    # -- answering ----------------------------------------------------------------------------

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """One message, of several; buffers must not change after they are handed over."""
        if not self.over:
            self._queue(pieces)
            self.connection.out.flush(self)

    def respond(self, pieces: Sequence[bytes | memoryview]) -> None:
        """The only message, and the end."""
        if self.over:
            return
        self._last = _OK
        size = sum(map(_length, pieces))
        connection = self.connection
        connection.pace.answered += 1
        total = _PREFIX_BYTES + size
        if self._headed or total > connection.out.room(self):
            self._queue(pieces)
            connection.out.flush(self)
            return
        # The usual case: all goes out at once.
        connection.out.window -= total
        number = self.id
        connection.out.write(
            b"".join(
                (
                    frames.frame(
                        frames.HEADERS, frames.END_HEADERS, number, connection.out.block(_HEAD)
                    ),
                    frames.frame_head(total, frames.DATA, 0, number),
                    b"\0",
                    size.to_bytes(4),
                    *pieces,
                    self._trailers(_OK),
                )
            )
        )
        connection.end(self)

    def finish(self, status: Status) -> None:
        """The end, after what was sent; without effect when it is over."""
        if self.over or self._last is not None:
            return
        self.connection.pace.answered += 1
        self._last = _OK if status is ENDED_WELL else status.trailers()
        if not self._headed:
            self._headed = True
            self._last = _HEAD + self._last
        self.connection.out.flush(self)

    def start_waiting(self) -> None:
        """For the connection: the client has so long to take `Limits.write_bytes`."""
        self._taken_bytes = 0
        self.deadline_s = self.connection.tick_s + self.connection.limits.write_timeout_s

    def take(self, size: int) -> None:
        """For the connection: the client's window has let out so many bytes more."""
        self._taken_bytes += size
        if self._taken_bytes >= self.connection.limits.write_bytes:
            self.start_waiting()

    def write_end(self) -> None:
        """For the connection: trailers, once nothing is pending."""
        if self._last is not None and not self.pending:
            self.connection.out.write(self._trailers(self._last))
            self.connection.end(self)

    def _trailers(self, block: bytes) -> bytes:
        flags = frames.END_HEADERS | frames.END_STREAM
        return frames.frame(frames.HEADERS, flags, self.id, self.connection.out.block(block))

    def _queue(self, pieces: Sequence[bytes | memoryview]) -> None:
        if not self._headed:
            self._headed = True
            out = self.connection.out
            head = out.block(_HEAD)
            out.write(frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, head))
        size = sum(map(_length, pieces))
        prefix = b"\0" + size.to_bytes(4)
        if size <= _JOIN_BYTES:
            self.pending.append(memoryview(b"".join((prefix, *pieces))))
        else:
            self.pending.append(memoryview(prefix))
            self.pending.extend(memoryview(piece) for piece in pieces if _length(piece))


def _length(piece: bytes | memoryview) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.nbytes
