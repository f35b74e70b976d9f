"""The one dispatcher: queues, batches under way, and the order on slots and links.

It never awaits, knows time only through its clock, and acts only through its driver, so that the
simulator and the server run the very same rule. The rule itself is compiled (`dispatch.kernel`);
this hands it events and carries its orders to the driver.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct

from headrace.dispatch.event_log import (
    LENGTHS,
    MAKE,
    Numbers,
    dispatched,
    dropped,
)
from headrace.dispatch.kernel import handle as events
from headrace.dispatch.kernel.journal import (
    ANSWERED,
    DISPATCHED,
    DROPPED,
    ENDED,
    REASONS,
    SHORT,
    START_STAGE,
    START_TRANSFER,
    TRANSFERRED,
    WAKE,
)
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import policy_named
from headrace.dispatch.protocols import Batch, Clock, Driver, EventSink
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Arrived, Ran, Transferred
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
        number, model = request.id, request.model
        arrived_at_us, deadline_at_us = request.arrived_at_us, request.deadline_at_us
        self._requests[number] = request
        self._follow(
            self.tell_kernel(
                self._where, events.ARRIVE, self._clock.now_us(), number, model,
                arrived_at_us, deadline_at_us, request.priority, int(request.apart),
            ),
            SHORT,
            Arrived(arrived_at_us, number, model, deadline_at_us),
        )  # fmt: skip

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
        now_us, where, number = self._clock.now_us(), self._where, batch.id
        written = self.tell_kernel(
            where, events.RAN, now_us, batch.row, number, stage, attempt,
            started_at_us, ended_at_us,
        )  # fmt: skip
        if written:  # else the report is stale
            ran = Ran(ended_at_us, number, stage, batch.slot, started_at_us)
            self._follow(written, SHORT + 1, ran)

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

    def _tell(self, event: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0) -> None:
        """Of events that are not part of every batch."""
        now_us = self._clock.now_us()
        self._follow(self.tell_kernel(self._where, event, now_us, a, b, c, d, e, 0))

    # -- what follows ----------------------------------------------------------------------------

    def _follow(self, written: int, at: int = 0, first: AnyEvent | None = None) -> None:
        """Log events and pass on orders, in the order of the journal's entries.

        One function, since a batch has a dozen entries: a call for each took a tenth of all.

        Args:
            at: where to begin; behind the entry of `first`, an event that is known without it.
        """
        assert written <= self._room, "the journal has room for all an event can bring"
        # A copy: what a driver does may make the kernel write its journal anew.
        n = NUMBERS[written - at](self._journal, 8 * at)
        sink, driver = self._sink, self._driver
        if first is not None:
            sink(first)
        written -= at
        at = 0
        while at < written:
            kind = n[at]
            if kind == START_STAGE:
                batch = self._batches[n[at + 3]]
                batch.stage = stage = n[at + 4]
                batch.attempt, batch.slot = n[at + 5], n[at + 6]
                driver.start_stage(batch, stage)
                at += 7
            elif kind == DISPATCHED:
                at = self._on_dispatched(n, at)
            elif kind == ANSWERED:
                at = self._on_answered(n, at)
            elif kind == TRANSFERRED:
                sink(Transferred(*n[at + 1 : at + 7]))
                at += 7
            elif kind == START_TRANSFER:
                batch = self._batches[n[at + 3]]
                batch.stage = stage = n[at + 4]
                batch.attempt, batch.slot, batch.transfer_us = n[at + 5], n[at + 6], n[at + 7]
                driver.start_transfer(batch, stage)
                at += 8
            elif kind == WAKE:
                wake = partial(self._wake, n[at + 2], n[at + 3])
                self._clock.call_at(n[at + 1], wake)
                at += 5
            elif kind == DROPPED:
                sink(dropped(n, at))
                request = self._requests.pop(n[at + 2])
                driver.refuse(request, REASONS[n[at + 3]], n[at + 4])
                at += 5
            elif kind == ENDED:
                del self._batches[n[at + 2]]
                at += 5
            else:
                sink(MAKE[kind](n, at))
                at += LENGTHS[kind]

    def _on_dispatched(self, numbers: Numbers, at: int) -> int:
        """A batch is new, or got another path from some stage on. Where the next entry is."""
        event = dispatched(numbers, at)
        self._sink(event)
        number, ids = event.batch, event.requests
        if number not in self._batches:
            requests = self._requests
            # A single one by itself: making a tuple of several takes five times as long.
            alone = len(ids) == 1
            members = (requests[ids[0]],) if alone else tuple([requests[i] for i in ids])
            batch = Batch(numbers[at + 8], number, event.model, event.pipeline, members)
            self._batches[number] = batch
        return at + 9 + len(ids) + 5 * len(event.path)

    def _on_answered(self, numbers: Numbers, at: int) -> int:
        """The last stage of a batch has run. Where the next entry is."""
        at_us, number = numbers[at + 1], numbers[at + 2]
        batch = self._batches.pop(number)
        members, sink, requests = batch.requests, self._sink, self._requests
        for request in members:
            sink(Answered(at_us, request.id, number))
            del requests[request.id]
        self._driver.answer(batch)
        return at + 4 + len(members)


class _Readers(dict[int, Callable[[memoryview, int], Numbers]]):
    """How many numbers -> what reads so many, from a byte on. Faster than a slice made a list."""

    def __missing__(self, count: int) -> Callable[[memoryview, int], Numbers]:
        self[count] = read = Struct(f"{count}q").unpack_from
        return read


NUMBERS = _Readers()
