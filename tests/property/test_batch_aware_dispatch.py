"""Theorem 1 under its own assumption, and what it is worth when that does not hold."""

import random

import numpy as np
import pytest
from benchmarks.harpagon.possible import answered_at_most
from hypothesis import given
from hypothesis import strategies as st

from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.domain.plan import MachineLoad
from headrace.planning.apps.assembly import slot_count
from headrace.planning.apps.candidates import ModuleCase, worst_case_us
from headrace.planning.apps.exact.fronts import front_schedule, module_front
from headrace.planning.apps.machines import Entry, Schedule, remaining_rps, schedule_of
from headrace.simulation.compiled import Offered, run
from helpers.apps import make_candidate, random_module

POLICY = "batch-aware"


def machines_of(schedule: Schedule) -> tuple[Topology, int]:
    """A planned module as the dispatcher sees it, and Theorem 1's bound for it.

    A batch that is not full takes its part of what a full one takes, and at least half of it.
    """
    routes, slots, bound_us = [], 0, 0
    for i, (entry, left) in enumerate(
        zip(schedule.entries, remaining_rps(schedule.entries), strict=True)
    ):
        pool = tuple(range(slots, slots + slot_count(entry)))
        slots += len(pool)
        candidate = entry.candidate
        worst_us = worst_case_us("remaining", candidate, left, entry.machines)
        bound_us = max(bound_us, worst_us)
        full_us = candidate.duration_us
        times = tuple(
            full_us // 2 + full_us * size // (2 * candidate.batch)
            for size in range(1, candidate.batch)
        )
        stage = StageTable(0, 1, pool, (*times, full_us), (*times, full_us), 0)
        load = MachineLoad(
            machines=entry.machines,
            rate_rps=entry.rate_rps,
            machine_rps=entry.rate_rps / len(pool),
            remaining_rps=left,
            collect_us=worst_us - full_us,
            worst_case_us=worst_us,
            cost_per_hour=entry.cost,
        )
        routes.append(Route(f"p{i}", candidate.batch, (stage,), (0,) * candidate.batch, load))
    topology = Topology(
        models=(ModelRoutes("m", bound_us, tuple(routes)),),
        slots=tuple(f"s{i}" for i in range(slots)),
        slot_node=(0,) * slots,
        nodes=("n",),
        node_bytes_per_us=(None,),
    )
    return topology, bound_us


def loaded(machines: list[tuple[int, int, float]]) -> tuple[Schedule, float]:
    """Machines, each (batch size, milliseconds, how many of them), and the rate they are for."""
    entries = [
        Entry(candidate=make_candidate(batch, duration_ms), machines=float(count))
        for batch, duration_ms, count in machines
    ]
    rate_rps = sum(entry.rate_rps for entry in entries)
    return schedule_of(entries, rate_rps, "remaining"), rate_rps


def slowest_us(topology: Topology, rate_rps: float, bound_us: int, count: int = 1_500) -> int:
    """Of calls at equal gaps, that ask to be answered within the bound; -1: one was dropped."""
    at_us = np.round(np.arange(count) * 1e6 / rate_rps).astype(np.int64)
    offered = Offered(
        arrived_at_us=at_us,
        model=np.zeros(count, dtype=np.int64),
        deadline_at_us=at_us + bound_us,
        priority=np.zeros(count, dtype=np.int64),
    )
    ended_at_us = run(topology, POLICY, offered).ended_at_us
    return -1 if (ended_at_us < 0).any() else int((ended_at_us - at_us).max())


def planned(module: ModuleCase, budget_us: int, point: float) -> Schedule | None:
    """Any plan of the front, not only the cheapest."""
    front = module_front(module, budget_us)
    return front_schedule(module, front, int(point * len(front))) if len(front) else None


@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_no_call_exceeds_theorem_1_under_uniform_arrivals_where_the_last_machine_has_room(
    seed: int,
) -> None:
    """Room: 2 % of it. Nearer to full, there are modules that no dispatcher can serve in time."""
    rng = random.Random(seed)
    module = random_module(rng)
    schedule = planned(module, rng.randint(100, 1_200) * 1_000, rng.random())
    if schedule is None:
        return
    last = schedule.entries[-1]
    if 0.98 < last.machines / slot_count(last) < 1:
        return
    topology, bound_us = machines_of(schedule)

    assert 0 <= slowest_us(topology, module.rate_rps, bound_us) <= bound_us


@pytest.mark.parametrize(
    "machines",
    [
        [(4, 50, 3), (2, 30, 0.985)],
        [(4, 120, 5), (2, 70, 0.99)],
        [(16, 160, 1), (4, 100, 0.985)],
        [(16, 110, 3), (8, 70, 0.98)],
        [(16, 140, 2), (8, 80, 0.985)],
        [(16, 90, 5), (8, 50, 0.98)],
    ],
)
def test_a_last_machine_that_is_nearly_full_keeps_theorem_1_where_others_start_at_even_distances(
    machines: list[tuple[int, int, float]],
) -> None:
    """Each is (batch size, milliseconds, how many of them)."""
    schedule, rate_rps = loaded(machines)
    topology, bound_us = machines_of(schedule)

    assert 0 < slowest_us(topology, rate_rps, bound_us, 2_500) <= bound_us


@pytest.mark.lengthy
def test_no_dispatcher_keeps_theorem_1_for_every_plan() -> None:
    """By exhaustive search; at 3 % less load there is a schedule."""
    schedule, rate_rps = loaded([(4, 90, 1), (2, 70, 0.98)])
    topology, bound_us = machines_of(schedule)
    durations = [route.stages[0].p50_us for route in topology.models[0].routes]

    assert answered_at_most(durations, rate_rps, bound_us, 500) < 500
    assert slowest_us(topology, rate_rps, bound_us, 500) == -1
    assert answered_at_most(durations, rate_rps * 0.97, bound_us, 500) == 500


def half_loaded(stage: StageTable, slo_us: int) -> Topology:
    """One machine, batches of four, planned for half of what it can take."""
    load = MachineLoad(
        machines=0.5,
        rate_rps=40.0,
        machine_rps=40.0,
        remaining_rps=40.0,
        collect_us=100_000,
        worst_case_us=150_000,
        cost_per_hour=0.5,
    )
    return Topology(
        models=(ModelRoutes("m", slo_us, (Route("p", 4, (stage,), (0,) * 4, load),)),),
        slots=("a",),
        slot_node=(0,),
        nodes=("n",),
        node_bytes_per_us=(None,),
    )


def test_a_batch_that_is_not_full_is_in_time_where_it_takes_longer_than_a_full_one() -> None:
    """Two of four take longer than four, as measured ones may; and fewer come than planned."""
    times = (28_000, 51_000, 50_500, 50_000)
    topology = half_loaded(StageTable(0, 1, (0,), times, times, 0), 150_000)

    assert 0 < slowest_us(topology, 25.0, 150_000) <= 150_000


def test_a_machine_with_part_of_a_load_waits_no_longer_for_others_than_it_is_planned_to() -> None:
    stage = StageTable(0, 1, (0,), (20_000, 30_000, 40_000, 50_000), (50_000,) * 4, 0)
    topology = half_loaded(stage, 1_000_000)

    assert slowest_us(topology, 1.0, 1_000_000, 5) == 100_000 + 20_000


def test_machines_of_batches_of_one_share_what_comes_at_once() -> None:
    """Two full and one with part of a load, 100 ms each: six at once take two rounds, not four."""
    loads = [
        MachineLoad(
            machines=machines,
            rate_rps=10.0 * machines,
            machine_rps=10.0 * min(1.0, machines),
            remaining_rps=left,
            collect_us=collect_us,
            worst_case_us=100_000 + collect_us,
            cost_per_hour=machines,
        )
        for machines, left, collect_us in ((2.0, 25.0, 40_000), (0.5, 5.0, 100_000))
    ]
    pools = ((0, 1), (2,))
    routes = tuple(
        Route(f"p{i}", 1, (StageTable(0, 1, pool, (100_000,), (100_000,), 0),), (0,), load)
        for i, (pool, load) in enumerate(zip(pools, loads, strict=True))
    )
    topology = Topology(
        models=(ModelRoutes("m", 1_000_000, routes),),
        slots=("a", "b", "c"),
        slot_node=(0, 0, 0),
        nodes=("n",),
        node_bytes_per_us=(None,),
    )
    warm_then_six = np.array([0, 0, 0, *[1_000_000] * 6], dtype=np.int64)
    offered = Offered(
        arrived_at_us=warm_then_six,
        model=np.zeros(9, dtype=np.int64),
        deadline_at_us=warm_then_six + 1_000_000,
        priority=np.zeros(9, dtype=np.int64),
    )

    took_us = run(topology, POLICY, offered).ended_at_us - warm_then_six

    assert sorted(took_us[3:]) == [100_000] * 3 + [200_000] * 3


@pytest.mark.parametrize(
    ("policy", "collect_us"), [("round-robin", 80_000), ("machine-rate", 80_000 // 3 + 1)]
)
def test_the_rival_policies_collect_as_their_readings_say(policy: str, collect_us: int) -> None:
    """Three machines, batches of four in 80 ms: one at a time, or a batch after the other."""
    stage = StageTable(0, 1, (0, 1, 2), (50_000, 60_000, 70_000, 80_000), (80_000,) * 4, 0)
    topology = Topology(
        models=(ModelRoutes("m", 1_000_000, (Route("p", 4, (stage,), (0,) * 4),)),),
        slots=("a", "b", "c"),
        slot_node=(0, 0, 0),
        nodes=("n",),
        node_bytes_per_us=(None,),
    )
    at_us = np.arange(3_000, dtype=np.int64) * 6_667  # a hair below 3 x 4 / 80 ms
    offered = Offered(
        arrived_at_us=at_us,
        model=np.zeros(len(at_us), dtype=np.int64),
        deadline_at_us=at_us + 1_000_000,
        priority=np.zeros(len(at_us), dtype=np.int64),
    )
    # The last requests wait for companions that never come.
    took_us = (run(topology, policy, offered).ended_at_us - at_us)[:-12]

    assert took_us.min() >= 80_000
    assert took_us.max() <= 80_000 + collect_us


def test_load_that_is_planned_for_and_never_sent_is_only_room() -> None:
    """Two machines for 100 requests per second of which 70 come: batches go part full, in time."""
    load = MachineLoad(
        machines=2.0,
        rate_rps=100.0,
        machine_rps=50.0,
        remaining_rps=100.0,
        collect_us=40_000,
        worst_case_us=120_000,
        cost_per_hour=2.0,
    )
    stage = StageTable(0, 1, (0, 1), (50_000, 60_000, 70_000, 80_000), (80_000,) * 4, 0)
    topology = Topology(
        models=(ModelRoutes("m", 120_000, (Route("p", 4, (stage,), (0,) * 4, load),)),),
        slots=("a", "b"),
        slot_node=(0, 0),
        nodes=("n",),
        node_bytes_per_us=(None,),
    )

    assert 0 < slowest_us(topology, 70.0, 120_000) <= 120_000
