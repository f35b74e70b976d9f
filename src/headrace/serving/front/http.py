"""HTTP/1.1 for machines: keep-alive, in order, bounded in bytes, time and connections.

A connection reads one message at a time (`http_reading`), and answers in the order in which they
came:

    queue ──▶ current ──respond──▶ written, the next one is current

What was read waits in the queue; only the current exchange is being handled, so answers cannot
change places. Beyond `Limits.pipelined` waiting exchanges, reading from the socket pauses. Between
two requests that are answered at once, such as a thousand for /metrics in one read, other
connections have their turn.

This file decides how long things may take and when to stop. It knows nothing of inference: a
`Handler` does.

Limits. All bodies of all connections together are bounded by `buffered_bytes`, connections by
number. Each state has a deadline, kept as one instant per connection and enforced by
`HttpServer.sweep`, so it costs no timer: up to half a second late.

Refusing while a request is half read: the rest of what the client sends is not read into memory
(`_deaf`), the answer is written, the sending half is closed, and what still comes is thrown away
for a while (`_lingering_bytes`), because closing with bytes unread would reset the connection and
take the answer with it.

A step of a sequence that has no answer is its connection's last exchange where its client sends
ahead: what follows was meant to follow that step, and none of it is read (`leads`).

A general framework costs more per request than the whole answer of a small model, see
`docs/decisions/`.
"""

import asyncio
from typing import TYPE_CHECKING

from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Response, internal_error, problem
from headrace.serving.front.http_reading import HEAD, IDLE, NEVER, HttpReader
from headrace.serving.front.seats import STRANGER

if TYPE_CHECKING:
    from headrace.serving.front.http_server import HttpServer


_NO_ANSWER = 400
"""From this status on."""
_LEFT = (
    "the client closed its side of the connection before its answer, which is taken for leaving: it"
    " gets none"
)


class HttpConnection(HttpReader):
    """One client. Requests are answered in the order in which they came."""

    __slots__ = (
        "_advancing",
        "_lingering_bytes",
        "_write_paused",
        "_yielded",
        "held_us",
        "retry_at_us",
    )

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server)
        self._lingering_bytes = -1
        """>= 0: the last response is sent, and what still comes is counted and thrown away."""
        self._advancing = False
        self._yielded = False
        """It goes on after others had their turn."""
        self._write_paused = False
        self.retry_at_us = 0
        """Until then a request like the last refused one has no chance."""
        self.held_us = 0
        """How long its last refusal was held back."""

    def _expect(self) -> HttpExchange:
        return HttpExchange(self)

    # -- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handler.meet(self)

    def turn_away(self) -> bool:
        if len(self._server.connections) - len(self._server.seats) > self._limits.turned_away:
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
        if self._reading == IDLE and not self._deaf:
            self.transport.close()
            if self.standing == STRANGER or not self.waiting_bytes:
                # Closing waits for the client to take what was written, and with TLS to say goodbye
                # too: whoever does not would stay beside its seat. In the loop's next turn what
                # the kernel takes is on its way.
                self._server.soon(self.transport.abort)
        else:
            self.transport.abort()

    def eof_received(self) -> None:
        # A client that half-closes looks like one that went away: its work is cancelled, and it is
        # told so, in case it is there.
        current = self.current
        if current is not None:
            current.keep_alive = False
            self.finish(current, problem(400, _LEFT))
            self._handler.abandon(current)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_crumbs()
        self._deaf = True
        self.deadline_s = NEVER
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
        self.await_taking()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self.transport.is_closing():
            return
        now_s, limits = self._server.tick_s, self._limits
        if self._lingering_bytes >= 0:
            self.deadline_s = now_s + limits.linger_timeout_s
        elif self.current is not None or self._queue:
            self.deadline_s = NEVER
        else:
            idle = self._reading == IDLE
            self.deadline_s = now_s + (limits.idle_timeout_s if idle else limits.body_timeout_s)
        if self.current is None:
            self._advance()

    # -- answering ----------------------------------------------------------------------------

    def finish(self, exchange: HttpExchange, response: Response) -> None:
        """Send the response to the current exchange, then turn to the next one."""
        if exchange is not self.current:
            return  # the client is gone
        self.current = None
        self._release(exchange)
        server = self._server
        last = not exchange.keep_alive or server.closing or self.in_reserve
        if exchange.leads and response.status >= _NO_ANSWER and self._is_ahead():
            self._stop_reading()
            last = True
        pieces = response.encode(not last, head_only=exchange.method == b"HEAD")
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)
        if last:
            self._close()
            if self._read_paused:
                self._read_paused = False
                self._resume_reading()
            return
        self._ask_for_body()
        if not self._advancing and (self._queue or self._read_paused):
            self._advance()
        elif self._reading == IDLE and not self._write_paused:
            self.deadline_s = server.tick_s + self._limits.idle_timeout_s
            server.seats.active(self)

    def _is_ahead(self) -> bool:
        """Whether its client does not wait for an answer before it sends the next request."""
        read = self._sends_ahead or bool(self._queue) or self._reading != IDLE
        return read or self.has_unread()

    def replace_body(self, exchange: HttpExchange, body: bytes) -> bool:
        """See `HttpExchange.replace_body`."""
        server = self._server
        if server.buffered_bytes + len(body) > self._limits.buffered_bytes:
            return False
        server.buffered_bytes += len(body) - len(exchange.body)
        exchange.body = body
        return True

    def close_if_idle(self) -> None:
        idle = self.current is None and not self._queue and self._reading == IDLE
        if idle and not self.has_unread():
            self.transport.close()

    def time_out(self) -> None:
        """The deadline passed: say so where a request is half read, otherwise just close."""
        if self._write_paused or self.transport.is_closing():
            if not self.is_taking():
                self.transport.abort()
        elif self._lingering_bytes >= 0:
            self.transport.abort()
        elif self._reading == IDLE or self._deaf:
            self.transport.close()
        else:
            what = "head" if self._reading == HEAD else "body"
            self._refuse(problem(408, f"the {what} of the request did not arrive in time"))
            if self.current is None:
                self._advance()

    def _advance(self) -> None:
        if self._advancing or self._yielded:
            return
        self._advancing = True
        if self._queue and self.current is None and not self._write_paused:
            exchange = self.current = self._queue.popleft()
            if exchange.refusal is not None:
                self.finish(exchange, exchange.refusal)
            else:
                try:
                    self._handler.handle(exchange)
                except Exception:
                    self.finish(exchange, internal_error())
        self._advancing = False
        if self.current is not None or self._write_paused:
            return
        if self._queue:
            self._yielded = True
            self._server.soon(self._go_on)
        elif self._read_paused:
            self._read_paused = False
            self._resume_reading()

    def _go_on(self) -> None:
        """Others had their turn."""
        self._yielded = False
        if not self.transport.is_closing():
            self._advance()

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
            if not self._write_paused:
                self.deadline_s = self._server.tick_s + self._limits.linger_timeout_s
            self.transport.write_eof()
        else:
            # Closing waits for the client to take what was written; not for ever.
            self.await_taking()
            self.transport.close()

    def _throw_away(self, size_bytes: int) -> None:
        if self._lingering_bytes >= 0:
            self._lingering_bytes += size_bytes
            if self._lingering_bytes > self._limits.linger_bytes:
                self.transport.abort()
