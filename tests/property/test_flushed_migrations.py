"""From and to plans with depths, and of models that come and go: devices change hands all at once.

Each side is one of three kinds, at least one of them not of pipelines.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from headrace.dispatch.changes.handover import Device, PlacedTopology
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, Arrived, Dispatched, Dropped, Loading, Opened
from headrace.simulation.driver import JitteredDurations, exact_durations
from headrace.simulation.migration import SimulatedMigration
from headrace.simulation.offered.arrivals import Arrival
from headrace.start_times import Start
from helpers.lengthy import with_lengthy
from helpers.malleable import depth_route, malleable_trace
from helpers.malleable import depths_topology as depths_of
from helpers.provisioned import assert_memory_is_kept, provisioned_topology
from helpers.topologies import make_route, make_stage, make_topology, random_topology
from property.test_migration_properties import (
    events_of_a_sound_migration,
    placed_on_devices,
    schedule_faults,
)

SEEDS = range(15)
MOST_ITEMS = 4


def depths_topology(rng: np.random.Generator) -> Topology:
    return malleable_trace(int(rng.integers(1 << 16)), requests=1)[0].topology


KINDS: dict[str, tuple[str, Callable[[np.random.Generator], Topology]]] = {
    "pipelines": ("reservation", random_topology),
    "depths": ("malleable", depths_topology),
    "come-and-go": ("provision", provisioned_topology),
}
"""Policy, and how a plan is made."""
CHANGES = [(old, new) for old in KINDS for new in KINDS if (old, new) != ("pipelines",) * 2]


def random_arrivals(
    old: PlacedTopology, new: PlacedTopology, rng: np.random.Generator, count: int = 80
) -> tuple[list[Arrival], list[int], int]:
    """Of models that are served at their time, with the items of each; and when to migrate."""
    middle, at_us = count // 2, 0
    arrivals: list[Arrival] = []
    items = []
    change_at_us = -1
    for number in range(count):
        at_us += int(rng.exponential(4_000)) + 1
        serving = (old if number < middle else new).topology
        if number == middle:
            change_at_us = at_us
        model = serving.models[int(rng.integers(len(serving.models)))]
        patience_us = int(model.slo_us * rng.choice([0.5, 1.0, 4.0]))
        arrivals.append(Arrival(at_us=at_us, model=model.name, timeout_us=patience_us))
        items.append(int(rng.integers(1, MOST_ITEMS + 1)) if serving.is_malleable else 1)
    return arrivals, items, change_at_us


@pytest.mark.parametrize("kinds", CHANGES, ids="-to-".join)
@pytest.mark.parametrize(
    "with_faults", with_lengthy([False, True], lengthy=[False]), ids=["sound", "faulty"]
)
def test_nothing_is_lost_and_the_new_plan_begins_when_the_old_one_has_answered(
    kinds: tuple[str, str], with_faults: bool
) -> None:
    answered = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        policies, topologies = zip(*((KINDS[k][0], KINDS[k][1](rng)) for k in kinds), strict=True)
        old, new = placed_on_devices(topologies, rng)
        arrivals, items, at_us = random_arrivals(old, new, rng)
        durations = JitteredDurations(np.random.default_rng(seed))
        session = SimulatedMigration(old, new, policies, durations)
        if with_faults:
            schedule_faults(session, arrivals[-1].at_us, rng)
        session.run(arrivals, at_us, "flush", items)

        what = f"seed {seed}"
        both = events_of_a_sound_migration(session, old, new, sum(items), what)
        answered += sum(isinstance(event, Answered) for event in both)
        before, after = (log.events for log in session.logs())
        last_us = max((e.at_us for e in before if isinstance(e, Answered | Dropped)), default=0)
        first_us = min(
            (e.at_us for e in after if isinstance(e, Dispatched | Loading)), default=last_us
        )
        assert first_us >= last_us, f"{what}: the new plan worked while the old one had requests"
        for log, placed in zip(session.logs(), (old, new), strict=True):
            if placed.topology.is_provisioned:
                assert_memory_is_kept(list(log.events), placed.topology)
    assert answered > 350


@pytest.mark.parametrize("old_kind", KINDS)
def test_requests_of_many_items_wait_and_are_opened_whole(old_kind: str) -> None:
    rng = np.random.default_rng(5)
    policy, make = KINDS[old_kind]
    old_topology, new_topology = make(rng), depths_topology(rng)
    devices: list[Device] = [
        ("n", "d", i) for i in range(max(len(old_topology.slots), len(new_topology.slots)))
    ]
    old = PlacedTopology(old_topology, tuple(devices[: len(old_topology.slots)]))
    new = PlacedTopology(new_topology, tuple(devices[: len(new_topology.slots)]))
    hour_us = 3_600_000_000
    arrivals = [Arrival(at_us=0, model="m0", timeout_us=hour_us)] * 4
    arrivals += [Arrival(at_us=2, model="m0", timeout_us=hour_us)] * 3
    session = SimulatedMigration(old, new, (policy, "malleable"), lambda stage, size: 1_000)

    session.run(arrivals, 1, "flush", [1, 1, 1, 1, 3, 1, 2])

    after = session.logs()[1].events
    opened = [event for event in after if isinstance(event, Opened)]
    assert [event.items for event in opened] == [3, 1, 2]
    assert {event.request for event in after if isinstance(event, Arrived)} == set(range(4, 10))
    assert len({event.request for event in after if isinstance(event, Answered)}) == 6


@pytest.mark.parametrize("kinds", [*CHANGES, ("pipelines", "pipelines")], ids="-to-".join)
def test_who_has_an_slo_is_served_beside_a_backlog_of_those_with_time(
    kinds: tuple[str, str],
) -> None:
    """Work for seconds waits in the old plan: it begins to hold others up when that is nearly over,
    and then for no longer than an SLO."""
    hour_us, slo_us, one_us = 3_600_000_000, 200_000, 5_000
    stage = make_stage([0], [one_us])
    start = Start(1_000, one_us, 1_000, 0, 1, False, load99_us=1_000)
    plain = make_topology([make_route(stage)], slo_us=slo_us)
    topologies = {
        "pipelines": plain,
        "depths": depths_of([depth_route([one_us], [[0]])], slots=1, slo_us=slo_us),
        "come-and-go": replace(
            plain,
            models=(replace(plain.models[0], start=start),),
            memory_bytes=(1,),
            copy_streams=(True,),
            helpers=(-1,),
            links=(0,),
        ),
    }
    device: tuple[Device, ...] = (("n", "d", 0),)
    old, new = (PlacedTopology(topologies[kind], device) for kind in kinds)
    patient = [Arrival(at_us=0, model="m0", timeout_us=hour_us, priority=1)] * 600
    urgent = [Arrival(at_us=at_us, model="m0") for at_us in range(20_000, 6_000_000, 20_000)]
    later = [
        Arrival(at_us=at_us, model="m0", timeout_us=hour_us, priority=1) for at_us in (60_000,)
    ]
    arrivals = sorted([*patient, *urgent, *later], key=lambda arrival: arrival.at_us)
    policies = (KINDS[kinds[0]][0], KINDS[kinds[1]][0])
    session = SimulatedMigration(old, new, policies, exact_durations)

    session.run(arrivals, 50_000, "flush")

    both = events_of_a_sound_migration(session, old, new, len(arrivals), "-to-".join(kinds))
    due = {event.request: event.deadline_at_us for event in both if isinstance(event, Arrived)}
    late = [e for e in both if isinstance(e, Answered) and e.at_us > due[e.request]]
    dropped = [event for event in both if isinstance(event, Dropped)]
    assert not late
    assert len(dropped) <= 2, "those that came as the last one was answered"
    patient_again = [e for e in session.logs()[1].events if isinstance(e, Arrived)]
    assert any(event.deadline_at_us > hour_us for event in patient_again), "it waited"
