"""Time limits: counted in looks at a clock that the tests turn, never in real time."""

from fractions import Fraction

import pytest

from headrace.domain.problem import Objective, PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.models import model_of
from headrace.planning.pooled.relaxation import relax
from headrace.planning.pooled.search import search
from headrace.verify import verify
from helpers.lengthy import with_lengthy
from helpers.problems import make_cluster, make_problem, make_profile

ODD = (Fraction(2, 3), Fraction(1, 3), Fraction(1))
"""Shares that need not pack when they add up: a problem for HiGHS."""


class LooksDeadline(Deadline):
    """A minute is left at every look, until so many looks were taken; then none is."""

    def __init__(self, looks: int) -> None:
        super().__init__(60.0)
        self.allowed, self.taken = looks, 0

    @property
    def left_s(self) -> float:
        self.taken += 1
        return 60.0 if self.taken <= self.allowed else 0.0


def problem_of(devices: int, *, goal: Objective, models: int = 2) -> Problem:
    profiles = [
        make_profile(f"m{i}", blocks=4, max_batch=3, shares=ODD, seed=i) for i in range(models)
    ]
    cluster = make_cluster(
        {f"n{i}": {"a": 1, "b": 3} for i in range(devices // 4)},
        shares=ODD,
        gbps=10.0,
        prices={"a": 1.0, "b": 0.35},
    )
    return make_problem(
        profiles,
        cluster=cluster,
        rates={p.model: 2.0 * devices for p in profiles} if goal == "least-cost" else None,
        options=PlanOptions(objective=goal, max_stages=2),
    )


@pytest.mark.parametrize("looks", [0, 1, 2, 3, 5, 8])
def test_a_search_ends_within_a_few_looks_at_a_clock_that_has_run_out(looks: int) -> None:
    problem = problem_of(8, goal="max-min")
    hardware = Hardware.of(problem.cluster)
    models = [model_of(problem, hardware, demand) for demand in problem.demands]
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    asked = Counting(hardware, wanted, [m.pipelines for m in models], "max-min")
    deadline = LooksDeadline(looks)

    outcome = search(asked, deadline)

    assert deadline.taken <= looks + 8
    if deadline.taken > looks:
        assert outcome.stopped in ("time-limit", "optimal")
    if outcome.objective is not None and outcome.bound is not None:
        assert outcome.bound >= outcome.objective * (1 - 1e-9)


def test_a_relaxation_without_time_is_not_taken_for_an_infeasible_one() -> None:
    problem = problem_of(8, goal="max-min")
    hardware = Hardware.of(problem.cluster)
    models = [model_of(problem, hardware, demand) for demand in problem.demands]
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    asked = Counting(hardware, wanted, [m.pipelines for m in models], "max-min")

    with pytest.raises(OutOfTime):
        relax(asked, time_limit_s=0.0)


@pytest.mark.parametrize(
    "goal", with_lengthy(["max-min", "throughput", "least-cost"], lengthy=["throughput"])
)
def test_a_large_cluster_is_bounded_and_repaired_whatever_the_objective(goal: Objective) -> None:
    problem = problem_of(2_000, goal=goal)

    result = solve(problem)

    assert result.plan is not None
    assert result.stopped in ("heuristic", "optimal")
    assert result.plan.gap is not None
    assert result.plan.gap <= 0.01
    assert verify(result.plan, problem.profiles) == []
