"""A front on a TCP port, whatever it speaks: its socket, TLS, and its life."""

import asyncio
import errno
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.domain.base import host_port
from headrace.serving.complaints import Complaints
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.arrivals import stamp_arrivals
from headrace.serving.front.base import AddressError, FrontOptions
from headrace.serving.front.guard import meet
from headrace.serving.front.handshake import Accepted, Handshake
from headrace.serving.front.http_server import Connections
from headrace.serving.front.tls_failures import ServerContext

log = logging.getLogger("headrace.tls")

_SWEEP_S = 0.5
_BACKLOG = 1024
"""Clients that wait to be let in."""
_RECEIVED_BYTES = 1 << 20
"""That the kernel may hold of a connection, from its first request on. Left to itself it begins
with 64 KiB and learns how much a client sends: a first request of 600 kB comes in ten pieces."""


async def bind(
    greet: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    another: str,
    *,
    start_serving: bool = True,
) -> asyncio.Server:
    """`create_server`, or a sentence that says why not.

    Args:
        another: see `TcpFront.another`.
        start_serving: False: nobody is let in, nor finds it.

    Raises:
        AddressError: the address cannot be listened on.
    """
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(
            greet, host, port, backlog=_BACKLOG, start_serving=start_serving
        )
    except (OSError, UnicodeError) as error:  # Unicode: no name that a host can have.
        address = host_port(host, port)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            sentence = f"serve: {address} is in use by another program\n  try    {another}"
        else:
            sentence = f"serve: cannot listen on {address}: {error}"
        raise AddressError(sentence) from error


class TcpFront(ABC):
    """A `Front`, but for what it speaks."""

    scheme: str
    """Of the address, without TLS."""
    alpn: str
    """What it speaks, as TLS names it."""
    another: str
    """The option that gives it another port."""

    def __init__(self, core: ProtocolCore, options: FrontOptions) -> None:
        """
        Raises:
            AccessError: the certificate or its key cannot be used.
        """
        self._core = core
        self._options = options
        self._tls = None if options.tls is None else options.tls.context(self.alpn)
        # One thread: compressed bodies are rare, and must not hold up the loop.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-zlib")
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._stopped = False
        self._coming: set[asyncio.Task[Any]] = set()
        """Clients that had connected when the listener was closed."""
        self._handshakes: set[Handshake] = set()
        self._complaints = Complaints(log)
        self.address = ""
        """The URL."""

    @property
    @abstractmethod
    def server(self) -> Connections[Any]: ...

    @abstractmethod
    def connect(self) -> asyncio.BaseProtocol:
        """For a client that has come."""

    @property
    def connections(self) -> int:
        return len(self.server.connections) + len(self._coming) + len(self._handshakes)

    async def listen(self) -> None:
        """
        Raises:
            AddressError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        host, port = self._options.host, self._options.port
        listener = await bind(self._greet, host, port, self.another)
        self._listener = listener
        for own in listener.sockets:
            stamp_arrivals(own)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
        address = host_port(host, listener.sockets[0].getsockname()[1])
        self.address = f"{self.scheme}{'' if self._tls is None else 's'}://{address}"
        self._sweeper = loop.create_task(self._sweep())

    def _greet(self) -> asyncio.BaseProtocol:
        if self._tls is None:
            return self.connect()
        return Accepted(partial(self._shake_hands, self._tls))

    def _shake_hands(self, tls: ServerContext, client: socket.socket) -> None:
        handshake = Handshake(
            client, tls, self.connect, self.server.seats, self._handshakes, self._complaints
        )
        meet(self._options.access, handshake, self.aside)

    def retire(self) -> None:
        self._core.retire()
        self.server.retire()

    def close(self) -> None:
        """Let in who has connected already, and nobody more: the kernel resets connections that
        wait for a listener when it is closed, and what they have asked would be lost."""
        if self._listener is None:
            return
        copies = []
        with suppress(OSError):  # no descriptors: none either for those who would be let in
            for own in self._listener.sockets:
                copies.append(socket.socket(fileno=os.dup(own.fileno())))
        self._listener.close()
        self._listener = None
        for copy in copies:
            with copy:
                self._accept_all(copy)

    def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        for _ in range(_BACKLOG):
            try:
                client, _ = listener.accept()
            except OSError:
                return  # there are no more, or no descriptors for them
            client.setblocking(False)
            task = loop.create_task(self._let_in(client))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    async def _let_in(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # it left
            await loop.connect_accepted_socket(self._greet, client)

    def drain(self) -> None:
        self.server.drain()

    async def stop(self) -> None:
        self.close()
        for task in self._coming:
            task.cancel()
        for handshake in tuple(self._handshakes):
            handshake.give_way()
        self.server.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._stopped = True
        self._pool.shutdown(cancel_futures=True)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.server.sweep(loop.time())
            await asyncio.sleep(_SWEEP_S)

    def aside(self, work: Callable[[], Any], then: Callable[["Future[Any]"], None]) -> None:
        """Do it on another thread, and go on with its result on the loop's."""
        if self._stopped:
            return  # every connection is gone: nobody waits for the result
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(then, done))
