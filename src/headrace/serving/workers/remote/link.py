"""The gateway's end of one session with an agent: connects, and connects again.

    down ──connect, Hello, Open──▶ up ──closed, SILENCE_S without a word, or cut off──▶ down
      ▲                                                                                  │
      └────────────────────────────── every RECONNECT_S ◀────────────────────────────────┘

When it goes down everything that was there is lost for us, in one step of the loop: first all its
workers are (so that the dispatcher hands nothing more to their slots), then all tensors that lay
there or were on their way. Each time it comes up it is another session, with an arena of which
nothing is allocated; so memory there has a `home` of its own per session, and a region of an
earlier one is known to be gone.

A node that another node cannot bring tensors to is of no use, though we hear it: it is cut off, and
admitted again, so that its workers serve, when all others reach it (`TensorEnd.admit`).
"""

import asyncio
import contextlib
import logging
import math
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace import __version__
from headrace.domain.errors import HeadraceError
from headrace.serving.workers.activity import Activity
from headrace.serving.workers.arena import Allocator
from headrace.serving.workers.frames import Failed, Finished, FrameError, Run
from headrace.serving.workers.remote.clock import ClockOffset
from headrace.serving.workers.remote.connection import SILENCE_S, Connection, Place, tuned
from headrace.serving.workers.remote.frames import (
    ActivityOf,
    AnyRemoteFrame,
    Arrived,
    Bye,
    Ended,
    Hello,
    Lost,
    Missing,
    Open,
    Opened,
    Order,
    Ping,
    Pong,
    Put,
    Reach,
    Reached,
    Ready,
    Refused,
    Report,
    Tensors,
    Undelivered,
)
from headrace.serving.workers.remote.handshake import (
    HANDSHAKE_S,
    HandshakeError,
    SupersededError,
    call,
)
from headrace.serving.workers.remote.link_ends import RemoteWorkerEnd, TensorEnd
from headrace.serving.workers.remote.orders import Orders
from headrace.serving.workers.remote.session import QUIET_S
from headrace.serving.workers.stage_io import Home

logger = logging.getLogger("headrace.cluster")

PING_S = 0.1
RECONNECT_S = 0.25
"""At least, from one attempt to the next."""
DELAYED_S = 0.25
"""From when on a Ping that is not answered says that a worker's silence is the network's."""
_OPEN_S = HANDSHAKE_S + 2 * QUIET_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an agent listens."""

    host: str
    port: int


class AgentLink:
    """To one agent: `connect`, then `open`, set `tensors`, then `keep`; `close` at any time."""

    def __init__(
        self,
        node: str,
        address: Address,
        secret: bytes,
        tls: ssl.SSLContext | None,
        now_us: Callable[[], int],
    ) -> None:
        self.tensors: TensorEnd | None = None
        self.node = node
        self.address = address
        self.allocator: Allocator | None = None
        """Of the agent's arena; None: down."""
        self.home: Home = f"{node}/down"
        self.session = 0
        self.clock = ClockOffset()
        self.hello: Hello | None = None
        self.available_bytes: int | None = None
        self.incarnation = 0
        """Of the agent: another one when it was started anew between two sessions."""
        self.refused = ""
        """Why it will never come up again; empty: it may."""
        self._secret = secret
        self._tls = tls
        self._now_us = now_us
        self._open_frame: Open | None = None
        self._connection: Connection | None = None
        self._said: asyncio.Future[AnyRemoteFrame] | None = None
        """The next frame, while there is no session."""
        self._workers: dict[int, RemoteWorkerEnd] = {}
        self._next_worker = 0
        self._orders = Orders()
        self._silent: dict[int, ActivityOf] = {}
        self._admitted = asyncio.Event()
        """It is up, and others reach it; or it will never be again."""
        self._gone = asyncio.Event()
        self._answered_at_s = 0.0
        """When the last Ping was."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    # -- its life ----------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        return f"node {self.node!r} ({self.address.host}:{self.address.port})"

    @property
    def is_up(self) -> bool:
        return self.session != 0

    @property
    def is_admitted(self) -> bool:
        return self.is_up and self._admitted.is_set()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def descriptor(self) -> int | None:
        return self._connection.descriptor if self._connection else None

    async def connect(self) -> Hello:
        """Shake hands and hear who it is; `open` follows.

        Raises:
            HandshakeError: nobody answers there, or somebody else.
        """
        address = self.address
        endpoint = await call(address.host, address.port, self._secret, "gateway", self._tls)
        connection = Connection(tuned(endpoint))
        connection.handler = self
        self._said = asyncio.get_running_loop().create_future()
        self._connection = connection
        connection.start()
        hello = await self._next("says nothing", HANDSHAKE_S)
        if not isinstance(hello, Hello):
            self._hang_up()
            raise HandshakeError(f"{self.where}: speaks another language than this gateway")
        if hello.version != __version__:
            self._hang_up()
            raise HandshakeError(
                f"{self.where}: its agent is of Headrace {hello.version}, this gateway of"
                f" {__version__}\n  try    the same version on all nodes"
            )
        if hello.name != self.node:
            self._hang_up()
            raise HandshakeError(
                f"{self.where}: the agent there is node {hello.name!r}\n"
                "  try    the address of the right one, or `headrace agent --name`"
            )
        if self.hello is not None and self.hello.cores != hello.cores:
            logger.warning(
                "%s: its workers may be kept on the cores %s now, and its slots were dealt %s:"
                " those that have lost theirs share; start the server again to deal them anew",
                *(self.where, list(hello.cores), list(self.hello.cores)),
            )
        self.hello = hello
        return hello

    async def reach(self, addresses: Sequence[Address]) -> tuple[str, ...]:
        """For each of other agents' addresses, why this one does not get through; empty: it does.

        Raises:
            HandshakeError: it has left, or says something else.
        """
        self._ask(Reach(tuple((each.host, each.port) for each in addresses)))
        said = await self._next("does not say whom it reaches", 2 * HANDSHAKE_S)
        if not isinstance(said, Reached) or len(said.failures) != len(addresses):
            self._hang_up()
            raise HandshakeError(f"{self.where}: speaks another language than this gateway")
        return said.failures

    async def open(self, frame: Open) -> None:
        """Begin a session; the link is up.

        Raises:
            HandshakeError: the agent refuses (SupersededError: for ever).
        """
        self._open_frame = frame
        self._ask(frame)
        said = await self._next("does not open a session", _OPEN_S)
        if isinstance(said, Refused):
            self._hang_up()
            self.refused = said.reason if said.for_ever else ""
            refusal = SupersededError if said.for_ever else HandshakeError
            raise refusal(f"{self.where}: refuses this gateway: {said.reason}")
        if not isinstance(said, Opened):
            self._hang_up()
            raise HandshakeError(f"{self.where}: speaks another language than this gateway")
        self._said = None
        if self.hello is None or self.hello.epoch != frame.epoch:
            # It had not obeyed this gateway before.
            self.incarnation += 1
        self.session = said.session
        self.home = f"{self.node}/{said.session}"
        self.allocator = Allocator(frame.arena_bytes)
        self._gone.clear()
        self._answered_at_s = asyncio.get_running_loop().time()
        self._ping()

    def keep(self) -> None:
        """From now on it is watched, and connected again when it was lost."""
        self._admitted.set()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._beat()), loop.create_task(self._reconnect())]

    async def until_up(self) -> None:
        """
        Raises:
            HandshakeError: it never will be.
        """
        while not self.is_admitted:
            if self.refused or self._closed:
                raise HandshakeError(f"{self.where}: {self.refused or 'the link is closed'}")
            await self._admitted.wait()

    async def close(self) -> None:
        """End the session and all that it has there. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            self.send(Bye())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._connection.drained(), PING_S)
        self._fail("the gateway ends")
        self._admitted.set()

    def _ask(self, frame: Open | Reach) -> None:
        """`_next` is the answer. Raises HandshakeError: nobody is there any more."""
        if self._connection is None:
            raise HandshakeError(
                f"{self.where}: has left before a session was opened\n"
                "  try    its agent's log says why; start it again if it has ended"
            )
        self._said = asyncio.get_running_loop().create_future()
        self._connection.send(frame)

    async def _next(self, otherwise: str, limit_s: float) -> AnyRemoteFrame:
        assert self._said is not None, "somebody waits for a frame"
        try:
            said = await asyncio.wait_for(self._said, limit_s)
        except TimeoutError:
            self._hang_up()
            raise HandshakeError(f"{self.where}: {otherwise} within {limit_s:g} s") from None
        except BaseException:
            self._hang_up()
            raise
        if self._connection is None:
            # It was closed behind that frame, before anybody had looked at it.
            raise HandshakeError(f"{self.where}: has left")
        return said

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._said = None
        if connection is not None:
            connection.close()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_at_s = loop.time()
            await asyncio.sleep(PING_S)
            away = loop.time() - asked_at_s > 2 * PING_S
            connection = self._connection
            if connection is None or not self.is_up:
                continue
            # Where this process itself was away, what it was sent is still unread.
            # What its workers say unasked is no sign that it hears us.
            if connection.silent_s(self._answered_at_s) > SILENCE_S and not away:
                self._fail(f"it has answered nothing for {SILENCE_S:g} s")
                continue
            self._ping()
            if self.tensors is not None:
                self.tensors.look()

    def _ping(self) -> None:
        self.send(Ping(self._now_us()))

    async def _reconnect(self) -> None:
        said, tried_at_s, loop = set[str](), -math.inf, asyncio.get_running_loop()
        while True:
            await self._gone.wait()
            # Also where sessions end as soon as they have begun.
            await asyncio.sleep(tried_at_s + RECONNECT_S - loop.time())
            tried_at_s = loop.time()
            try:
                await self.connect()
                assert self._open_frame is not None, "a link that was up has opened a session"
                await self.open(self._open_frame)
                await self._until_admitted()
                said.clear()
                logger.info("%s: is back", self.where)
            except HeadraceError as error:
                what = str(error).partition("\n")[0]
                if self.refused:
                    logger.error("%s; not tried again", what)
                    self._admitted.set()
                    return
                if what not in said:  # of all: two may take turns
                    said.add(what)
                    logger.warning("%s", what)
            except Exception as error:
                if repr(error) not in said:
                    said.add(repr(error))
                    logger.exception("%s: could not be connected", self.where)

    async def _until_admitted(self) -> None:
        """
        Raises:
            HandshakeError: it is down again.
        """
        said = ""
        while self.is_up:
            try:
                if self.tensors is not None:
                    await self.tensors.admit(self)
                if self.is_up:
                    self._admitted.set()
                    return
            except HandshakeError as error:
                if not said:
                    said = str(error)
                    logger.warning("%s", said.partition("\n")[0])
                await asyncio.sleep(RECONNECT_S)
        raise HandshakeError(f"{self.where}: was lost before others had reached it")

    def cut_off(self, reason: str) -> None:
        """Another node does not reach it."""
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        """Down: tell everybody, the dispatcher's slots first."""
        if not self.is_up:
            self._hang_up()
            return
        if not self._closed:
            logger.error("%s: lost: %s", self.where, reason)
        home, self.home = self.home, f"{self.node}/down"
        self.session, self.allocator = 0, None
        self._admitted.clear()
        self._hang_up()
        self._orders.clear()
        self._silent.clear()
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.lost(f"its agent is lost: {reason}")
        if self.tensors is not None:
            self.tensors.link_down(home)
        self._gone.set()

    # -- what is sent ------------------------------------------------------------------------------

    def send(self, frame: AnyRemoteFrame) -> None:
        if self._connection is not None:
            self._connection.send(frame)

    def send_part(self, frame: AnyRemoteFrame, payload: memoryview) -> None:
        if self._connection is not None:
            self._connection.send(frame, payload)

    async def drained(self) -> None:
        if self._connection is not None:
            await self._connection.drained()

    def put(
        self, offset: int, payload: memoryview, on_sent: Callable[[], object], more: bool
    ) -> None:
        """Bring bytes there. `more`: they go with the order that follows in this very step."""
        assert self._connection is not None, "a link that is up has a connection"
        self._connection.send(Put(offset), payload, on_sent, more)

    def order(self, worker: int, run: Run, answer_bytes: int) -> None:
        frame = Order(worker, run, answer_bytes)
        self._orders.add(frame, self._now_us())
        self.send(frame)

    def add(self, worker: RemoteWorkerEnd) -> int:
        """Returns the number by which frames name it."""
        self._next_worker += 1
        self._workers[self._next_worker] = worker
        return self._next_worker

    def remove(self, number: int) -> None:
        self._workers.pop(number, None)

    @property
    def is_late(self) -> bool:
        """Whether what the agent says waits: behind tensors, or as the network stands still."""
        late_s = asyncio.get_running_loop().time() - self._answered_at_s
        return self._connection is None or late_s > DELAYED_S

    def busy_us(self, worker: int, slot: int) -> int | None:
        """See `Orders`."""
        return self._orders.busy_us(worker, slot)

    def activity(self, number: int) -> Activity | None:
        """Of a worker that is silent. While the agent is late, nothing counts against it."""
        told = self._silent.get(number)
        if self.is_late:
            return Activity(runnable=True, ran_us=told.ran_us if told else 0)
        return Activity(told.runnable, told.ran_us) if told else None

    # -- what comes: a `connection.Handler` --------------------------------------------------------

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        match frame:
            case Report(worker, Finished() as ran):
                order = self._orders.that_ended(worker, ran)
                if order is None or order.answer_bytes != length:
                    raise FrameError(f"{length} bytes of an answer that nobody has asked for")
                return self._tensors().place_answer(self.home, order.run.output_offsets[0], length)
            case Tensors():
                return self._tensors().place_moved(frame.transfer, length)
        raise FrameError(f"{type(frame).__name__} has no payload")

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        if self._said is not None:
            if not self._said.done():
                self._said.set_result(frame)
            return
        match frame:
            case Report(number, said):
                if isinstance(said, Finished | Failed):
                    order = self._orders.that_ended(number, said)
                    if order is not None:
                        self._orders.remove(order)
                worker = self._workers.get(number)
                if worker is not None:
                    worker.reported(frame)
            case Pong():
                self._answered_at_s = asyncio.get_running_loop().time()
                self.clock.note(frame.sent_at_us, frame.now_us, self._now_us())
                self.available_bytes = frame.available_bytes
                self._silent = {each.worker: each for each in frame.silent}
                self._orders.told(frame.runs, frame.sent_at_us, self._now_us())
            case Arrived(transfer) | Tensors(_, transfer):
                self._tensors().arrived(transfer)
            case Undelivered():
                self._tensors().undelivered(frame.transfer, frame.reason)
            case Ready() | Missing() | Lost() | Ended():
                self._tell(frame)
            case _:
                raise FrameError(f"unexpected {type(frame).__name__}")

    def _tensors(self) -> TensorEnd:
        if self.tensors is None:
            raise FrameError("tensors before anybody has asked for any")
        return self.tensors

    def _tell(self, frame: Ready | Missing | Lost | Ended) -> None:
        worker = self._workers.get(frame.worker)
        if worker is None:
            return
        match frame:
            case Ready():
                worker.ready(frame)
            case Missing():
                worker.missing(frame)
            case Lost():
                worker.lost(frame.reason)
            case Ended():
                worker.ended(frame.status)

    def on_closed(self, reason: str) -> None:
        if self._said is not None and not self._said.done():
            self._said.set_exception(HandshakeError(f"{self.where}: {reason}"))
        self._fail(reason)
