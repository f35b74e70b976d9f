"""Slots and the processes that serve them: watched, and started again for as long as it takes.

A slot is what the dispatcher knows; a process comes and goes behind it. Per process one task
(`_keep`) goes round:

    starting --loaded--> up --the channel closed, or a batch hung and it was killed--> gone
        |                                                                              |
        +--could not load--> gone                       gone --after the delay--> starting

`on_slot_lost` is called in the step in which the channel closes, before anything else can happen,
since the dispatcher may hand out work in that very step. Invariants:

- `on_slot_lost` and `on_slot_gained` of a slot alternate, lost first, unless its first worker comes
  up; nothing is reported of a batch between them.
- Between two attempts lie RESTART_DELAYS_S, by the number of setbacks in a row: workers that could
  not load, or that died within STEADY_S (`restart_delays`).
- What is lost because its host is not heard is no setback, and waits for the host alone: the way
  there has broken, and the worker lives on and is given back. Where the host comes back without
  what it had (`Host.incarnation`), whatever ended it may have been this very worker: that counts as
  the worker's death, or one that takes all of a machine's memory would do so again without a pause.
- A slot is given up only when its host refuses this server for good (`HostGoneError`).
- After a failure, workers load one at a time: together, those that lack memory would fail for ever.

A worker that is up can be given further stages and told to drop some (`loads`): each is answered by
`on_loaded`, `on_load_failed` or `on_unloaded`, unless the slot is lost first. A worker that is
started again has what its `WorkerSpec.loads` names, and nothing of what came later.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from headrace.domain.errors import HeadraceError
from headrace.serving.workers.activity import Activity
from headrace.serving.workers.frames import (
    AnyFrame,
    Beat,
    Failed,
    Finished,
    Load,
    Loaded,
    Run,
    Unload,
    Unloaded,
)
from headrace.serving.workers.hangs import BatchWatch
from headrace.serving.workers.host import Host, HostGoneError, WorkerHandle
from headrace.serving.workers.loads import LoadsUnderWay, is_of_a_load
from headrace.serving.workers.pulse import SILENCE_S, Watch
from headrace.serving.workers.restart_delays import RESTART_DELAYS_S, RestartDelays
from headrace.serving.workers.slot_events import SlotEvents
from headrace.serving.workers.stage_io import Home
from headrace.serving.workers.status import Outage
from headrace.serving.workers.worker_process import WorkerSpec, process_title

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 120.0

Renewed = Callable[[WorkerSpec], WorkerSpec]


class SupervisedSlot:
    """One slot, whichever process serves it now. It is the driver's `WorkerLink`."""

    def __init__(self, number: int, spec: WorkerSpec, host: Host) -> None:
        self.events: SlotEvents
        self.spec = spec
        self.number = number
        self.host = host
        self.process: SupervisedProcess
        self._p99_us = {load.stage: load.p99_us for load in (*spec.loads, *spec.later)}
        self._batch = BatchWatch(number, spec.slot)

    @property
    def home(self) -> Home:
        """Where its tensors lie."""
        return self.host.home

    @property
    def up(self) -> bool:
        """A worker has loaded all stages and lives."""
        return self.process.up

    @property
    def process_id(self) -> int | None:
        return self.process.process_id

    @property
    def descriptor(self) -> int | None:
        """Readable when its worker has said something; None: there is none."""
        return self.process.descriptor

    @property
    def restarts(self) -> int:
        return self.process.restarts

    @property
    def outage(self) -> Outage | None:
        """Why the slot has no worker; None: it has one, or was not to have one yet."""
        return self.process.outage

    @property
    def retry_in_s(self) -> float:
        """Until the next attempt to give it a worker; 0: one is under way, or none is needed; inf:
        there will be none."""
        return self.process.retry_in_s

    @property
    def gone(self) -> str:
        """Why it will never have a worker again; empty: it may."""
        return self.process.gone

    def run(self, frame: Run) -> None:
        # Where the worker has just died, its end of the channel says so in a moment.
        self.process.send(frame)
        self._batch.began(self.process, self._p99_us[frame.stage][frame.size - 1])

    def load(self, frame: Load) -> None:
        """Make a stage ready beside those that are; the reply comes as an event."""
        self.process.load(frame)

    def unload(self, stage: int) -> None:
        """Give back what a stage holds, behind the batches that were sent."""
        self.process.send(Unload(stage, self.number))

    def restart(self, why: str) -> None:
        """The worker is of no use: end it, and start another."""
        logger.error("slot %s: %s; restarting its worker", self.spec.slot, why)
        self.process.kill()

    def receive(self, frame: AnyFrame) -> None:
        if isinstance(frame, Loaded | Unloaded) or is_of_a_load(frame):
            self._receive_of_stage(frame)
            return
        self._batch.ended()
        match frame:
            case Finished():
                if self.host.clock_offset_us:
                    frame = self._on_our_clock(frame)
                self.events.on_ran(self.number, frame)
            case Failed():
                self.events.on_failed(self.number, frame)

    def _receive_of_stage(self, frame: AnyFrame) -> None:
        self._batch.waited_for_a_stage()
        match frame:
            case Loaded():
                at_us = frame.ended_at_us + self.host.clock_offset_us
                self.events.on_loaded(self.number, replace(frame, ended_at_us=at_us))
            case Failed():
                self.events.on_load_failed(self.number, frame)
            case Unloaded():
                self.events.on_unloaded(self.number, frame)

    def _on_our_clock(self, frame: Finished) -> Finished:
        offset_us = self.host.clock_offset_us
        return replace(
            frame,
            started_at_us=frame.started_at_us + offset_us,
            ended_at_us=frame.ended_at_us + offset_us,
        )

    def lost(self) -> None:
        """Its process is gone."""
        self._batch.lost()

    def stop(self) -> None:
        self._batch.stop()


class SupervisedProcess:
    """Keeps a process alive for one slot, or for several that compute nothing."""

    def __init__(
        self,
        slots: Sequence[SupervisedSlot],
        host: Host,
        turn: asyncio.Lock,
        renewed: Renewed | None = None,
    ) -> None:
        """
        Args:
            turn: held while a worker loads after a failure; common to all of a host.
            renewed: makes sure that what a worker loads is there, before it is started again; runs
                in a thread. None: it is.
        """
        self.restarts = 0
        self.waited_us = 0
        """For a core, since the worker started, as its last beat says."""
        self.beat_at_s = 0.0
        """When that came, or the worker had loaded."""
        self.up = False
        self.outage: Outage | None = None
        self.gone = ""
        """Why no worker will ever be started again; empty: one will."""
        self._slots = {slot.number: slot for slot in slots}
        self._specs = [slot.spec for slot in slots]
        self._what = process_title(self._specs)
        self._host = host
        self._turn = turn
        self._renewed = renewed
        self._process: WorkerHandle | None = None
        self._lost_now = asyncio.Event()
        self._starting = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._delays = RestartDelays()
        self._cut_off = False
        """The last worker, or the last attempt, was lost because the host was not heard."""
        self._served_by = (0, 0)
        """The last worker that was up: its host's incarnation, its process id."""
        self._began_in = 0
        """The host's incarnation at the last attempt."""
        self._failed_loads = 0
        """In a row."""
        self._next_attempt_at_s = 0.0
        self._watch = Watch(self._what, self._activity, self._on_silent, host.excuse)
        self._loads = LoadsUnderWay(self._activity, LOAD_TIMEOUT_S, self._on_endless_load)
        for slot in slots:
            slot.process = self

    @property
    def process_id(self) -> int | None:
        return self._process.process_id if self._process else None

    @property
    def descriptor(self) -> int | None:
        return self._process.descriptor if self._process else None

    @property
    def retry_in_s(self) -> float:
        if self.gone:
            return math.inf
        return max(0.0, self._next_attempt_at_s - asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Start the first worker, load it, and keep the slots served from then on.

        Raises:
            ModelError: a stage cannot be loaded.
        """
        async with self._starting:
            if self._keeper is None:
                await self._start_process()
                self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def insist(self) -> None:
        """As `start`, but a worker that cannot load counts as lost, and is tried again and again.

        Returns after the first attempt, whatever became of it.
        """
        async with self._starting:
            if self._keeper is not None:
                return
            try:
                await self._start_process()
            except (HeadraceError, OSError) as error:
                self._note_failure(error)
                for slot in self._slots.values():
                    slot.events.on_slot_lost(slot.number)
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def send(self, frame: Run | Load | Unload) -> None:
        if self._process is not None:
            self._process.send(frame)

    def busy_us(self, slot: int) -> int | None:
        """See `Judged`."""
        return self._process.busy_us(slot) if self._process else None

    @property
    def is_loading(self) -> bool:
        """Its worker, which is up, prepares a further stage."""
        return bool(self._loads)

    def load(self, frame: Load) -> None:
        """Where the worker has just died, its slots are lost in a moment."""
        # Opening a model may keep the interpreter's lock for seconds: silence means nothing.
        self._watch.stop()
        self._loads.begin(frame)
        self.send(frame)

    def kill(self) -> None:
        """End the process at once; the slots are lost when the system has closed its end."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """End the worker and keep it ended. Idempotent."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        for slot in self._slots.values():
            slot.stop()
        self._watch.stop()
        self._loads.clear()
        process, was_up = self._process, self.up
        self._process, self.up, self.outage = None, False, None
        if process is not None and was_up:
            await process.stop()
        elif process is not None:
            # Still loading, deaf to everything else, and with nothing to bring to an end.
            await process.reap()

    # -- one process after the other -----------------------------------------------------------

    async def _keep(self) -> None:
        """Give the slots a worker whenever they have none, for as long as their host takes any."""
        loop = asyncio.get_running_loop()
        while not self.gone:
            if self.up:
                came_up_at_s = loop.time()
                await self._lost_now.wait()
                await self._reap()
                self._delays.lived(loop.time() - came_up_at_s)
            lost_at_s = loop.time()
            try:
                await self._host.until_up()
            except HostGoneError as error:
                self._note_failure(error)
                return
            if not self._cut_off or self._host.incarnation != self._began_in:
                self._next_attempt_at_s = lost_at_s + self._delays.after_setback_s()
                await asyncio.sleep(self.retry_in_s)
            # Together, workers that lack memory would fail for ever; one alone may find enough.
            async with self._turn if self._failed_loads else contextlib.nullcontext():
                await self._try_again()

    async def _try_again(self) -> None:
        before = self._served_by
        try:
            if self._renewed is not None:
                self._specs = await asyncio.to_thread(_all_renewed, self._renewed, self._specs)
            await self._start_process()
        except (HeadraceError, OSError) as error:
            self.restarts += 1
            self._note_failure(error)
            return
        if self._served_by != before:
            self.restarts += 1
        logger.info("%s: back", self._what)
        for slot in self._slots.values():
            slot.events.on_slot_gained(slot.number)

    def _note_failure(self, error: Exception) -> None:
        if isinstance(error, HostGoneError):
            # Whoever speaks with the host has said so in the log, once for all that is there.
            self.outage, self.gone = "refused", str(error)
            return
        self._cut_off = not self._host.is_up
        if self._cut_off:
            self.outage = "lost"
            logger.error("%s: %s; waiting for its machine", self._what, error)
            return
        self._failed_loads += 1
        self.outage = "load-failed"
        if self._failed_loads == 1:
            logger.error(
                "%s: out of service, and tried again, in the end every %g s: %s",
                self._what,
                RESTART_DELAYS_S[-1],
                error,
            )
        else:
            logger.info("%s: failed to load %d times: %s", self._what, self._failed_loads, error)

    async def _start_process(self) -> None:
        self._lost_now.clear()
        self.waited_us = 0
        self._began_in = self._host.incarnation
        self._process = self._host.start_worker(self._specs, self._receive, self._lose)
        try:
            await self._process.load(LOAD_TIMEOUT_S)
        except HeadraceError:
            await self._reap()
            raise
        self._began_in = self._host.incarnation
        self._served_by = (self._began_in, self._process.process_id)
        self.up, self.outage, self._failed_loads = True, None, 0
        self.beat_at_s = asyncio.get_running_loop().time()
        self._watch.start()

    async def _reap(self) -> None:
        process = self._process
        if process is not None:
            status = await process.reap()
            # Only now: a stop in the meantime has to wait for its end as well.
            self._process = None
            logger.debug("%s: the worker ended with status %d", self._what, status)

    def _activity(self) -> Activity | None:
        return self._host.activity(self._process.process_id) if self._process else None

    def _on_silent(self) -> None:
        logger.error("%s: nothing heard of its worker for %g s; killing it", self._what, SILENCE_S)
        self.kill()

    def _on_endless_load(self, name: str) -> None:
        logger.error(
            "%s: stage %r is not loaded after %g s; killing the worker",
            self._what,
            name,
            LOAD_TIMEOUT_S,
        )
        self.kill()

    def _receive(self, frame: AnyFrame) -> None:
        self._watch.seen()
        if (isinstance(frame, Loaded) or is_of_a_load(frame)) and self._loads.end(frame):
            self._watch.start()
        if isinstance(frame, Beat):
            self.waited_us = frame.waited_us
            self.beat_at_s = asyncio.get_running_loop().time()
            return
        slot = None
        if isinstance(frame, Finished | Failed | Loaded | Unloaded):
            slot = self._slots.get(frame.slot)
        if slot is not None:
            slot.receive(frame)
        else:
            logger.error("%s: unexpected %s", self._what, frame)

    def _lose(self, reason: str) -> None:
        """The process is gone: tell the dispatcher before anything else happens."""
        self._lost_now.set()
        self._watch.stop()
        self._loads.clear()
        if self.up:
            self.up, self.outage, self._cut_off = False, "lost", not self._host.is_up
            then = "waiting for its machine" if self._cut_off else "restarting it"
            logger.error("%s: worker lost: %s; %s", self._what, reason, then)
            for slot in self._slots.values():
                # Work may move on to a slot here that is told next, and then moves once more.
                slot.events.on_slot_lost(slot.number)
        for slot in self._slots.values():
            slot.lost()


def _all_renewed(renewed: Renewed, specs: Sequence[WorkerSpec]) -> list[WorkerSpec]:
    return [renewed(spec) for spec in specs]
