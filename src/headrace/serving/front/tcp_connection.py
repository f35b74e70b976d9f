"""What connections have in common, whatever they speak: peer, seat, and when things arrived."""

import asyncio
from abc import ABC, abstractmethod
from fcntl import ioctl
from socket import MSG_DONTWAIT, MSG_PEEK, socket
from struct import unpack
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Any, cast

from headrace.serving.front.seats import CONNECTION_NUMBERS, STRANGER, Peer

if TYPE_CHECKING:
    from headrace.serving.front.http_server import Connections

_PEEK = MSG_PEEK | MSG_DONTWAIT


class TcpConnection(asyncio.BufferedProtocol, ABC):
    """One client. What it sends before its peer is known waits; then it gets a seat, or is turned
    away."""

    __slots__ = (
        "_early",
        "_ends",
        "_place",
        "_rested_until_us",
        "_shared",
        "_socket",
        "_untaken_bytes",
        "_waited",
        "arrived_at_us",
        "deadline_s",
        "in_reserve",
        "known_fields",
        "known_host",
        "number",
        "owner",
        "peer",
        "standing",
        "transport",
        "trusted",
    )
    # CPython finds attributes beyond the thirtieth of an object without slots by their hash.

    transport: asyncio.Transport
    deadline_s: float
    """When it has taken too long, on the clock of the sweeps."""

    def __init__(self, server: "Connections[Any]") -> None:
        self._shared = server
        self.number = next(CONNECTION_NUMBERS)
        """Tells clients apart that keep their connections."""
        self.peer: Peer | None = None
        """Who is at the other end; None: not known yet."""
        self.owner = ""
        """The peer's key as text; empty: not known yet."""
        self.standing = STRANGER
        self.in_reserve = False
        """Its seat is for one urgent request."""
        self.trusted = False
        """Whether the other end needs no token."""
        self.known_host: bytes | None = None
        """The last name that was found to be ours."""
        self.known_fields: tuple[bytes, ...] = ()
        """Names of the last header fields that were found to come from no proxy."""
        self.arrived_at_us: int | None = None
        """When what is being read reached this machine."""
        self._ends: tuple[tuple[str, int], tuple[str, int]] | None = None
        self._socket: socket | None = None
        """To look at what has not been read; it is the transport's, and never closed here."""
        self._untaken_bytes = 0
        """That the client had still to take when its time to do so began."""
        self._waited = False
        """What is read next waited because we did not read."""
        self._rested_until_us = 0
        """Until then we did not read for a reason that is no request's: none has arrived before."""
        self._early: list[bytes] = []
        """Sent before the peer was known."""
        self._place = server.buffer
        """Where what comes next is read to."""

    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """(address, port) of the other end and of ours."""
        if self._ends is None:
            peer = self.transport.get_extra_info("peername") or ("", 0)
            local = self.transport.get_extra_info("sockname") or ("", 0)
            self._ends = (peer[0], peer[1]), (local[0], local[1])
        return self._ends

    def origin_scheme(self) -> bytes:
        """Of the origin of a page that came by such a connection."""
        return b"http" if self.transport.get_extra_info("sslcontext") is None else b"https"

    def stand(self, standing: int) -> None:
        """It has shown the token, or turned out to speak for others."""
        self._shared.seats.stand(self, standing)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self._shared.connections.add(self)
        self._socket = self._shared.socket_of(transport)

    def introduce(self, peer: Peer, trusted: bool) -> None:
        """The peer is known now: give it a seat, or turn it away."""
        if self.transport.is_closing():
            return
        self.peer, self.owner, self.trusted = peer, str(peer.key), trusted
        seat = self._shared.seats.take(self)
        self.in_reserve = seat == "reserve"
        if seat == "none" and not self.turn_away():
            return
        early, self._early = b"".join(self._early), []
        if early:
            self.read(early)
            self._resume_reading()

    @abstractmethod
    def turn_away(self) -> bool:
        """There is no seat: say so. Returns whether what came meanwhile is read all the same."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """See `seats.Seated`."""

    @abstractmethod
    def give_way(self) -> None:
        """Its seat is needed by another."""

    def get_buffer(self, sizehint: int) -> memoryview:
        arrived_at_us = self._shared.arrivals.before_read(self._socket, self._waited)
        if self._waited:
            self._waited = False
            arrived_at_us = max(arrived_at_us, self._rested_until_us)
        self.arrived_at_us = arrived_at_us
        return self._place

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._place[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        if self.peer is None:
            self._early.append(bytes(data))
            self.transport.pause_reading()
            return
        self.read(data)

    @abstractmethod
    def read(self, data: bytes | memoryview) -> None:
        """What a known peer has sent; of the shared buffer, which is gone afterwards."""

    @abstractmethod
    def _resume_reading(self) -> None:
        """Unless there is another reason not to read."""

    def has_unread(self) -> bool:
        """Whether something it has sent is still to be read: closing would reset the connection."""
        if self._early:
            return True
        try:
            return self._socket is not None and bool(self._socket.recv(1, _PEEK))
        except OSError:
            return False  # nothing, or the client is gone

    @property
    def waiting_bytes(self) -> int:
        """Of answers that wait here for the client to take them."""
        return self.transport.get_write_buffer_size()

    def await_taking(self) -> None:
        """What was written is the client's to take: see `Limits.write_bytes`."""
        self.deadline_s = self._shared.tick_s + self._shared.limits.write_timeout_s
        self._untaken_bytes = self._count_untaken()

    def is_taking(self) -> bool:
        """Whether it has taken enough by that deadline; then it has as long again."""
        before = self._untaken_bytes
        self.await_taking()
        return before - self._untaken_bytes >= min(before, self._shared.limits.write_bytes) > 0

    def _count_untaken(self) -> int:
        """Bytes written that have not reached the other end. The kernel's are counted too: it takes
        more only when a third of its megabytes is free, which on a slow line is minutes."""
        left_bytes = self.waiting_bytes
        try:
            if self._socket is not None:
                left_bytes += unpack("i", ioctl(self._socket, TIOCOUTQ, bytes(4)))[0]
        except OSError:
            pass  # the client is gone
        return left_bytes

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._shared.seats.leave(self)
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
