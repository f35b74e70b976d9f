"""Plans of the exact planner hold on random problems, and no heuristic plans what it refuses."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.planning import solve
from headrace.verify import verify
from helpers.shared import shared_problem


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    models=st.integers(1, 4),
    devices=st.integers(1, 3),
    nodes=st.integers(1, 2),
    load=st.floats(0.05, 1.2),
    any_split=st.booleans(),
    memory=st.none() | st.floats(0.5, 4.0),
    max_utilisation=st.sampled_from([1.0, 0.9, 0.57]),
    gateway_us=st.sampled_from([0, 50]),
    overhead_us=st.sampled_from([0, 130]),
    device=st.sampled_from(["gpu", "cpu"]),
    margin=st.sampled_from([0.0, 0.25]),
)
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
