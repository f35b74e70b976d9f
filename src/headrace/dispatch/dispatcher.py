"""The one dispatcher: queues, batches under way, and the order on slots and links.

It never awaits, knows time only through its clock, and acts only through its driver, so that the
simulator and the server run the very same rule. The rule itself is compiled (`dispatch.kernel`);
this hands it events and carries its orders to the driver.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct

from headrace.dispatch.event_log import (
    LENGTHS,
    MAKE,
    Numbers,
    dispatched,
    dropped,
    given_up,
    items_arrived,
    opened,
    placed,
)
from headrace.dispatch.kernel.handle import (
    ADMIT,
    ARRIVE,
    AWAKE,
    CANCEL,
    DRAIN,
    FAILED,
    GAINED,
    LEVEL,
    LOAD_FAILED,
    LOADED,
    LOST,
    OPEN,
    RAN,
    TRANSFERRED,
    kernel_of,
)
from headrace.dispatch.kernel.journal import (
    ANSWERED,
    DISPATCHED,
    DROPPED,
    ENDED,
    EVICTED,
    GIVEN_UP,
    LOADING,
    OPENED,
    PLACED,
    REASONS,
    SHORT,
    START_STAGE,
    START_TRANSFER,
    WAKE,
)
from headrace.dispatch.kernel.journal import RAN as HAS_RAN
from headrace.dispatch.kernel.journal import TRANSFERRED as WAS_TRANSFERRED
from headrace.dispatch.kernel.layout import ONE
from headrace.dispatch.kernel.provision.tables import STATES, Residence
from headrace.dispatch.kernel.reports import TENSORS_LOST
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.policies import Policy, chosen_for
from headrace.dispatch.protocols import (
    Batch,
    BatchCounts,
    Clock,
    Driver,
    EventSink,
    Load,
    WeightsDriver,
)
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, AnyEvent, Arrived, Dropped, Ran, Transferred
from headrace.domain.request import DropReason, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """How much longer than profiled a stage takes on a slot, as seen here (`kernel.drift`)."""

    stage: str
    """MODEL/PIPELINE/NUMBER, stages from 0."""
    slot: int
    """Index into `Topology.slots`."""
    ratio: float
    """What predictions reckon with; 1: as profiled, or not known to be different."""
    batches: int
    """Since the slot's worker started."""


class Dispatcher:
    """Turns arrivals and completions into batches on paths.

    A driver reports through the `on_…` methods. An exception in the driver is a bug of ours: it
    propagates.
    """

    def __init__(
        self,
        topology: Topology,
        policy: str | Policy,
        clock: Clock,
        driver: Driver,
        sink: EventSink | None,
        queue_limit: int = QUEUE_LIMIT,
        counts: Sequence[BatchCounts] | None = None,
        weights: WeightsDriver | None = None,
    ) -> None:
        """
        Args:
            policy: see `policies.POLICIES` and `policies.MALLEABLE`.
            sink: gets every event of the log; None: nobody reads it, and no event is made, which
                are half of a batch's cost.
            queue_limit: requests of one model that may wait for a decision.
            counts: added to, one entry per model.
            weights: loads and evicts models, where the plan has them come and go.

        Raises:
            PlanError: no policy has this name, or it is for other plans; or models come and go, and
                nothing loads them.
        """
        if topology.is_provisioned and weights is None:
            raise PlanError(
                "plan: its models are brought to their slots while they serve, and nothing here"
                " loads weights\n"
                "  try    `headrace simulate`, or plan again without --provision: weights are then"
                " loaded before they serve"
            )
        self._weights = weights
        self._clock, self._driver, self._sink = clock, driver, sink
        self._topology = topology
        chosen = chosen_for(topology, policy)
        # Loads the kernel now, not when the first request waits.
        self._kernel = kernel_of(chosen.module)
        self.tell_kernel = self._kernel.tell
        """An attribute of its own, since a look-up at every event costs."""
        self._store = Store(topology, chosen, queue_max=queue_limit, logged=sink is not None)
        self._settle_in()
        self._counts = counts or [BatchCounts() for _ in topology.models]
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
    def accepted(self) -> Mapping[int, Request]:
        """Requests that have no answer yet, by their ids."""
        return self._requests

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    @property
    def queued(self) -> int:
        """Accepted requests that are in no batch yet."""
        state = self._store.state
        waiting = int(state.models["queued"].sum())
        if self._topology.is_malleable:
            rows = state.items_of[state.items_of["id"] >= 0]
            waiting += int((rows["items"] - rows["sent"] + rows["returned"]).sum())
        return waiting

    def levels(self) -> list[StageTime]:
        """What the reports say of the profile's times: one entry per stage and slot of its pool."""
        state = self._store.state
        names = self._topology.stage_names
        return [
            StageTime(
                stage=name,
                slot=int(state.pools[place]),
                ratio=int(state.level[place]) / ONE,
                batches=int(state.learned["reports"][place]),
            )
            for name, stage in zip(names, state.stages, strict=True)
            for place in range(int(stage["first_pool"]), int(stage["end_pool"]))
        ]

    def assume(self, levels: Mapping[str, float]) -> None:
        """Stages take so many times what is profiled, until their reports say otherwise.

        Args:
            levels: by MODEL/PIPELINE/NUMBER; names that the plan does not have mean nothing.
        """
        for number, name in enumerate(self._topology.stage_names):
            if name in levels:
                self._tell(LEVEL, number, round(levels[name] * ONE))

    def residence(self, slot: int, model: int) -> Residence:
        """Where the model's weights are, of a plan of models that come and go."""
        state = self._store.state
        return STATES[int(state.stays["state"][slot * len(state.models) + model])]

    # -- what happens --------------------------------------------------------------------------

    def on_arrival(self, request: Request) -> None:
        """Take a request; from here on it is answered or refused exactly once."""
        if self._topology.is_malleable:
            self.on_items((request,))
            return
        if len(self._requests) + 1 >= self._rows:
            self._store.grow(2 * self._rows)
            self._settle_in()
        number = request.id
        self._requests[number] = request
        written = self.tell_kernel(
            self._where, ARRIVE, self._clock.now_us(), number, request.model,
            request.arrived_at_us, request.deadline_at_us, request.priority, request.apart,
        )  # fmt: skip
        if self._sink is not None:
            arrived_at_us, deadline_at_us = request.arrived_at_us, request.deadline_at_us
            self._sink(Arrived(arrived_at_us, number, request.model, deadline_at_us))
            self._follow(written, SHORT)
        elif written:
            self._follow(written)

    def on_items(self, items: Sequence[Request]) -> None:
        """Take a request of many items, with a malleable plan; each of them is a `Request` that is
        answered or refused exactly once. They have one model, instant, deadline and priority, and
        ids one after the other."""
        while len(self._requests) + len(items) + 1 >= self._rows:
            self._store.grow(2 * self._rows)
            self._settle_in()
        self._requests.update((item.id, item) for item in items)
        first = items[0]
        written = self.tell_kernel(
            self._where, OPEN, self._clock.now_us(), first.id, first.model,
            first.arrived_at_us, first.deadline_at_us, first.priority, len(items),
        )  # fmt: skip
        self._follow(written)

    def cancel(self, request_id: int) -> None:
        """The client went away, of all items of a request at once. Work that is already in a batch
        goes on."""
        self._tell(CANCEL, request_id)

    def drain(self) -> None:
        """Refuse what arrives from now on; what was accepted is still answered."""
        self._tell(DRAIN)

    def close(self, reason: DropReason) -> None:
        """Nobody waits any more for what is open: log it as refused, and nothing that comes of it
        later, such as the end of a batch that runs."""
        if self._sink is not None:
            now_us = self._clock.now_us()
            for number in self._requests:
                self._sink(Dropped(now_us, number, reason, 0))
            self._sink = _nobody

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        """The tensors that enter `stage` have reached their node."""
        written = self.tell_kernel(
            self._where, TRANSFERRED, self._clock.now_us(), batch.row, batch.id, stage, attempt,
            started_at_us, 0,
        )  # fmt: skip
        if written:
            self._follow(written)

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        """`stage` has run; the instants are the worker's own."""
        batch.run_us += ended_at_us - started_at_us
        written = self.tell_kernel(
            self._where, RAN, self._clock.now_us(), batch.row, batch.id, stage, attempt,
            started_at_us, ended_at_us,
        )  # fmt: skip
        if not written:
            return
        # A stale report may still find something due: then that is all there is.
        if self._sink is None or self._journal[0] != HAS_RAN:
            self._follow(written)
        else:
            self._sink(Ran(ended_at_us, batch.id, stage, batch.slot, started_at_us))
            self._follow(written, SHORT + 1)

    def on_failed(
        self, batch: Batch, stage: int, attempt: int, input_suspected: bool = False
    ) -> None:
        """The executor could not run the batch, and would not be able to elsewhere.

        Its requests are refused as "failed"; where an input is suspected, it is run again in
        halves, and a request that fails alone is refused as "invalid-input".
        """
        self._tell(FAILED, batch.row, batch.id, stage, attempt, int(input_suspected))

    def on_tensors_lost(self, batch: Batch, stage: int, attempt: int) -> None:
        """A stage whose turn has come has nothing to run on: what the batch had computed was on a
        machine that is gone. Its requests are queued again, in front of those that came later."""
        self._tell(FAILED, batch.row, batch.id, stage, attempt, TENSORS_LOST)

    def on_slot_lost(self, slot: int) -> None:
        """The slot is gone with all it ran; its batches run elsewhere if their deadlines allow."""
        self._tell(LOST, slot)

    def on_slot_gained(self, slot: int) -> None:
        """The slot is (back) in service, idle."""
        self._tell(GAINED, slot)

    def on_loaded(self, load: Load, started_at_us: int) -> None:
        """See `protocols.LoadReports`."""
        self._tell(LOADED, load.number, load.slot, started_at_us)

    def on_load_failed(self, load: Load) -> None:
        """See `protocols.LoadReports`."""
        self._tell(LOAD_FAILED, load.number, load.slot)

    def admit(self, model: int) -> None:
        """Take requests of the model (again): it may be loaded when they come."""
        self._tell(ADMIT, model, 1)

    def shut(self, model: int) -> None:
        """Refuse the model's requests as "failed" from now on, also those that wait. What is
        promised is still run, and its weights leave every slot behind that."""
        self._tell(ADMIT, model, 0)

    def _wake(self, what: int, which: int) -> None:
        self._tell(AWAKE, what, which)

    def _tell(self, event: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0) -> None:
        """Of events that are not part of every batch."""
        now_us = self._clock.now_us()
        self._follow(self.tell_kernel(self._where, event, now_us, a, b, c, d, e, 0))

    # -- what follows ----------------------------------------------------------------------------

    def _follow(self, written: int, at: int = 0) -> None:
        """Log events and pass on orders, in the order of the journal's entries.

        Args:
            at: where to begin; behind the entry of an event that is known without it.
        """
        assert written <= self._room, "the journal has room for all an event can bring"
        # A copy: what a driver does may make the kernel write its journal anew.
        n = NUMBERS[written - at](self._journal, 8 * at)
        sink, driver, batches = self._sink, self._driver, self._batches
        written -= at
        at = 0
        while at < written:
            kind = n[at]
            if kind == START_STAGE:
                batch = batches[n[at + 3]]
                batch.stage = stage = n[at + 4]
                batch.attempt, batch.slot = n[at + 5], n[at + 6]
                if not stage:  # before that it may be made anew, with other members
                    self._counts[batch.model].batches[len(batch.requests)] += 1
                driver.start_stage(batch, stage)
                at += 7
            elif kind == DISPATCHED:
                if sink is not None:
                    sink(dispatched(n, at))
                if n[at + 2] not in batches:  # else it got another path
                    self._add_batch(n, at)
                at += 9 + n[at + 6] + 5 * n[at + 7]
            elif kind == ANSWERED:
                batch = batches.pop(n[at + 2])
                for request in batch.requests:
                    if sink is not None:
                        sink(Answered(n[at + 1], request.id, n[at + 2]))
                    del self._requests[request.id]
                self._counts[batch.model].count_end(batch)
                driver.answer(batch)
                at += 4 + n[at + 3]
            elif kind == WAS_TRANSFERRED:
                if sink is not None:
                    sink(Transferred(*n[at + 1 : at + 7]))
                at += 7
            elif kind == START_TRANSFER:
                batch = batches[n[at + 3]]
                batch.stage = stage = n[at + 4]
                batch.attempt, batch.slot, batch.transfer_us = n[at + 5], n[at + 6], n[at + 7]
                driver.start_transfer(batch, stage)
                at += 8
            elif kind == WAKE:
                wake = partial(self._wake, n[at + 2], n[at + 3])
                self._clock.call_at(n[at + 1], wake)
                at += 5
            elif kind == DROPPED:
                if sink is not None:
                    sink(dropped(n, at))
                request = self._requests.pop(n[at + 2])
                driver.refuse(request, REASONS[n[at + 3]], n[at + 4])
                at += 5
            elif kind == ENDED:
                batch = batches.pop(n[at + 2])
                self._counts[batch.model].count_end(batch)
                at += 5
            elif kind == PLACED:
                if sink is not None:
                    sink(placed(n, at))
                at += SHORT + n[at + 3]
            elif kind == OPENED:
                if sink is not None:
                    sink(opened(n, at))
                    for arrived in items_arrived(n, at):
                        sink(arrived)
                at += SHORT + 2
            elif kind == GIVEN_UP:
                if sink is not None:
                    for event in given_up(n, at):
                        sink(event)
                for item in range(n[at + 2], n[at + 2] + n[at + 5]):
                    driver.refuse(self._requests.pop(item), REASONS[n[at + 3]], n[at + 4])
                at += SHORT + 1
            else:  # of slots and of weights
                if sink is not None:
                    sink(MAKE[kind](n, at))
                if self._weights is not None and kind == LOADING:
                    self._weights.load(Load(n[at + 2], n[at + 3], n[at + 4], n[at + 5]))
                elif self._weights is not None and kind == EVICTED:
                    self._weights.evict(n[at + 2], n[at + 3])
                at += LENGTHS[kind]

    def _add_batch(self, n: Numbers, at: int) -> None:
        number, model, size = n[at + 2], n[at + 3], n[at + 6]
        requests = self._requests
        if size == 1:  # making a tuple of several takes five times as long
            members: tuple[Request, ...] = (requests[n[at + 9]],)
        else:
            members = tuple([requests[i] for i in n[at + 9 : at + 9 + size]])
        self._batches[number] = Batch(n[at + 8], number, model, n[at + 4], members)


def _nobody(event: AnyEvent) -> None:
    """Reads the log no more."""


class _Readers(dict[int, Callable[[memoryview, int], Numbers]]):
    """How many numbers -> what reads so many, from a byte on. Faster than a slice made a list."""

    def __missing__(self, count: int) -> Callable[[memoryview, int], Numbers]:
        self[count] = read = Struct(f"{count}q").unpack_from
        return read


NUMBERS = _Readers()
