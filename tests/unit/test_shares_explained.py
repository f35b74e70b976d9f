"""`headrace plan --planner shares --explain`: what sharing saves."""

import pytest
from msgspec.structs import replace
from rich.console import Console

from headrace.domain.cluster import WHOLE, Cluster, Node
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.shares import explain as explaining
from headrace.planning.shares.explain import explain_sharing
from headrace.reporting.sharing_table import sharing_explanation
from helpers.shared import shared_problem


def test_what_sharing_saves_is_what_planning_without_it_costs() -> None:
    problem = shared_problem("shares", seed=3, models=3, devices=3, load=0.3)
    plan = solve(problem).plan
    assert plan is not None

    reason = explain_sharing(plan, problem)

    assert reason.reached == plan.objective
    assert reason.in_turns is not None
    assert reason.alone is not None
    assert reason.reached <= reason.in_turns <= reason.alone
    assert reason.alone >= 3
    for wait in reason.waits:
        assert wait.wait_us <= wait.budget_us
        assert wait.rate_rps is not None
        assert wait.throughput_rps >= wait.rate_rps * (1 - 1e-9)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_devices_that_sharing_saves_are_of_all_types_whatever_node_is_first(
    order: tuple[int, int],
) -> None:
    problem = shared_problem("shares", seed=3, models=3, devices=1, load=0.2)
    (shared,) = problem.cluster.device_types
    other = replace(shared, name="other", shares=(WHOLE,), splits=())
    nodes = (Node(name="n0", devices={"other": 1}), Node(name="n1", devices={shared.name: 1}))
    cluster = Cluster(device_types=(other, shared), nodes=tuple(nodes[i] for i in order))
    problem = replace(problem, cluster=cluster)
    plan = solve(problem).plan
    assert plan is not None

    reason = explain_sharing(plan, problem)

    assert (reason.reached, reason.in_turns, reason.alone) == (1, 2, 3)


def test_the_most_uniform_load_is_compared_on_the_same_devices() -> None:
    problem = shared_problem("shares", seed=3, models=3, devices=3, load=0.3)
    options = replace(problem.options, objective="max-min")
    problem = replace(problem, options=options)
    plan = solve(problem).plan
    assert plan is not None

    reason = explain_sharing(plan, problem)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(sharing_explanation(reason))

    assert reason.alone is not None
    assert f"sharing carries {reason.reached / reason.alone:.2f} times as much" in captured.get()


def test_both_plans_with_less_sharing_share_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = shared_problem("shares", seed=3, models=3, devices=3, load=0.3)
    problem = replace(problem, options=replace(problem.options, time_limit_s=8.0))
    plan = solve(problem).plan
    assert plan is not None
    now_s = 0.0
    monkeypatch.setattr("headrace.planning.common.deadline.perf_counter", lambda: now_s)

    def taking_all_its_time(again: Problem) -> PlanResult:
        nonlocal now_s
        now_s += again.options.time_limit_s
        return PlanResult(plan=None, stopped="time-limit", bound=None, refusal="", runtime_s=0.0)

    monkeypatch.setattr(explaining, "plan_shares", taking_all_its_time)
    reason = explain_sharing(plan, problem)

    assert now_s == pytest.approx(8.0)
    assert not reason.in_time
    console = Console(width=200)
    with console.capture() as captured:
        console.print(sharing_explanation(reason))
    assert "whole devices for each model: no plan found in time" in captured.get()
    assert "without sharing there is no plan" not in captured.get()
