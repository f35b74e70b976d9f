"""Whatever arrives, whatever the two plans: a migration loses nothing, and no device runs both."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from headrace.dispatch.changes import migration
from headrace.dispatch.changes.handover import Device, PlacedTopology, handover_steps
from headrace.dispatch.changes.migration import How
from headrace.dispatch.topology import Topology
from headrace.domain.epochs import joined
from headrace.domain.events import Answered, AnyEvent, Arrived, Dropped, Ran, SlotLost
from headrace.metrics import UNFINISHED, outcomes
from headrace.simulation.driver import JitteredDurations, exact_durations
from headrace.simulation.migration import SimulatedMigration
from headrace.simulation.offered.arrivals import Arrival
from helpers.lengthy import with_lengthy
from helpers.topologies import (
    assert_each_request_ended_once,
    assert_exclusive,
    make_route,
    make_stage,
    make_topology,
    random_requests,
    random_shared_topology,
    random_topology,
)

SEEDS = range(40)
RESERVED = ("reservation", "reservation")


def random_placements(rng: np.random.Generator) -> tuple[PlacedTopology, PlacedTopology]:
    """Two plans over overlapping devices, sometimes with different models."""
    return placed_on_devices([random_topology(rng) for _ in range(2)], rng)


def placed_on_devices(
    topologies: Sequence[Topology], rng: np.random.Generator
) -> tuple[PlacedTopology, PlacedTopology]:
    """Of some more devices, each takes as many as it has slots."""
    count = max(len(topology.slots) for topology in topologies) + int(rng.integers(0, 3))
    devices: list[Device] = [("n", "d", number) for number in range(count)]
    old, new = (
        PlacedTopology(
            topology,
            tuple(devices[i] for i in rng.permutation(count)[: len(topology.slots)].tolist()),
        )
        for topology in topologies
    )
    return old, new


def random_shared_placements(rng: np.random.Generator) -> tuple[PlacedTopology, PlacedTopology]:
    """Two plans whose models take turns on slots, up to three slots side by side on a device."""
    topologies = [random_shared_topology(rng) for _ in range(2)]
    devices: list[Device] = [("n", "d", number) for number in range(3)]
    old, new = (
        PlacedTopology(
            topology, tuple(devices[i] for i in sorted(rng.integers(0, 3, len(topology.slots))))
        )
        for topology in topologies
    )
    return old, new


def random_arrivals(
    old: PlacedTopology, new: PlacedTopology, rng: np.random.Generator, load: float, count: int = 80
) -> tuple[list[Arrival], int]:
    """Arrivals of models that are served at their time, and when to migrate."""
    requests = random_requests(old.topology, rng, count=count, load=load)
    at_us = requests[count // 3].arrived_at_us
    arrivals = []
    for request in requests:
        name = old.topology.models[request.model].name
        if request.arrived_at_us >= at_us and new.number(name) is None:
            name = new.topology.models[0].name
        arrivals.append(
            Arrival(
                at_us=request.arrived_at_us,
                model=name,
                timeout_us=request.deadline_at_us - request.arrived_at_us,
                priority=request.priority,
            )
        )
    return arrivals, at_us


@pytest.mark.parametrize("how", ["drain", "flush"])
@pytest.mark.parametrize("policy", ["reservation", "reactive", "batch-aware"])
@pytest.mark.parametrize(
    "with_faults", with_lengthy([False, True], lengthy=[False]), ids=["sound", "faulty"]
)
def test_no_request_is_lost_or_answered_twice(how: How, policy: str, with_faults: bool) -> None:
    answered = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        old, new = random_placements(rng)
        arrivals, at_us = random_arrivals(old, new, rng, float(rng.choice([0.4, 0.8, 1.6])))
        durations = JitteredDurations(np.random.default_rng(seed))
        session = SimulatedMigration(old, new, (policy, policy), durations)
        if with_faults:
            schedule_faults(session, arrivals[-1].at_us, rng)
        session.run(arrivals, at_us, how)

        both = events_of_a_sound_migration(session, old, new, len(arrivals), f"seed {seed}")
        whole = joined(session.logs())
        ends = [end for ended in outcomes(*whole).values() for end in ended]
        assert len(ends) == len(arrivals)
        assert UNFINISHED not in {end.reason for end in ends}
        answered += sum(isinstance(event, Answered) for event in both)
    assert answered > 700


@pytest.mark.parametrize("how", ["drain", "flush"])
@pytest.mark.parametrize("policy", ["reservation", "duty-cycle"])
@pytest.mark.parametrize(
    "with_faults", with_lengthy([False, True], lengthy=[False]), ids=["sound", "faulty"]
)
def test_nothing_is_lost_between_plans_that_share_slots_and_devices(
    how: How, policy: str, with_faults: bool
) -> None:
    answered = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        old, new = random_shared_placements(rng)
        arrivals, at_us = random_arrivals(old, new, rng, float(rng.choice([0.4, 0.8, 1.6])))
        session = SimulatedMigration(old, new, (policy, policy), exact_durations)
        if with_faults:
            schedule_faults(session, arrivals[-1].at_us, rng)
        session.run(arrivals, at_us, how)

        both = events_of_a_sound_migration(session, old, new, len(arrivals), f"seed {seed}")
        answered += sum(isinstance(event, Answered) for event in both)
    assert answered > 700


def test_a_quick_models_slot_serves_on_until_the_slow_one_beside_it_is_empty() -> None:
    """One device in two parts, the same before and after: the slow model's batch takes 100 ms."""
    slow, quick = make_route(make_stage([0], [100_000])), make_route(make_stage([1], [1_000]))
    devices: tuple[Device, ...] = (("n", "d", 0), ("n", "d", 0))
    topology = make_topology([slow], [quick], slo_us=[400_000, 10_000])
    old, new = PlacedTopology(topology, devices), PlacedTopology(topology, devices)
    session = SimulatedMigration(old, new, RESERVED, exact_durations)
    arrivals = [Arrival(at_us=1_000, model="m0")]
    arrivals += [Arrival(at_us=at_us, model="m1") for at_us in range(2_000, 200_000, 2_000)]
    session.run(arrivals, 5_001, "drain")
    both = [event for log in session.logs() for event in log.events]
    assert sum(isinstance(event, Answered) for event in both) == len(arrivals)
    assert session.done_at_us is not None


def events_of_a_sound_migration(
    session: SimulatedMigration, old: PlacedTopology, new: PlacedTopology, asked: int, what: str
) -> list[AnyEvent]:
    """Of both plans, checked: it ended, and nothing was lost, doubled or run on a taken slot."""
    assert session.done_at_us is not None, f"{what}: the migration did not end"
    logs = session.logs()
    both = [event for log in logs for event in log.events]
    assert_each_request_ended_once(both)
    assert len({e.request for e in both if isinstance(e, Answered | Dropped)}) == asked
    for log, placed in zip(logs, (old, new), strict=True):
        assert_exclusive(log.events, placed.topology)
    assert_devices_run_one_plan_at_a_time(session, what)
    return both


def schedule_faults(session: SimulatedMigration, end_us: int, rng: np.random.Generator) -> None:
    """Workers of both plans die before, during and after the migration, and come back."""
    for epoch in (session.old, session.new):
        for slot in rng.permutation(len(epoch.placed.devices))[:3].tolist():
            lost_at_us = int(rng.integers(1, end_us))
            back_at_us = lost_at_us + int(rng.integers(1, 60_000))
            session.clock.call_at(lost_at_us, partial(epoch.draining.on_slot_lost, slot))
            session.clock.call_at(back_at_us, partial(epoch.draining.on_slot_gained, slot))


def assert_devices_run_one_plan_at_a_time(session: SimulatedMigration, what: str) -> None:
    runs: dict[Device, dict[int, list[tuple[int, int]]]] = {}
    for number, (log, epoch) in enumerate(
        zip(session.logs(), (session.old, session.new), strict=True)
    ):
        for event in log.events:
            if isinstance(event, Ran):
                device = epoch.placed.devices[event.slot]
                by_plan = runs.setdefault(device, {0: [], 1: []})
                by_plan[number].append((event.started_at_us, event.at_us))
    for device, by_plan in runs.items():
        left_at_us = max((ended for _, ended in by_plan[0]), default=0)
        taken_at_us = min((started for started, _ in by_plan[1]), default=left_at_us)
        assert taken_at_us >= left_at_us, f"{what}: {device} runs two plans at once"


def waiting_for_a_wider_plan() -> tuple[SimulatedMigration, list[Arrival]]:
    """The new plan needs a device that is ready long after the others changed hands."""
    devices: list[Device] = [("n", "d", number) for number in range(3)]
    two_stages = make_route(make_stage([0], [1_000]), make_stage([1], [1_000]))
    wider = make_route(make_stage([0, 1], [1_000]), make_stage([2], [1_000]))
    old = PlacedTopology(make_topology([two_stages], slo_us=1_000_000), tuple(devices[:2]))
    new = PlacedTopology(make_topology([wider], slo_us=1_000_000), tuple(devices))
    session = SimulatedMigration(old, new, RESERVED, exact_durations)
    session.loading_us = {2: 300_000}
    return session, [Arrival(at_us=at_us, model="m0") for at_us in range(0, 200_000, 2_000)]


@pytest.mark.parametrize("how", ["drain", "flush"])
def test_requests_are_held_until_the_last_stage_that_they_need_has_loaded(how: How) -> None:
    session, arrivals = waiting_for_a_wider_plan()

    session.run(arrivals, 50_000, how)

    both = [event for log in session.logs() for event in log.events]
    assert sum(isinstance(event, Answered) for event in both) == len(arrivals)
    assert session.done_at_us is not None
    assert session.done_at_us >= 350_000


def held_by(session: SimulatedMigration) -> int:
    assert session.migration is not None
    return session.migration.held


def test_no_more_requests_are_held_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "HELD_MAX", 5)
    session, arrivals = waiting_for_a_wider_plan()
    held: list[int] = []
    session.clock.call_at(190_000, lambda: held.append(held_by(session)))

    session.run(arrivals, 50_000, "flush")

    assert held == [5]
    assert_each_request_ended_once([event for log in session.logs() for event in log.events])


@pytest.mark.parametrize("how", ["drain", "flush"])
def test_no_request_is_lost_when_workers_of_the_new_plan_fail_to_load_at_first(how: How) -> None:
    answered = refused = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        old, new = random_placements(rng)
        arrivals, at_us = random_arrivals(old, new, rng, float(rng.choice([0.4, 0.8, 1.6])))
        session = SimulatedMigration(
            old, new, RESERVED, JitteredDurations(np.random.default_rng(seed))
        )
        failing = rng.permutation(len(new.devices))[: int(rng.integers(1, 4))].tolist()
        session.failing_us = {slot: int(rng.integers(1, 200_000)) for slot in failing}
        session.run(arrivals, at_us, how)

        assert session.done_at_us is not None, f"seed {seed}: the migration did not end"
        both = [event for log in session.logs() for event in log.events]
        assert_each_request_ended_once(both)
        ended = [event for event in both if isinstance(event, Answered | Dropped)]
        assert len({event.request for event in ended}) == len(arrivals)
        for log, placed in zip(session.logs(), (old, new), strict=True):
            assert_exclusive(log.events, placed.topology)
        assert_devices_run_one_plan_at_a_time(session, f"seed {seed}")
        assert all(session.new.draining.serves(slot) for slot in range(len(new.devices)))
        answered += sum(isinstance(event, Answered) for event in both)
        refused += sum(isinstance(e, Dropped) and e.reason == "no-slot" for e in both)
    assert answered > 700
    assert refused > 0


SECOND_US = 1_000_000


def replaced_by(new: Topology, count: int) -> SimulatedMigration:
    """From a pool of `count` slots of 10 ms, one on each device, to another plan for them."""
    devices: tuple[Device, ...] = tuple(("n", "d", number) for number in range(count))
    pool = make_topology([make_route(make_stage(range(count), [10_000]))], slo_us=SECOND_US)
    return SimulatedMigration(
        PlacedTopology(pool, devices), PlacedTopology(new, devices), RESERVED, exact_durations
    )


def every(step_us: int, until_us: int) -> list[Arrival]:
    return [Arrival(at_us=at_us, model="m0") for at_us in range(0, until_us, step_us)]


@pytest.mark.parametrize("how", ["drain", "flush"])
def test_requests_of_a_model_without_any_worker_are_refused_at_once_until_it_has_one(
    how: How,
) -> None:
    one = make_topology([make_route(make_stage([0], [10_000]))], slo_us=SECOND_US)
    session = replaced_by(one, 1)
    session.failing_us = {0: 3 * SECOND_US}
    session.run(every(20_000, 5 * SECOND_US), SECOND_US, how)

    old, new = (log.events for log in session.logs())
    assert not any(isinstance(event, Dropped) for event in old)
    arrived_us = {event.request: event.at_us for event in new if isinstance(event, Arrived)}
    refused = [event for event in new if isinstance(event, Dropped)]
    assert {event.reason for event in refused} == {"no-slot"}
    assert all(event.at_us == arrived_us[event.request] for event in refused), "none was held"
    assert all(event.retry_after_us > 0 for event in refused)
    assert len(refused) == pytest.approx(3 * SECOND_US / 20_000, abs=2)
    back_at_us = max(event.at_us for event in refused)
    assert back_at_us == pytest.approx(4 * SECOND_US, abs=40_000)
    answered_us = [event.at_us for event in new if isinstance(event, Answered)]
    assert min(answered_us) > back_at_us
    assert len(answered_us) == pytest.approx(SECOND_US / 20_000, abs=2)


def test_the_old_plan_keeps_its_devices_while_a_stage_of_the_new_one_loads_nowhere() -> None:
    cut = make_topology(
        [make_route(make_stage([0, 1], [5_000]), make_stage([2, 3], [5_000]))], slo_us=SECOND_US
    )
    session = replaced_by(cut, 4)
    session.failing_us = dict.fromkeys(range(2), 3 * SECOND_US)
    session.run(every(10_000, 6 * SECOND_US), SECOND_US, "drain")

    assert len(session.migration.steps if session.migration else ()) > 1
    logs = session.logs()
    ends = [event for log in logs for event in log.events if isinstance(event, Answered | Dropped)]
    assert len(ends) == 600
    assert all(isinstance(event, Answered) for event in ends)
    closed_us = [event.at_us for event in logs[0].events if isinstance(event, SlotLost)]
    assert min(closed_us) < 2 * SECOND_US
    assert max(closed_us) > 4 * SECOND_US, "the rest only changed hands when the stage had loaded"


def test_one_device_that_fails_does_not_hold_up_those_that_load() -> None:
    pool = make_topology([make_route(make_stage([0, 1, 2, 3], [5_000]))], slo_us=SECOND_US)
    session = replaced_by(pool, 4)
    session.run(every(10_000, 2 * SECOND_US), SECOND_US, "drain")
    assert session.migration is not None
    steps = session.migration.steps
    assert len(steps) == 3, "the failing device is neither the first nor the last"
    failing = session.new.placed.devices.index(steps[1][0])

    session = replaced_by(pool, 4)
    session.failing_us = {failing: 60 * SECOND_US}
    session.run(every(10_000, 2 * SECOND_US), SECOND_US, "drain")
    assert session.done_at_us is not None
    assert session.done_at_us < 2 * SECOND_US


def test_every_device_changes_hands_in_exactly_one_step() -> None:
    for seed in SEEDS:
        old, new = random_placements(np.random.default_rng(seed))
        moved = [device for step in handover_steps(old, new) for device in step]
        assert len(set(moved)) == len(moved)
        assert set(moved) == set(old.devices)


def test_four_equal_devices_change_hands_two_by_two_when_two_make_a_pipeline() -> None:
    devices: tuple[Device, ...] = tuple(("n", "d", number) for number in range(4))
    whole = PlacedTopology(make_topology([make_route(make_stage([0, 1, 2, 3], [8_000]))]), devices)
    cut = PlacedTopology(
        make_topology([make_route(make_stage([0, 1], [4_000]), make_stage([2, 3], [4_000]))]),
        devices,
    )
    assert [len(step) for step in handover_steps(whole, cut)] == [2, 2]
    assert [len(step) for step in handover_steps(cut, whole)] == [1, 1, 2]
