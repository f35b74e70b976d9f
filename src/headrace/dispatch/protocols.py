"""What the dispatcher knows of the world (Clock, Driver) and what a policy decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.domain.events import AnyEvent
from headrace.domain.request import DropReason, Request


class Clock(Protocol):
    """The only source of time. Ties run in scheduling order."""

    def now_us(self) -> int: ...

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class Hop:
    """One stage of a batch's path: the slot, and when it is expected to be used.

    Feedback moves the instants; `transfer_us` is 0 where nothing crosses a network.
    """

    slot: int
    transfer_at_us: int
    transfer_us: int
    start_at_us: int
    latency_us: int
    batch: int = -1
    """Id of the batch, once there is one."""

    @property
    def end_at_us(self) -> int:
        return self.start_at_us + self.latency_us


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that travel one path together."""

    id: int
    model: int
    pipeline: int
    requests: tuple[Request, ...]
    hops: list[Hop]
    stage: int = 0
    """The stage it is on, or on its way to."""
    attempt: int = 0
    """Grows when a lost slot forces a new path; reports of an older attempt are stale."""
    deadline_at_us: int = field(init=False)
    """The tightest of its requests."""
    last_deadline_at_us: int = field(init=False)
    """The loosest: after it, nobody has a use for the batch."""

    def __post_init__(self) -> None:
        deadlines = [request.deadline_at_us for request in self.requests]
        self.deadline_at_us = min(deadlines)
        self.last_deadline_at_us = max(deadlines)

    @property
    def size(self) -> int:
        return len(self.requests)


class Driver(Protocol):
    """Carries decisions out, in virtual or in real time, and reports back to the dispatcher.

    For each `start_transfer` it later calls `Dispatcher.on_transferred`, for each `start_stage`
    `Dispatcher.on_ran` or `Dispatcher.on_failed`; never from inside the call itself.
    """

    def start_transfer(self, batch: Batch, stage: int) -> None:
        """Move the tensors that enter `stage` to the node of `batch.hops[stage].slot`."""
        ...

    def start_stage(self, batch: Batch, stage: int) -> None:
        """Run `stage` on `batch.hops[stage].slot`, which is idle."""
        ...

    def answer(self, batch: Batch) -> None:
        """The last stage has run: answer all requests of the batch."""
        ...

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        """Tell the client that there will be no answer, why, and when to try again."""
        ...


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the first `size` requests of the queue down this path."""

    pipeline: int
    size: int
    hops: list[Hop]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """More requests may fill the batch: decide again at `at_us`, when `size` requests wait, when
    one comes that is more urgent, or when a slot's work changes."""

    at_us: int
    size: int


@dataclass(frozen=True, slots=True)
class Drop:
    """The first request of the queue cannot be answered in time."""

    reason: DropReason
    retry_after_us: int


Decision = Dispatch | WaitUntil | Drop


class Policy(Protocol):
    """Where and when batches run. Knows nothing of queues, drivers or the log."""

    def decide(self, model: int, queue: Sequence[Request], now_us: int) -> Decision:
        """`queue` is non-empty, most urgent first. A `Dispatch` is reserved on return."""
        ...

    def on_dispatched(self, batch: Batch) -> None:
        """The requests of the last `Dispatch` are a batch now."""
        ...

    def next_hop(self, batch: Batch, now_us: int) -> DropReason | None:
        """Settle `batch.hops[batch.stage]` just before it is used, or say why to drop it."""
        ...

    def transfer_at(self, batch: Batch, now_us: int) -> int:
        """When the transfer into `batch.stage` may start; `now_us`: at once."""
        ...

    def start_at(self, batch: Batch, now_us: int) -> int:
        """When `batch.stage`, whose slot is idle, may start; `now_us`: at once."""
        ...

    def on_transferred(self, batch: Batch, now_us: int) -> None:
        """The tensors that enter `batch.stage` arrived now."""
        ...

    def on_started(self, batch: Batch, now_us: int) -> None:
        """`batch.stage` began to run now, earlier or later than promised."""
        ...

    def on_ended(self, batch: Batch, now_us: int) -> None:
        """`batch.stage` ended now, earlier or later than promised."""
        ...

    def forget(self, batch: Batch, now_us: int) -> None:
        """The batch ends here: release whatever it still holds from `batch.stage` on."""
        ...

    def reroute(self, batch: Batch, first_stage: int, now_us: int) -> DropReason | None:
        """Find a new path from `first_stage` on, or say why there is none in time."""
        ...

    def on_slot_lost(self, slot: int, now_us: int) -> None: ...

    def on_slot_gained(self, slot: int, now_us: int) -> None: ...


EventSink = Callable[[AnyEvent], None]
