"""HTTP/1.1 for machines: keep-alive, in order, bounded in bytes, time and connections.

httptools finds where a message begins and ends (RFC 9112), but for large bodies (`http_body`);
this file decides what is read, how long it may take, and when to stop. It knows nothing of
inference: a `Handler` does.

A connection reads one message at a time, and answers in the order in which they came:

    reading   idle ──first byte──▶ head ──blank line──▶ body ──last byte──▶ idle
    answering queue ──▶ current ──respond──▶ written, the next one is current

What was read waits in the queue; only the current exchange is being handled, so answers cannot
change places. Beyond `Limits.pipelined` waiting exchanges, reading from the socket pauses.

Framing. A body's length comes from Content-Length or from chunks, never both and never twice: a
header on which reading or access depends may stand there once (`_ONCE`), since two programs that
take different ones of two would disagree on where a message ends. Trailers are read and ignored.

Limits. Each is checked before memory is taken for what it bounds: the head by bytes and fields as
it comes in, the body by its announced length and by what really comes, all bodies of all
connections together by `buffered_bytes`, connections by number. Each state has a deadline, kept as
one instant per connection and enforced by `HttpServer.sweep`, so it costs no timer: up to half a
second late. A request that comes in crumbs is read ever more seldom, so that 1,100 connections that
send a byte now and then do not hold up the loop (`_note_crumb`).

Refusing while a request is half read: the rest of what the client sends is not read into memory
(`_deaf`), the answer is written, the sending half is closed, and what still comes is thrown away
for a while (`_lingering_bytes`), because closing with bytes unread would reset the connection and
take the answer with it.

A general framework costs more per request than the whole answer of a small model, see
`docs/decisions/`.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import httptools

from headrace.serving.front.http_body import LEAST_BYTES, BodyInPlace
from headrace.serving.front.http_exchange import HttpExchange, offers_http_2, without_offer
from headrace.serving.front.http_messages import (
    Response,
    body_too_large,
    check_head,
    head_too_large,
    internal_error,
    no_http,
    problem,
)
from headrace.serving.front.tcp_connection import TcpConnection

if TYPE_CHECKING:
    from headrace.serving.front.http_server import HttpServer

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ONCE = frozenset(
    (
        b"host",
        b"origin",
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"transfer-encoding",
        b"inference-header-content-length",
    )
)
"""Headers that decide how a request is read or who sent it: two of them are one too many."""

_IDLE, _HEAD, _BODY, _OFFER = 0, 1, 2, 3
_NEVER = float("inf")

_CRUMB_BYTES = 64
_CRUMBS_AT_ONCE = 4
_DOZE_S, _DOUBLED_MOST = 0.4, 3
"""Between two reads of a connection that sends crumbs: 0.4, 0.8, 1.6 and then 3.2 s, in sweeps."""


class _RefusedError(Exception):
    """Leaves the parser once the request's fate is known; the response waits in the exchange."""


class HttpConnection(TcpConnection):
    """One client. Requests are answered in the order in which they came."""

    __slots__ = (
        "_advancing",
        "_crumbs",
        "_deaf",
        "_fields",
        "_handler",
        "_head_bytes",
        "_in_place",
        "_incoming",
        "_limits",
        "_lingering_bytes",
        "_parser",
        "_queue",
        "_read_paused",
        "_reading",
        "_server",
        "_write_paused",
        "current",
        "deadline_s",
        "held_us",
        "retry_at_us",
        "wakes_s",
    )

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server)
        self._server = server
        self._limits = server.limits
        self._handler = server.handler
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = HttpExchange(self)
        self._in_place: BodyInPlace | None = None
        """The large body that is being read, past the parser."""
        self.current: HttpExchange | None = None
        self._queue: deque[HttpExchange] = deque()
        self._reading = _IDLE
        self._head_bytes = 0
        self._fields = 0
        self._deaf = False
        """No more requests are read: the last response closes the connection."""
        self._lingering_bytes = -1
        """>= 0: the last response is sent, and what still comes is counted and thrown away."""
        self._advancing = False
        self._read_paused = False
        self._write_paused = False
        self.deadline_s = server.tick_s + server.limits.idle_timeout_s
        self.retry_at_us = 0
        """Until then a request like the last refused one has no chance."""
        self.held_us = 0
        """How long its last refusal was held back."""
        self._crumbs = 0
        """Reads in a row that brought next to nothing of a request that is half sent."""
        self.wakes_s = _NEVER
        """When a connection that is not read for its crumbs is read again."""

    # -- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handler.meet(self)

    def turn_away(self) -> bool:
        if len(self._server.connections) > 2 * self._limits.connections:
            self.transport.abort()
            return False
        sentence = f"all {self._limits.connections} connections are in use"
        self._refuse(problem(503, sentence, b"Retry-After: 1\r\n"))
        self._advance()
        return True

    @property
    def busy(self) -> bool:
        """See `seats.Seated`."""
        if self._lingering_bytes >= 0:
            return False
        return self._write_paused or self.current is not None or bool(self._queue)

    def give_way(self) -> None:
        """Its seat is needed by another."""
        if self._reading == _IDLE and not self._deaf:
            self.transport.close()
        else:
            self.transport.abort()

    def buffer_updated(self, nbytes: int) -> None:
        if self._in_place is None:
            self.data_received(self._place[:nbytes])
        else:
            self._grow_body(self._in_place, nbytes)

    def read(self, data: bytes | memoryview) -> None:
        if self._deaf:
            self._throw_away(len(data))
            return
        if self._reading != _BODY:
            self._head_bytes += len(data)
        try:
            while (rest := self._parse(data)) is not None:
                data = rest
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # A callback that refused the request has said so already, and is deaf by now.
            if isinstance(error, httptools.HttpParserCallbackError) and not self._deaf:
                self._refuse(internal_error())
            elif not self._deaf:
                self._refuse(no_http(error))
        else:
            if self._reading == _HEAD and self._head_bytes > self._limits.head_bytes:
                self._refuse(head_too_large(self._limits))
            elif self._reading == _IDLE:
                self._crumbs = 0
            elif len(data) < _CRUMB_BYTES:
                self._note_crumb()
            elif self._reading == _BODY:
                self._receive_in_place()
        self._turn_to_answers()

    def _parse(self, data: bytes | memoryview) -> bytes | None:
        """What is still to be parsed: a request that offers HTTP/2, as Java's client does unasked,
        without its offer, which may be ignored (RFC 9110, section 7.8) but ends the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            if self._reading != _OFFER:
                raise
            offered, self._incoming = self._incoming, HttpExchange(self)
            self._parser = httptools.HttpRequestParser(self)
            return without_offer(offered) + bytes(data[error.args[0] :])
        return None

    def _receive_in_place(self) -> None:
        """The rest of the body, if its length is known and that is worth it."""
        exchange = self._incoming
        length = exchange.headers.get(b"content-length")
        if length is not None and int(length) - len(exchange.body) >= LEAST_BYTES:
            self._in_place = BodyInPlace(int(length), exchange.body)
            self._place = self._in_place.missing
            exchange.body = self._in_place.read

    def _grow_body(self, body: BodyInPlace, count_bytes: int) -> None:
        """So many bytes of it were received."""
        complete = body.grow(count_bytes)
        self._incoming.body, self._place = body.read, body.missing
        refusal = self._count_body(count_bytes)
        if refusal is not None:
            self._refuse(refusal)
        elif complete:
            self._in_place, self._place = None, self._server.buffer
            # It has not seen this body, and begins anew behind it.
            self._parser = httptools.HttpRequestParser(self)
            self._crumbs = 0
            self.on_message_complete()
        elif count_bytes < _CRUMB_BYTES:
            self._note_crumb()
        self._turn_to_answers()

    def _turn_to_answers(self) -> None:
        """Something was read."""
        if self.current is None:
            self._advance()
        if self._queue and not self._read_paused and len(self._queue) > self._limits.pipelined:
            self._read_paused = True
            self.transport.pause_reading()

    def _note_crumb(self) -> None:
        """Whoever sends a request byte by byte is read ever more seldom: a crowd of them would hold
        up the loop for others."""
        self._crumbs += 1
        doubled = self._crumbs - _CRUMBS_AT_ONCE
        if doubled >= 0 and not self.transport.is_closing():
            self.wakes_s = self._server.tick_s + _DOZE_S * (1 << min(doubled, _DOUBLED_MOST))
            self.transport.pause_reading()

    def wake(self) -> None:
        """Read again."""
        self.wakes_s = _NEVER
        if not self.transport.is_closing() and not self._read_paused:
            self._waited = True
            self.transport.resume_reading()

    def eof_received(self) -> None:
        # A client that half-closes looks like one that went away: its work is cancelled.
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._deaf = True
        self.deadline_s = _NEVER
        self._release(self._incoming)
        for exchange in self._queue:
            self._release(exchange)
        self._queue.clear()
        current, self.current = self.current, None
        if current is not None:
            self._release(current)
            self._handler.abandon(current)

    def pause_writing(self) -> None:
        self._write_paused = True
        self.deadline_s = self._server.tick_s + self._limits.write_timeout_s

    def resume_writing(self) -> None:
        self._write_paused = False
        now_s, limits = self._server.tick_s, self._limits
        if self._lingering_bytes >= 0:
            self.deadline_s = now_s + limits.linger_timeout_s
        elif self.current is not None or self._queue:
            self.deadline_s = _NEVER
        else:
            idle = self._reading == _IDLE
            self.deadline_s = now_s + (limits.idle_timeout_s if idle else limits.body_timeout_s)
        if self.current is None:
            self._advance()

    # -- the parser's side ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reading = _HEAD
        self._fields = 0
        self.deadline_s = self._server.tick_s + self._limits.head_timeout_s

    def on_url(self, piece: bytes) -> None:
        target = self._incoming.target = self._incoming.target + piece
        if len(target) > self._limits.target_bytes:
            sentence = f"the URL is longer than {self._limits.target_bytes} bytes"
            self._refuse_and_stop(problem(414, sentence))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > self._limits.head_fields:
            self._refuse_and_stop(head_too_large(self._limits))
        if self._reading == _BODY:
            return  # a trailer; nothing that matters may stand there
        headers = self._incoming.headers
        name = name.lower()
        if name in headers:
            if name in _ONCE:
                sentence = f"the header {name.decode('latin-1')!r} stands there twice"
                self._refuse_and_stop(problem(400, sentence))
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        exchange, parser = self._incoming, self._parser
        headers = exchange.headers
        exchange.method = parser.get_method()
        if offers_http_2(exchange) and parser.should_upgrade():
            self._reading = _OFFER
            return
        # An older version has to ask for it.
        exchange.keep_alive = parser.should_keep_alive() and (
            b"connection" not in headers or parser.get_http_version() == "1.1"
        )
        old = parser.get_http_version() == "1.0"
        exchange.must_name_host = not old
        refusal = check_head(
            exchange.target, headers, self._head_bytes, parser.should_upgrade(), self._limits
        ) or self._handler.admit(exchange)
        if refusal is not None:
            self._refuse_and_stop(refusal)
        if b"expect" in headers and not old and self.current is None and not self._queue:
            self.transport.write(_CONTINUE)
        self._reading = _BODY
        self._head_bytes = 0
        self.deadline_s = self._server.tick_s + self._limits.body_timeout_s

    def on_body(self, piece: bytes) -> None:
        exchange = self._incoming
        body = exchange.body
        if not body:
            # The usual case, one piece: kept as it came, not copied.
            exchange.body = body = piece
        else:
            if not isinstance(body, bytearray):
                exchange.body = body = bytearray(body)
            body.extend(piece)
        if (refusal := self._count_body(len(piece))) is not None:
            self._refuse_and_stop(refusal)

    def _count_body(self, count_bytes: int) -> Response | None:
        """So many bytes more stand in `exchange.body`; a response where that is too much."""
        server, limits = self._server, self._limits
        server.buffered_bytes += count_bytes
        if len(self._incoming.body) > limits.body_bytes:
            return body_too_large(limits)
        if server.buffered_bytes > limits.buffered_bytes:
            return problem(
                503,
                f"the server holds {limits.buffered_bytes} bytes of requests already;"
                " try again in a second",
                b"Retry-After: 1\r\n",
            )
        return None

    def on_message_complete(self) -> None:
        if self._reading == _OFFER:
            return
        self._incoming.arrived_at_us = self.arrived_at_us
        self._queue.append(self._incoming)
        self._incoming = HttpExchange(self)
        self._reading = _IDLE
        self._head_bytes = 0
        self.deadline_s = _NEVER

    # -- answering ----------------------------------------------------------------------------

    def finish(self, exchange: HttpExchange, response: Response) -> None:
        """Send the response to the current exchange, then turn to the next one."""
        if exchange is not self.current:
            return  # the client is gone
        self.current = None
        self._release(exchange)
        server = self._server
        last = not exchange.keep_alive or server.closing or self.in_reserve
        pieces = response.encode(not last, head_only=exchange.method == b"HEAD")
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)
        if last:
            self._close()
        elif not self._advancing and (self._queue or self._read_paused):
            self._advance()
        elif self._reading == _IDLE and not self._write_paused:
            self.deadline_s = server.tick_s + self._limits.idle_timeout_s
            server.seats.active(self)

    def replace_body(self, exchange: HttpExchange, body: bytes) -> bool:
        """See `HttpExchange.replace_body`."""
        server = self._server
        if server.buffered_bytes + len(body) > self._limits.buffered_bytes:
            return False
        server.buffered_bytes += len(body) - len(exchange.body)
        exchange.body = body
        return True

    def close_if_idle(self) -> None:
        if self.current is None and not self._queue and self._reading == _IDLE:
            self.transport.close()

    def time_out(self) -> None:
        """The deadline passed: say so where a request is half read, otherwise just close."""
        if self._write_paused or self._lingering_bytes >= 0 or self.transport.is_closing():
            self.transport.abort()
        elif self._reading == _IDLE or self._deaf:
            self.transport.close()
        else:
            what = "head" if self._reading == _HEAD else "body"
            self._refuse(problem(408, f"the {what} of the request did not arrive in time"))
            if self.current is None:
                self._advance()

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        while self._queue and self.current is None and not self._write_paused:
            exchange = self.current = self._queue.popleft()
            if exchange.refusal is not None:
                self.finish(exchange, exchange.refusal)
                continue
            try:
                self._handler.handle(exchange)
            except Exception:
                self.finish(exchange, internal_error())
        self._advancing = False
        if self.current is None and self._read_paused and not self._write_paused:
            self._read_paused = False
            self._waited = True
            self.transport.resume_reading()

    def _refuse(self, response: Response) -> None:
        """Queue this response as the connection's last one; nothing more is read."""
        exchange = self._incoming
        self._in_place, self._place = None, self._server.buffer
        exchange.refusal = response
        exchange.keep_alive = False
        self._deaf = True
        self.deadline_s = _NEVER
        self._queue.append(exchange)
        self._incoming = HttpExchange(self)

    def _refuse_and_stop(self, response: Response) -> None:
        self._refuse(response)
        raise _RefusedError

    def _close(self) -> None:
        """Close so that the client can still read the last response.

        Closing while its bytes are unread would reset the connection, and the response with it:
        so the sending half is closed first, and what still comes is thrown away for a while.
        """
        for behind in self._queue:
            self._release(behind)
        self._queue.clear()
        half_read = self._deaf
        self._deaf = True
        if half_read and self.transport.can_write_eof():
            self._lingering_bytes = 0
            self.deadline_s = self._server.tick_s + self._limits.linger_timeout_s
            self.transport.write_eof()
        else:
            # Closing waits for the client to take what was written; not for ever.
            self.deadline_s = self._server.tick_s + self._limits.write_timeout_s
            self.transport.close()

    def _throw_away(self, size_bytes: int) -> None:
        if self._lingering_bytes >= 0:
            self._lingering_bytes += size_bytes
            if self._lingering_bytes > self._limits.linger_bytes:
                self.transport.abort()

    def _release(self, exchange: HttpExchange) -> None:
        self._server.buffered_bytes -= len(exchange.body)
        exchange.body = b""
