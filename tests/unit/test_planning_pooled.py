"""Plans of middling size: what they prefer, what they say, and what they prove when stopped."""

from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.documents import read_problem, write_document
from headrace.domain.problem import Demand, Objective, PlanOptions, Problem
from headrace.planning import PLANNERS, solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.models import Model, model_of
from headrace.verify import verify
from helpers.problems import QUARTERS, make_cluster, make_plan, make_problem, make_profile

HALVES = (Fraction(1), Fraction(1, 2))


def hard_problem(time_limit_s: float) -> Problem:
    """Three models that compete for 20 devices in four shares: minutes to prove."""
    profiles = [
        make_profile(f"m{i}", blocks=8, max_batch=8, shares=QUARTERS, seed=i) for i in range(3)
    ]
    return make_problem(
        profiles,
        nodes={f"n{i}": {"a": 1, "b": 3} for i in range(5)},
        gbps=10.0,
        shares=QUARTERS,
        options=PlanOptions(time_limit_s=time_limit_s),
    )


def test_a_search_cut_short_gives_a_plan_with_an_honest_bound() -> None:
    problem = hard_problem(time_limit_s=1.0)

    result = solve(problem)

    assert result.stopped in ("time-limit", "optimal")
    if result.plan is None:  # a machine so busy that a second was not enough
        assert result.refusal is not None
        assert "time-limit" in result.refusal
    else:
        assert verify(result.plan, problem.profiles) == []
        assert result.bound is not None
        assert result.bound >= result.plan.objective
        assert (result.plan.stopped == "optimal") == (result.bound <= result.plan.objective * 1.001)


def test_once_the_time_is_up_no_more_models_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.planning.pooled.planner.Deadline", lambda _: Deadline(0))
    looked_at = []

    def looked(problem: Problem, hardware: Hardware, demand: Demand) -> Model:
        looked_at.append(demand.model)
        return model_of(problem, hardware, demand)

    monkeypatch.setattr("headrace.planning.pooled.planner.model_of", looked)
    result = solve(hard_problem(time_limit_s=1.0))

    assert looked_at == ["m0"]
    assert result.stopped == "time-limit"
    assert "no plan found within 1 s" in (result.refusal or "")


def test_a_model_that_is_not_the_weakest_takes_no_more_devices_than_it_needs() -> None:
    # m0 needs nearly everything; m1 with a hundredth of its weight needs one slot.
    profiles = [make_profile("m0", devices={"a": 1.0}), make_profile("m1", devices={"a": 1.0})]
    problem = make_problem(
        profiles,
        nodes={"n0": {"a": 6}},
        weights={"m0": 1.0, "m1": 0.01},
        options=PlanOptions(max_stages=1),
    )

    plan = make_plan(problem)

    pools = {
        d.model: sum(len(s.pool) for p in d.pipelines for s in p.stages) for d in plan.deployments
    }
    assert pools == {"m0": 5, "m1": 1}


def test_idle_devices_stay_unused_when_the_rate_is_carried_without_them() -> None:
    cluster = make_cluster({"n0": {"a": 5}}, prices={"a": 1.0})
    problem = make_problem(
        [make_profile(devices={"a": 1.0})],
        cluster=cluster,
        rates={"m": 150.0},
        options=PlanOptions(objective="least-cost"),
    )

    plan = make_plan(problem)

    assert len(plan.slots) == 2
    assert plan.cost_per_hour == plan.objective == 2.0


def test_free_devices_cost_nothing_and_still_carry_the_rate() -> None:
    cluster = make_cluster({"n0": {"a": 2, "b": 2}}, prices={"a": 0.0, "b": 0.0})
    problem = make_problem(
        cluster=cluster, rates={"m": 100.0}, options=PlanOptions(objective="least-cost")
    )

    plan = make_plan(problem)

    assert plan.objective == 0.0
    assert plan.deployments[0].throughput_rps >= 100.0
    assert verify(plan, problem.profiles) == []


def test_a_thin_link_keeps_stages_on_one_side_of_it() -> None:
    profile = make_profile(cut_bytes=2_000_000, seed=3)
    nodes = {"n0": {"a": 2}, "n1": {"b": 2}}
    stages = {}
    for gbps in (100.0, 0.01):
        problem = make_problem([profile], nodes=nodes, gbps=gbps, options=PlanOptions(min_stages=1))
        plan = make_plan(problem)
        assert verify(plan, problem.profiles) == []
        stages[gbps] = max(len(p.stages) for p in plan.deployments[0].pipelines)

    assert stages[0.01] == 1


@pytest.mark.parametrize(
    ("max_batch", "slo_us", "expected"),
    [
        (8, 60_000, "latency budget 36.0 ms of model 'm': the next batch size"),
        (2, 900_000, "batch size: 2 is the largest profiled of model 'm'"),
    ],
)
def test_the_binding_constraint_is_said_in_words(
    max_batch: int, slo_us: int, expected: str
) -> None:
    plan = make_plan(make_problem([make_profile(max_batch=max_batch)], slo_us=slo_us))

    assert "all 2 of type 'a'" in plan.binding
    assert expected in plan.binding


def test_no_partitioning_overrides_the_stages_asked_and_says_who_planned() -> None:
    problem = make_problem(options=PlanOptions(min_stages=2, max_stages=3))

    plan = PLANNERS["no-partitioning"](problem).plan

    assert plan is not None
    assert plan.planner == plan.options.planner == "no-partitioning"
    assert (plan.options.min_stages, plan.options.max_stages) == (1, 1)
    assert verify(plan, problem.profiles) == []


@pytest.mark.parametrize("shares", [HALVES, QUARTERS])
@pytest.mark.parametrize("seed", range(3))
def test_larger_plans_verify_and_are_proven(shares: tuple[Fraction, ...], seed: int) -> None:
    profile = make_profile(blocks=8, max_batch=4, shares=shares, seed=seed)
    problem = make_problem(
        [profile],
        nodes={f"n{i}": {"a": 2, "b": 4} for i in range(3)},
        gbps=2.0,
        shares=shares,
    )

    plan = make_plan(problem)

    assert plan.stopped == "optimal"
    assert verify(plan, problem.profiles) == []
    assert len({slot.name for slot in plan.slots}) == len(plan.slots)
    assert replace(make_plan(problem), runtime_s=0.0) == replace(plan, runtime_s=0.0)


@pytest.mark.lengthy
def test_a_hundred_thousand_devices_are_read_planned_placed_and_verified(tmp_path: Path) -> None:
    """As a file, for that has limits of its own."""
    write_document(make_profile(devices={"a": 1.0, "b": 0.5}), tmp_path / "m.json")
    problem_file = tmp_path / "problem.yaml"
    problem_file.write_text(
        """\
schema: headrace.problem/1
cluster:
  devices: {a: {}, b: {}}
  nodes:
    - {name: a, count: 25000, devices: {a: 1}, bandwidth_gbps: 50}
    - {name: b, count: 18750, devices: {b: 4}, bandwidth_gbps: 10}
models: [{name: m, profile: m.json, slo_ms: 60}]
"""
    )
    problem = read_problem(problem_file)

    plan = make_plan(problem)

    assert plan.gap is not None
    assert plan.gap <= 0.001
    assert len({(slot.node, slot.device_index) for slot in plan.slots}) > 90_000
    assert verify(plan, problem.profiles) == []


@pytest.mark.parametrize("seed", [1, 12, 15])
@pytest.mark.parametrize("objective", ["max-min", "throughput"])
def test_where_the_best_counts_do_not_pack_the_plan_is_of_slots_that_do(
    monkeypatch: pytest.MonkeyPatch, seed: int, objective: Objective
) -> None:
    """The first refusal by memory ends the search, with what was kept of pipelines that fit."""
    monkeypatch.setattr("headrace.planning.pooled.search.EXCLUSIONS_MAX", 0)
    heavy = make_profile("heavy", blocks=3, shares=QUARTERS, seed=seed)
    other = make_profile("other", blocks=2, shares=QUARTERS, seed=100 + seed)
    weights = sum(block.weights_bytes for block in heavy.blocks)
    memory = {"a": weights * 5 // 4}
    cluster = make_cluster({"n": {"a": 2, "b": 1}}, shares=QUARTERS, memory_bytes=memory)
    options = PlanOptions(max_stages=2, objective=objective)
    problem = make_problem([heavy, other], cluster=cluster, options=options)

    plan = make_plan(problem)

    assert verify(plan, problem.profiles) == []
    assert plan.stopped in ("optimal", "heuristic")


def test_a_plan_costs_the_devices_that_its_weights_take() -> None:
    """Two slots fit one device by their shares, and by their weights they do not."""
    profile = make_profile("m", blocks=2, devices={"a": 1.0}, shares=HALVES, weights_bytes=1000)
    heaviest = max(block.weights_bytes for block in profile.blocks)
    cluster = make_cluster(
        {"n": {"a": 3}}, shares=HALVES, memory_bytes={"a": heaviest}, prices={"a": 1.0}
    )
    options = PlanOptions(objective="least-cost")
    problem = make_problem([profile], cluster=cluster, rates={"m": 1.0}, options=options)

    plan = make_plan(problem)

    assert verify(plan, problem.profiles) == []
    assert (plan.objective, plan.bound, plan.stopped) == (2.0, 2.0, "optimal")
