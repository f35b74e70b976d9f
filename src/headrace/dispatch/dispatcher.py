"""The one dispatcher: queues, batches under way, and the order on slots and links.

It never awaits, knows time only through its clock, and acts only through its driver, so that the
simulator and the server run the very same rule. The rule itself is compiled (`dispatch.kernel`);
this hands it events and carries its orders to the driver.
"""

from collections.abc import Callable, Iterator
from functools import partial

from headrace.dispatch.facts import FACT_OF, Row, answered, dispatched, dropped
from headrace.dispatch.kernel import handle as events
from headrace.dispatch.kernel import journal
from headrace.dispatch.kernel.layout import JOURNAL_WIDTH, addresses
from headrace.dispatch.kernel.tables import grow, make_state
from headrace.dispatch.policies import rules_of
from headrace.dispatch.protocols import Batch, Clock, Driver, EventSink, Hop
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent
from headrace.domain.request import Request

Handler = Callable[[Row, Iterator[Row]], None]
"""Given an entry's first row, and the rows behind it: it takes those that are the entry's own."""


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
        self._state = make_state(topology, rules_of(policy), queue_max=queue_limit)
        self._settle_in()
        # Loads the kernel now, not when the first request waits.
        events.tell(self._at, events.NOTHING, 0, 0, 0, 0, 0, 0, 0)
        self._requests: dict[int, Request] = {}
        self._batches: dict[int, Batch] = {}
        self._handlers: dict[int, Handler] = {
            **{kind: _noting(make, sink) for kind, make in FACT_OF.items()},
            journal.DISPATCHED: self._on_dispatched,
            journal.ANSWERED: self._on_answered,
            journal.DROPPED: self._on_dropped,
            journal.START_STAGE: self._start_stage,
            journal.START_TRANSFER: self._start_transfer,
            journal.ENDED: self._end,
            journal.WAKE: self._call_me_at,
        }
        """What follows from each kind of row."""

    def _settle_in(self) -> None:
        """The arrays have moved: look up what is read or handed over often."""
        self._at = addresses(self._state)
        self._journal = self._state.journal.reshape(-1, JOURNAL_WIDTH)
        self._rows = len(self._state.requests)

    # -- what others may ask -------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Accepted requests that have no answer yet."""
        return len(self._requests)

    @property
    def queued(self) -> int:
        """Accepted requests that are in no batch yet."""
        return int(self._state.models["queued"].sum())

    # -- what happens --------------------------------------------------------------------------

    def on_arrival(self, request: Request) -> None:
        """Take a request; from here on it is answered or refused exactly once."""
        if len(self._requests) + 1 >= self._rows:
            self._state = grow(self._state, 2 * self._rows)
            self._settle_in()
        self._requests[request.id] = request
        self._tell(
            events.ARRIVE,
            request.id,
            request.model,
            request.arrived_at_us,
            request.deadline_at_us,
            request.priority,
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

    def _tell(
        self, event: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0
    ) -> None:
        """Let the kernel decide; log the facts and pass on the orders, in their order."""
        written = events.tell(self._at, event, self._clock.now_us(), a, b, c, d, e, f)
        assert written <= len(self._journal), "the journal has room for all an event can bring"
        if written:
            # A copy: what a driver does may make the kernel write its journal anew.
            rows = iter(self._journal[:written].tolist())
            handlers = self._handlers
            for row in rows:
                handlers[row[0]](row, rows)

    # -- what follows ----------------------------------------------------------------------------

    def _on_dispatched(self, row: Row, following: Iterator[Row]) -> None:
        """A batch is new, or got another path from some stage on."""
        fact = dispatched(row, following)
        self._sink(fact)
        if fact.batch not in self._batches:
            requests = self._requests
            members = tuple([requests[request] for request in fact.requests])
            self._batches[fact.batch] = Batch(
                row[2], fact.batch, fact.model, fact.pipeline, members, []
            )

    def _on_answered(self, row: Row, following: Iterator[Row]) -> None:
        self._sink(answered(row, following))
        del self._requests[row[2]]

    def _on_dropped(self, row: Row, following: Iterator[Row]) -> None:
        fact = dropped(row, following)
        self._sink(fact)
        request = self._requests.pop(fact.request)
        self._driver.refuse(request, journal.REASONS[row[3]], fact.retry_after_us)

    def _start_stage(self, row: Row, _: Iterator[Row]) -> None:
        batch, stage = self._batches[row[3]], row[4]
        batch.stage, batch.attempt = stage, row[5]
        batch.hops[stage:] = (Hop(row[6], 0),)
        self._driver.start_stage(batch, stage)

    def _start_transfer(self, row: Row, _: Iterator[Row]) -> None:
        batch, stage = self._batches[row[3]], row[4]
        batch.stage, batch.attempt = stage, row[5]
        batch.hops[stage:] = (Hop(row[6], row[7]),)
        self._driver.start_transfer(batch, stage)

    def _end(self, row: Row, _: Iterator[Row]) -> None:
        batch = self._batches.pop(row[2])
        if row[3]:
            self._driver.answer(batch)

    def _call_me_at(self, row: Row, _: Iterator[Row]) -> None:
        self._clock.call_at(row[1], partial(self._wake, row[2], row[3]))


def _noting(make: Callable[[Row, Iterator[Row]], AnyEvent], sink: EventSink) -> Handler:
    """For facts from which nothing else follows."""

    def note(row: Row, following: Iterator[Row]) -> None:
        sink(make(row, following))

    return note
