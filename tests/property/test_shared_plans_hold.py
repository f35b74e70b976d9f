"""Plans of the exact planner hold on random problems, and no heuristic plans what it refuses."""

from hypothesis import given, settings
from msgspec.structs import replace

from headrace.planning import solve
from headrace.verify import verify
from helpers.shared import DRAWN, shared_problem


@settings(max_examples=40, deadline=None)
@given(**DRAWN)
def test_exact_plans_hold_and_are_no_worse_than_heuristics(**drawn: object) -> None:
    problem = shared_problem("shares", **drawn)  # type: ignore[arg-type]

    result = solve(problem)

    heuristic = solve(replace(problem, options=replace(problem.options, planner="gpulet"))).plan
    if result.plan is None:
        assert result.refusal
        assert "\n  try " in result.refusal
        assert heuristic is None or result.stopped != "infeasible"
    else:
        assert verify(result.plan, problem.profiles) == []
        if heuristic is not None and result.stopped == "optimal":
            assert result.plan.objective <= heuristic.objective
