"""An agent's connections to other agents: made when they are first needed, and kept."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial

from headrace.domain.errors import HeadraceError
from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote.connection import Connection, Place, tuned
from headrace.serving.workers.remote.frames import AnyRemoteFrame, Tensors
from headrace.serving.workers.remote.handshake import call

logger = logging.getLogger(__name__)

_Waiting = tuple[Tensors, memoryview, Callable[[str], None]]


class Peers:
    """By address."""

    def __init__(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self._secret = secret
        self._tls = tls
        self._peers: dict[tuple[str, int], _Peer] = {}

    def push(
        self,
        host: str,
        port: int,
        frame: Tensors,
        payload: memoryview,
        on_failed: Callable[[str], None],
    ) -> None:
        """Send tensors, which stay where they are until they have arrived.

        Args:
            on_failed: called when the other agent cannot be reached. What breaks later, the
                receiver says.
        """
        where = (host, port)
        if where not in self._peers:
            self._peers[where] = _Peer(host, port, partial(self._peers.pop, where, None))
            self._peers[where].connect(self._secret, self._tls)
        self._peers[where].push(frame, payload, on_failed)

    def close(self) -> None:
        for peer in list(self._peers.values()):
            peer.close()


class _Peer:
    """One of them; handler of the connection. It is forgotten when that ends."""

    def __init__(self, host: str, port: int, forget: Callable[[], object]) -> None:
        self._host, self._port = host, port
        self._forget = forget
        self._connection: Connection | None = None
        self._waiting: list[_Waiting] = []
        self._calling: asyncio.Task[None] | None = None

    def connect(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self._calling = asyncio.get_running_loop().create_task(self._call(secret, tls))

    def push(self, frame: Tensors, payload: memoryview, on_failed: Callable[[str], None]) -> None:
        if self._connection is None:
            self._waiting.append((frame, payload, on_failed))
        else:
            self._connection.send(frame, payload)

    async def _call(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        try:
            endpoint = await call(self._host, self._port, secret, "agent", tls)
        except HeadraceError as error:
            logger.warning("another agent cannot be reached: %s", error)
            self._forget()
            waiting, self._waiting = self._waiting, []
            for _, _, on_failed in waiting:
                on_failed(str(error))
            return
        connection = Connection(tuned(endpoint))
        connection.handler = self
        connection.start()
        self._connection = connection
        waiting, self._waiting = self._waiting, []
        for frame, payload, _ in waiting:
            connection.send(frame, payload)

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        raise FrameError("an agent that is called says nothing")

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        raise FrameError("an agent that is called says nothing")

    def on_closed(self, reason: str) -> None:
        logger.warning("the connection to %s:%d has ended: %s", self._host, self._port, reason)
        self._forget()

    def close(self) -> None:
        if self._calling is not None:
            self._calling.cancel()
        if self._connection is not None:
            self._connection.close()
