"""Planner `shares` where all sets of models on a part are too many to look at: nothing is claimed
of what was not looked at."""

import pytest
from msgspec.structs import replace

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.shares import planner
from headrace.verify import verify
from helpers.problems import make_cluster
from helpers.shared import of_cores

MODELS = 6
"""One core carries them all in turns: 56 sets of up to four of them, 62 of up to five."""


@pytest.fixture(autouse=True)
def up_to_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "FEW_PARTS", 50)
    monkeypatch.setattr(planner, "MANY_PARTS", 60)


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
