"""What the dispatcher knows of the world: a clock, a driver, and who listens."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from headrace.domain.events import AnyEvent
from headrace.domain.request import DropReason, Request


class Clock(Protocol):
    """The only source of time. Ties run in scheduling order."""

    def now_us(self) -> int: ...

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None: ...


class Batch(msgspec.Struct, eq=False, gc=False):
    """Requests that travel one path together. Never part of a cycle, so that Python's garbage
    collector need not look at it."""

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

    @property
    def size(self) -> int:
        return len(self.requests)


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

    def on_slot_lost(self, slot: int) -> None: ...

    def on_slot_gained(self, slot: int) -> None: ...


EventSink = Callable[[AnyEvent], None]
