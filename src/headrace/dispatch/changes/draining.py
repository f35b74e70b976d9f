"""Between a dispatcher and its driver: knows what runs where, and takes slots out without harm.

A migration must know when a device has nothing left to do for the old plan, and must stop new
work on one slot while the others go on. Both can be done from outside the dispatcher: it starts
work only through its driver, hears of ends only through its reports, and copes with lost slots.
So a `DrainingDriver` stands in both ways, passes everything on, and keeps count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.dispatch.protocols import Batch, BatchReports, Clock, Driver, Load, LoadReports
from headrace.dispatch.topology import Topology
from headrace.domain.request import DropReason, Request


class Dispatching(BatchReports, LoadReports, Protocol):
    """The part of `Dispatcher` that a `DrainingDriver` uses."""

    @property
    def accepted(self) -> Mapping[int, Request]: ...

    def on_arrival(self, request: Request) -> None: ...

    def on_items(self, items: Sequence[Request]) -> None: ...

    def cancel(self, request_id: int) -> None: ...

    def admit(self, model: int) -> None: ...

    def shut(self, model: int) -> None: ...


@dataclass(slots=True)
class StartedBatch:
    """A batch that has begun its first stage."""

    model: int
    pipeline: int
    requests: tuple[int, ...]
    stage: int = 0
    """The stage it is on, or on its way to."""


class DrainingDriver:
    """Implements `protocols.Driver` for one dispatcher and passes the driver's reports to it.

    Set `dispatcher` before the first arrival, and the driver's `reports` to this. A slot that
    is *closed* does not exist for the dispatcher, whether its worker lives or not.
    """

    dispatcher: Dispatching

    def __init__(self, topology: Topology, clock: Clock, driver: Driver) -> None:
        self._clock = clock
        self._driver = driver
        self._open = [0] * len(topology.models)
        self._started = [0] * len(topology.models)
        self._progress: dict[int, StartedBatch] = {}
        self._batch_of: dict[int, int] = {}
        self._running: dict[int, tuple[int, int]] = {}
        """Slot -> (batch, attempt)."""
        self._slot_of: dict[int, int] = {}
        """Running batch -> its slot."""
        self._down: set[int] = set()
        self._closing: set[int] = set()
        self._closed: set[int] = set()
        self._told = False
        self.on_change: Callable[[], None] | None = None
        """Called, on the clock, soon after anything changed that a migration may wait for."""

    # -- what a migration asks -------------------------------------------------------------------

    @property
    def open_requests(self) -> int:
        """Submitted, and neither answered nor refused."""
        return sum(self._open)

    def waiting(self, model: int) -> int:
        """Submitted requests whose first stage has not begun."""
        return self._open[model] - self._started[model]

    def batches(self, model: int, pipeline: int, last_stage: int) -> set[int]:
        """Batches on the pipeline that have not passed `last_stage`."""
        return {
            number
            for number, batch in self._progress.items()
            if (batch.model, batch.pipeline) == (model, pipeline) and batch.stage <= last_stage
        }

    def in_use(self, slot: int) -> bool:
        """Whether the dispatcher has the slot, or a batch is running there."""
        return slot not in self._closed or slot in self._running

    def serves(self, slot: int) -> bool:
        """Whether the dispatcher may start batches there."""
        return not (slot in self._closed or slot in self._closing or slot in self._down)

    def is_out(self, slot: int) -> bool:
        """Whether the slot is in service, but its worker is lost, or could not load."""
        return slot in self._down and slot not in self._closed

    # -- what a migration does -------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Hand a request to the dispatcher. Every request must come this way."""
        self._open[request.model] += 1
        self.dispatcher.on_arrival(request)

    def submit_items(self, items: Sequence[Request]) -> None:
        """The same of one request of many items; see `Dispatcher.on_items`."""
        self._open[items[0].model] += len(items)
        self.dispatcher.on_items(items)

    def close(self, slot: int) -> None:
        """Take the slot out of service, after the batch that it is running.

        What was promised to the slot and has not begun finds another path.
        """
        if slot in self._running:
            self._closing.add(slot)
        elif slot not in self._closed:
            self._close_now(slot)

    def open(self, slot: int) -> None:
        """Put a closed slot into service, once its worker lives."""
        self._closed.discard(slot)
        if slot not in self._down:
            self.dispatcher.on_slot_gained(slot)

    # -- the dispatcher's side: a Driver ----------------------------------------------------------

    def start_transfer(self, batch: Batch, stage: int) -> None:
        self._driver.start_transfer(batch, stage)

    def start_stage(self, batch: Batch, stage: int) -> None:
        slot = batch.slot
        if slot in self._closing:
            # Its turn came in the very step in which the slot fell idle: `_ended` closes the slot
            # as soon as the dispatcher returns, and the dispatcher then moves the batch.
            return
        self._running[slot] = (batch.id, batch.attempt)
        self._slot_of[batch.id] = slot
        if batch.id not in self._progress:
            self._begin(batch)
        self._progress[batch.id].stage = stage
        self._changed()
        self._driver.start_stage(batch, stage)

    def answer(self, batch: Batch) -> None:
        self._open[batch.model] -= batch.size
        self._forget(batch.id)
        self._changed()
        self._driver.answer(batch)

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        self._open[request.model] -= 1
        number = self._batch_of.get(request.id)
        if number is not None:
            # The dispatcher drops all requests of a batch or none.
            self._forget(number)
        self._changed()
        self._driver.refuse(request, reason, retry_after_us)

    # -- the driver's side: its reports -----------------------------------------------------------

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        self.dispatcher.on_transferred(batch, stage, attempt, started_at_us)

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        slot = self._take(batch, attempt)
        if slot is not None and batch.id in self._progress:
            self._progress[batch.id].stage = stage + 1
        self.dispatcher.on_ran(batch, stage, attempt, started_at_us, ended_at_us)
        self._ended(slot)

    def on_failed(
        self, batch: Batch, stage: int, attempt: int, input_suspected: bool = False
    ) -> None:
        slot = self._take(batch, attempt)
        if slot is not None and input_suspected and batch.size > 1:
            # The dispatcher queues such requests afresh.
            self._forget(batch.id)
        self.dispatcher.on_failed(batch, stage, attempt, input_suspected)
        self._ended(slot)

    def on_tensors_lost(self, batch: Batch, stage: int, attempt: int) -> None:
        slot = self._take(batch, attempt)
        if slot is not None:
            # The dispatcher queues such requests afresh.
            self._forget(batch.id)
        self.dispatcher.on_tensors_lost(batch, stage, attempt)
        self._ended(slot)

    def on_slot_lost(self, slot: int) -> None:
        """The slot's worker is gone."""
        self._down.add(slot)
        number, _ = self._running.pop(slot, (-1, 0))
        self._slot_of.pop(number, None)
        if number in self._progress and self._progress[number].stage == 0:
            # The dispatcher queues such requests afresh.
            self._forget(number)
        if slot not in self._closed:
            self.dispatcher.on_slot_lost(slot)
        if slot in self._closing:
            self._closing.discard(slot)
            self._closed.add(slot)
        self._changed()

    def on_slot_gained(self, slot: int) -> None:
        """The slot's worker is (back) up."""
        self._down.discard(slot)
        if slot not in self._closed:
            self.dispatcher.on_slot_gained(slot)
        self._changed()

    def on_loaded(self, load: Load, started_at_us: int) -> None:
        self.dispatcher.on_loaded(load, started_at_us)

    def on_load_failed(self, load: Load) -> None:
        """Of the batch that waited for it there is no other report."""
        number, _ = self._running.get(load.slot, (-1, 0))
        waited = number in self._progress and self._progress[number].model == load.model
        if waited:
            del self._running[load.slot], self._slot_of[number]
        self.dispatcher.on_load_failed(load)
        self._ended(load.slot if waited else None)

    def admit(self, model: int) -> None:
        """See `Dispatcher.admit`."""
        self.dispatcher.admit(model)

    def shut(self, model: int) -> None:
        """See `Dispatcher.shut`."""
        self.dispatcher.shut(model)

    # -- counts ------------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        requests = tuple(request.id for request in batch.requests)
        self._progress[batch.id] = StartedBatch(batch.model, batch.pipeline, requests)
        self._started[batch.model] += len(requests)
        for request in requests:
            self._batch_of[request] = batch.id

    def _forget(self, number: int) -> None:
        batch = self._progress.pop(number, None)
        if batch is not None:
            self._started[batch.model] -= len(batch.requests)
            for request in batch.requests:
                del self._batch_of[request]

    def _take(self, batch: Batch, attempt: int) -> int | None:
        """The slot that the report frees; None: it is stale."""
        # Not the batch's own path: that may have changed since the report's attempt.
        slot = self._slot_of.get(batch.id, -1)
        if self._running.get(slot) != (batch.id, attempt):
            return None
        del self._running[slot], self._slot_of[batch.id]
        return slot

    def _ended(self, slot: int | None) -> None:
        if slot in self._closing:
            self._close_now(slot)
        self._changed()

    def _close_now(self, slot: int) -> None:
        self._closing.discard(slot)
        self._closed.add(slot)
        if slot not in self._down:
            self.dispatcher.on_slot_lost(slot)
        self._changed()

    def _changed(self) -> None:
        # Deferred: the migration acts on dispatchers, and one of them may be in the middle of it.
        if self.on_change is not None and not self._told:
            self._told = True
            self._clock.call_at(self._clock.now_us(), self._tell)

    def _tell(self) -> None:
        self._told = False
        if self.on_change is not None:
            self.on_change()
