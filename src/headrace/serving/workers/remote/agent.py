"""The process of a node: lets gateways and other agents in, and keeps a session for each plan.

    listen ──▶ handshake ──▶ gateway: Hello, then Open ──▶ `Session`, until either end is gone
                        └──▶ agent:   tensors for a session here

One gateway is obeyed at a time, the one with the highest epoch. A new gateway asks all agents for
the highest that they have seen and takes the next; from then on the one before is refused here,
though it may still live behind a broken network. It takes the sessions over whose plan it serves;
all others end.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.domain.errors import HeadraceError
from headrace.executors.mps import MpsService, missing
from headrace.serving.addresses import peer_key
from headrace.serving.complaints import Complaints
from headrace.serving.workers.affinity import cores_left
from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote.arrivals import Arrivals
from headrace.serving.workers.remote.connection import Connection, Place, tuned
from headrace.serving.workers.remote.files import DEFAULT_LIMIT_BYTES, FileStore, held_alone
from headrace.serving.workers.remote.frames import (
    AnyRemoteFrame,
    Bye,
    Hello,
    Open,
    Opened,
    Reach,
    Reached,
    Received,
    Refused,
    Tensors,
)
from headrace.serving.workers.remote.handshake import HandshakeError, answer, call
from headrace.serving.workers.remote.peers import Peers
from headrace.serving.workers.remote.session import Session
from headrace.serving.workers.remote.strangers import Strangers
from headrace.serving.workers.worker_process import WorkerLimits

logger = logging.getLogger("headrace.agent")

LEASE_S = 5.0
"""A gateway that has not been heard for so long is lost, and what it has ordered is nobody's.
Longer than a gateway waits for an agent, since it may be away for a moment itself: nothing depends
on it but from when on workers without a gateway count their time of grace."""
GRACE_S = 30.0
"""How long workers stay loaded without a gateway."""
MOST_STRANGERS = 64
"""That may be shaking hands at a time; beyond it some give way."""
_LOOK_S = 0.25
_ACCEPT_AGAIN_S = 0.1
"""After the system had nothing left for one more caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What `headrace agent` was told."""

    name: str
    """The plan's node that it is."""
    host: str
    port: int
    """0: any free one."""
    secret: bytes
    cache: Path
    """Folder for model files."""
    spare_caches: tuple[Path, ...] = ()
    """The first of these that is free is taken where another agent has `cache`."""
    cache_bytes: int = DEFAULT_LIMIT_BYTES
    cores: tuple[int, ...] = ()
    """That workers may be kept on; none: all that this process may use."""
    memory_bytes: int | None = None
    """Most data memory of one worker; None: what the gateway says."""
    grace_s: float = GRACE_S
    listens: ssl.SSLContext | None = None
    calls: ssl.SSLContext | None = None
    """TLS, when it is called and when it calls other agents; None: none."""


class Agent:
    """One node. `open`, then `serve` until it is cancelled."""

    def __init__(self, options: AgentOptions) -> None:
        """
        Raises:
            ModelError: the cache folder cannot be written, and holds no file.
        """
        self._options = options
        self._arrivals = Arrivals(FileStore(options.cache, options.cache_bytes))
        self._service = MpsService()
        self._sessions: list[Session] = []
        self._epoch, self._gateway = 0, ""
        self._callers: set[asyncio.Task[None]] = set()
        self._peers: set[_FromPeer] = set()
        self._complaints = Complaints(logger)
        self._strangers = Strangers(MOST_STRANGERS, self._complaints)
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._opening = asyncio.Lock()
        self._listener: socket.socket | None = None

    def open(self) -> tuple[str, int]:
        """Listen; returns the address.

        Raises:
            HandshakeError: the address cannot be listened on.
        """
        host, port = self._options.host, self._options.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        except (OSError, UnicodeError) as error:  # Unicode: no name that a host can have.
            why = error.strerror if isinstance(error, OSError) else error
            raise HandshakeError(
                f"agent: cannot listen on {host}:{port}: {why}\n"
                "  try    another --port (0: any free one), or an address of this machine"
            ) from error
        self._listener.setblocking(False)
        return host, int(self._listener.getsockname()[1])

    async def serve(self) -> None:
        """Let callers in; when cancelled, end all sessions and leave nothing behind."""
        assert self._listener is not None, "open() comes before serve()"
        loop = asyncio.get_running_loop()
        watch = loop.create_task(self._watch())
        try:
            while True:
                endpoint, caller = await self._next_caller(self._listener)
                task = loop.create_task(self._welcome(endpoint, caller))
                self._callers.add(task)
                task.add_done_callback(self._callers.discard)
                self._strangers.enter(caller, task)
                await asyncio.sleep(0)  # However many call, handshakes go on between them.
        finally:
            self._listener.close()
            tasks = [watch, *self._callers]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(session.close() for session in self._sessions))
            await asyncio.to_thread(self._service.close)  # behind its clients
            for connection in list(self._connections):
                connection.close()

    async def _next_caller(self, listener: socket.socket) -> tuple[socket.socket, str]:
        """Where descriptors or memory are short, callers wait: the workers here are worth more."""
        while True:
            try:
                endpoint, address = await asyncio.get_running_loop().sock_accept(listener)
                return endpoint, peer_key(address[0])
            except OSError as error:
                self._complaints.warn("callers are kept waiting", str(error))
                await asyncio.sleep(_ACCEPT_AGAIN_S)

    async def _welcome(self, endpoint: socket.socket, caller: str) -> None:
        try:
            endpoint, role = await answer(endpoint, self._options.secret, self._options.listens)
        except HandshakeError as error:
            self._complaints.warn(caller, str(error))
            return
        connection = Connection(tuned(endpoint))
        self._connections.add(connection)
        if role == "agent":
            connection.handler = peer = _FromPeer(self, connection)
            connection.start()
            self._peers.add(peer)
            return
        connection.handler = _FromGateway(self, connection)
        connection.start()
        options = self._options
        undivided = missing() or ""
        obeys = any(session.connection is not None for session in self._sessions)
        connection.send(
            Hello(
                options.name, __version__, self._epoch, obeys, cores_left(options.cores), undivided
            )
        )

    async def _watch(self) -> None:
        """Sessions whose gateway or peers are not heard; and those that nobody came back for."""
        loop = asyncio.get_running_loop()
        while True:
            asked_at_s = loop.time()
            await asyncio.sleep(_LOOK_S)
            away_s = loop.time() - asked_at_s - _LOOK_S
            for peer in list(self._peers):
                peer.speak()
                if away_s < _LOOK_S:
                    peer.look()
            for session in list(self._sessions):
                try:
                    await self._look(session, away_s)
                except Exception:
                    logger.exception("a session is not watched for a moment")

    async def _look(self, session: Session, away_s: float) -> None:
        """`away_s`: for so long nothing was read, so silence until now says nothing."""
        now_s = asyncio.get_running_loop().time()
        connection = session.connection
        if away_s < _LOOK_S:
            session.look()
        if connection is not None:
            if connection.silent_s() > LEASE_S > away_s:
                session.detach(f"its gateway was not heard for {LEASE_S:g} s")
        elif self._opening.locked():
            pass  # Somebody comes back just now, perhaps for this one.
        elif now_s - session.detached_at_s > self._options.grace_s:
            logger.info("no gateway came back for %g s", self._options.grace_s)
            await self._end(session)

    async def _end(self, session: Session) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
        await session.close()

    # -- gateways ----------------------------------------------------------------------------------

    async def opened(self, frame: Open, connection: Connection) -> Session | None:
        """The session that a gateway has asked for; None: it was refused, or has left."""
        async with self._opening:
            newest = (self._epoch, self._gateway)
            if frame.epoch < newest[0] or (
                frame.epoch == newest[0] != 0 and frame.gateway != newest[1]
            ):
                connection.send(
                    Refused(
                        f"another gateway, of epoch {newest[0]}, has taken over; this one is of"
                        f" epoch {frame.epoch}",
                        for_ever=True,
                    )
                )
                return None
            if frame.epoch > self._epoch:
                self._epoch, self._gateway = frame.epoch, frame.gateway
                await self._left_for(frame)
            found = next((each for each in self._sessions if each.key == frame.key), None)
            if found is None:
                try:
                    found = self._new_session(frame)
                except OSError as error:
                    connection.send(
                        Refused(f"there is no memory for {frame.arena_bytes} bytes: {error}")
                    )
                    return None
                self._sessions.append(found)
            await found.attach(connection, 1 + secrets.randbits(48))
            if not connection.open:
                found.detach("its gateway has left")
                return None
            connection.send(Opened(found.number))
            return found

    async def _left_for(self, frame: Open) -> None:
        """A gateway takes over: of the sessions, one with its plan, the last, is left for it."""
        alike = [each for each in self._sessions if each.goes_on_as(frame)]
        for other in list(self._sessions):
            other.detach(f"a gateway of epoch {frame.epoch} takes over")
            if other not in alike[-1:]:
                await self._end(other)
        for kept in alike[-1:]:
            # The one before may have served the same plan several times.
            kept.key = frame.key

    def _new_session(self, frame: Open) -> Session:
        memory_bytes = self._options.memory_bytes or frame.memory_bytes
        limits = WorkerLimits(cores=cores_left(self._options.cores), memory_bytes=memory_bytes)
        peers = Peers(self._options.secret, self._options.calls)
        return Session(frame, limits, self._service, self._arrivals, peers, _now_us)

    async def dismissed(self, session: Session) -> None:
        """Its gateway has said Bye."""
        await self._end(session)

    async def reach(self, host: str, port: int) -> str:
        """Why another agent's address does not lead there from here; empty: it does."""
        try:
            endpoint = await call(host, port, self._options.secret, "agent", self._options.calls)
        except HeadraceError as error:
            return str(error)
        endpoint.close()
        return ""

    # -- other agents ------------------------------------------------------------------------------

    def session_of(self, number: int) -> Session | None:
        return next((each for each in self._sessions if each.number == number != 0), None)

    def sessions(self) -> Sequence[Session]:
        return self._sessions

    def forget(self, peer: "_FromPeer") -> None:
        self._peers.discard(peer)

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside, and end it when the agent ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._callers.add(task)
        task.add_done_callback(self._callers.discard)


class _FromGateway:
    """Handler of a gateway's connection."""

    def __init__(self, agent: Agent, connection: Connection) -> None:
        self._agent = agent
        self._connection = connection
        self._session: Session | None = None
        self._asked = False

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        if self._session is None:
            raise FrameError("a payload before the session is open")
        return self._session.place(frame, length)

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        if self._session is not None:
            if isinstance(frame, Bye):
                session, self._session = self._session, None
                self._agent.aside(self._agent.dismissed(session))
                return
            self._session.on_frame(frame)
        elif isinstance(frame, Reach) and not self._asked:
            self._agent.aside(self._reach(frame))
        elif isinstance(frame, Open) and not self._asked:
            self._asked = True
            self._agent.aside(self._open(frame))
        else:
            raise FrameError(f"unexpected {type(frame).__name__}")

    async def _open(self, frame: Open) -> None:
        try:
            self._session = await self._agent.opened(frame, self._connection)
        except HeadraceError as error:
            self._connection.send(Refused(str(error)))
        except Exception:
            logger.exception("a session cannot be opened")
            self._connection.close()
            self.on_closed("this agent has failed")

    async def _reach(self, frame: Reach) -> None:
        tries = (self._agent.reach(host, port) for host, port in frame.addresses)
        self._connection.send(Reached(tuple(await asyncio.gather(*tries))))

    def on_closed(self, reason: str) -> None:
        session = self._session
        if session is not None and session.connection is self._connection:
            session.detach(f"its gateway is gone: {reason}")


class _FromPeer:
    """Handler of another agent's connection: tensors, and nothing else."""

    def __init__(self, agent: Agent, connection: Connection) -> None:
        self._agent = agent
        self._connection = connection
        self._received = 0

    def speak(self) -> None:
        self._connection.send(Received(self._received, self._connection.waits_s > 0))

    def look(self) -> None:
        """From time to time, where this process was not away. What the gateway expects it says
        before anybody is asked to send it, or it is away itself."""
        if self._connection.waits_s > LEASE_S:
            self._connection.close()
            self.on_closed(f"nobody has expected what it sends for {LEASE_S:g} s")

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        if not isinstance(frame, Tensors):
            raise FrameError(f"unexpected {type(frame).__name__} of another agent")
        session = self._agent.session_of(frame.session)
        return None if session is None else session.place_tensors(frame, length, self._connection)

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        if not isinstance(frame, Tensors):
            raise FrameError(f"unexpected {type(frame).__name__} of another agent")
        self._received += 1
        session = self._agent.session_of(frame.session)
        if session is not None:
            session.tensors_arrived(frame)

    def on_closed(self, reason: str) -> None:
        self._agent.forget(self)
        for session in self._agent.sessions():
            session.cut_off(self._connection)


async def run_agent(options: AgentOptions, on_ready: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT; `on_ready` gets the address once it listens.

    Raises:
        HeadraceError: it cannot listen, or keep files; or other agents have its folders.
    """
    import signal

    with held_alone((options.cache, *options.spare_caches)) as cache:
        agent = Agent(replace(options, cache=cache))
        host, port = agent.open()
        loop = asyncio.get_running_loop()
        serving = loop.create_task(agent.serve())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        on_ready(host, port)
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def _now_us() -> int:
    return time.monotonic_ns() // 1000
