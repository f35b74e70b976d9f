"""Planner `shares` where all sets of models on a part are too many to look at: nothing is claimed
of what was not looked at."""

import pytest
from msgspec.structs import replace

from headrace.domain.plan import PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.shares import tenants
from headrace.verify import verify
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


def test_the_bound_is_that_of_any_number_of_models_on_a_part() -> None:
    plan = solved(asked(3)).plan

    assert plan is not None
    assert plan.objective == 2.0
    assert plan.bound == 1.0
    assert plan.stopped == "heuristic"
    assert "up to 3 models on one part were looked at, of 6 that may be" in plan.binding


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


def asked_in_batches(monkeypatch: pytest.MonkeyPatch, most_parts: int) -> Problem:
    """Five models of up to 16 items for one core: 1,024 parts at batch sizes 1, 4 and 16."""
    monkeypatch.setattr(tenants, "MANY_PARTS", most_parts)
    names = [f"m{number}" for number in range(5)]
    profiles = [
        make_profile(name, blocks=1, devices={"cpu": 1.0}, max_batch=16, seed=seed)
        for seed, name in enumerate(names)
    ]
    return make_problem(
        profiles,
        cluster=make_cluster({"n": {"cpu": 1}}),
        options=PlanOptions(planner="shares", margin=0.0),
        slo_us=120_000,
    )


def test_more_models_share_a_part_at_fewer_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three on a part do not do for five models on one core."""
    plan = solved(asked_in_batches(monkeypatch, 2_000)).plan
    every = solved(asked_in_batches(monkeypatch, 5_000_000)).plan

    assert plan is not None
    assert every is not None
    assert plan.stopped == "heuristic"
    assert "of them at some batch sizes, of 5 that may be" in plan.binding
    assert plan.bound is not None
    assert 0 < plan.objective < every.objective < plan.bound


def test_where_even_few_batch_sizes_are_too_many_nothing_is_excluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = solved(asked_in_batches(monkeypatch, 100))

    assert result.plan is None
    assert result.stopped == "time-limit"
