"""One client's bytes become requests; `http` answers them.

httptools finds where a message begins and ends (RFC 9112), but for large bodies (`http_body`):

    idle ──first byte──▶ head ──blank line──▶ body ──last byte──▶ idle

Framing. A body's length comes from Content-Length or from chunks, never both and never twice: a
header on which reading or access depends may stand there once (`_ONCE`), since two programs that
take different ones of two would disagree on where a message ends. Trailers are read and ignored.

Limits. Each is checked before memory is taken for what it bounds: the head by bytes and fields as
it comes in, the body by its announced length and by what really comes, what frames its pieces
(sizes and extensions of chunks, trailers) like a head, since the parser puts a field together
before it hands it on.

Turns. The loop hands over up to 2 MB of one connection at once. Where that comes in many small
pieces, such as chunks of a byte, others have their turn after each read (`_TURN_PIECES`). Where a
crowd of connections sends requests in crumbs, each is read ever more seldom, so that 1,100 of them
do not hold up the loop (`_note_crumb`). One alone, as clients are that write a head line by line or
a body as it is made, is read at once; and a pause of ours uses up no request's time.
"""

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING

import httptools

from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.http_body import LEAST_BYTES, BodyInPlace
from headrace.serving.front.http_exchange import (
    HttpExchange,
    read_absolute,
    without_upgrade,
)
from headrace.serving.front.http_messages import (
    Response,
    body_too_large,
    check_head,
    frames_too_large,
    head_too_large,
    internal_error,
    newer_version,
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

IDLE, HEAD, BODY, OFFER = 0, 1, 2, 3
NEVER = float("inf")

_BEGINNING_BYTES = 16
"""Of what is no HTTP/1.1, to say what it may be."""
_TURN_PIECES = 1 << 10
"""Of bodies, after which others have their turn."""
_MESSAGE_PIECES = 16
"""That a message takes as long as."""
_CRUMB_BYTES = 64
_CRUMBS_AT_ONCE, _CRUMBS_ALONE = 4, 1_000
"""Of one request, that are read at once in a crowd, and without one."""
_CROWD = 64
"""Connections with so many crumbs each: a turn of the loop reads them all within 1 ms."""
_DOZE_S, _DOUBLED_MOST = 0.4, 3
"""Between two reads of a connection that sends crumbs: 0.4, 0.8, 1.6 and then 3.2 s, in sweeps."""


class _RefusedError(Exception):
    """Leaves the parser once the request's fate is known; the response waits in the exchange."""


class HttpReader(TcpConnection):
    """The half of a connection that reads: what it has read is in `_queue`, in order."""

    __slots__ = (
        "_awaits_turn",
        "_bare_bytes",
        "_crumbs",
        "_deaf",
        "_dozes",
        "_fields",
        "_handler",
        "_in_place",
        "_incoming",
        "_limits",
        "_parser",
        "_pieces",
        "_queue",
        "_read_paused",
        "_reading",
        "_sends_ahead",
        "_server",
        "current",
        "wakes_s",
    )

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server)
        self._server = server
        self._limits = server.limits
        self._handler = server.handler
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = self._expect()
        self._in_place: BodyInPlace | None = None
        """The large body that is being read, past the parser."""
        self.current: HttpExchange | None = None
        """It is being answered."""
        self._queue: deque[HttpExchange] = deque()
        self._reading = IDLE
        self._bare_bytes = 0
        """Read since the last piece of a body: of a head, or of what frames a body's pieces."""
        self._fields = 0
        self._deaf = False
        """No more requests are read: the last response closes the connection."""
        self._read_paused = False
        """Enough waits to be answered."""
        self._sends_ahead = False
        """It has sent a request before the answer to the one before."""
        self._pieces = 0
        """That were read since others had their turn."""
        self._awaits_turn = False
        """It is read again after others had theirs."""
        self.deadline_s = server.tick_s + server.limits.idle_timeout_s
        self._crumbs = 0
        """Reads that brought next to nothing of the request that is half sent."""
        self._dozes = 0
        """In that request."""
        self.wakes_s = NEVER
        """When a connection that is not read for its crumbs is read again."""

    # -- the other half's ---------------------------------------------------------------------

    @abstractmethod
    def _expect(self) -> HttpExchange:
        """An empty one, to be read."""

    @abstractmethod
    def _advance(self) -> None:
        """Turn to the next request of the queue, if none is being answered."""

    @abstractmethod
    def _throw_away(self, size_bytes: int) -> None:
        """So many bytes came behind the last request."""

    # -- reading ------------------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        if self._in_place is None:
            self.data_received(self._place[:nbytes])
        else:
            self._grow_body(self._in_place, nbytes)

    def read(self, data: bytes | memoryview) -> None:
        if self._deaf:
            self._throw_away(len(data))
            return
        self._bare_bytes += len(data)
        try:
            while (rest := self._parse(data)) is not None:
                data = rest
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # A callback that refused the request has said so already, and is deaf by now.
            if isinstance(error, httptools.HttpParserCallbackError) and not self._deaf:
                self._refuse(internal_error())
            elif not self._deaf:
                version = self._parser.get_http_version()
                self._refuse(no_http(error, version, bytes(data[:_BEGINNING_BYTES])))
        else:
            if self._reading != IDLE and self._bare_bytes > self._limits.head_bytes:
                in_head = self._reading == HEAD
                self._refuse((head_too_large if in_head else frames_too_large)(self._limits))
            elif self._reading == IDLE:
                self._forget_crumbs()
            elif len(data) < _CRUMB_BYTES:
                self._note_crumb()
            elif self._reading == BODY:
                self._receive_in_place()
        self._turn_to_answers()

    def _parse(self, data: bytes | memoryview) -> bytes | None:
        """What is still to be parsed: a request that offers another protocol, as Java's clients do
        unasked (HTTP/2, TLS), without its offer. That may be ignored (RFC 9110, section 7.8), but
        ends the parser behind the head, whatever the length of the body."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            if self._reading != OFFER:
                raise
            head = without_upgrade(self._incoming, self._parser.get_http_version())
            self._incoming = self._expect()
            self._parser = httptools.HttpRequestParser(self)
            return head + bytes(data[error.args[0] :])
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
            self._forget_crumbs()
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
        if self._pieces >= _TURN_PIECES and not (self._awaits_turn or self.transport.is_closing()):
            self._awaits_turn = True
            self.transport.pause_reading()
            self._server.soon(self._read_on)

    def _read_on(self) -> None:
        """Others had their turn."""
        self._awaits_turn, self._pieces = False, 0
        self._resume_reading()

    def _resume_reading(self) -> None:
        waits = self._awaits_turn or self._read_paused or self.wakes_s != NEVER
        if not (waits or self.transport.is_closing()):
            self._waited = True
            self.transport.resume_reading()

    def _note_crumb(self) -> None:
        """Whoever sends a request byte by byte is read ever more seldom while a crowd does so,
        which would hold up the loop for others; alone, only after very many."""
        self._crumbs += 1
        if self._crumbs < _CRUMBS_AT_ONCE or self.transport.is_closing():
            return
        crumbling = self._server.crumbling
        crumbling.add(self)
        if len(crumbling) > _CROWD or self._crumbs >= _CRUMBS_ALONE:
            doze_s = _DOZE_S * (1 << min(self._dozes, _DOUBLED_MOST))
            self._dozes += 1
            self.wakes_s = self._server.tick_s + doze_s
            self.transport.pause_reading()

    def _forget_crumbs(self) -> None:
        """The request is whole, or refused."""
        if self._crumbs:
            self._crumbs = self._dozes = 0
            self._server.crumbling.discard(self)

    def wake(self) -> None:
        """Read again. What comes next has not waited for a busy loop until now, but for us."""
        self.wakes_s = NEVER
        self._rested_until_us = monotonic_us()
        self._resume_reading()

    # -- the parser's side ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reading = HEAD
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
        if self._reading == BODY:
            return  # a trailer; nothing that matters may stand there
        headers = self._incoming.headers
        name, value = name.lower(), value.rstrip(b" \t")
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
        if parser.should_upgrade() and exchange.method != b"CONNECT":
            self._reading = OFFER
            return
        if not exchange.target.startswith(b"/"):
            read_absolute(exchange)
        version = parser.get_http_version()
        old = version == "1.0"
        # An older version has to ask for it.
        exchange.keep_alive = parser.should_keep_alive() and (
            b"connection" not in headers or version == "1.1"
        )
        exchange.must_name_host = not old
        refusal = check_head(
            exchange.method, exchange.target, headers, self._bare_bytes, self._limits
        )
        if refusal is None:
            refusal = newer_version(version) or self._handler.admit(exchange)
        if refusal is not None:
            self._refuse_and_stop(refusal)
        exchange.expects_continue = b"expect" in headers and not old
        self._reading = BODY
        self._bare_bytes = 0
        self.deadline_s = self._server.tick_s + self._limits.body_timeout_s
        self._ask_for_body()

    def _ask_for_body(self) -> None:
        """Of the request that is being read, if its client waits for that and its turn has come."""
        exchange = self._incoming
        behind = self.current is not None or bool(self._queue)
        if exchange.expects_continue and not (exchange.body or behind):
            exchange.expects_continue = False
            self.deadline_s = self._server.tick_s + self._limits.body_timeout_s
            self.transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        self._bare_bytes = 0
        self._pieces += 1
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
        most_bytes = self._incoming.body_bytes or limits.body_bytes
        if len(self._incoming.body) > most_bytes:
            return body_too_large(most_bytes)
        if server.buffered_bytes > limits.buffered_bytes:
            return problem(
                503,
                f"the server holds {limits.buffered_bytes} bytes of requests already;"
                " try again in a second",
                b"Retry-After: 1\r\n",
            )
        return None

    def on_message_complete(self) -> None:
        if self._reading == OFFER:
            return
        self._pieces += _MESSAGE_PIECES
        self._incoming.arrived_at_us = self.arrived_at_us
        if self.current is not None or self._queue:
            self._sends_ahead = True
        self._queue.append(self._incoming)
        self._incoming = self._expect()
        self._reading = IDLE
        self._bare_bytes = 0
        self.deadline_s = NEVER

    def _refuse(self, response: Response) -> None:
        """Queue this response as the connection's last one; nothing more is read."""
        exchange = self._incoming
        exchange.refusal = response
        exchange.keep_alive = False
        self._stop_reading()
        self._queue.append(exchange)
        self._incoming = self._expect()

    def _stop_reading(self) -> None:
        """What still comes is thrown away."""
        self._forget_crumbs()
        self._in_place, self._place = None, self._server.buffer
        self._deaf = True
        self.deadline_s = NEVER

    def _refuse_and_stop(self, response: Response) -> None:
        self._refuse(response)
        raise _RefusedError

    def _release(self, exchange: HttpExchange) -> None:
        self._server.buffered_bytes -= len(exchange.body)
        exchange.body = b""
