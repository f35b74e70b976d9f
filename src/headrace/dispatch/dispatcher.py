"""The one dispatcher: queues, batches under way, and the order on slots and links.

It never awaits, knows time only through its clock, and acts only through its driver, so that the
simulator and the server run the very same rule. The rule itself is compiled (`dispatch.kernel`);
this hands it events and carries its orders to the driver.
"""

from functools import partial

from headrace.dispatch.event_log import (
    MAKE,
    Numbers,
    dispatched,
    dispatched_length,
    dropped,
    transferred,
)
from headrace.dispatch.kernel import handle as events
from headrace.dispatch.kernel.journal import (
    ANSWERED,
    ARRIVED,
    DISPATCHED,
    DROPPED,
    ENDED,
    RAN,
    REASONS,
    START_STAGE,
    START_TRANSFER,
    TRANSFERRED,
    WAKE,
)
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import policy_named
from headrace.dispatch.protocols import Batch, Clock, Driver, EventSink
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, Arrived, Ran
from headrace.domain.request import Request


class Dispatcher:
    """Turns arrivals and completions into batches on paths.

    A driver reports through the `on_…` methods. An exception in the driver is a bug of ours: it
    propagates.
    """

    def __init__(
        self,
        topology: Topology,
        policy: str,
        clock: Clock,
        driver: Driver,
        sink: EventSink,
        queue_limit: int = 10_000,
    ) -> None:
        """
        Args:
            policy: see `policies.POLICIES`.
            queue_limit: requests of one model that may wait for a decision.

        Raises:
            PlanError: no policy has this name.
        """
        self._clock, self._driver, self._sink = clock, driver, sink
        chosen = policy_named(policy)
        # Loads the kernel now, not when the first request waits.
        self._kernel = events.kernel_of(chosen.module)
        self.tell_kernel = self._kernel.tell
        """An attribute of its own, since a look-up at every event costs."""
        self._store = Store(topology, chosen, queue_max=queue_limit)
        self._settle_in()
        self._requests: dict[int, Request] = {}
        self._batches: dict[int, Batch] = {}

    def _settle_in(self) -> None:
        """The tables have moved: look up what is read or handed over often."""
        self._held = self._kernel.kind.hold(self._store.arrays)
        self._where = self._held.where
        self._journal = memoryview(self._store.state.journal)
        self._room = len(self._journal)
        self._rows = self._store.rows

    # -- what others may ask -------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Accepted requests that have no answer yet."""
        return len(self._requests)

    @property
    def queued(self) -> int:
        """Accepted requests that are in no batch yet."""
        return int(self._store.state.models["queued"].sum())

    # -- what happens --------------------------------------------------------------------------

    def on_arrival(self, request: Request) -> None:
        """Take a request; from here on it is answered or refused exactly once."""
        if len(self._requests) + 1 >= self._rows:
            self._store.grow(2 * self._rows)
            self._settle_in()
        self._requests[request.id] = request
        self._follow(
            self.tell_kernel(
                self._where,
                events.ARRIVE,
                self._clock.now_us(),
                request.id,
                request.model,
                request.arrived_at_us,
                request.deadline_at_us,
                request.priority,
                0,
            )
        )

    def cancel(self, request_id: int) -> None:
        """The client went away. Work that is already in a batch goes on."""
        self._tell(events.CANCEL, request_id)

    def drain(self) -> None:
        """Refuse what arrives from now on; what was accepted is still answered."""
        self._tell(events.DRAIN)

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        """The tensors that enter `stage` have reached their node."""
        now_us, where = self._clock.now_us(), self._where
        self._follow(
            self.tell_kernel(
                where, events.TRANSFERRED, now_us, batch.row, batch.id, stage, attempt,
                started_at_us, 0,
            )
        )  # fmt: skip

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        """`stage` has run; the instants are the worker's own."""
        now_us, where = self._clock.now_us(), self._where
        self._follow(
            self.tell_kernel(
                where, events.RAN, now_us, batch.row, batch.id, stage, attempt,
                started_at_us, ended_at_us,
            )
        )  # fmt: skip

    def on_failed(self, batch: Batch, stage: int, attempt: int) -> None:
        """The executor could not run the batch, and would not be able to elsewhere."""
        self._tell(events.FAILED, batch.row, batch.id, stage, attempt)

    def on_slot_lost(self, slot: int) -> None:
        """The slot is gone with all it ran; its batches run elsewhere if their deadlines allow."""
        self._tell(events.LOST, slot)

    def on_slot_gained(self, slot: int) -> None:
        """The slot is (back) in service, idle."""
        self._tell(events.GAINED, slot)

    def _wake(self, what: int, which: int) -> None:
        self._tell(events.AWAKE, what, which)

    def _tell(self, event: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        """Of events that are not part of every batch."""
        now_us = self._clock.now_us()
        self._follow(self.tell_kernel(self._where, event, now_us, a, b, c, d, 0, 0))

    # -- what follows ----------------------------------------------------------------------------

    def _follow(self, written: int) -> None:
        """Log events and pass on orders, in the order of the journal's entries.

        One function, since a batch has a dozen entries: a call for each took a tenth of all.
        """
        assert written <= self._room, "the journal has room for all an event can bring"
        # A copy: what a driver does may make the kernel write its journal anew.
        n = self._journal[:written].tolist()
        sink, driver = self._sink, self._driver
        at = 0
        while at < written:
            kind = n[at]
            if kind == START_STAGE:
                batch = self._placed(n, at)
                driver.start_stage(batch, batch.stage)
                at += 9
            elif kind == RAN:
                sink(Ran(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5]))
                at += 6
            elif kind == DISPATCHED:
                self._on_dispatched(n, at)
                at += dispatched_length(n, at)
            elif kind == ARRIVED:
                sink(Arrived(n[at + 1], n[at + 2], n[at + 3], n[at + 4]))
                at += 5
            elif kind == ANSWERED:
                sink(Answered(n[at + 1], n[at + 2], n[at + 3]))
                del self._requests[n[at + 2]]
                at += 5
            elif kind == ENDED:
                batch = self._batches.pop(n[at + 2])
                if n[at + 3]:
                    driver.answer(batch)
                at += 5
            elif kind == TRANSFERRED:
                sink(transferred(n, at))
                at += 7
            elif kind == START_TRANSFER:
                batch = self._placed(n, at)
                batch.transfer_us = n[at + 7]
                driver.start_transfer(batch, batch.stage)
                at += 9
            elif kind == WAKE:
                wake = partial(self._wake, n[at + 2], n[at + 3])
                self._clock.call_at(n[at + 1], wake)
                at += 5
            elif kind == DROPPED:
                sink(dropped(n, at))
                request = self._requests.pop(n[at + 2])
                driver.refuse(request, REASONS[n[at + 3]], n[at + 4])
                at += 5
            else:
                sink(MAKE[kind](n, at))
                at += 5

    def _placed(self, numbers: Numbers, at: int) -> Batch:
        """The batch of an order, on its way to a stage."""
        batch = self._batches[numbers[at + 3]]
        batch.stage = numbers[at + 4]
        batch.attempt = numbers[at + 5]
        batch.slot = numbers[at + 6]
        return batch

    def _on_dispatched(self, numbers: Numbers, at: int) -> None:
        """A batch is new, or got another path from some stage on."""
        event = dispatched(numbers, at)
        self._sink(event)
        number = event.batch
        if number not in self._batches:
            members = tuple(map(self._requests.__getitem__, event.requests))
            batch = Batch(numbers[at + 8], number, event.model, event.pipeline, members)
            self._batches[number] = batch
