"""One simulated run: arrivals in, event log out."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.protocols import Clock
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import AnyEvent, Arrived, EventLogHeader
from headrace.domain.interference import Interference
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.domain.request import Request
from headrace.simulation.beside import Beside, beside_of
from headrace.simulation.clock import SimClock
from headrace.simulation.compiled import Offered, SlotChange, behind_gateway, of_items, run
from headrace.simulation.driver import SimDriver, Slower
from headrace.simulation.gateway import as_reached
from headrace.simulation.inbox import Inbox
from headrace.simulation.left_out import behind, left_out, seen_in, without
from headrace.simulation.measured import Like, measured_durations, noting
from headrace.simulation.moments import moments_of
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.offered.items import check_single, items_of
from headrace.simulation.offered.sizes import size_mixes, to_buckets
from headrace.simulation.served_gateway import ServedGateway


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFault:
    """A slot that fails at `lost_at_us` and is back at `gained_at_us` (None: never)."""

    slot: str
    lost_at_us: int
    gained_at_us: int | None = None


def simulate(
    plan: Plan,
    profiles: Mapping[str, Profile],
    arrivals: Sequence[Arrival],
    *,
    policy: str = "reservation",
    jitter: bool = True,
    seed: int = 0,
    times: tuple[EventLogHeader, Sequence[AnyEvent]] | None = None,
    faults: Sequence[SlotFault] = (),
    slower: Slower | None = None,
    interference: Sequence[Interference] = (),
    levels: Mapping[str, float] | None = None,
    queue_limit: int = QUEUE_LIMIT,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[EventLogHeader, list[AnyEvent]]:
    """Run `arrivals` through the plan in virtual time.

    Args:
        arrivals: in order of time. Of a model of several sizes each request takes what its bucket
            does, as if it were filled up to it.
        jitter: draw execution times from the profile's spread instead of taking its medians.
        seed: of the jitter; the arrivals have their own.
        times: a server's event log of the same plan, to draw execution times and waits at the
            gateway from instead.
        slower: how much longer batches take than the profile, or `times`, say.
        interference: what batches on one device really cost each other, whatever the plan says;
            none: batches take as long as the plan says. Not with `times`.
        levels: with `times`: what the dispatcher knows of them before the first batch
            (`Dispatcher.assume`), as a server does that was rehearsed.
        queue_limit: requests of one model that may wait for a decision.
        on_progress: called with the number of arrivals so far, now and then.

    Returns:
        The log of everything that happened, in order.

    Raises:
        PlanError: an arrival names a model, or a fault a slot, that the plan does not have; or
            `times` are of another plan.
    """
    arrivals = to_buckets(arrivals, size_mixes(plan, profiles), seed)
    plan, profiles = by_bucket(plan, profiles)
    topology = Topology.from_plan(plan, profiles)
    header = topology.event_log_header("virtual", policy)
    offered = _offered(list(requests_of(arrivals, topology)))
    items = items_of(arrivals, plan, seed) if topology.is_malleable else None
    if items is None:
        check_single(arrivals)
    work = _Work(
        topology=topology,
        policy=policy,
        offered=offered,
        items=items,
        changes=_slot_changes(faults, topology),
        slower=slower,
        queue_limit=queue_limit,
        on_progress=on_progress,
    )
    rng = np.random.default_rng(seed)
    if times is not None:
        return header, _as_served(work, times, levels or {}, rng)
    beside = beside_of(plan, profiles, interference) if interference else None
    return header, _as_profiled(work, beside, rng if jitter else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What is simulated, whichever times it takes."""

    topology: Topology
    policy: str
    offered: Offered
    """As they reach the gateway; one each of requests of many items."""
    items: Ints | None
    """Of each; None: no request of this plan has several."""
    changes: Sequence[SlotChange]
    slower: Slower | None
    queue_limit: int
    on_progress: Callable[[int], None] | None


def _as_profiled(
    work: _Work, beside: Beside | None, rng: np.random.Generator | None
) -> list[AnyEvent]:
    """
    Args:
        rng: of the jitter; None: there is none.
    """
    offered, items = work.offered, work.items
    reached_at_us = offered.arrived_at_us
    passed_at_us = behind_gateway(work.topology, reached_at_us, offered.model)
    offered = dataclasses.replace(offered, arrived_at_us=passed_at_us)
    if items is not None:
        offered, reached_at_us = of_items(offered, items), np.repeat(reached_at_us, items)
    late = np.flatnonzero(offered.arrived_at_us > reached_at_us).tolist()
    waited = {i: int(reached_at_us[i]) for i in late}
    events: list[AnyEvent] = []
    run(
        work.topology,
        work.policy,
        offered,
        rng=rng,
        changes=work.changes,
        slower=work.slower,
        beside=beside,
        queue_limit=work.queue_limit,
        log=events,
        on_progress=work.on_progress,
    )
    return as_reached(events, waited)


def _as_served(
    work: _Work,
    times: tuple[EventLogHeader, Sequence[AnyEvent]],
    levels: Mapping[str, float],
    rng: np.random.Generator,
) -> list[AnyEvent]:
    """With a server's times, by a dispatcher that learns from them as the server's does."""
    topology, offered, items = work.topology, work.offered, work.items
    reached, due = offered.arrived_at_us, offered.deadline_at_us
    header, logged = times
    seen = seen_in(logged)
    arrived = [event.at_us for event in logged if isinstance(event, Arrived)]
    moments = moments_of(arrived, reached, rng, left_out=left_out(seen))
    served = ServedGateway(topology, list(without(behind(seen), logged)), moments)
    ways = served.ways(topology, reached, offered.model, due)
    told = dataclasses.replace(
        offered, arrived_at_us=ways.passed_at_us, deadline_at_us=ways.told_at_us
    )
    if items is not None:
        told = of_items(told, items)
        reached, due = (np.repeat(each, items) for each in (reached, due))
    clock = SimClock()
    like = None if moments is None else Like(moments, clock.now_us)
    durations = measured_durations(topology, header, logged, rng, like)
    driver = SimDriver(topology, clock, durations, work.slower)
    events: list[AnyEvent] = []
    noted = noting(durations, events.append)
    dispatcher = Dispatcher(
        topology, work.policy, clock, driver, noted, work.queue_limit, weights=driver
    )
    driver.reports = driver.load_reports = dispatcher
    dispatcher.assume(levels)
    for change in work.changes:
        report = dispatcher.on_slot_gained if change.gained else dispatcher.on_slot_lost
        clock.call_at(change.at_us, partial(report, change.slot))
    if topology.is_malleable:
        groups = _in_items(list(_requests(told)), told.items.tolist())
        replay_items(groups, clock, dispatcher.on_items, work.on_progress)
    else:
        ready = ways.ready_at_us.tolist()
        inbox = Inbox(_requests(told), ready, clock, dispatcher.on_arrival, work.on_progress)
        driver.reports = inbox.reading(dispatcher)
        inbox.open()
    clock.run()
    return served.seen(events, reached, due)


def _requests(offered: Offered) -> Iterator[Request]:
    columns = (offered.model, offered.arrived_at_us, offered.deadline_at_us, offered.priority)
    for number, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        model, arrived_at_us, deadline_at_us, priority = row
        yield Request(
            id=number,
            model=model,
            arrived_at_us=arrived_at_us,
            deadline_at_us=deadline_at_us,
            priority=priority,
        )


def _in_items(requests: Sequence[Request], items: Sequence[int]) -> Iterator[Sequence[Request]]:
    first = 0
    while first < len(requests):
        yield requests[first : first + items[first]]
        first += items[first]


def _offered(requests: Sequence[Request]) -> Offered:
    def column(name: str) -> Ints:
        return np.array([getattr(request, name) for request in requests], dtype=np.int64)

    return Offered(
        arrived_at_us=column("arrived_at_us"),
        model=column("model"),
        deadline_at_us=column("deadline_at_us"),
        priority=column("priority"),
    )


def requests_of(arrivals: Iterable[Arrival], topology: Topology) -> Iterator[Request]:
    """Number the arrivals and give each its deadline.

    Raises:
        PlanError: an arrival names a model that the plan does not have.
    """
    index = {model.name: i for i, model in enumerate(topology.models)}
    for number, arrival in enumerate(arrivals):
        model = index.get(arrival.model)
        if model is None:
            raise PlanError(
                f"arrival {number}: the plan does not serve model {arrival.model!r};"
                f" it serves: {', '.join(index)}"
            )
        slo_us, usual = topology.models[model].slo_us, topology.models[model].priority
        timeout_us = slo_us if arrival.timeout_us is None else arrival.timeout_us
        yield Request(
            id=number,
            model=model,
            arrived_at_us=arrival.at_us,
            deadline_at_us=arrival.at_us + timeout_us,
            priority=arrival.priority or usual,
        )


def replay(
    requests: Iterator[Request],
    clock: Clock,
    on_arrival: Callable[[Request], None],
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Hand each request over at its instant; each schedules the next, so the heap stays small."""
    replay_items(((each,) for each in requests), clock, lambda one: on_arrival(one[0]), on_progress)


def replay_items(
    requests: Iterator[Sequence[Request]],
    clock: Clock,
    on_items: Callable[[Sequence[Request]], None],
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """As `replay`, of requests of many items (`Dispatcher.on_items`)."""

    def schedule_next() -> None:
        items = next(requests, None)
        if items is not None:
            clock.call_at(items[0].arrived_at_us, lambda: hand_over(items))

    def hand_over(items: Sequence[Request]) -> None:
        schedule_next()
        on_items(items)
        if on_progress is not None and items[0].id % 1000 == 0:
            on_progress(items[0].id + 1)

    schedule_next()


def _slot_changes(faults: Sequence[SlotFault], topology: Topology) -> list[SlotChange]:
    changes = []
    for fault in faults:
        if fault.slot not in topology.slots:
            raise PlanError(f"fault: the plan has no slot {fault.slot!r}")
        slot = topology.slots.index(fault.slot)
        changes.append(SlotChange(at_us=fault.lost_at_us, slot=slot, gained=False))
        if fault.gained_at_us is not None:
            changes.append(SlotChange(at_us=fault.gained_at_us, slot=slot, gained=True))
    return changes
