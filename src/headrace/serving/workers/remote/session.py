"""An agent's part for one plan of one gateway: an arena, its workers, and tensors on their way.

    attached   a gateway's connection is here: it starts workers, brings tensors, orders batches
       |  ^
       |  | the gateway is back, or the one that follows it: Open with the same key
       v  |
    detached   nobody to report to: no batch begins, what ends is dropped, workers stay loaded
       |
       v    after the time of grace, or by a gateway of a higher epoch with another plan
    closed     all workers ended, the arena given back

The gateway alone hands out regions of the arena, here as on its own machine. After a gap it knows
nothing of what was allocated before, so the arena must be nobody's when it begins anew. Invariants:

- A batch of the time before has ended, or its worker is dead, before `attach` returns.
- Bytes from another agent are written only where, and as long as, the gateway expects them under
  that number (`Expect`, `Cancel`); numbers grow, so that what comes late is known to be late. Those
  that come early wait for their Expect, which the gateway has sent before them.
- An attached session has a number of its own, never given twice: tensors for any other are dropped.

So what a cut-off node still sends, when it is back, reaches nobody: its connection was closed, and
what it pushes to others is not expected any more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace as with_fields

from headrace.domain.errors import ClusterError, HeadraceError, ModelError
from headrace.executors.mps import MpsService
from headrace.serving.workers.activity import activity_of
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import AnyFrame, Beat, Failed, Finished, FrameError
from headrace.serving.workers.host import LocalHost
from headrace.serving.workers.kept_files import KeptFiles, kept
from headrace.serving.workers.remote.arrivals import Arrivals
from headrace.serving.workers.remote.connection import Connection, Place
from headrace.serving.workers.remote.frames import (
    ActivityOf,
    AnyRemoteFrame,
    Arrived,
    Cancel,
    Chunk,
    End,
    Ended,
    Expect,
    Kill,
    Lost,
    Missing,
    Nice,
    Open,
    Order,
    Ping,
    Pong,
    Push,
    Put,
    Ready,
    RemoteSpec,
    Report,
    RunsFor,
    Start,
    Tensors,
    Undelivered,
)
from headrace.serving.workers.remote.incoming import IncomingTensors
from headrace.serving.workers.remote.peers import Peers
from headrace.serving.workers.worker_process import WorkerLimits, WorkerProcess, WorkerSpec

logger = logging.getLogger(__name__)

QUIET_S = 2.0
"""How long a batch of the time before may go on when a gateway attaches."""
_SILENT_S = 0.2
"""From when on a Pong says what a worker is doing."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One process; by the gateway's number while it is attached."""

    ident: bytes
    """What it serves: all of its Start but the number."""
    files: KeptFiles
    number: int | None
    process: WorkerProcess | None = None
    loaded: bool = False
    starting: "asyncio.Task[Any] | None" = None
    """Loads it."""
    heard_at_s: float = 0.0
    beat: Beat | None = None
    """The last one."""
    orders: dict[int, tuple[Order, float]] = field(default_factory=dict)
    """By slot: what runs, and when it was handed on."""


class Session:
    """See above. All methods on the loop's thread."""

    def __init__(
        self,
        opened: Open,
        limits: WorkerLimits,
        service: MpsService,
        arrivals: Arrivals,
        peers: Peers,
        now_us: Callable[[], int],
    ) -> None:
        """
        Args:
            service: keeps workers to their parts of devices; started with the first that has one.
            peers: the way to other agents, for this session alone.

        Raises:
            SystemLimitError: there is no memory for the arena.
        """
        self.key = opened.key
        self.number = 0
        """0: detached."""
        self.detached_at_s = 0.0
        self.connection: Connection | None = None
        self._arena = Arena(opened.arena_bytes)
        self._host = LocalHost(self._arena, limits, service)
        self._cores = limits.cores
        """Which the agent was told, perhaps others than when the gateway dealt them; none: any."""
        self._service = service
        self._arrivals = arrivals
        self._peers = peers
        self._now_us = now_us
        self._workers: set[_Worker] = set()
        self._numbered: dict[int, _Worker] = {}
        self._incoming = IncomingTensors(self._region)
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    def goes_on_as(self, opened: Open) -> bool:
        """Whether it has the workers that another gateway asks for, and room enough."""
        content, wanted = (key.rpartition("/")[0] for key in (self.key, opened.key))
        return content == wanted and self._arena.size_bytes >= opened.arena_bytes

    # -- its life ----------------------------------------------------------------------------------

    async def attach(self, connection: Connection, number: int) -> None:
        """Serve this gateway from now on; returns when nothing of the time before runs any more.

        Raises:
            ClusterError: the gateway before has said Bye meanwhile.
        """
        self.detach("another connection takes over")
        if self._running():
            logger.info("waiting for batches that an earlier gateway has ordered")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until_idle(), QUIET_S)
        for worker in self._running():
            logger.warning("a batch of an earlier gateway does not end: its worker is killed")
            await self._reap(worker)
        if self.closed:
            raise ClusterError("the session that it comes back to has just ended")
        self.connection, self.number = connection, number
        self._incoming.begin()

    def detach(self, reason: str) -> None:
        """Nobody is there to report to. Idempotent."""
        connection, self.connection = self.connection, None
        self.number = 0
        if connection is None:
            return
        self.detached_at_s = asyncio.get_running_loop().time()
        connection.close()
        logger.warning("detached: %s; %d workers stay loaded", reason, len(self._workers))
        self._incoming.drop_all()
        self._peers.close()
        self._arrivals.dropped_by(connection)
        self._numbered.clear()
        for worker in list(self._workers):
            worker.number = None
            if worker.starting is not None:
                worker.starting.cancel()

    async def close(self) -> None:
        """End all workers and give the memory back. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.detach("the session ends")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await asyncio.gather(*(self._stop(worker) for worker in list(self._workers)))
        finally:
            self._host.close()
            self._arena.close()

    # -- what comes --------------------------------------------------------------------------------

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        """See `Handler.place`, for the gateway's connection."""
        match frame:
            case Put():
                return self._region(frame.offset, length)
            case Chunk():
                return self._arrivals.place(frame, length)
        raise FrameError(f"{type(frame).__name__} has no payload")

    def place_tensors(self, frame: Tensors, length: int, by: Connection) -> Place:
        """Where tensors from another agent go."""
        return self._incoming.place(frame.transfer, length, by)

    def tensors_arrived(self, frame: Tensors) -> None:
        if self._incoming.arrived(frame.transfer):
            self._say(Arrived(frame.transfer))

    def look(self) -> None:
        """From time to time, where this process was not away: do all peers live?"""
        self._peers.look()

    def cut_off(self, by: Connection) -> None:
        """Another agent's connection has ended, perhaps in the middle of something."""
        for transfer in self._incoming.cut_off(by):
            self._say(Undelivered(transfer, "the other agent has left"))

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        """What the gateway says.

        Raises:
            FrameError: it must not.
        """
        match frame:
            case Order():
                self._order(frame)
            case Put():
                pass  # it is where it belongs
            case Ping():
                self._answer(frame)
            case Expect():
                self._incoming.expect(frame)
            case Cancel():
                self._incoming.cancel(frame.transfer)
                self._peers.cancel(frame.transfer)
            case Push():
                self._send_on(frame)
            case Start():
                self._aside(self._start(frame))
            case Chunk():
                self._arrivals.take(frame)
            case End():
                self._aside(self._end(frame))
            case Kill():
                worker = self._numbered.get(frame.worker)
                if worker is not None and worker.process is not None:
                    worker.process.kill()
            case Nice():
                self._renice(frame)
            case _:
                raise FrameError(f"unexpected {type(frame).__name__}")

    def _order(self, frame: Order) -> None:
        worker, run = self._numbered.get(frame.worker), frame.run
        if worker is None or worker.process is None:
            return  # it is gone, and the gateway is about to read so
        if frame.answer_bytes:
            if not run.output_offsets:
                raise FrameError("a stage without outputs has no answer to send")
            self._region(run.output_offsets[0], frame.answer_bytes)
        worker.orders[run.slot] = frame, asyncio.get_running_loop().time()
        worker.process.send(run)

    def _answer(self, frame: Ping) -> None:
        now_s = asyncio.get_running_loop().time()
        silent, runs = list[ActivityOf](), list[RunsFor]()
        for number, worker in self._numbered.items():
            for slot, (_, since_s) in worker.orders.items():
                runs.append(RunsFor(number, slot, round((now_s - since_s) * 1e6)))
            if worker.loaded and now_s - worker.heard_at_s > _SILENT_S and worker.process:
                activity = activity_of(worker.process.process_id)
                if activity is not None:
                    silent.append(ActivityOf(number, activity.runnable, activity.ran_us))
        available = self._host.available_memory_bytes()
        told = tuple(silent), tuple(runs)
        self._say(Pong(frame.sent_at_us, self._now_us(), available, *told))

    def _send_on(self, frame: Push) -> None:
        payload = self._region(frame.offset, frame.length)
        if not frame.host:
            self._say(Tensors(self.number, frame.transfer), payload)
            return
        number = self.number

        def failed(reason: str) -> None:
            if self.number == number:
                self._say(Undelivered(frame.transfer, reason))

        tensors = Tensors(frame.session, frame.transfer)
        self._peers.push(frame.host, frame.port, tensors, payload, failed)

    def _renice(self, frame: Nice) -> None:
        worker = self._numbered.get(frame.worker)
        if worker is not None and worker.process is not None:
            try:
                self._host.set_niceness(worker.process.process_id, frame.niceness)
            except OSError as error:
                logger.info("worker %d keeps its priority: %s", frame.worker, error)

    # -- workers -----------------------------------------------------------------------------------

    async def _start(self, frame: Start) -> None:
        """Load a worker, or find the one that has loaded the same; answers Ready."""
        session = self.number
        ident = msgspec.msgpack.encode(frame.specs)
        found = next((each for each in self._workers if each.ident == ident and each.loaded), None)
        try:
            if found is None:
                found = await self._load(frame, ident)
            elif found.number is not None:
                raise ModelError("a worker for this slot runs here already")
        except Exception as error:
            if not isinstance(error, HeadraceError | OSError):
                logger.exception("a worker cannot be started")
            if self.number == session:
                self._say(Ready(frame.worker, 0, str(error) or repr(error)))
            return
        if self.number != session:
            return  # detached meanwhile
        assert found.process is not None, "a worker that has loaded runs"
        found.number, self._numbered[frame.worker] = frame.worker, found
        found.heard_at_s = asyncio.get_running_loop().time()
        if found.beat is not None:
            # How long it had waited for a core before anything of this gateway's was run.
            self._say(Report(frame.worker, found.beat))
        self._say(Ready(frame.worker, found.process.process_id))

    async def _load(self, frame: Start, ident: bytes) -> _Worker:
        """
        Raises:
            HeadraceError: a file does not come, a stage cannot be loaded, or nothing keeps it to
                its part of a device; nothing is left.
            OSError: the process cannot be started.
        """
        loads = [load for spec in frame.specs for load in spec.loads]
        refs = {ref.sha256: ref for load in loads for ref in load.weights}
        refs |= {load.file.sha256: load.file for load in loads if load.file is not None}
        connection = self.connection
        assert connection is not None, "a Start comes over a connection"
        worker = _Worker(ident, KeptFiles(), frame.worker, starting=asyncio.current_task())
        self._workers.add(worker)
        try:
            await self._arrivals.fetch(
                tuple(refs.values()),
                connection,
                lambda missing: self._say(Missing(frame.worker, missing)),
            )
            specs = await asyncio.to_thread(self._local, frame.specs, worker.files)
            if any(spec.percent is not None for spec in specs):
                await asyncio.to_thread(self._service.start)
            worker.process = self._host.start_worker(
                specs,
                lambda said: self._receive(worker, said),
                lambda reason: self._lose(worker, reason),
            )
            await worker.process.load(frame.timeout_s)
        except BaseException:
            await self._reap(worker)
            raise
        finally:
            worker.starting = None
        worker.loaded = True
        return worker

    def _local(self, specs: Sequence[RemoteSpec], files: KeptFiles) -> tuple[WorkerSpec, ...]:
        """As this machine's own host starts them."""
        store = self._arrivals.store
        return kept(
            [
                WorkerSpec(
                    slot=spec.slot,
                    executor=spec.executor,
                    loads=tuple(
                        with_fields(
                            each.load,
                            path=str(store.path(each.file.sha256)) if each.file else "",
                            weights=store.weights(each.weights),
                        )
                        for each in spec.loads
                    ),
                    cores=tuple(c for c in spec.cores if c in self._cores or not self._cores),
                    quota=Fraction(spec.quota) if spec.quota else None,
                    device=spec.device,
                    percent=spec.percent,
                )
                for spec in specs
            ],
            files,
        )

    def _receive(self, worker: _Worker, said: AnyFrame) -> None:
        worker.heard_at_s = asyncio.get_running_loop().time()
        if isinstance(said, Beat):
            worker.beat = said
            if worker.number is not None:
                self._say(Report(worker.number, said))
            return
        if not isinstance(said, Finished | Failed):
            logger.error("unexpected %s of a worker", type(said).__name__)
            return
        order, _ = worker.orders.pop(said.slot, (None, 0.0))
        if not worker.orders:
            self._idle.set()
        if worker.number is None or order is None:
            return  # ordered by a gateway that is gone
        payload = None
        if order.answer_bytes and isinstance(said, Finished):
            payload = self._region(order.run.output_offsets[0], order.answer_bytes)
        self._say(Report(worker.number, said), payload)

    def _lose(self, worker: _Worker, reason: str) -> None:
        if worker.number is not None and self._numbered.pop(worker.number, None) is not None:
            self._say(Lost(worker.number, reason))
        worker.orders.clear()
        self._idle.set()
        if worker.loaded:
            self._aside(self._reap(worker))

    async def _end(self, frame: End) -> None:
        session = self.number
        self._numbered.pop(frame.worker, None)
        worker = next((each for each in self._workers if each.number == frame.worker), None)
        status = 0
        if worker is not None and worker.starting is not None:
            worker.starting.cancel()
            await asyncio.wait([worker.starting])
        elif worker is not None:
            status = await (self._reap(worker) if frame.at_once else self._stop(worker))
        if self.number == session:
            self._say(Ended(frame.worker, status))

    async def _stop(self, worker: _Worker) -> int:
        worker.number = None
        if worker.process is not None and worker.loaded:
            await worker.process.stop()
        return await self._reap(worker)

    async def _reap(self, worker: _Worker) -> int:
        self._workers.discard(worker)
        worker.number, worker.loaded = None, False
        status = await worker.process.reap() if worker.process is not None else 0
        worker.files.close()
        worker.orders.clear()
        self._idle.set()
        return status

    def _running(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.orders]

    async def _until_idle(self) -> None:
        while self._running():
            self._idle.clear()
            await self._idle.wait()

    # -- beneath -----------------------------------------------------------------------------------

    def _region(self, offset: int, length: int) -> memoryview:
        """
        Raises:
            FrameError: it leaves the arena.
        """
        if offset < 0 or length < 0 or offset + length > self._arena.size_bytes:
            raise FrameError(
                f"{length} bytes at {offset} leave the arena of {self._arena.size_bytes} bytes"
            )
        return self._arena.view[offset : offset + length]

    def _say(self, frame: AnyRemoteFrame, payload: memoryview | None = None) -> None:
        if self.connection is not None:
            self.connection.send(frame, payload)

    def _aside(self, work: Coroutine[Any, Any, object]) -> None:
        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
