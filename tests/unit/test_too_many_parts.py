"""Planner `shares` where all sets of models on a part are too many to look at: nothing is claimed
of what was not looked at."""

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.plan import PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.shares import tenants
from headrace.planning.shares.devices import devices_of
from headrace.planning.shares.planner import workload
from headrace.planning.shares.tenants import in_proportion
from headrace.verify import verify
from helpers.lengthy import with_lengthy
from helpers.problems import make_cluster, make_problem, make_profile
from helpers.shared import of_cores

MODELS = 6
"""One core carries them all in turns: 56 sets of up to four of them, 62 of up to five."""


@pytest.fixture(autouse=True)
def up_to_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "FEW_PARTS", 50)
    monkeypatch.setattr(tenants, "MANY_PARTS", 60)


def asked(cores: int, rate_rps: float = 3.0, **options: object) -> Problem:
    problem = of_cores("shares", MODELS, rate_rps)
    return replace(
        problem,
        cluster=make_cluster({"n": {"cpu": cores}}),
        options=replace(problem.options, **options),
    )


def solved(problem: Problem) -> PlanResult:
    result = solve(problem)
    assert result.plan is None or verify(result.plan, problem.profiles) == []
    return result


@pytest.fixture
def _none_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "PROPORTIONAL_PARTS", 0)


@pytest.mark.usefixtures("_none_in_proportion")
def test_the_bound_is_that_of_any_number_of_models_on_a_part() -> None:
    plan = solved(asked(3)).plan

    assert plan is not None
    assert plan.objective == 2.0
    assert plan.bound == 1.0
    assert plan.stopped == "heuristic"
    assert "up to 3 models on one part were looked at, of 6 that may be" in plan.binding


def test_a_plan_with_more_models_on_a_part_that_meets_the_bound_is_optimal() -> None:
    plan = solved(asked(3)).plan

    assert plan is not None
    assert plan.objective == plan.bound == 1.0
    assert plan.stopped == "optimal"
    assert "3 models on one part were looked at, more of them in proportion, of 6" in plan.binding


@pytest.mark.usefixtures("_none_in_proportion")
def test_a_refusal_excludes_nothing_that_was_not_looked_at() -> None:
    result = solved(asked(1))

    assert result.plan is None
    assert result.stopped == "time-limit"
    assert result.refusal is not None
    assert "no plan was found" in result.refusal
    assert "--max-tenants 5" in result.refusal


def test_what_is_asked_for_is_looked_at() -> None:
    plan = solved(asked(1, max_tenants=MODELS)).plan

    assert plan is not None
    assert plan.objective == plan.bound == 1.0
    assert plan.stopped == "optimal"


def test_rates_that_no_number_of_models_on_a_part_carries_are_refused_with_proof() -> None:
    result = solved(asked(1, rate_rps=25.0))

    assert result.plan is None
    assert result.stopped == "infeasible"
    assert result.refusal is not None
    assert "the devices are too few" in result.refusal


def test_the_largest_multiple_has_a_bound_for_any_number_of_models_on_a_part() -> None:
    plan = solved(asked(2, objective="max-min")).plan
    exact = solved(asked(2, objective="max-min", max_tenants=MODELS)).plan

    assert plan is not None
    assert exact is not None
    assert plan.bound is not None
    assert plan.objective <= exact.objective <= plan.bound


def asked_in_batches(seed: int, slo_us: int) -> Problem:
    """Five models of up to 16 items for one core, which three on a part are too few for."""
    profiles = [
        make_profile(f"m{n}", blocks=1, devices={"cpu": 1.0}, max_batch=16, seed=10 * seed + n)
        for n in range(5)
    ]
    return make_problem(
        profiles,
        cluster=make_cluster({"n": {"cpu": 1}}),
        options=PlanOptions(planner="shares", margin=0.0),
        slo_us=slo_us,
    )


@pytest.mark.parametrize("seed", with_lengthy(range(3), lengthy=[1, 2]))
@pytest.mark.parametrize("slo_us", [60_000, 120_000])
def test_more_models_share_a_part_in_proportion(
    seed: int, slo_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = asked_in_batches(seed, slo_us)
    plan = solved(problem).plan
    monkeypatch.setattr(tenants, "FEW_PARTS", 5_000_000)
    every = solved(problem).plan

    assert plan is not None
    assert every is not None
    assert plan.bound is not None
    assert every.stopped == "optimal"
    assert "of them in proportion, of 5 that may be" in plan.binding
    assert 0.9 * every.objective < plan.objective <= every.objective < plan.bound


def test_spans_are_fewer_where_parts_in_proportion_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At up to six spans 31 sets of five models are at most 186 parts."""
    problem = asked_in_batches(0, 120_000)
    times = [SharedTimes.of(problem, "cpu")]
    load, devices = workload(problem, times), devices_of(problem, times, [1.0])
    many = in_proportion(load, devices, 5)
    monkeypatch.setattr(tenants, "PROPORTIONAL_PARTS", 186)
    few = in_proportion(load, devices, 5)

    for parts in (few, many):
        assert set((parts.models >= 0).sum(axis=1).tolist()) == {4, 5}
        cycle_us = parts.duty_us[:, None] * (parts.models >= 0)
        budget_us = np.where(parts.models >= 0, load.budget_us[parts.models], 0)
        assert (cycle_us <= budget_us).all()
    assert 0 < len(few.place) < len(many.place)
