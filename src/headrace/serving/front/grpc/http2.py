"""HTTP/2 as a server of gRPC needs it (RFC 9113): frames, calls, windows, limits.

A connection carries many calls at once, each on a stream of its own:

    HEADERS ──▶ admitted ──DATA…──▶ message(s) ──END_STREAM──▶ whole ──▶ answered, over
       └▶ refused          └──────── RST_STREAM, connection lost ─────▶ abandoned

This file knows frames and no inference: a `Handler` does. Reading: every frame is bounded by
`_FRAME_BYTES`, a header block (`request_heads`) however many frames it comes in, a message
by its announced length, all messages together by `buffered_bytes`, calls by number
(`Limits.calls`, announced to the peer). Memory is taken only after the check.

Writing is `outgoing`'s. While the peer does not read what was written, nothing is read from it
either: acknowledgements cannot pile up.

What much comes of in one read, such as five thousand health checks or a hundred thousand frames
that ask for nothing, is worked off a little at a time: other connections have their turn in between
(`pace`).

Time. As in HTTP/1.1 each state has a deadline that `sweep` enforces: the preface, a message that
is half sent, an answer that is not taken. A peer that is silent while it has calls open is
pinged, and gone if it does not answer.

Leaving. What the client sent before it reads GOAWAY is under way: to close then would reset the
connection, and answers with it. So a retired server names no last stream and serves what still
comes. Once a last one is named, what is beyond is refused (clients ask elsewhere by themselves),
and when all calls are answered the client's end is awaited, up to `linger_timeout_s` (RFC 9113,
section 6.8):

    open ──GOAWAY(last)──▶ leaving ──no calls──▶ lingering ──the client closes──▶ closed
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.serving.front.grpc import frames
from headrace.serving.front.grpc.call import RECEIVE_WINDOW, Call
from headrace.serving.front.grpc.frames import Http2Error
from headrace.serving.front.grpc.outgoing import Outgoing
from headrace.serving.front.grpc.pace import Pace
from headrace.serving.front.grpc.request_heads import HeadDecoder, MalformedError
from headrace.serving.front.grpc.status import INVALID_ARGUMENT, Status, internal_error
from headrace.serving.front.seats import STRANGER
from headrace.serving.front.tcp_connection import TcpConnection

if TYPE_CHECKING:
    from headrace.serving.front.grpc.front import GrpcServer

_FRAME_BYTES = 1 << 16
_CONNECTION_WINDOW = 16 << 20
_COUNTED_APART = (frames.DATA, frames.HEADERS, frames.WINDOW_UPDATE)
"""Kinds of frames that are not always cheap, see `pace`."""
_PING_S = 20.0
_PING = frames.frame(frames.PING, 0, 0, b"headrace")
_NEVER = float("inf")
_SPEAKS = b"this port speaks gRPC; HTTP/1.1 has a port of its own\n"
_NOT_HTTP2 = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_SPEAKS), _SPEAKS)
)


class Http2Connection(TcpConnection):
    """One client, and all its calls."""

    def __init__(self, server: "GrpcServer") -> None:
        super().__init__(server)
        self.server = server
        self.limits = server.limits
        self.handler = server.handler
        self.calls: dict[int, Call] = {}
        self.deadline_s = server.tick_s + server.limits.head_timeout_s
        self.out = Outgoing()
        self._receive_window = _CONNECTION_WINDOW
        self._owed = 0
        self._decoder = HeadDecoder(server.limits.head_bytes, server.limits.head_fields)
        self._rest = b""
        """The beginning of a frame; before the preface, of that."""
        self._greeted = False
        self._block: bytearray | None = None
        """A header block that CONTINUATION goes on with, of (stream, flags)."""
        self._block_of = (0, 0)
        self._last = 0
        """The highest stream that the client has opened."""
        self._leaving = False
        """The peer was told which call was its last here."""
        self.pace = Pace()
        self._pinged = False
        self._yielded = False
        """It goes on with `_rest` after others had their turn."""

    @property
    def tick_s(self) -> float:
        return self.server.tick_s

    # -- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.out.transport = self.transport
        self.handler.meet(self)

    def turn_away(self) -> bool:
        self._greet()
        sentence = f"all {self.limits.connections} connections are in use"
        self._fail(Http2Error(frames.ENHANCE_YOUR_CALM, sentence))
        return False

    def _greet(self) -> None:
        self._greeted = True
        settings = (
            (frames.MAX_CONCURRENT_STREAMS, self.limits.calls),
            (frames.INITIAL_WINDOW_SIZE, RECEIVE_WINDOW),
            (frames.MAX_FRAME_SIZE, _FRAME_BYTES),
            (frames.MAX_HEADER_LIST_SIZE, self.limits.head_bytes),
        )
        more = frames.window_update(0, _CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
        self.out.write(frames.settings(settings) + more)

    @property
    def busy(self) -> bool:
        """See `seats.Seated`."""
        return any(self.handler.awaited(call) for call in self.calls.values())

    def give_way(self) -> None:
        self.transport.abort()

    def read(self, data: bytes | memoryview) -> None:
        if self.out.closed:
            return
        self._pinged = False
        if self._yielded:
            self._rest += data
        else:
            self._take_turn(self._rest + data if self._rest else bytes(data))

    def _take_turn(self, data: bytes) -> None:
        corked = self.out.cork()
        self.pace.answered = 0
        try:
            self._read(data)
        except Http2Error as error:
            self._fail(error)
        if corked:
            self.out.uncork()
        if self._greeted and not (self._lingering or self.transport.is_closing()):
            self._set_deadline()
        if self.pace.is_over and not self.out.closed:
            self._yielded = True
            self.transport.pause_reading()
            self.server.soon(self._go_on)

    def _go_on(self) -> None:
        """Others had their turn."""
        if self.out.paused or not self._yielded or self.transport.is_closing():
            return
        self._yielded = False
        self.pace.worked = 0
        data, self._rest = self._rest, b""
        self._take_turn(data)
        self._resume_reading()

    def _resume_reading(self) -> None:
        if not (self._yielded or self.out.paused or self.transport.is_closing()):
            self._waited = True
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.out.closed = True
        self.deadline_s = _NEVER
        for call in tuple(self.calls.values()):
            self._abandon(call)

    def pause_writing(self) -> None:
        self.out.paused = True
        self._set_deadline()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.out.paused = False
        self._set_deadline()
        self._resume_reading()
        if not self.transport.is_closing():
            self.out.resume()
        if self._yielded:
            self.server.soon(self._go_on)

    # -- time -----------------------------------------------------------------------------------

    def _set_deadline(self) -> None:
        limits = self.limits
        if self.out.paused or self.out.closed:
            self.await_taking()
        else:
            allowed_s = limits.linger_timeout_s if self._lingering else limits.idle_timeout_s
            self.deadline_s = self.tick_s + allowed_s

    @property
    def waiting_bytes(self) -> int:
        return super().waiting_bytes + self.out.blocked_bytes

    def sweep(self) -> None:
        """End what took too long, but for the connection itself."""
        self.pace.forgive()
        now_s = self.tick_s
        for call in [call for call in self.calls.values() if now_s > call.deadline_s]:
            if call.pending:
                if not self.out.paused:  # or the connection's own deadline counts
                    self._reset(call, frames.CANCEL)
            elif not (call.whole or self.handler.awaited(call) or call.between_messages):
                call.finish(Status(INVALID_ARGUMENT, "the message did not arrive in time"))
            elif not call.whole and call.arrived_at_us is None:
                call.finish(Status(INVALID_ARGUMENT, "no message arrived in time"))

    def time_out(self) -> None:
        """The deadline passed."""
        if self.out.paused or self.out.closed:
            if not self.is_taking():
                self.transport.abort()
        elif self._lingering:
            self._close()
        elif self._greeted and not self.calls:
            self.say_goodbye()
        elif self._pinged or not self._greeted:
            self.transport.abort()
        else:
            self._pinged = True
            self.deadline_s = self.tick_s + _PING_S
            self.out.write(_PING)

    # -- reading --------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        if not self._greeted:
            size = min(end, len(frames.PREFACE))
            if data[:size] != frames.PREFACE[:size]:
                self.out.write(_NOT_HTTP2)
                raise Http2Error(frames.PROTOCOL_ERROR, "")
            if end < len(frames.PREFACE):
                self._rest = data
                return
            self._greet()
            at = size
        unpack, pace = frames.HEADER.unpack_from, self.pace
        while end - at >= 9 and not (self.out.closed or pace.is_over):
            high, low, kind, flags, stream = unpack(data, at)
            length = high << 16 | low
            if length > _FRAME_BYTES:
                raise Http2Error(frames.FRAME_SIZE_ERROR, f"a frame has {length} bytes")
            if end - at - 9 < length:
                break
            at += 9 + length
            pace.worked += 1
            if kind not in _COUNTED_APART:
                pace.count_cheap()
            if (self._block is not None) != (kind == frames.CONTINUATION):
                raise Http2Error(frames.PROTOCOL_ERROR, "a header block is interrupted")
            if kind < len(_READERS):
                _READERS[kind](self, flags, stream & frames.MAX_WINDOW, data[at - length : at])
        self._rest = data[at:]

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "more data than the window allows")
        self._owed += size
        if self._owed >= _CONNECTION_WINDOW // 2:
            self.out.write(frames.window_update(0, self._owed))
            self._receive_window += self._owed
            self._owed = 0
        call = self.calls.get(stream)
        if call is None or call.whole:
            self._check_known(stream)
            self.pace.count_cheap()
            return
        call.receive_window -= size
        if call.receive_window < 0:
            self._reset(call, frames.FLOW_CONTROL_ERROR)
            return
        ends = flags & frames.END_STREAM
        if flags & frames.PADDED:
            call.receive_window += size
            payload = frames.unpadded(flags & frames.PADDED, payload)
            # Padding is given back at once: it is nobody's to hold.
            call.receive_window -= len(payload)
            if size > len(payload):
                self.out.write(frames.window_update(stream, size - len(payload)))
        if payload:
            call.receive(payload)
        elif not ends:
            self.pace.count_cheap()
        if ends and not call.over:
            call.end_reading()

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        payload = frames.unpadded(flags, payload)
        self._check_block(payload)
        if flags & frames.END_HEADERS:
            self._on_head(stream, flags, payload)
        else:
            self._block, self._block_of = bytearray(payload), (stream, flags)

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        block = self._block
        if block is None or stream != self._block_of[0]:
            raise Http2Error(frames.PROTOCOL_ERROR, "a header block goes on that did not begin")
        block += payload
        self._check_block(block)
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_head(stream, self._block_of[1], bytes(block))

    def _check_block(self, block: bytes | bytearray) -> None:
        if len(block) > self._decoder.most_bytes:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "the header block is too large")

    def _on_head(self, stream: int, flags: int, block: bytes) -> None:
        ends = bool(flags & frames.END_STREAM)
        self.pace.worked += len(block) >> 6
        malformed = None
        try:
            headers = self._decoder.decode(block)
        except MalformedError as error:
            headers, malformed = {}, Status(error.code, str(error))
        call = self.calls.get(stream)
        if call is not None and not call.whole:
            if not ends:
                raise Http2Error(frames.PROTOCOL_ERROR, "headers within a call")
            call.end_reading()
            return
        if stream % 2 == 0:
            raise Http2Error(frames.PROTOCOL_ERROR, f"a client has no stream {stream}")
        if stream <= self._last:
            self.pace.count_cheap()
            return
        limits = self.limits
        most = limits.calls_of_strangers if self.standing == STRANGER else limits.calls
        if self._leaving or len(self.calls) >= most:
            # Those before the last are told of in GOAWAY; both let the client ask elsewhere.
            if not self._leaving:
                self._last = stream
            self.pace.count_cheap()
            self.out.write(frames.reset(stream, frames.REFUSED_STREAM))
            return
        self._last = stream
        call = self.calls[stream] = Call(self, stream, headers)
        call.whole = ends
        try:
            refusal = malformed or self.handler.admit(call)
        except Exception:
            refusal = internal_error()
        if refusal is not None:
            call.finish(refusal)
        elif ends:
            call.end_reading()

    def _on_reset(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        self._check_known(stream)
        call = self.calls.get(stream)
        if call is not None:
            self._abandon(call)

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(frames.FRAME_SIZE_ERROR, "SETTINGS are not as they should be")
        if flags & frames.ACK:
            return
        entries = len(payload) // 6
        self.pace.count_cheap(entries)
        self.pace.worked += (entries + len(self.calls)) >> 3
        self.out.set(payload, self.calls.values())
        self.out.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self.out.flush_blocked()

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) != 8:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "PING has 8 bytes, on stream 0")
        if not flags & frames.ACK:
            self.out.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_window_update(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        self.pace.count_update(self.out.sent_bytes)
        more = frames.WORD.unpack(payload)[0] & frames.MAX_WINDOW
        if stream == 0:
            self.pace.worked += len(self.calls) >> 3
            self.out.widen(more)
            return
        call = self.calls.get(stream)
        if call is None:
            self._check_known(stream)
            return
        call.send_window += more
        if not more or call.send_window > frames.MAX_WINDOW:
            self._reset(call, frames.FLOW_CONTROL_ERROR)
        elif call.pending:
            self.out.flush(call)

    def _on_nothing(self, flags: int, stream: int, payload: bytes) -> None:
        """PRIORITY is none of ours; after GOAWAY the client ends the connection when it likes."""

    def _on_promise(self, flags: int, stream: int, payload: bytes) -> None:
        raise Http2Error(frames.PROTOCOL_ERROR, "a client promises nothing")

    def _check_known(self, stream: int) -> None:
        if stream == 0 or (stream > self._last and not self._leaving):
            raise Http2Error(frames.PROTOCOL_ERROR, f"stream {stream} is not open")

    # -- ends -----------------------------------------------------------------------------------

    def end(self, call: Call) -> None:
        """For the call: its last byte is written."""
        if not call.whole:
            # The answer is there before the client has said all: the rest is not wanted.
            self.out.write(frames.reset(call.id, frames.NO_ERROR))
        self._abandon(call)
        if self.in_reserve or self.server.closing:
            self.say_goodbye()
        elif self.peer is not None:
            self.server.seats.active(self)

    def _reset(self, call: Call, code: int) -> None:
        self.out.write(frames.reset(call.id, code))
        self._abandon(call)

    def _abandon(self, call: Call) -> None:
        if call.over:
            return
        call.over = True
        self.calls.pop(call.id, None)
        self.out.forget(call)
        self.handler.over(call)
        call.release(call.held_bytes)
        call.pending.clear()
        if self._lingering:
            self._set_deadline()

    @property
    def _lingering(self) -> bool:
        """All is answered: only the client's end of the connection is awaited."""
        return self._leaving and not self.calls

    def ask_to_leave(self) -> None:
        """Ask the client to open its next calls elsewhere; what comes here is served."""
        if self._greeted and not self._leaving:
            self.out.write(frames.goaway(frames.MAX_WINDOW, frames.NO_ERROR))

    def say_goodbye(self) -> None:
        """No more calls: those up to the last that was opened are answered, and that is the end."""
        if self._greeted and not self._leaving:
            self._leaving = True
            self.out.write(frames.goaway(self._last, frames.NO_ERROR))
            self._set_deadline()

    def close_if_idle(self) -> None:
        """Draining: no more calls, and the end once there is none."""
        self.say_goodbye()
        for call in tuple(self.calls.values()):
            self.handler.drain(call)

    def _fail(self, error: Http2Error) -> None:
        if self.out.closed:
            return
        if str(error):
            self.out.write(frames.goaway(self._last, error.code, str(error)))
        for call in tuple(self.calls.values()):
            self._abandon(call)
        self._close()

    def _close(self) -> None:
        if self.out.closed:
            return
        self.await_taking()
        self.out.close()


_READERS: tuple[Callable[[Http2Connection, int, int, bytes], None], ...] = (
    Http2Connection._on_data,
    Http2Connection._on_headers,
    Http2Connection._on_nothing,
    Http2Connection._on_reset,
    Http2Connection._on_settings,
    Http2Connection._on_promise,
    Http2Connection._on_ping,
    Http2Connection._on_nothing,
    Http2Connection._on_window_update,
    Http2Connection._on_continuation,
)
"""By kind; others are ignored, as the protocol wants it."""
