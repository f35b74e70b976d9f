"""TLS of a client that has come: it has a seat before anything that it sends is read.

    accepted ──peer is known──▶ seated ──handshake──▶ a connection, which takes over the seat

A loop that accepts with TLS tells of a client when its handshake is done, and clients that never
send anything are seen by nobody. So the loop accepts without (`Accepted`), and gets the socket back
with TLS once there is a seat for it (`Handshake`). Its own `start_tls` would be shorter, but uvloop
reads from a new transport whatever `connection_made` says, and what it has read is lost to TLS.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import cast

from headrace.serving.addresses import peer_key
from headrace.serving.complaints import Complaints
from headrace.serving.front.seats import STALLED, STRANGER, Peer, Seats
from headrace.serving.front.tls_failures import ServerContext, on_failure

_HANDSHAKE_S = 10.0
_STALLED_S = 2.0
"""A handshake takes two round trips; there is time for one packet that is lost."""


class Accepted(asyncio.Protocol):
    """Takes a client's socket from the loop, unread."""

    def __init__(self, take: Callable[[socket], None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        with suppress(OSError):  # no more descriptors
            client = socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            client.setblocking(False)
            self._take(client)
        cast("asyncio.Transport", transport).abort()


class Handshake(asyncio.Protocol):
    """One client, until it speaks TLS."""

    busy = False
    """See `seats.Seated`: it has asked for nothing yet, so it gives way like one that is idle, and
    before those when it is stalled."""

    def __init__(
        self,
        client: socket,
        context: ServerContext,
        connect: Callable[[], asyncio.BaseProtocol],
        seats: Seats,
        under_way: set["Handshake"],
        complaints: Complaints,
    ) -> None:
        """
        Args:
            client: this one's from now on.
            connect: makes what speaks to the client afterwards.
            under_way: it stands there until it is over.
            complaints: takes why it fails.
        """
        self._client = client
        self._context = context
        self._connect = connect
        self._seats = seats
        self._under_way = under_way
        under_way.add(self)
        self._complaints = complaints
        try:
            self._ends = client.getpeername()[:2], client.getsockname()[:2]
        except OSError:
            self._ends = ("", 0), ("", 0)  # it is gone, and the handshake is about to find out
        self.peer: Peer | None = None
        self.standing = STRANGER
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """(address, port) of the other end and of ours."""
        return self._ends

    def introduce(self, peer: Peer, trusted: bool) -> None:
        """The peer is known now: begin, or hang up where there is no seat, for nothing can be said
        without TLS. The connection that follows asks again who it is, and what it may do."""
        if self._ended:
            return
        self.peer = peer
        if self._seats.take(self) == "none":
            self.give_way()
        else:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._shake_hands())
            self._timer = loop.call_later(_STALLED_S, self._stall)

    async def _shake_hands(self) -> None:
        on_failure.set(self._fail)
        try:
            with suppress(OSError):  # it left, took too long, or cannot be agreed with
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self,
                    self._client,
                    ssl=self._context,
                    ssl_handshake_timeout=_HANDSHAKE_S,
                )
        finally:
            self._leave()

    def _stall(self) -> None:
        """Keep the seat for as long as nobody else needs one."""
        self._seats.stand(self, STALLED)

    def _fail(self, sentence: str) -> None:
        self._stall()
        self._complaints.warn(peer_key(self._ends[0][0]), sentence)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client speaks TLS."""
        self._leave()
        if self._ended:
            cast("asyncio.Transport", transport).abort()
            return
        connection = self._connect()
        cast("asyncio.Transport", transport).set_protocol(connection)
        connection.connection_made(transport)

    def give_way(self) -> None:
        """Hang up."""
        self._ended = True
        self._leave()
        if self._task is None:
            self._client.close()
        else:
            with suppress(OSError):  # it has left itself
                # Cancelling the task would leave the socket open if TLS has not begun.
                self._client.shutdown(SHUT_RDWR)

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._seats.leave(self)
        self._under_way.discard(self)
