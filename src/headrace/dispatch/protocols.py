"""What the dispatcher knows of the world: a clock, a driver, and who listens."""

from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

import msgspec

from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.domain.request import DropReason, Request


class Clock(Protocol):
    """The only source of time. Ties run in scheduling order."""

    def now_us(self) -> int: ...

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None: ...


class Batch(msgspec.Struct, eq=False):
    """Requests that travel one path together."""

    row: int
    """Where the dispatcher keeps it."""
    id: int
    model: int
    pipeline: int
    requests: tuple[Request, ...]
    stage: int = 0
    """The stage it is on, or on its way to."""
    slot: int = -1
    """Where that stage runs."""
    transfer_us: int = 0
    """On the way to that stage: over the links from the slot before, when they are idle."""
    attempt: int = 0
    """Grows when a lost slot forces a new path; reports of an older attempt are stale."""
    run_us: int = 0
    """How long slots ran for it so far."""

    @property
    def size(self) -> int:
        return len(self.requests)


class BatchCounts:
    """What became of one model's batches; the dispatcher adds to it."""

    __slots__ = ("batches", "run_us")

    def __init__(self) -> None:
        self.batches: dict[int, int] = defaultdict(int)
        """Batch size -> batches that were started."""
        self.run_us: dict[int, int] = defaultdict(int)
        """Batch size -> microseconds that slots ran for batches that have ended, all stages."""

    def count_end(self, batch: Batch) -> None:
        self.run_us[len(batch.requests)] += batch.run_us


class Load(msgspec.Struct, frozen=True):
    """A model that is brought to a slot which does not hold it."""

    number: int
    """Of no other load of this dispatcher; reports of an older one are stale."""
    slot: int
    model: int
    load_us: int
    """How long the copy stream should be busy with it."""


class Driver(Protocol):
    """Carries decisions out, in virtual or in real time, and reports back to the dispatcher.

    For each `start_transfer` it later calls `Dispatcher.on_transferred`, for each `start_stage`
    `Dispatcher.on_ran` or `Dispatcher.on_failed`; never from inside the call itself.
    """

    def start_transfer(self, batch: Batch, stage: int) -> None:
        """Move the tensors that enter `stage` to the node of `batch.slot`."""
        ...

    def start_stage(self, batch: Batch, stage: int) -> None:
        """Run `stage` on `batch.slot`, which is idle."""
        ...

    def answer(self, batch: Batch) -> None:
        """The last stage has run: answer all requests of the batch."""
        ...

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        """Tell the client that there will be no answer, why, and when to try again."""
        ...


class WeightsDriver(Protocol):
    """What a driver does besides with a plan of models that come and go (`Plan.is_provisioned`).

    At first no slot holds any model, nor does one that was lost and is back. Orders of one slot
    are to take effect in the order in which they come; all return at once.

    For each `load` it later calls `on_loaded` or `on_load_failed` (`LoadReports`), unless the slot
    is lost first; never from inside the call itself.
    """

    def load(self, load: Load) -> None:
        """Bring the model to the slot as its deployment's `start` says, from now on.

        The memory is there: what had to leave was evicted before. A slot has one load at a time,
        and one that uses the helper's link (`Topology.helpers`) comes when that has none either.

        `start_stage` of a batch of that model may come before the report: it then runs layer by
        layer, each waiting for what it needs, and its report `on_ran` comes as of any batch. On a
        slot without a copy stream (`Topology.copy_streams`) it comes straight behind this order,
        in the same call of the dispatcher, and load and batch are one piece of work.
        """
        ...

    def evict(self, slot: int, model: int) -> None:
        """Give the model's memory back: nothing runs of it there, or will until it is loaded."""
        ...


class LoadReports(Protocol):
    """The part of the dispatcher that a driver of weights reports to."""

    def on_loaded(self, load: Load, started_at_us: int) -> None:
        """All that the start brings is on the slot; the instant is the worker's own."""
        ...

    def on_load_failed(self, load: Load) -> None:
        """It could not be brought there, and nothing of it is left on the slot.

        Batches of the model that were promised there are refused as "failed", the one that runs
        included: no other report of it is due. The slot serves on. The model is not tried on any
        slot again until `Dispatcher.admit`.
        """
        ...


class CompletionReports(Protocol):
    """The part of the dispatcher that a driver reports to whose slots do not fail."""

    def on_transferred(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int
    ) -> None: ...

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None: ...


class BatchReports(CompletionReports, Protocol):
    """The part of the dispatcher that a driver reports to."""

    def on_failed(
        self, batch: Batch, stage: int, attempt: int, input_suspected: bool = False
    ) -> None: ...

    def on_tensors_lost(self, batch: Batch, stage: int, attempt: int) -> None: ...

    def on_slot_lost(self, slot: int) -> None: ...

    def on_slot_gained(self, slot: int) -> None: ...


EventSink = Callable[[AnyEvent], None]

OpenSink = Callable[[EventLogHeader], EventSink | None]
"""Gives the sink of an event log for its first line; None: nobody reads it."""
