"""One simulated run: arrivals in, event log out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.policies import make_policy
from headrace.dispatch.protocols import Clock
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.domain.request import Request
from headrace.simulation.arrivals import Arrival
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import (
    Durations,
    JitteredDurations,
    SimDriver,
    exact_durations,
)
from headrace.simulation.measured import measured_durations


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
    on_progress: Callable[[int], None] | None = None,
) -> tuple[EventLogHeader, list[AnyEvent]]:
    """Run `arrivals` through the plan in virtual time.

    Args:
        arrivals: in order of time.
        jitter: draw execution times from the profile's spread instead of taking its medians.
        seed: of the jitter; the arrivals have their own.
        times: a server's event log of the same plan, to draw execution times from instead.
        on_progress: called with the number of arrivals so far, now and then.

    Returns:
        The log of everything that happened, in order.

    Raises:
        PlanError: an arrival names a model, or a fault a slot, that the plan does not have; or
            `times` are of another plan.
    """
    topology = Topology.from_plan(plan, profiles)
    clock = SimClock()
    events: list[AnyEvent] = []
    rng = np.random.default_rng(seed)
    durations: Durations = JitteredDurations(rng) if jitter else exact_durations
    if times is not None:
        durations = measured_durations(topology, *times, rng)
    driver = SimDriver(topology, clock, durations)
    dispatcher = Dispatcher(topology, make_policy(policy, topology), clock, driver, events.append)
    driver.reports = dispatcher
    _schedule_faults(faults, topology, clock, dispatcher)
    replay(requests_of(arrivals, topology), clock, dispatcher.on_arrival, on_progress)
    clock.run()
    return topology.event_log_header("virtual", policy), events


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
        slo_us = topology.models[model].slo_us
        timeout_us = slo_us if arrival.timeout_us is None else arrival.timeout_us
        yield Request(
            id=number,
            model=model,
            arrived_at_us=arrival.at_us,
            deadline_at_us=arrival.at_us + timeout_us,
            priority=arrival.priority,
        )


def replay(
    requests: Iterator[Request],
    clock: Clock,
    on_arrival: Callable[[Request], None],
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Hand each request over at its instant; each schedules the next, so the heap stays small."""

    def schedule_next() -> None:
        request = next(requests, None)
        if request is not None:
            clock.call_at(request.arrived_at_us, lambda: hand_over(request))

    def hand_over(request: Request) -> None:
        schedule_next()
        on_arrival(request)
        if on_progress is not None and request.id % 1000 == 0:
            on_progress(request.id + 1)

    schedule_next()


def _schedule_faults(
    faults: Sequence[SlotFault], topology: Topology, clock: SimClock, dispatcher: Dispatcher
) -> None:
    for fault in faults:
        if fault.slot not in topology.slots:
            raise PlanError(f"fault: the plan has no slot {fault.slot!r}")
        slot = topology.slots.index(fault.slot)
        clock.call_at(fault.lost_at_us, partial(dispatcher.on_slot_lost, slot))
        if fault.gained_at_us is not None:
            clock.call_at(fault.gained_at_us, partial(dispatcher.on_slot_gained, slot))
