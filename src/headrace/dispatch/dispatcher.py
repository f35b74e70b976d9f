"""The one dispatcher: queues, batches under way, and the order on slots and links.

It never awaits, knows time only through its clock, and acts only through its driver, so that the
simulator and the server run the very same rule. The rule itself is compiled (`dispatch.kernel`);
this hands it events and carries its orders to the driver.
"""

from collections.abc import Callable
from functools import partial

from headrace.dispatch.event_log import (
    MAKE_EVENT,
    MakeEvent,
    Numbers,
    answered,
    dispatched,
    dropped,
)
from headrace.dispatch.kernel import handle as events
from headrace.dispatch.kernel import journal
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import policy_named
from headrace.dispatch.protocols import Batch, Clock, Driver, EventSink, Hop
from headrace.dispatch.topology import Topology
from headrace.domain.request import Request

Handler = Callable[[Numbers, int], int]
"""(numbers of the journal, where an entry begins) -> where the next one begins"""


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
        self._handlers: dict[int, Handler] = {
            **{kind: _noting(make, sink) for kind, make in MAKE_EVENT.items()},
            journal.DISPATCHED: self._on_dispatched,
            journal.ANSWERED: self._on_answered,
            journal.DROPPED: self._on_dropped,
            journal.START_STAGE: self._start_stage,
            journal.START_TRANSFER: self._start_transfer,
            journal.ENDED: self._end,
            journal.WAKE: self._call_me_at,
        }
        """What follows from each kind of entry."""

    def _settle_in(self) -> None:
        """The tables have moved: look up what is read or handed over often."""
        self._held = self._kernel.kind.hold(self._store.arrays)
        self._where = self._held.where
        self._journal = self._store.state.journal
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
        self._tell(
            events.ARRIVE,
            request.id,
            request.model,
            request.arrived_at_us,
            request.deadline_at_us,
            request.priority,
            int(request.apart),
        )

    def cancel(self, request_id: int) -> None:
        """The client went away. Work that is already in a batch goes on."""
        self._tell(events.CANCEL, request_id)

    def drain(self) -> None:
        """Refuse what arrives from now on; what was accepted is still answered."""
        self._tell(events.DRAIN)

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        """The tensors that enter `stage` have reached their node."""
        self._tell(events.TRANSFERRED, batch.row, batch.id, stage, attempt, started_at_us)

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        """`stage` has run; the instants are the worker's own."""
        self._tell(events.RAN, batch.row, batch.id, stage, attempt, started_at_us, ended_at_us)

    def on_failed(
        self, batch: Batch, stage: int, attempt: int, input_suspected: bool = False
    ) -> None:
        """The executor could not run the batch, and would not be able to elsewhere.

        Its requests are refused as "failed"; where an input is suspected, it is run again in
        halves, and a request that fails alone is refused as "invalid-input".
        """
        self._tell(events.FAILED, batch.row, batch.id, stage, attempt, int(input_suspected))

    def on_slot_lost(self, slot: int) -> None:
        """The slot is gone with all it ran; its batches run elsewhere if their deadlines allow."""
        self._tell(events.LOST, slot)

    def on_slot_gained(self, slot: int) -> None:
        """The slot is (back) in service, idle."""
        self._tell(events.GAINED, slot)

    def _wake(self, what: int, which: int) -> None:
        self._tell(events.AWAKE, what, which)

    def _tell(
        self, event: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0
    ) -> None:
        """Let the kernel decide; log the events and pass on the orders, in their order."""
        now_us = self._clock.now_us()
        written = self.tell_kernel(self._where, event, now_us, a, b, c, d, e, f)
        assert written <= len(self._journal), "the journal has room for all an event can bring"
        if written:
            # A copy: what a driver does may make the kernel write its journal anew.
            numbers = self._journal[:written].tolist()
            handlers = self._handlers
            at = 0
            while at < written:
                at = handlers[numbers[at]](numbers, at)

    # -- what follows ----------------------------------------------------------------------------

    def _on_dispatched(self, numbers: Numbers, at: int) -> int:
        """A batch is new, or got another path from some stage on."""
        event, after = dispatched(numbers, at)
        self._sink(event)
        if event.batch not in self._batches:
            requests = self._requests
            members = tuple([requests[request] for request in event.requests])
            self._batches[event.batch] = Batch(
                numbers[at + 8], event.batch, event.model, event.pipeline, members, []
            )
        return after

    def _on_answered(self, numbers: Numbers, at: int) -> int:
        event, after = answered(numbers, at)
        self._sink(event)
        del self._requests[event.request]
        return after

    def _on_dropped(self, numbers: Numbers, at: int) -> int:
        event, after = dropped(numbers, at)
        self._sink(event)
        request = self._requests.pop(event.request)
        reason = journal.REASONS[numbers[at + 3]]
        self._driver.refuse(request, reason, event.retry_after_us)
        return after

    def _start_stage(self, numbers: Numbers, at: int) -> int:
        batch, stage = self._batches[numbers[at + 3]], numbers[at + 4]
        batch.stage, batch.attempt = stage, numbers[at + 5]
        batch.hops[stage:] = (Hop(numbers[at + 6], 0),)
        self._driver.start_stage(batch, stage)
        return at + 9

    def _start_transfer(self, numbers: Numbers, at: int) -> int:
        batch, stage = self._batches[numbers[at + 3]], numbers[at + 4]
        batch.stage, batch.attempt = stage, numbers[at + 5]
        batch.hops[stage:] = (Hop(numbers[at + 6], numbers[at + 7]),)
        self._driver.start_transfer(batch, stage)
        return at + 9

    def _end(self, numbers: Numbers, at: int) -> int:
        batch = self._batches.pop(numbers[at + 2])
        if numbers[at + 3]:
            self._driver.answer(batch)
        return at + 5

    def _call_me_at(self, numbers: Numbers, at: int) -> int:
        wake = partial(self._wake, numbers[at + 2], numbers[at + 3])
        self._clock.call_at(numbers[at + 1], wake)
        return at + 5


def _noting(make: MakeEvent, sink: EventSink) -> Handler:
    """For entries from which nothing else follows."""

    def note(numbers: Numbers, at: int) -> int:
        event, after = make(numbers, at)
        sink(event)
        return after

    return note
