"""What all connections of one server share: limits, seats, the buffer, coarse time."""

import asyncio
import logging
import socket
from collections.abc import Callable
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from headrace.serving.front.arrivals import Arrivals
from headrace.serving.front.http import HttpConnection
from headrace.serving.front.http_exchange import Handler
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.http_reading import HttpReader
from headrace.serving.front.seats import Seated, Seats

log = logging.getLogger("headrace.http")

_READ_BYTES = 1 << 18
_HTTP_READ_BYTES = 1 << 16
"""Less: what a large body needs is read to its place (`http_body`), but for the first of it."""


class Connection(Seated, Protocol):
    """What a server knows of each, whatever they speak."""

    transport: asyncio.Transport
    deadline_s: float

    @property
    def waiting_bytes(self) -> int:
        """Of answers that wait here for the client to take them."""
        ...

    def time_out(self) -> None:
        """The deadline passed."""
        ...

    def close_if_idle(self) -> None:
        """The server drains: end, now or once everything was answered."""
        ...


Kind = TypeVar("Kind", bound=Connection)


Soon = Callable[[Callable[[], None]], object]
"""Calls it on the loop's thread, behind what waits there already."""


def _soon(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class Connections(Generic[Kind]):
    """What all connections of one server share."""

    def __init__(
        self,
        limits: Limits | None = None,
        soon: Soon | None = None,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        """`read_bytes`: most at once."""
        self.limits = limits or Limits()
        self.soon = soon or _soon
        self.connections: set[Kind] = set()
        self.seats = Seats(self.limits)
        self.arrivals = Arrivals()
        self.buffer = memoryview(bytearray(read_bytes))
        """What is read goes through here, and is parsed at once: one buffer serves all."""
        self.closing = False
        """Each answer is its connection's last."""
        self.buffered_bytes = 0
        self.tick_s = 0.0
        """Coarse time, as of the last sweep: deadlines need no clock reading per request."""

    def socket_of(self, transport: asyncio.BaseTransport) -> socket.socket | None:
        """A view of the transport's socket, where the kernel stamps what it receives."""
        own = transport.get_extra_info("socket")
        if own is None or own.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        return socket.socket(own.family, own.type, own.proto, fileno=own.fileno())

    def sweep(self, now_s: float) -> None:
        """End what took too long. Call it every half second or so."""
        self.tick_s = now_s
        for connection in tuple(self.connections):
            if now_s > connection.deadline_s:
                connection.time_out()
        self._bound_answers()

    def _bound_answers(self) -> None:
        """Cut those off who hold the most of what clients have still to take, if it is too much."""
        held = [(each.waiting_bytes, each) for each in self.connections]
        left_bytes = all_bytes = sum(size_bytes for size_bytes, _ in held)
        if all_bytes <= self.limits.untaken_bytes:
            return
        cut_off = 0
        for size_bytes, connection in sorted(held, key=itemgetter(0), reverse=True):
            connection.transport.abort()
            left_bytes -= size_bytes
            cut_off += 1
            if left_bytes <= self.limits.untaken_bytes:
                break
        log.warning(
            "%d clients that do not take their answers are cut off: %d bytes waited for all of"
            " them, at most %d may",
            cut_off,
            all_bytes,
            self.limits.untaken_bytes,
        )

    def retire(self) -> None:
        """Go on, and have clients go elsewhere."""
        self.closing = True

    def drain(self) -> None:
        """Answer what was accepted, then close every connection."""
        self.closing = True
        for connection in tuple(self.connections):
            connection.close_if_idle()

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in tuple(self.connections):
            connection.transport.abort()


class HttpServer(Connections[HttpConnection]):
    """Give `connect` to `loop.create_server`."""

    def __init__(
        self, handler: Handler, limits: Limits | None = None, soon: Soon | None = None
    ) -> None:
        super().__init__(limits, soon, _HTTP_READ_BYTES)
        self.handler = handler
        self.crumbling: set[HttpReader] = set()
        """Those with a request that comes in crumbs."""

    def connect(self) -> HttpConnection:
        return HttpConnection(self)

    def sweep(self, now_s: float) -> None:
        """As above, and read again what came in crumbs."""
        super().sweep(now_s)
        for connection in tuple(self.connections):
            if now_s >= connection.wakes_s:
                connection.wake()
