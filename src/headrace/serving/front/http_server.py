"""What all connections of one server share: limits, seats, the buffer, coarse time."""

import asyncio
import socket

from headrace.serving.front.arrivals import Arrivals
from headrace.serving.front.http import HttpConnection
from headrace.serving.front.http_exchange import Handler
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.seats import Seats

_READ_BYTES = 1 << 18


class HttpServer:
    """What all connections of one server share. Give `connect` to `loop.create_server`."""

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.connections: set[HttpConnection] = set()
        self.seats = Seats(self.limits)
        self.arrivals = Arrivals()
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """What is read goes through here, and is parsed at once: one buffer serves all."""
        self.closing = False
        """Each answer is its connection's last."""
        self.buffered_bytes = 0
        self.accepted = 0
        """Connections so far."""
        self.tick_s = 0.0
        """Coarse time, as of the last sweep: deadlines need no clock reading per request."""

    def connect(self) -> "HttpConnection":
        return HttpConnection(self)

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

    def drain(self) -> None:
        """Answer what was accepted, then close every connection."""
        self.closing = True
        for connection in tuple(self.connections):
            connection.close_if_idle()

    def abort(self) -> None:
        """Close every connection at once."""
        for connection in tuple(self.connections):
            connection.transport.abort()
