"""A lean gRPC client for load: the same pool as HTTP's, one call at a time on each connection.

Of HTTP/2 it does what a call needs: it sends one message within the peer's windows, takes the
answer within windows so large that they never close, and answers settings and pings. What came is
told as HTTP's client tells it, so that reports read alike: gRPC's status as the HTTP status that
means the same, message and reason as the JSON of an error.
"""

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import msgspec
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from hpack import Decoder, HPACKError

from headrace.load.client import MAX_KEPT_BYTES, ConnectionPool, SentRequest
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.grpc import frames
from headrace.serving.front.grpc.messages import message

_STATUS = {0: 200, 3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 12: 501, 13: 500, 14: 503, 16: 401}
"""gRPC's -> HTTP's."""
_REFILL_BYTES = 1 << 30
SERVICE = b"/inference.GRPCInferenceService/"


class GrpcConnection(asyncio.Protocol):
    """One connection of a pool; see `client.Connection`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._exchange: SentRequest | None = None
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder()
        self._buffer = bytearray()
        self._stream = -1
        self._left = memoryview(b"")
        """Of the message, what no window has let through yet."""
        self._window = self._first_window = self._stream_window = frames.DEFAULT_WINDOW
        """What may be sent: in all, in a new stream, in this one."""
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._taken = 0
        self._block = bytearray()
        self._fields: dict[str, str] = {}
        self._last = False
        """The answer's last headers have begun."""
        self._kept = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def start(self, exchange: SentRequest) -> None:
        """`exchange.parts`: the header block, and the pieces of the message."""
        assert self._transport is not None
        self._exchange = exchange
        exchange.connection = self
        exchange.sent_at_us = monotonic_us()
        self._stream += 2
        self._fields, self._stream_window, self._last = {}, self._first_window, False
        self._kept.clear()
        block, *pieces = exchange.parts
        size = sum(map(len, pieces))
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, self._stream, block)
        self._left = memoryview(b"".join((b"\0", size.to_bytes(4), *pieces)))
        self._transport.write(head)
        self._send()

    def _send(self) -> None:
        """As much of the message as the windows let through."""
        assert self._transport is not None
        while self._left:
            size = min(len(self._left), self._window, self._stream_window, self._frame_bytes)
            if size <= 0:
                return
            piece, self._left = self._left[:size], self._left[size:]
            self._window -= size
            self._stream_window -= size
            flags = 0 if self._left else frames.END_STREAM
            head = frames.frame_head(size, frames.DATA, flags, self._stream)
            self._transport.writelines((head, piece))

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        windows = frames.settings(((frames.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW),))
        more = frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        self._transport.write(frames.PREFACE + windows + more)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= frames.HEADER.size:
                high, low, kind, flags, stream = frames.HEADER.unpack_from(buffer, start)
                end = start + frames.HEADER.size + (high << 16 | low)
                if len(buffer) < end:
                    break
                self._take(kind, flags, stream, bytes(buffer[start + frames.HEADER.size : end]))
                start = end
        except (frames.Http2Error, HPACKError, ValueError):
            self._end("protocol")
            self.abort()
        del buffer[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._pool.on_closed(self)
        self._end("closed")

    # -- frames --------------------------------------------------------------------------------

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        own = stream == self._stream and self._exchange is not None
        if kind == frames.DATA:
            self._on_data(own, payload, frames.unpadded(flags, payload))
        elif kind in (frames.HEADERS, frames.CONTINUATION):
            padded = flags if kind == frames.HEADERS else 0
            self._last = self._last or bool(padded & frames.END_STREAM)
            self._block += frames.unpadded(padded, payload)
            if flags & frames.END_HEADERS:
                block, self._block = bytes(self._block), bytearray()
                fields = {str(k): str(v) for k, v in self._decoder.decode(block)}
                self._fields |= fields if own else {}
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._on_settings(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self._write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE and len(payload) == 4:
            self._on_window(stream, int.from_bytes(payload))
        elif kind == frames.RST_STREAM and own:
            self._end("closed")
            self.abort()
            return
        elif kind == frames.GOAWAY and not own:
            self._finish()
            return
        if own and self._last and not self._block:
            self._answered()

    def _on_data(self, own: bool, payload: bytes, data: bytes) -> None:
        self._taken += len(payload)
        if self._taken > _REFILL_BYTES:
            self._write(frames.window_update(0, self._taken))
            self._taken = 0
        exchange = self._exchange
        if own and exchange is not None:
            exchange.body_bytes += len(data)
            if exchange.keep_body and exchange.body_bytes <= MAX_KEPT_BYTES:
                self._kept += data

    def _on_settings(self, payload: bytes) -> None:
        for number, value in frames.SETTING.iter_unpack(payload[: len(payload) // 6 * 6]):
            if number == frames.INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._first_window
                self._first_window = value
            elif number == frames.MAX_FRAME_SIZE:
                self._frame_bytes = value
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send()

    def _on_window(self, stream: int, size: int) -> None:
        if stream == 0:
            self._window += size
        elif stream == self._stream:
            self._stream_window += size
        self._send()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # -- endings -------------------------------------------------------------------------------

    def _answered(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        fields = self._fields
        code = int(fields.get("grpc-status", "2"))
        exchange.status = _STATUS.get(code, 500)
        if code == 0:
            exchange.body = bytes(self._kept[5:])
        else:
            told = {
                "error": unquote(fields.get("grpc-message", "")),
                "reason": fields.get("headrace-reason", ""),
            }
            exchange.body = msgspec.json.encode(told)
        reusable = not self._left and self._stream < 1 << 30
        self._end("")
        if reusable:
            self._pool.on_free(self)
        else:
            self._finish()

    def _finish(self) -> None:
        """No more calls on this connection."""
        self._pool.on_closed(self)
        if self._transport is not None:
            self._transport.close()

    def _end(self, error: str) -> None:
        exchange, self._exchange = self._exchange, None
        self._left = memoryview(b"")
        if exchange is not None:
            exchange.finish(error)


def header_block(authority: str, method: bytes, token: str | None, tls: bool) -> bytes:
    """The headers of a call; `method`: its whole path."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"https" if tls else b"http"),
        (b":path", method),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    if token is not None:
        fields.append((b"authorization", b"Bearer " + token.encode()))
    return frames.header_block(fields)


def document_of(method: str, body: bytes) -> Any:
    """An answer as the JSON that HTTP has."""
    answer = message(f"{method}Response").FromString(body)
    if method == "RepositoryIndex":
        return [{"name": model.name} for model in answer.models]
    if method == "ModelConfig":
        return MessageToDict(answer.config, preserving_proto_field_name=True)
    tensors = {
        what: [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in listed]
        for what, listed in (("inputs", answer.inputs), ("outputs", answer.outputs))
    }
    return {"name": answer.name, **tensors}
