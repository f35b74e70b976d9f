"""Apps on whole devices: where no plan with turns is in time, modules get devices of their own."""

import re

import pytest
from msgspec.structs import replace

from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.common import deadline
from headrace.simulation.apps import for_arrivals, headroom, in_time
from headrace.simulation.apps.for_arrivals import plan_for_arrivals
from headrace.simulation.apps.headroom import Rooms
from headrace.simulation.apps.in_time import ATTAINMENT, even_attainment, plan_in_time
from headrace.verify import verify
from helpers.apps import make_app_problem


@pytest.fixture(autouse=True)
def one_short_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "REQUESTS_TOGETHER", 400)
    monkeypatch.setattr(headroom, "SESSIONS", 1)


@pytest.fixture(autouse=True)
def slow_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans whose modules may take turns take a second each, and nothing else takes time."""
    now_s = 0.0

    def slowly(problem: Problem, *, advise: bool = True) -> PlanResult:
        nonlocal now_s
        now_s += problem.options.bill == "devices"
        return solve(problem, advise=advise)

    monkeypatch.setattr(deadline, "perf_counter", lambda: now_s)
    monkeypatch.setattr(in_time, "solve", slowly)
    monkeypatch.setattr(for_arrivals, "solve", slowly)


def late_in_turns(*, time_limit_s: float, slo_ms: float = 100) -> Problem:
    """Modules that take turns answer 88% in time; with devices of their own, all."""
    problem = make_app_problem(slo_ms=slo_ms)
    options = replace(problem.options, bill="devices", time_limit_s=time_limit_s)
    return replace(problem, options=options)


def by_fraction(problem: Problem) -> Problem:
    return replace(problem, options=replace(problem.options, bill="fraction"))


def test_who_has_no_time_for_room_gets_the_plan_by_the_fraction() -> None:
    problem = late_in_turns(time_limit_s=0.5)
    late, apart = solve(problem).plan, solve(by_fraction(problem)).plan
    assert late is not None
    assert apart is not None
    plan = plan_in_time(problem, solve)

    assert even_attainment(late, problem.profiles) < ATTAINMENT
    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert (plan.slots, plan.deployments) == (apart.slots, apart.deployments)
    assert plan.options == problem.options
    assert verify(plan, problem.profiles) == []


def test_it_claims_no_more_than_what_is_proven_of_whole_devices() -> None:
    problem = late_in_turns(time_limit_s=0.5)
    late = solve(problem).plan
    assert late is not None
    plan = plan_in_time(problem, solve)

    assert plan.objective == plan.cost_per_hour
    assert plan.bound == late.bound
    assert plan.bound is not None
    assert plan.gap == (plan.objective - plan.bound) / plan.objective > 0
    assert plan.stopped == "heuristic"
    assert plan.binding.startswith("whole devices: no plan was found to be in time whose modules")


def test_with_time_a_cheaper_plan_with_turns_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_time, "EVEN_ROOMS", Rooms(rates=(0.0,), margins=(0.0, 0.1)))
    apart = plan_in_time(late_in_turns(time_limit_s=0.5), solve)
    problem = late_in_turns(time_limit_s=1000.0)
    plan = plan_in_time(problem, solve)

    assert plan.objective < apart.objective
    assert even_attainment(plan, problem.profiles) >= ATTAINMENT


def test_a_plan_with_room_is_found_by_the_fraction_too() -> None:
    problem = late_in_turns(time_limit_s=0.5, slo_ms=80)
    plan = plan_in_time(problem, solve)

    assert plan.options.headroom_for is not None
    assert plan.options.bill == "devices"
    assert plan.options.margin_reason.endswith("; costs in proportion to load")
    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert verify(plan, problem.profiles) == []


def test_where_not_even_that_is_found_the_refusal_asks_for_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = late_in_turns(time_limit_s=0.5)
    monkeypatch.setattr(in_time, "even_attainment", lambda plan, profiles: 0.5)
    monkeypatch.setattr(headroom, "worst_attainments", lambda *of: {"traffic": 0.5})
    with pytest.raises(InfeasibleError, match=re.escape("a --time-limit-s of more than 0.5")):
        plan_in_time(problem, solve)


def test_a_planner_that_found_nothing_in_time_is_not_the_last_word() -> None:
    """By the fraction there is a plan."""
    problem = late_in_turns(time_limit_s=0.5)

    def planning(problem: Problem) -> PlanResult:
        if problem.options.bill == "fraction":
            return solve(problem)
        return PlanResult(plan=None, stopped="time-limit", bound=None, runtime_s=0.5)

    plan = plan_in_time(problem, planning)

    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert (plan.objective, plan.bound) == (plan.cost_per_hour, None)
    assert verify(plan, problem.profiles) == []


def test_poisson_arrivals_get_the_plan_by_the_fraction_too() -> None:
    problem = late_in_turns(time_limit_s=0.5, slo_ms=150)
    found = plan_for_arrivals(problem, "poisson")
    alone = plan_for_arrivals(by_fraction(problem), "poisson")

    assert found.plan.slots == alone.plan.slots
    assert found.attainment == alone.attainment >= ATTAINMENT
    assert found.plan.objective == found.plan.cost_per_hour
    assert found.premium > 0
    assert verify(found.plan, problem.profiles) == []
