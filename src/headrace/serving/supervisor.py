"""Keeps one worker per slot alive: starts, watches, restarts, stops."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from headrace.domain.errors import HeadraceError, ModelError
from headrace.serving.arena import Arena
from headrace.serving.frames import AnyFrame, Failed, Ran, Run
from headrace.serving.worker_process import WorkerProcess, WorkerSpec

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 120.0
RESTART_DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Before each restart in a row; a slot that fails to start more often is given up."""
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
    """One slot and whichever process serves it now. It is the driver's `WorkerLink`."""

    def __init__(self, number: int, spec: WorkerSpec, arena: Arena) -> None:
        self.events: SlotEvents
        self.restarts = 0
        self.given_up = False
        self.spec = spec
        self._number = number
        self._arena = arena
        self._p99_us = {load.stage: load.p99_us for load in spec.loads}
        self._process: WorkerProcess | None = None
        self._up = False
        self._lost_now = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._hangs_at_s: float | None = None
        self._watch: asyncio.TimerHandle | None = None

    @property
    def up(self) -> bool:
        """A worker has loaded all stages and lives."""
        return self._up

    @property
    def process_id(self) -> int | None:
        return self._process.process_id if self._process else None

    async def start(self) -> None:
        """Start the first worker, load it, and keep the slot served from then on.

        Raises:
            ModelError: a stage cannot be loaded.
        """
        self._loop = asyncio.get_running_loop()
        await self._start_process()
        self._keeper = self._loop.create_task(self._keep())

    def run(self, frame: Run) -> None:
        if self._process is not None:
            # Where the worker has just died, its end of the channel says so in a moment.
            self._process.send(frame)
        limit_us = HANG_FACTOR * self._p99_us[frame.stage][frame.size - 1]
        self._hangs_at_s = self._loop.time() + limit_us / 1e6 + HANG_GRACE_S
        if self._watch is None:
            self._watch = self._loop.call_at(self._hangs_at_s, self._check)

    async def stop(self) -> None:
        """End the worker and keep it ended. Idempotent."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        process, self._process, self._up = self._process, None, False
        if process is not None:
            await process.stop()

    # -- one process after the other -----------------------------------------------------------

    async def _keep(self) -> None:
        failures = 0
        while True:
            started_at_s = self._loop.time()
            if self._up:
                await self._lost_now.wait()
                await self._reap()
                if self._loop.time() - started_at_s > STEADY_S:
                    failures = 0
            if failures == len(RESTART_DELAYS_S):
                self.given_up = True
                logger.critical(
                    "slot %s is given up: its worker failed %d times in a row; mend the cause"
                    " above and start the server again",
                    self.spec.slot,
                    failures,
                )
                return
            await asyncio.sleep(RESTART_DELAYS_S[failures])
            failures += 1
            self.restarts += 1
            try:
                await self._start_process()
            except (HeadraceError, OSError) as error:
                logger.error("slot %s: restart failed: %s", self.spec.slot, error)
                continue
            logger.info("slot %s is back", self.spec.slot)
            self.events.on_slot_gained(self._number)

    async def _start_process(self) -> None:
        self._lost_now.clear()
        self._process = WorkerProcess(self.spec, self._arena, self._loop, self._receive, self._lose)
        try:
            await self._process.load(LOAD_TIMEOUT_S)
        except ModelError:
            await self._reap()
            raise
        self._up = True

    async def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            status = await process.reap()
            logger.info("slot %s: its worker ended with status %d", self.spec.slot, status)

    def _receive(self, frame: AnyFrame) -> None:
        self._hangs_at_s = None
        match frame:
            case Ran():
                self.events.on_ran(self._number, frame)
            case Failed():
                self.events.on_failed(self._number, frame)
            case _:
                logger.error("slot %s: unexpected %s", self.spec.slot, type(frame).__name__)

    def _lose(self, reason: str) -> None:
        """The process is gone: tell the dispatcher before anything else happens."""
        self._hangs_at_s = None
        self._lost_now.set()
        if self._up:
            self._up = False
            logger.error("slot %s: worker lost: %s; restarting it", self.spec.slot, reason)
            self.events.on_slot_lost(self._number)

    def _check(self) -> None:
        """Kill a worker that is far beyond the time its batch was predicted to take."""
        self._watch = None
        if self._hangs_at_s is None or self._process is None:
            return
        if self._loop.time() < self._hangs_at_s:
            self._watch = self._loop.call_at(self._hangs_at_s, self._check)
            return
        logger.error("slot %s: its batch hangs; killing the worker", self.spec.slot)
        self._hangs_at_s = None
        self._process.kill()


class Supervisor:
    """All slots of a plan."""

    def __init__(self, specs: Sequence[WorkerSpec], arena: Arena) -> None:
        self.slots = tuple(SupervisedSlot(i, spec, arena) for i, spec in enumerate(specs))

    def connect(self, events: SlotEvents) -> None:
        """Say whom to tell of runs and losses; before `start`."""
        for slot in self.slots:
            slot.events = events

    async def start(self) -> None:
        """Start all workers at once and wait until all have loaded.

        Raises:
            ModelError: one could not; all others are stopped again.
        """
        results = await asyncio.gather(
            *(slot.start() for slot in self.slots), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]

    async def stop(self) -> None:
        """End all workers. Idempotent."""
        await asyncio.gather(*(slot.stop() for slot in self.slots))
