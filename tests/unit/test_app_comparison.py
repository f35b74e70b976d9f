"""The table of an app: predicted, simulated and measured, end to end and per module."""

import pytest
from examples.app_comparison import app_comparisons, app_table
from rich.console import Console

from headrace.domain.errors import PlanError
from headrace.domain.request import Outcome
from headrace.metrics import Report, summarise
from headrace.planning.apps.planner import plan_apps
from helpers.apps import make_app_problem


def measured(*names: str) -> Report:
    requests = [
        Outcome(arrived_at_us=i * 1000, deadline_at_us=i * 1000 + 9, ended_at_us=i * 1000 + 5)
        for i in range(10)
    ]
    summary = summarise(requests)
    return Report(source="measured", models=dict.fromkeys(names, summary), total=summary)


def test_predictions_are_the_plans_and_absent_opinions_have_no_column() -> None:
    problem = make_app_problem()
    plan = plan_apps(problem, "least-cost").plan
    assert plan is not None

    found = app_comparisons(
        plan, "traffic", 60.0, problem.profiles, measured=measured("traffic", "traffic.face")
    )
    console = Console(width=120, record=True, file=None)
    with console.capture() as shown:
        console.print(app_table(found, "traffic"))

    assert list(found) == ["traffic", "traffic.detect", "traffic.vehicle", "traffic.face"]
    assert found["traffic"].predicted is not None
    assert found["traffic"].predicted.p99_us == plan.apps[0].worst_case_us
    vehicle = found["traffic.vehicle"].predicted
    assert vehicle is not None
    assert vehicle.throughput_rps == pytest.approx(150.0)
    assert found["traffic.detect"].measured is None
    assert "measured" in shown.get()
    assert "simulated" not in shown.get().partition("predicted:")[0]


def test_beyond_the_planned_rate_the_plan_promises_only_that() -> None:
    problem = make_app_problem()
    plan = plan_apps(problem, "least-cost").plan
    assert plan is not None
    whole = app_comparisons(plan, "traffic", 600.0, problem.profiles)["traffic"].predicted
    assert whole is not None
    assert whole.throughput_rps == 60.0
    assert whole.slo_attainment == pytest.approx(0.1)
    assert whole.dropped is None


def test_an_unknown_app_is_refused_by_name() -> None:
    problem = make_app_problem()
    plan = plan_apps(problem, "least-cost").plan
    assert plan is not None
    with pytest.raises(PlanError, match="it has traffic"):
        app_comparisons(plan, "other", 1.0, problem.profiles)
