"""Options of `headrace serve` that would do nothing with its plan are refused at once."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.commands.serve_checks import check_sizes
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions
from headrace.planning import solve
from helpers.onnx_models import saved
from helpers.problems import make_problem, make_profile
from helpers.served import UNHURRIED_US, plan_by_hand
from helpers.served_items import convolutions, network_profile, planned_items
from helpers.served_provisioned import provisioned


def come_and_go(folder: Path) -> Plan:
    return provisioned(folder, models=2, room=1).plan


def with_depths(folder: Path) -> Plan:
    _, plan = planned_items(network_profile(saved(convolutions(), folder / "net.onnx")))
    return plan


def test_replan_is_refused_of_plans_with_depths(tmp_path: Path) -> None:
    plan = with_depths(tmp_path)
    why = r"a plan with depths .* is the same for every load"
    with pytest.raises(DocumentError, match=rf"(?s)--replan: {why}.*  try    without --replan"):
        check_sizes(plan, plan, [], replan=True)
    check_sizes(plan, plan, [], replan=False)


def test_a_plan_with_depths_is_the_same_for_every_load() -> None:
    """But for what it says that its slots carry: there is nothing to follow."""
    problem = make_problem(
        [make_profile("m"), make_profile("n", seed=1)],
        nodes={"n0": {"a": 2, "b": 2}},
        slo_us=UNHURRIED_US,
        options=PlanOptions(planner="malleable", margin=0.0),
    )
    m, n = problem.demands
    loads = [(m, n), (m, replace(n, weight=9.0)), (replace(m, weight=9.0), n)]
    plans = [solve(replace(problem, demands=demands)).plan for demands in loads]
    first, *others = [plan for plan in plans if plan is not None]
    assert len(others) == 2
    for plan in others:
        assert plan.slots == first.slots
        assert [d.depths for d in plan.deployments] == [d.depths for d in first.deployments]
        assert plan.objective != first.objective


def test_replan_follows_plans_whose_models_stay_and_those_whose_models_come_and_go(
    tmp_path: Path,
) -> None:
    for plan in (plan_by_hand([1], 1, 1_000_000, 1_000, "cpu", 1, None), come_and_go(tmp_path)):
        check_sizes(plan, plan, [], replan=True)
