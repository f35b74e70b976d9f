"""The one dispatcher: queues, batches under way, and the order on slots and links.

It never awaits, knows time only through its clock, and acts only through its driver, so that the
simulator and the server run the very same rule. The rule itself is compiled (`dispatch.kernel`);
this hands it events and carries its orders to the driver.
"""

from functools import partial

from headrace.dispatch.facts import Row, fact_of, rows_of
from headrace.dispatch.kernel import handle as events
from headrace.dispatch.kernel import journal
from headrace.dispatch.kernel.layout import JOURNAL_WIDTH, addresses
from headrace.dispatch.kernel.tables import grow, make_state
from headrace.dispatch.policies import rules_of
from headrace.dispatch.protocols import Batch, Clock, Driver, EventSink, Hop
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Dispatched, Dropped
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
        self._state = make_state(topology, rules_of(policy), queue_max=queue_limit)
        self._settle_in()
        # Loads the kernel now, not when the first request waits.
        events.tell(self._at, events.NOTHING, 0, 0, 0, 0, 0, 0, 0)
        self._requests: dict[int, Request] = {}
        self._batches: dict[int, Batch] = {}

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

    def _tell(
        self, event: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0
    ) -> None:
        written = events.tell(self._at, event, self._clock.now_us(), a, b, c, d, e, f)
        if written:
            self._carry_out(self._journal[:written].tolist())

    # -- what follows --------------------------------------------------------------------------

    def _carry_out(self, rows: list[Row]) -> None:
        """Log the facts and pass on the orders, in their order."""
        i = 0
        while i < len(rows):
            row = rows[i]
            if row[0] in journal.FACTS:
                self._take_note(fact_of(rows, i), row)
            else:
                self._follow_order(row)
            i += rows_of(row)

    def _take_note(self, fact: AnyEvent, row: Row) -> None:
        self._sink(fact)
        match fact:
            case Dispatched():
                self._take_path(fact, row[2])
            case Answered():
                del self._requests[fact.request]
            case Dropped():
                request = self._requests.pop(fact.request)
                self._driver.refuse(request, journal.REASONS[row[3]], fact.retry_after_us)

    def _take_path(self, fact: Dispatched, row: int) -> None:
        """A batch is new, or got another path from some stage on."""
        hops = [Hop(reservation.slot, reservation.transfer_us) for reservation in fact.path]
        batch = self._batches.get(fact.batch)
        if batch is None:
            requests = tuple(self._requests[request] for request in fact.requests)
            batch = Batch(row, fact.batch, fact.model, fact.pipeline, requests, hops)
            self._batches[batch.id] = batch
        else:
            batch.hops[fact.first_stage :] = hops

    def _follow_order(self, row: Row) -> None:
        kind, at_us, a, b, stage, attempt, slot, transfer_us, _, _ = row
        if kind == journal.WAKE:
            self._clock.call_at(at_us, partial(self._tell, events.AWAKE, a, b))
        elif kind == journal.ENDED:
            batch = self._batches.pop(a)
            if b:
                self._driver.answer(batch)
        else:
            batch = self._batches[b]
            batch.stage, batch.attempt = stage, attempt
            if kind == journal.START_STAGE:
                batch.hops[stage : stage + 1] = (Hop(slot, 0),)
                self._driver.start_stage(batch, stage)
            else:
                batch.hops[stage : stage + 1] = (Hop(slot, transfer_us),)
                self._driver.start_transfer(batch, stage)
