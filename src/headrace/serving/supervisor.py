"""Keeps the workers of all slots alive: starts, watches, restarts, stops."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from headrace.domain.errors import HeadraceError, ModelError
from headrace.serving.arena import Arena
from headrace.serving.frames import AnyFrame, Failed, Ran, Run
from headrace.serving.worker_process import WorkerProcess, WorkerSpec, process_title

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 120.0
RESTART_DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Before each restart in a row; a process that fails to start more often is given up."""
STEADY_S = 10.0
"""A worker that has lived so long is healthy: the row begins anew."""
HANG_FACTOR = 10
HANG_GRACE_S = 2.0
"""A batch that takes longer than HANG_FACTOR x p99 + HANG_GRACE_S hangs."""


class SlotEvents(Protocol):
    """Whom the supervisor tells; the live driver."""

    def on_ran(self, slot: int, frame: Ran) -> None: ...

    def on_failed(self, slot: int, frame: Failed) -> None: ...

    def on_slot_lost(self, slot: int) -> None: ...

    def on_slot_gained(self, slot: int) -> None: ...


class SupervisedSlot:
    """One slot, whichever process serves it now. It is the driver's `WorkerLink`."""

    def __init__(self, number: int, spec: WorkerSpec) -> None:
        self.events: SlotEvents
        self.spec = spec
        self.number = number
        self.home: SupervisedProcess
        self._p99_us = {load.stage: load.p99_us for load in spec.loads}
        self._hangs_at_s: float | None = None
        self._watch: asyncio.TimerHandle | None = None

    @property
    def up(self) -> bool:
        """A worker has loaded all stages and lives."""
        return self.home.up

    @property
    def process_id(self) -> int | None:
        return self.home.process_id

    @property
    def restarts(self) -> int:
        return self.home.restarts

    @property
    def given_up(self) -> bool:
        return self.home.given_up

    def run(self, frame: Run) -> None:
        # Where the worker has just died, its end of the channel says so in a moment.
        self.home.send(frame)
        loop = asyncio.get_running_loop()
        limit_us = HANG_FACTOR * self._p99_us[frame.stage][frame.size - 1]
        self._hangs_at_s = loop.time() + limit_us / 1e6 + HANG_GRACE_S
        if self._watch is None:
            self._watch = loop.call_at(self._hangs_at_s, self._check)

    def receive(self, frame: AnyFrame) -> None:
        self._hangs_at_s = None
        match frame:
            case Ran():
                self.events.on_ran(self.number, frame)
            case Failed():
                self.events.on_failed(self.number, frame)

    def lost(self) -> None:
        """Its process is gone."""
        self._hangs_at_s = None

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _check(self) -> None:
        """Kill a worker that is far beyond the time its batch was predicted to take."""
        self._watch = None
        if self._hangs_at_s is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._hangs_at_s:
            self._watch = loop.call_at(self._hangs_at_s, self._check)
            return
        logger.error("slot %s: its batch hangs; killing the worker", self.spec.slot)
        self._hangs_at_s = None
        self.home.kill()


class SupervisedProcess:
    """Keeps a process alive for one slot, or for several that are emulated."""

    def __init__(self, slots: Sequence[SupervisedSlot], arena: Arena) -> None:
        self.restarts = 0
        self.given_up = False
        self.up = False
        self._slots = {slot.number: slot for slot in slots}
        self._specs = [slot.spec for slot in slots]
        self._what = process_title(self._specs)
        self._arena = arena
        self._process: WorkerProcess | None = None
        self._lost_now = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        for slot in slots:
            slot.home = self

    @property
    def process_id(self) -> int | None:
        return self._process.process_id if self._process else None

    async def start(self) -> None:
        """Start the first worker, load it, and keep the slots served from then on.

        Raises:
            ModelError: a stage cannot be loaded.
        """
        await self._start_process()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def send(self, frame: Run) -> None:
        if self._process is not None:
            self._process.send(frame)

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
        process, self._process, self.up = self._process, None, False
        if process is not None:
            await process.stop()

    # -- one process after the other -----------------------------------------------------------

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started_at_s = loop.time()
            if self.up:
                await self._lost_now.wait()
                await self._reap()
                if loop.time() - started_at_s > STEADY_S:
                    failures = 0
            if failures == len(RESTART_DELAYS_S):
                self.given_up = True
                logger.critical(
                    "%s: given up: the worker failed %d times in a row; mend the cause"
                    " above and start the server again",
                    self._what,
                    failures,
                )
                return
            await asyncio.sleep(RESTART_DELAYS_S[failures])
            failures += 1
            self.restarts += 1
            try:
                await self._start_process()
            except (HeadraceError, OSError) as error:
                logger.error("%s: restart failed: %s", self._what, error)
                continue
            logger.info("%s: back", self._what)
            for slot in self._slots.values():
                slot.events.on_slot_gained(slot.number)

    async def _start_process(self) -> None:
        self._lost_now.clear()
        loop = asyncio.get_running_loop()
        self._process = WorkerProcess(self._specs, self._arena, loop, self._receive, self._lose)
        try:
            await self._process.load(LOAD_TIMEOUT_S)
        except ModelError:
            await self._reap()
            raise
        self.up = True

    async def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            status = await process.reap()
            logger.info("%s: the worker ended with status %d", self._what, status)

    def _receive(self, frame: AnyFrame) -> None:
        slot = self._slots.get(frame.slot) if isinstance(frame, Ran | Failed) else None
        if slot is not None:
            slot.receive(frame)
        else:
            logger.error("%s: unexpected %s", self._what, frame)

    def _lose(self, reason: str) -> None:
        """The process is gone: tell the dispatcher before anything else happens."""
        self._lost_now.set()
        if self.up:
            self.up = False
            logger.error("%s: worker lost: %s; restarting it", self._what, reason)
            for slot in self._slots.values():
                # Work may move on to a slot here that is told next, and then moves once more.
                slot.events.on_slot_lost(slot.number)
        for slot in self._slots.values():
            slot.lost()


class Supervisor:
    """All slots of a plan."""

    def __init__(self, specs: Sequence[WorkerSpec], arena: Arena) -> None:
        self.slots = tuple(SupervisedSlot(i, spec) for i, spec in enumerate(specs))
        shared: dict[int, list[SupervisedSlot]] = {}
        alone = []
        for slot in self.slots:
            if slot.spec.process is None:
                alone.append([slot])
            else:
                shared.setdefault(slot.spec.process, []).append(slot)
        groups = (*alone, *shared.values())
        self._processes = tuple(SupervisedProcess(group, arena) for group in groups)

    def connect(self, events: SlotEvents) -> None:
        """Say whom to tell of runs and losses; before `start`."""
        for slot in self.slots:
            slot.events = events

    async def start(self, slots: Sequence[int] | None = None) -> None:
        """Start all workers at once, or those of `slots`, and wait until all have loaded.

        Raises:
            ModelError: one could not; all others are stopped again.
        """
        homes = self._processes if slots is None else self._homes(slots)
        results = await asyncio.gather(
            *(process.start() for process in homes if not process.up), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await asyncio.gather(*(process.stop() for process in homes))
            raise failures[0]

    async def stop_slots(self, slots: Sequence[int]) -> None:
        """End the workers that serve none but these slots."""
        others = self._homes([slot.number for slot in self.slots if slot.number not in slots])
        homes = [process for process in self._homes(slots) if process not in others]
        await asyncio.gather(*(process.stop() for process in homes))

    def _homes(self, slots: Sequence[int]) -> list[SupervisedProcess]:
        return list(dict.fromkeys(self.slots[slot].home for slot in slots))

    async def stop(self) -> None:
        """End all workers. Idempotent."""
        await asyncio.gather(*(process.stop() for process in self._processes))
