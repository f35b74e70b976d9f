"""A session's connections to other agents: made when they are first needed, and kept.

    push ──▶ waiting ──▶ calling ──▶ connected ──▶ Tensors+, one after the other
                            │            ▲ │
                            │            │ └─ Received: how many are there; said all the time
                            ▼            │
                         failed       closed, SILENCE_S without a word, or without anything arriving

A connection that has ended is forgotten, and the next push calls anew. What went over it and was
not yet known to be there has failed: whoever asked for it is told, and asks again. So it may arrive
twice; the second time under another number. The connection is given one tensor at a time, so that
what nobody wants any more while it waits (`cancel`) costs the network nothing.

Tensors wait in the session's arena, not in copies. Invariant: after `close`, nothing here refers to
the arena.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace.domain.errors import HeadraceError
from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote.connection import SILENCE_S, Connection, Place, tuned
from headrace.serving.workers.remote.frames import AnyRemoteFrame, Received, Tensors
from headrace.serving.workers.remote.handshake import call

logger = logging.getLogger(__name__)

_OnFailed = Callable[[str], None]


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
        on_failed: _OnFailed,
    ) -> None:
        """Send tensors, which stay where they are until they have arrived.

        Args:
            on_failed: called when the other agent cannot be reached, or the connection ends before
                it is known that they are there. What they were to become there, the receiver says.
        """
        where = (host, port)
        if where not in self._peers:
            self._peers[where] = _Peer(host, port, partial(self._peers.pop, where, None))
            self._peers[where].connect(self._secret, self._tls)
        self._peers[where].push(frame, payload, on_failed)

    def cancel(self, transfer: int) -> None:
        """Nobody wants these tensors any more; those that have begun to leave go on. Idempotent."""
        for peer in self._peers.values():
            peer.cancel(transfer)

    def look(self) -> None:
        """From time to time, where this process was not away: does every one of them live?"""
        for peer in list(self._peers.values()):
            peer.look()

    def close(self) -> None:
        """Without a report; they can be called again."""
        for peer in list(self._peers.values()):
            peer.close()
        self._peers.clear()


@dataclass(slots=True, eq=False)
class _Push:
    frame: Tensors
    payload: memoryview | None
    """None: nobody wants it any more. Whether it could have left is of interest all the same."""
    on_failed: _OnFailed


class _Peer:
    """One of them; handler of the connection. It is forgotten when that ends."""

    def __init__(self, host: str, port: int, forget: Callable[[], object]) -> None:
        self._where = f"{host}:{port}"
        self._host, self._port = host, port
        self._forget = forget
        self._connection: Connection | None = None
        self._waiting: deque[_Push] = deque()
        """That have not begun to leave."""
        self._leaving = False
        self._unknown: deque[_OnFailed] = deque()
        """Of tensors that have, in order, and are not known to be there."""
        self._received = 0
        self._arriving_since_s = 0.0
        """When something was last seen to arrive of what is not known to be there."""
        self._calling: asyncio.Task[None] | None = None

    def connect(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self._calling = asyncio.get_running_loop().create_task(self._call(secret, tls))

    def push(self, frame: Tensors, payload: memoryview, on_failed: _OnFailed) -> None:
        self._waiting.append(_Push(frame, payload, on_failed))
        self._send_next(more=False)

    def cancel(self, transfer: int) -> None:
        for push in self._waiting:
            if push.frame.transfer == transfer:
                push.payload = None
                return

    def look(self) -> None:
        connection = self._connection
        if connection is None or not connection.open:
            return
        now_s = asyncio.get_running_loop().time()
        silent_s = connection.silent_s()
        if not self._unknown:
            self._arriving_since_s = now_s
        self._arriving_since_s = max(self._arriving_since_s, connection.taking_since_s)
        if silent_s > SILENCE_S:
            self._end(f"nothing heard of it for {SILENCE_S:g} s")
        elif now_s - self._arriving_since_s > SILENCE_S:
            self._end(f"nothing has arrived there for {SILENCE_S:g} s")

    def _end(self, reason: str) -> None:
        assert self._connection is not None, "who is not connected has nothing to end"
        self._connection.close()
        self.on_closed(reason)

    async def _call(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        try:
            endpoint = tuned(await call(self._host, self._port, secret, "agent", tls))
        except (HeadraceError, OSError) as error:
            self._fail(str(error))
            return
        connection = Connection(endpoint)
        connection.handler = self
        connection.start()
        self._connection = connection
        self._send_next(more=False)

    def _send_next(self, *, more: bool) -> None:
        connection = self._connection
        if connection is None or not connection.open or self._leaving:
            return
        while self._waiting and self._waiting[0].payload is None:
            self._waiting.popleft()
        if not self._waiting:
            return
        push = self._waiting.popleft()
        if not self._unknown:
            self._arriving_since_s = asyncio.get_running_loop().time()
        self._unknown.append(push.on_failed)
        self._leaving = True
        connection.send(push.frame, push.payload, self._has_left, more)

    def _has_left(self) -> None:
        """The system has all of one; or the connection is closed."""
        self._leaving = False
        # The connection, which calls this while it writes, goes on with the next.
        self._send_next(more=True)

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        raise FrameError("an agent that is called sends nothing")

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        if not isinstance(frame, Received):
            raise FrameError(f"unexpected {type(frame).__name__} of an agent that is called")
        if not 0 <= frame.tensors - self._received <= len(self._unknown):
            raise FrameError("more tensors are there than were sent")
        if frame.tensors > self._received or frame.waits:
            self._arriving_since_s = asyncio.get_running_loop().time()
        for _ in range(frame.tensors - self._received):
            self._unknown.popleft()
        self._received = frame.tensors

    def on_closed(self, reason: str) -> None:
        logger.warning("the connection to %s has ended: %s", self._where, reason)
        self._fail(f"{self._where}: {reason}")

    def _fail(self, reason: str) -> None:
        self._forget()
        failed = [*self._unknown, *(push.on_failed for push in self._waiting)]
        self._waiting.clear()
        self._unknown.clear()
        for on_failed in failed:
            on_failed(reason)

    def close(self) -> None:
        self._waiting.clear()
        self._unknown.clear()
        if self._calling is not None:
            self._calling.cancel()
        if self._connection is not None:
            self._connection.close()
