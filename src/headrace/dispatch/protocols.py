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

    __slots__ = ("batches", "computed", "computed_us", "run_us")

    def __init__(self) -> None:
        self.batches: dict[int, int] = defaultdict(int)
        """Batch size -> batches dispatched."""
        self.run_us: dict[int, int] = defaultdict(int)
        """Batch size -> microseconds that slots ran for batches that have ended, all stages."""
        self.computed = 0
        """Requests answered."""
        self.computed_us = 0
        """Of these: how long slots ran for the batch that each was in, summed over requests."""

    def count_end(self, batch: Batch, answered: bool) -> None:
        size, run_us = len(batch.requests), batch.run_us
        self.run_us[size] += run_us
        if answered:
            self.computed += size
            self.computed_us += size * run_us


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


class BatchReports(Protocol):
    """The part of the dispatcher that a driver reports to."""

    def on_transferred(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int
    ) -> None: ...

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None: ...

    def on_failed(
        self, batch: Batch, stage: int, attempt: int, input_suspected: bool = False
    ) -> None: ...

    def on_tensors_lost(self, batch: Batch, stage: int, attempt: int) -> None: ...

    def on_slot_lost(self, slot: int) -> None: ...

    def on_slot_gained(self, slot: int) -> None: ...


EventSink = Callable[[AnyEvent], None]

OpenSink = Callable[[EventLogHeader], EventSink | None]
"""Gives the sink of an event log for its first line; None: nobody reads it."""
