"""Carries the dispatcher's decisions out: frames go to workers, tensors by the transport."""

import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from headrace.dispatch.kernel.drift import OVERRUN, OVERRUN_US
from headrace.dispatch.protocols import Batch, BatchReports, Clock
from headrace.domain.errors import OverloadError
from headrace.domain.request import DropReason, Request
from headrace.serving.engine.model_weights import ModelWeights
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.workers.frames import Failed, Finished, Loaded, Run, Unloaded
from headrace.serving.workers.stage_io import HERE, Home, Region, StageIndex, StageIO
from headrace.serving.workers.transport import Transport

logger = logging.getLogger(__name__)


class WorkerLink(Protocol):
    """The way to one slot's worker."""

    @property
    def home(self) -> Home:
        """Where the tensors lie that it reads and writes."""
        ...

    def run(self, frame: Run) -> None:
        """Send the batch. Whoever owns the link later calls `LiveDriver.on_ran`, `on_failed` or
        `on_slot_lost`; never from inside this call."""
        ...

    def restart(self, why: str) -> None:
        """Its worker is of no use: end it. `LiveDriver.on_slot_lost` follows, later."""
        ...


class BatchTensors(msgspec.Struct, eq=False):
    """Where a batch's tensors are."""

    region: Region
    """What enters the current stage, or has left the last one."""
    written: Region | None = None
    """What the running stage writes."""
    unwanted: bool = False
    """Nobody waits for it any more, but a worker is still at it."""


class RunningBatch(msgspec.Struct, eq=False):
    """What one worker is doing."""

    batch: Batch
    stage: int
    attempt: int
    tensors: BatchTensors
    overrun_us: int
    """Beyond that it overruns by far."""


class LiveDriver:
    """Implements `dispatch.protocols.Driver`. Set `reports` before the first arrival.

    A region of tensors is freed when the stage that reads it has ended, not when it is sent, so
    that a batch can be run again elsewhere after its worker was lost; and never while a worker
    may still write to it.

    A batch for whose tensors there is no room waits on its slot until there is: what runs elsewhere
    ends and frees its own. Only where nothing runs that could, the least urgent one fails.

    A stage runs only on tensors at its slot's home. Where they are elsewhere (links without a limit
    take no time, so the dispatcher starts no transfer), its slot waits for them. Where they are
    lost, with the machine that they were on, the batch begins anew from what its requests have
    brought.
    """

    reports: BatchReports

    def __init__(
        self,
        stages: StageIndex,
        clock: Clock,
        links: Sequence[WorkerLink],
        transport: Transport,
        pending: PendingRequests,
        weights: ModelWeights | None = None,
    ) -> None:
        """`links` holds one entry per slot, in the plan's order. `transport`: must call back from
        the clock, never from inside `move`. `weights`: of a plan whose models come and go."""
        self._stages = stages
        self._clock = clock
        self._links = links
        self._transport = transport
        self._pending = pending
        self._weights = weights
        self._tensors: dict[int, BatchTensors] = {}
        """By the batch's number."""
        self._batch_of: dict[int, int] = {}
        self._running: list[RunningBatch | None] = [None] * len(links)
        """By slot."""
        self._said = ""
        """By the executor that has just refused an input."""
        self._cramped: list[tuple[Batch, int]] = []
        """Batches, with the stage, for whose tensors there was no room, the most urgent first."""
        self._moving = 0
        """Transfers under way."""
        self._refused: set[tuple[int, int, int]] = set()
        """(slot, batch, attempt) whose worker is yet to say that it lacks the model."""
        self._awaited: dict[int, tuple[Batch, int, int]] = {}
        """Slot -> batch, stage and attempt whose turn it is, and whose tensors are elsewhere."""
        self.on_ended: Callable[[Sequence[Request], DropReason | None], None] = _ignore
        """Called with requests that are answered, or refused and why; in a dispatcher's step."""
        self.on_started: Callable[[], None] = lambda: None
        """Called when a worker was given a batch."""

    @property
    def running_batches(self) -> int:
        return sum(running is not None for running in self._running)

    @property
    def all_busy(self) -> bool:
        """Whether every slot runs a batch, and nothing is on its way to one."""
        return None not in self._running and not self._moving

    # -- the dispatcher's side -----------------------------------------------------------------

    def start_transfer(self, batch: Batch, stage: int) -> None:
        tensors = self._tensors[batch.id]
        self._moving += 1
        self._transport.move(
            tensors.region,
            self._links[batch.slot].home,
            batch.transfer_us,
            _last_deadline_us(batch),
            partial(
                self._moved,
                tensors,
                tensors.region,
                batch,
                stage,
                batch.attempt,
                self._clock.now_us(),
            ),
        )

    def start_stage(self, batch: Batch, stage: int) -> None:
        if not self._cramped and self._start(batch, stage):
            return
        self._cramped.append((batch, stage))
        self._cramped.sort(key=_urgency)
        # Not from inside this call: the dispatcher is in the middle of a step.
        self._clock.call_at(self._clock.now_us(), self._start_those_that_fit)

    def _start(self, batch: Batch, stage: int) -> bool:
        """Run it, if there is room for its tensors."""
        io = self._stages[batch.model][batch.pipeline][stage]
        slot = batch.slot
        home = self._links[slot].home
        known = self._tensors.get(batch.id)
        if known is not None and known.region.home != home:
            self._bring(batch, stage, known)
            return True
        last = stage == len(self._stages[batch.model][batch.pipeline]) - 1
        allocate = self._transport.allocate_answer if last else self._transport.allocate
        try:
            tensors = known or self._gather(batch, home)
            written = allocate(io.outputs, batch.size, home)
        except OverloadError:
            if known is None and batch.id in self._tensors:
                self._transport.free(self._forget(batch).region)
            return False
        tensors.written = written
        self._running[slot] = RunningBatch(
            batch, stage, batch.attempt, tensors, OVERRUN_US + OVERRUN * io.planned.latency_us
        )
        self._links[slot].run(
            Run(
                batch.id,
                batch.attempt,
                io.key,
                batch.size,
                tensors.region.tensor_offsets,
                written.tensor_offsets,
                slot,
                self._sizes(batch, io),
            )
        )
        self.on_started()
        return True

    def _sizes(self, batch: Batch, io: StageIO) -> tuple[int, ...]:
        """Of a request that runs alone at sizes of its own."""
        return self._pending.sizes_of(batch.requests[0]) if io.dimensions else ()

    def answer(self, batch: Batch) -> None:
        io = self._stages[batch.model][batch.pipeline][-1]
        group = io.outputs.at(io.dimensions, self._sizes(batch, io))
        region = self._forget(batch).region
        view = self._transport.view
        tensors = [
            view[offset : offset + batch.size * width]
            for offset, width in zip(region.tensor_offsets, group.item_bytes, strict=True)
        ]
        self._pending.answer(batch.requests, group, tensors, batch.run_us)
        self._transport.free(region)
        self.on_ended(batch.requests, None)

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        batch_id = self._batch_of.pop(request.id, None)
        if batch_id is not None and (tensors := self._tensors.pop(batch_id, None)) is not None:
            # The dispatcher drops all requests of a batch or none.
            self._abandon(tensors)
        said = self._said
        if reason == "failed" and self._weights is not None:
            said = _bounded(self._weights.fault(request.model))
        self._pending.refuse(request, reason, retry_after_us, said)
        self.on_ended((request,), reason)

    # -- batches for which there is no room ------------------------------------------------------

    def _start_those_that_fit(self) -> None:
        """Something may have been freed."""
        self._cramped = [waiting for waiting in self._cramped if not self._start(*waiting)]
        if self._cramped and not self._moving and not self.running_batches:
            # Nobody is left who could free anything.
            batch, stage = self._cramped.pop()
            logger.error(
                "batch %d of %s finds no room for its tensors beside those that wait with it;"
                " give the server a larger arena",
                batch.id,
                self._stages[batch.model][batch.pipeline][stage].name,
            )
            self.reports.on_failed(batch, stage, batch.attempt)
            self._clock.call_at(self._clock.now_us(), self._start_those_that_fit)

    # -- the workers' side ---------------------------------------------------------------------

    def on_ran(self, slot: int, frame: Finished) -> None:
        """A worker has ended a batch; a report of anything else than its current one is stale."""
        running = self._take_running(slot, frame)
        if running is None:
            return
        tensors = running.tensors
        if frame.ended_at_us - frame.started_at_us > running.overrun_us:
            self._pending.blame(running.batch.requests)
        self._transport.free(tensors.region)
        assert tensors.written is not None, "a running batch has somewhere to write"
        tensors.region, tensors.written = self._transport.landed(tensors.written), None
        if tensors.unwanted:
            self._transport.free(tensors.region)
        self.reports.on_ran(
            running.batch, running.stage, running.attempt, frame.started_at_us, frame.ended_at_us
        )
        if self._cramped:
            self._start_those_that_fit()

    def on_failed(self, slot: int, frame: Failed) -> None:
        """A worker could not run a batch, and lives on, unless it could not run any."""
        if frame.broken:
            # What it ran goes elsewhere when it is gone, as from any worker that is lost.
            running = self._running[slot]
            what = "a stage" if running is None else self._stage_of(running)
            self._links[slot].restart(f"{what} fails with any input: {frame.message}")
            if self._weights is not None:
                self._weights.excuse(slot)
            return
        if (stale := (slot, frame.batch, frame.attempt)) in self._refused:
            self._refused.discard(stale)
            return
        running = self._take_running(slot, frame)
        if running is None:
            return
        batch, tensors = running.batch, running.tensors
        # Of a larger batch the parts will tell.
        level = logging.INFO if batch.size == 1 else logging.DEBUG
        what = self._stage_of(running)
        logger.log(level, "batch %d failed in %s: %s", batch.id, what, _bounded(frame.message))
        self._stop_writing(tensors)
        if batch.size > 1 and not tensors.unwanted:
            # The dispatcher queues such requests afresh; their inputs are gathered again.
            self._transport.free(self._forget(batch).region)
        self._said = _bounded(frame.message)
        self.reports.on_failed(batch, running.stage, running.attempt, input_suspected=True)
        self._said = ""
        if self._cramped:
            self._start_those_that_fit()

    def on_loaded(self, slot: int, frame: Loaded) -> None:
        """A worker has made a model ready while it serves."""
        if self._weights is not None:
            self._weights.on_loaded(slot, frame)

    def on_load_failed(self, slot: int, frame: Failed) -> None:
        """A worker could not load a model, and lives on without it, unless it could not any."""
        if frame.broken:
            # The load ends with it, when it is gone.
            self._links[slot].restart(f"it can load nothing more: {frame.message}")
            return
        model = None if self._weights is None else self._weights.on_load_failed(slot, frame)
        if model is None:
            return
        running = self._running[slot]
        if running is not None and running.batch.model == model:
            # It was sent behind the load: its worker says that it cannot, and touches nothing.
            self._running[slot] = None
            self._refused.add((slot, running.batch.id, running.attempt))
            self._stop_writing(running.tensors)
        self._cramped = [
            waiting
            for waiting in self._cramped
            if (waiting[0].slot, waiting[0].model) != (slot, model)
        ]
        assert self._weights is not None, "only models that come and go are loaded here"
        self._weights.report_failed(slot, model, frame)
        if self._cramped:
            self._start_those_that_fit()

    def on_unloaded(self, slot: int, frame: Unloaded) -> None:
        """Its memory is free. What is loaded next was sent behind it and does not wait."""

    def on_slot_lost(self, slot: int) -> None:
        """The worker's process is gone and writes nothing any more."""
        if self._weights is not None:
            self._weights.on_slot_lost(slot)
            self._refused = {each for each in self._refused if each[0] != slot}
        running, self._running[slot] = self._running[slot], None
        self._awaited.pop(slot, None)
        if running is not None:
            self._pending.blame(running.batch.requests)
            self._stop_writing(running.tensors)
            if running.stage == 0 and not running.tensors.unwanted:
                # The dispatcher queues such requests afresh; their inputs are gathered again.
                self._transport.free(self._forget(running.batch).region)
        self._cramped = [waiting for waiting in self._cramped if waiting[0].slot != slot]
        self.reports.on_slot_lost(slot)
        if self._cramped:
            self._start_those_that_fit()

    def on_slot_gained(self, slot: int) -> None:
        """A new worker has loaded all stages of the slot."""
        self.reports.on_slot_gained(slot)

    # -- tensors -------------------------------------------------------------------------------

    def _gather(self, batch: Batch, home: Home) -> BatchTensors:
        io = self._stages[batch.model][batch.pipeline][0]
        region = self._transport.allocate(io.inputs, batch.size, HERE)
        tensors = self._tensors[batch.id] = BatchTensors(region)
        for request in batch.requests:
            self._batch_of[request.id] = batch.id
        view = self._transport.view
        group = io.inputs.at(io.dimensions, self._sizes(batch, io))
        self._pending.write_inputs(batch.requests, group, view, region.tensor_offsets)
        tensors.region = self._transport.send(region, home)
        return tensors

    def _bring(self, batch: Batch, stage: int, tensors: BatchTensors) -> None:
        """Its turn has come, and its tensors are elsewhere, or nowhere."""
        awaited = self._awaited[batch.slot] = (batch, stage, batch.attempt)
        self._moving += 1
        self._transport.move(
            tensors.region,
            self._links[batch.slot].home,
            0,
            _last_deadline_us(batch),
            partial(self._brought, tensors, tensors.region, batch.slot, awaited),
        )

    def _brought(
        self,
        tensors: BatchTensors,
        source: Region,
        slot: int,
        awaited: tuple[Batch, int, int],
        region: Region | None,
    ) -> None:
        self._moving -= 1
        batch, stage, attempt = awaited
        if self._awaited.get(slot) is not awaited:
            # The slot was lost meanwhile; the batch has another path, or begins anew.
            self._release(region, but=source)
            return
        del self._awaited[slot]
        if region is not None:
            self._take(tensors, source, region)
            self.start_stage(batch, stage)
            return
        logger.info("batch %d begins anew: what it had computed is lost", batch.id)
        self._transport.free(self._forget(batch).region)
        self.reports.on_tensors_lost(batch, stage, attempt)

    def _take(self, tensors: BatchTensors, source: Region, region: Region) -> None:
        """A batch's tensors are there now."""
        if region is not source:
            self._transport.free(source)
            tensors.region = region

    def _release(self, region: Region | None, but: Region) -> None:
        """Nobody wants the copy."""
        if region is not None and region is not but:
            self._transport.free(region)

    def _moved(
        self,
        tensors: BatchTensors,
        source: Region,
        batch: Batch,
        stage: int,
        attempt: int,
        started_at_us: int,
        region: Region | None,
    ) -> None:
        """The tensors that enter a stage are where its slot reads them, or were on the way there
        when the batch got another path or was dropped. None: they did not get there; when the
        stage's turn comes, they are looked for again."""
        self._moving -= 1
        known = self._tensors.get(batch.id) is tensors and tensors.region is source
        if region is not None and known and batch.attempt == attempt:
            self._take(tensors, source, region)
        else:
            self._release(region, but=source)
        self.reports.on_transferred(batch, stage, attempt, started_at_us)

    def _forget(self, batch: Batch) -> BatchTensors:
        for request in batch.requests:
            self._batch_of.pop(request.id, None)
        return self._tensors.pop(batch.id)

    def _abandon(self, tensors: BatchTensors) -> None:
        if tensors.written is not None:
            tensors.unwanted = True
        else:
            self._transport.free(tensors.region)

    def _stop_writing(self, tensors: BatchTensors) -> None:
        assert tensors.written is not None, "a running batch has somewhere to write"
        self._transport.free(tensors.written)
        tensors.written = None
        if tensors.unwanted:
            self._transport.free(tensors.region)

    def _take_running(self, slot: int, frame: Finished | Failed) -> RunningBatch | None:
        running = self._running[slot]
        if running is None or (running.batch.id, running.attempt) != (frame.batch, frame.attempt):
            logger.warning("slot %d reports batch %d, which it does not run", slot, frame.batch)
            return None
        self._running[slot] = None
        return running

    def _stage_of(self, running: RunningBatch) -> str:
        """The name of the stage that it runs."""
        return self._stages[running.batch.model][running.batch.pipeline][running.stage].name


def _ignore(requests: Sequence[Request], refused: DropReason | None) -> None:
    """Where nobody asks how requests end."""


_FOLDERS = re.compile(r"(?<![\w.])(?:/[^\s/:'\"]+)+/(?=[^\s/])")
_SAID_CHARS = 200


def _bounded(message: str) -> str:
    """What a client is told of an executor's error: its first line, without folders of ours.

    >>> _bounded("Fail: /src/ops/gather.cc:154 idx=5000 is out of [-100,99]\\nat ...")
    'Fail: gather.cc:154 idx=5000 is out of [-100,99]'
    """
    line = message.split("\n", 1)[0]
    printable = "".join(c if c.isprintable() else " " for c in _FOLDERS.sub("", line))
    return printable.strip()[:_SAID_CHARS]


def _last_deadline_us(batch: Batch) -> int:
    return max(request.deadline_at_us for request in batch.requests)


def _urgency(waiting: tuple[Batch, int]) -> tuple[int, int, int]:
    batch, _ = waiting
    return (
        min(request.priority for request in batch.requests),
        min(request.deadline_at_us for request in batch.requests),
        batch.id,
    )
