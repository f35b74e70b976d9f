"""Times are predicted in one place, by the profile's figures, whoever asks."""

import dataclasses
import re
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import headrace
from headrace.cost import (
    NEVER_US,
    Latency,
    ProfiledCosts,
    TimedStage,
    cost_model,
    link_bytes_per_us,
    transfer_us,
)
from headrace.dispatch.topology import Topology
from headrace.domain.errors import ProfileError
from headrace.domain.profile import Profile
from headrace.planning.common.candidates import CostTables, cost_tables, feasible_pipelines
from helpers.problems import make_plan, make_problem, make_profile, profiled_us

HALVES = (Fraction(1), Fraction(1, 2))
PROFILE = replace(
    make_profile("m", blocks=4, shares=HALVES, measured_stages=True), batch_overhead_us=70
)


def later(latency: Latency, by_us: int) -> Latency:
    return Latency(latency.p50_us + by_us, latency.p99_us + by_us)


class Dearer(ProfiledCosts):
    """A model of its own: a batch takes a millisecond more, and a request costs the gateway."""

    def latency(self, stage: TimedStage, batch_size: int) -> Latency:
        return later(self.execution(stage, batch_size), 1_000)

    def gateway_us(self, model: str) -> int:
        return 400


def shorter(profile: Profile) -> Profile:
    """Ranges measured whole at half the batch sizes only."""
    return replace(
        profile,
        stage_times=tuple(
            replace(times, p50_us=times.p50_us[:2], p99_us=times.p99_us[:2])
            for times in profile.stage_times
        ),
    )


@pytest.mark.parametrize("max_batch", [None, 3])
@pytest.mark.parametrize("profile", [PROFILE, shorter(PROFILE), replace(PROFILE, stage_times=())])
def test_a_single_stage_costs_what_the_tables_say_and_both_what_was_profiled(
    profile: Profile, max_batch: int | None
) -> None:
    costs = cost_model({"m": profile})
    kinds = [(times.device, times.share) for times in profile.block_times]
    p50, p99 = costs.tables("m", kinds, max_batch)

    assert p50.shape == p99.shape == (max_batch or 4, len(kinds), 4, 5)
    for b, k, i, j in np.ndindex(p50.shape):
        if j <= i:
            assert p50[b, k, i, j] == p99[b, k, i, j] == NEVER_US
            continue
        asked = costs.latency(TimedStage("m", *kinds[k], i, j), b + 1)
        assert asked == (int(p50[b, k, i, j]), int(p99[b, k, i, j]))
        assert asked == profiled_us(profile, *kinds[k], i, j, b + 1)


def test_the_device_alone_takes_the_latency_less_the_servers_part() -> None:
    costs = cost_model({"m": PROFILE})
    for size, (i, j) in product((1, 4), ((0, 4), (1, 2))):
        stage = TimedStage("m", "a", Fraction(1, 2), i, j)
        assert later(costs.execution(stage, size), 70) == costs.latency(stage, size)


@pytest.mark.parametrize(
    ("device", "share", "size"), [("x", 1, 1), ("a", Fraction(1, 3), 1), ("a", 1, 0), ("a", 1, 5)]
)
def test_what_was_not_profiled_has_no_time(device: str, share: Fraction, size: int) -> None:
    stage = TimedStage("m", device, Fraction(share), 0, 4)

    with pytest.raises(ProfileError, match=f"no latency for batch size {size} on"):
        cost_model({"m": PROFILE}).latency(stage, size)


def test_a_transfer_goes_at_the_pace_of_its_slower_end() -> None:
    assert transfer_us(10_000, link_bytes_per_us(8), link_bytes_per_us(2)) == 40
    assert transfer_us(10_000, None, None) == 0
    # 2.5 and 3.5 us: half to even, as numpy's rint in the tables of planners.
    assert [transfer_us(size, 2.0) for size in (5, 7)] == [2, 4]


def test_another_cost_model_reaches_the_dispatcher_and_the_simulator() -> None:
    problem = make_problem([PROFILE])
    plan = make_plan(problem)
    (usual,) = Topology.from_plan(plan, problem.profiles).models
    (dearer,) = Topology.from_plan(plan, problem.profiles, Dearer(problem.profiles)).models

    # 70 of the 1,000 us are in the profile already.
    stages = [stage for route in usual.routes for stage in route.stages]
    others = [stage for route in dearer.routes for stage in route.stages]
    for stage, other in zip(stages, others, strict=True):
        assert other.p50_us == tuple(p50_us + 930 for p50_us in stage.p50_us)
        assert other.p99_us == tuple(p99_us + 930 for p99_us in stage.p99_us)
    assert dearer.fastest_us - usual.fastest_us >= 930 + 400
    assert (usual.gateway_us, dearer.gateway_us) == (0, 400)


def test_what_the_gateway_takes_is_taken_from_every_pipelines_budget() -> None:
    problem = make_problem([PROFILE])
    free = cost_tables(problem, problem.demands[0])
    tables = dataclasses.replace(free, gateway_us=400)

    def found(tables: CostTables, budget_us: int) -> int:
        return len(feasible_pipelines(tables, budget_us, min_stages=1, max_stages=3))

    assert found(tables, 40_400) == found(free, 40_000) > 0
    assert found(tables, 40_000) < found(free, 40_000)


MEASURED = re.compile(r"\.(block_times|stage_times|measured_stage|batch_overhead_us)\b")
READERS = {
    "cost.py": "predicts",
    "start_times.py": "predicts starts",
    "verify": "restates",
    "profiling": "measures and estimates",
    "commands/profile_besides.py": "measures",
    "domain/profile.py": "checks that they are consistent",
    "reporting/profile_table.py": "prints them",
    "commands/estimate.py": "prints them",
    "planning/pooled/refusal.py": "names what was profiled",
}


def test_nothing_else_adds_up_measured_times() -> None:
    root = Path(headrace.__file__).parent
    readers = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if MEASURED.search(path.read_text())
    }
    strangers = [
        reader
        for reader in readers
        if reader not in READERS and reader.split("/")[0] not in READERS
    ]

    assert strangers == [], "ask `headrace.cost` instead"
