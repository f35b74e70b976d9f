"""Plans whose worst cases hold in simulation, also where Theorem 1 promises too much."""

import random
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.domain.app import App, Module
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.simulation.apps import worst_cases
from headrace.simulation.apps.worst_cases import (
    HEADROOMS,
    keep_worst_cases,
    plan_keeping_worst_cases,
    slowest_calls,
)
from headrace.verify import verify
from helpers.apps import make_app_problem

Device = tuple[str, int, int, float]
"""(name, largest batch, its milliseconds, price)."""


def one_module(devices: list[Device], *, rate_rps: float, slo_ms: int, stock: int = 60) -> Problem:
    """An app of one module; every batch takes at least half of the time of the largest."""
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(3,))
    times = {
        name: tuple(500 * ms + 500 * ms * size // batch for size in range(1, batch + 1))
        for name, batch, ms, _ in devices
    }
    profile = Profile(
        model="net",
        provenance=Provenance(kind="synthetic", date="2026-11-22"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=(Block(name="all", node_count=1, weights_bytes=1, cut=(), cut_bytes=0),),
        block_times=tuple(
            BlockTimes(device=name, share=Fraction(1), p50_us=(row,), p99_us=(row,))
            for name, row in times.items()
        ),
    )
    return Problem(
        cluster=Cluster(
            device_types=tuple(
                DeviceType(name=name, price_per_hour=price) for name, _, _, price in devices
            ),
            nodes=(Node(name="n", devices={name: stock for name, *_ in devices}),),
        ),
        demands=(),
        profiles={"net": profile},
        profile_refs=(ProfileRef(model="net", path="net.json", sha256="0" * 64),),
        options=PlanOptions(planner="least-cost", objective="least-cost", margin=0.0, max_stages=1),
        apps=(
            App(
                name="app",
                modules=(Module(name="m", model="net"),),
                edges=(),
                slo_us=1000 * slo_ms,
                rate_rps=rate_rps,
            ),
        ),
    )


def too_full() -> Problem:
    """The cheapest plan of full machines: batches of four, and of two on a machine that is loaded
    to 98 %. Where machines share their load evenly, none is so full."""
    problem = one_module([("gpu", 4, 142, 1.7)], rate_rps=46.6, slo_ms=238)
    return replace(problem, options=replace(problem.options, planner="harpagon-optimal"))


def planned(problem: Problem) -> Plan:
    plan = plan_keeping_worst_cases(problem).plan
    assert plan is not None
    return plan


def test_a_module_that_theorem_1_loads_too_full_is_planned_with_head_room() -> None:
    problem = too_full()
    plain = solve(problem).plan
    assert plain is not None
    plan = planned(problem)

    assert slowest_calls(plain, problem.profiles)["app.m"] > 1
    assert slowest_calls(plan, problem.profiles)["app.m"] <= 1
    assert plan.options.module_headroom.keys() == {"app.m"}
    assert plan.deployments[0].rate_rps == 46.6
    assert plan.deployments[0].dummy_rps > 0
    assert "more load for app.m" in plan.binding
    assert verify(plan, problem.profiles) == []


def test_what_keeping_the_worst_case_costs_is_the_gap() -> None:
    problem = too_full()
    plain = solve(problem).plan
    assert plain is not None
    plan = planned(problem)

    assert plain.stopped == "optimal"
    assert plan.stopped == "heuristic"
    assert plan.bound == plain.objective
    assert plan.gap is not None
    assert 0 < plan.gap < 0.02


def test_a_plan_with_head_room_that_beats_the_bound_is_not_called_optimal() -> None:
    """Its dummy load has another form than that of the plans of which the bound is proven."""
    problem = too_full()
    dearer = 2 * planned(problem).objective

    def planning(headroom: dict[str, float]) -> PlanResult:
        options = replace(problem.options, module_headroom=headroom)
        result = solve(replace(problem, options=options))
        assert result.plan is not None
        return result if headroom else replace(result, plan=replace(result.plan, bound=dearer))

    plan = keep_worst_cases(planning, problem.profiles).plan

    assert plan is not None
    assert plan.options.module_headroom
    assert (plan.bound, plan.gap, plan.stopped) == (None, None, "heuristic")
    assert verify(plan, problem.profiles) == []


def test_a_plan_that_keeps_its_worst_cases_stays_as_it_is() -> None:
    problem = make_app_problem()
    plain = solve(problem).plan
    assert plain is not None
    plan = planned(problem)

    assert max(slowest_calls(plain, problem.profiles).values()) <= 1
    assert replace(plan, runtime_s=0.0) == replace(plain, runtime_s=0.0)


def test_where_no_head_room_helps_the_plan_says_which_module_may_be_slower() -> None:
    """One machine of each kind carries 73 requests/s at most."""
    devices = [("big", 4, 90, 1.0), ("small", 2, 70, 1.0)]
    problem = one_module(devices, rate_rps=72.4, slo_ms=150, stock=1)
    plain = solve(problem).plan
    assert plain is not None
    plan = planned(problem)

    assert plan.options.module_headroom == {}
    assert plan.objective == plain.objective
    assert "app.m may be slower than planned" in plan.binding


def test_plans_that_run_alike_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = too_full()
    other = planned(problem)
    simulated = list[Plan]()

    def planning(headroom: dict[str, float]) -> PlanResult:
        result = solve(problem)
        room = headroom.get("app.m", 0.0)
        return result if room < HEADROOMS[3] else replace(result, plan=other)

    def too_slow(plan: Plan, profiles: Mapping[str, Profile]) -> dict[str, float]:
        simulated.append(plan)
        return {"app.m": 1.5}

    monkeypatch.setattr(worst_cases, "slowest_calls", too_slow)
    plan = keep_worst_cases(planning, problem.profiles).plan

    assert plan is not None
    assert "app.m may be slower than planned" in plan.binding
    assert [each == other for each in simulated] == [False, True]


def test_head_room_takes_half_as_long_again_as_planning_whatever_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = too_full()
    problem = replace(problem, options=replace(problem.options, time_limit_s=40.0))
    plain = solve(problem)
    limits_s = list[float]()

    def solved(asked: Problem, *, advise: bool) -> PlanResult:
        limits_s.append(asked.options.time_limit_s)
        assert plain.plan is not None
        return replace(plain, plan=replace(plain.plan, options=asked.options))

    monkeypatch.setattr(worst_cases, "solve", solved)
    monkeypatch.setattr(worst_cases, "slowest_calls", lambda *_: {"app.m": 1.5})
    plan = planned(problem)

    assert limits_s[0] == 40.0
    assert len(limits_s) == 1 + len(HEADROOMS)
    assert max(limits_s[1:]) <= 0.5 * 1.5 * 40.0
    assert plan.options.time_limit_s == 40.0


def test_head_room_is_given_up_when_its_time_has_passed() -> None:
    problem = too_full()
    tried = list[dict[str, float]]()

    def planning(headroom: dict[str, float]) -> PlanResult:
        tried.append(headroom)
        return solve(problem)

    plan = keep_worst_cases(planning, problem.profiles, Deadline(0.0)).plan

    assert tried == [{}]
    assert plan is not None
    assert "app.m may be slower than planned" in plan.binding


def test_a_problem_without_a_plan_stays_without() -> None:
    result = plan_keeping_worst_cases(make_app_problem(slo_ms=10.0))

    assert result.plan is None
    assert result.refusal


@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_no_simulated_call_is_slower_than_planned(seed: int) -> None:
    rng = random.Random(seed)
    devices = [
        (f"d{i}", rng.choice([1, 2, 4, 8, 16]), rng.randint(5, 200), rng.choice([0.5, 1.0, 1.7]))
        for i in range(rng.randint(1, 3))
    ]
    slowest_rps = min(1000 * batch / ms for _, batch, ms, _ in devices)
    problem = one_module(
        devices, rate_rps=rng.uniform(0.3, 8) * slowest_rps, slo_ms=rng.randint(100, 1_200)
    )
    plan = plan_keeping_worst_cases(problem).plan
    if plan is None:
        return

    assert max(slowest_calls(plan, problem.profiles).values()) <= 1


@pytest.mark.parametrize(
    ("headroom", "said"),
    [({"app.m": -0.1}, "app.m -0.1 must lie in"), ({"app.n": 0.1}, "'app.n', which is no module")],
)
def test_head_room_of_modules_is_checked(headroom: dict[str, float], said: str) -> None:
    problem = too_full()

    with pytest.raises(DocumentError, match=said):
        replace(problem, options=replace(problem.options, module_headroom=headroom))
