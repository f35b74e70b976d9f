"""Carries the dispatcher's decisions out in real time: frames to workers, tensors in the arena."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.dispatch.protocols import Batch, Clock
from headrace.domain.errors import OverloadError
from headrace.domain.request import DropReason, Request
from headrace.serving.engine.desk import Desk
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Failed, Ran, Run
from headrace.serving.workers.stage_io import Region, StageIndex

logger = logging.getLogger(__name__)


class WorkerLink(Protocol):
    """The way to one slot's worker."""

    def run(self, frame: Run) -> None:
        """Send the batch. Whoever owns the link later calls `LiveDriver.on_ran`, `on_failed` or
        `on_slot_lost`; never from inside this call."""
        ...


class Reports(Protocol):
    """The part of the dispatcher that a driver reports to."""

    def on_transferred(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int
    ) -> None: ...

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None: ...

    def on_failed(self, batch: Batch, stage: int, attempt: int) -> None: ...

    def on_slot_lost(self, slot: int) -> None: ...

    def on_slot_gained(self, slot: int) -> None: ...


@dataclass(slots=True, eq=False)
class Cargo:
    """Where a batch's tensors are."""

    tensors: Region
    """What enters the current stage, or has left the last one."""
    written: Region | None = None
    """What the running stage writes."""
    unwanted: bool = False
    """Nobody waits for it any more, but a worker is still at it."""


@dataclass(slots=True, eq=False)
class Work:
    """What one worker is doing."""

    batch: Batch
    stage: int
    attempt: int
    cargo: Cargo


class LiveDriver:
    """Implements `dispatch.protocols.Driver`. Set `reports` before the first arrival.

    Tensors never leave this machine: where the plan has several nodes, the link between two of
    them is emulated by holding the batch for the planned time.

    A region of the arena is freed when the stage that reads it has ended, not when it is sent, so
    that a batch can be run again elsewhere after its worker was lost; and never while a worker
    may still write to it.
    """

    reports: Reports

    def __init__(
        self,
        stages: StageIndex,
        clock: Clock,
        links: Sequence[WorkerLink],
        arena: Arena,
        desk: Desk,
    ) -> None:
        """`links` holds one entry per slot, in the plan's order."""
        self._stages = stages
        self._clock = clock
        self._links = links
        self._arena = arena
        self._desk = desk
        self._cargo: dict[int, Cargo] = {}
        self._batch_of: dict[int, int] = {}
        self._work: list[Work | None] = [None] * len(links)

    @property
    def running_batches(self) -> int:
        return sum(work is not None for work in self._work)

    # -- the dispatcher's side -----------------------------------------------------------------

    def start_transfer(self, batch: Batch, stage: int) -> None:
        attempt, started_at_us = batch.attempt, self._clock.now_us()
        self._clock.call_at(
            started_at_us + batch.transfer_us,
            lambda: self.reports.on_transferred(batch, stage, attempt, started_at_us),
        )

    def start_stage(self, batch: Batch, stage: int) -> None:
        io = self._stages[batch.model][batch.pipeline][stage]
        try:
            cargo = self._cargo.get(batch.id) or self._gather(batch)
            cargo.written = io.outputs.allocate(self._arena, batch.size)
        except OverloadError as error:
            logger.error("batch %d of %s cannot run: %s", batch.id, io.name, error)
            attempt = batch.attempt
            self._clock.call_at(
                self._clock.now_us(), lambda: self.reports.on_failed(batch, stage, attempt)
            )
            return
        slot = batch.slot
        self._work[slot] = Work(batch, stage, batch.attempt, cargo)
        self._links[slot].run(
            Run(
                batch.id,
                batch.attempt,
                io.key,
                batch.size,
                cargo.tensors.tensor_offsets,
                cargo.written.tensor_offsets,
                slot,
            )
        )

    def answer(self, batch: Batch) -> None:
        group = self._stages[batch.model][batch.pipeline][-1].outputs
        cargo = self._forget(batch)
        view = self._arena.view
        # One copy per batch: the answers outlive the region, and are slices of this.
        tensors = [
            memoryview(bytes(view[offset : offset + batch.size * width]))
            for offset, width in zip(cargo.tensors.tensor_offsets, group.item_bytes, strict=True)
        ]
        self._arena.free(cargo.tensors.offset)
        self._desk.answer(batch.requests, group, tensors)

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        batch_id = self._batch_of.pop(request.id, None)
        if batch_id is not None and (cargo := self._cargo.pop(batch_id, None)) is not None:
            # The dispatcher drops all requests of a batch or none.
            self._abandon(cargo)
        self._desk.refuse(request, reason, retry_after_us)

    # -- the workers' side ---------------------------------------------------------------------

    def on_ran(self, slot: int, frame: Ran) -> None:
        """A worker has ended a batch; a report of anything else than its current work is stale."""
        work = self._take_work(slot, frame)
        if work is None:
            return
        cargo = work.cargo
        self._arena.free(cargo.tensors.offset)
        assert cargo.written is not None, "a running batch has somewhere to write"
        cargo.tensors, cargo.written = cargo.written, None
        if cargo.unwanted:
            self._arena.free(cargo.tensors.offset)
        self.reports.on_ran(
            work.batch, work.stage, work.attempt, frame.started_at_us, frame.ended_at_us
        )

    def on_failed(self, slot: int, frame: Failed) -> None:
        """A worker could not run a batch, and lives on."""
        work = self._take_work(slot, frame)
        if work is None:
            return
        io = self._stages[work.batch.model][work.batch.pipeline][work.stage]
        logger.error("batch %d failed in %s: %s", frame.batch, io.name, frame.message)
        self._stop_writing(work.cargo)
        self.reports.on_failed(work.batch, work.stage, work.attempt)

    def on_slot_lost(self, slot: int) -> None:
        """The worker's process is gone and writes nothing any more."""
        work, self._work[slot] = self._work[slot], None
        if work is not None:
            self._stop_writing(work.cargo)
            if work.stage == 0 and not work.cargo.unwanted:
                # The dispatcher queues such requests afresh; their inputs are gathered again.
                self._arena.free(self._forget(work.batch).tensors.offset)
        self.reports.on_slot_lost(slot)

    def on_slot_gained(self, slot: int) -> None:
        """A new worker has loaded all stages of the slot."""
        self.reports.on_slot_gained(slot)

    # -- cargo ---------------------------------------------------------------------------------

    def _gather(self, batch: Batch) -> Cargo:
        group = self._stages[batch.model][batch.pipeline][0].inputs
        region = group.allocate(self._arena, batch.size)
        cargo = Cargo(region)
        self._cargo[batch.id] = cargo
        for request in batch.requests:
            self._batch_of[request.id] = batch.id
        self._desk.write_inputs(batch.requests, group, self._arena.view, region.tensor_offsets)
        return cargo

    def _forget(self, batch: Batch) -> Cargo:
        for request in batch.requests:
            self._batch_of.pop(request.id, None)
        return self._cargo.pop(batch.id)

    def _abandon(self, cargo: Cargo) -> None:
        if cargo.written is not None:
            cargo.unwanted = True
        else:
            self._arena.free(cargo.tensors.offset)

    def _stop_writing(self, cargo: Cargo) -> None:
        assert cargo.written is not None, "a running batch has somewhere to write"
        self._arena.free(cargo.written.offset)
        cargo.written = None
        if cargo.unwanted:
            self._arena.free(cargo.tensors.offset)

    def _take_work(self, slot: int, frame: Ran | Failed) -> Work | None:
        work = self._work[slot]
        if work is None or (work.batch.id, work.attempt) != (frame.batch, frame.attempt):
            logger.warning("slot %d reports batch %d, which it does not run", slot, frame.batch)
            return None
        self._work[slot] = None
        return work
