"""Apps on a cluster that is too small for their cheapest machines: plans, refusals, reasons."""

import io
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from headrace.domain.cluster import Node
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.domain.profile import BlockTimes
from headrace.planning import solve
from headrace.planning.apps import explain as module
from headrace.planning.apps.assembly import Planned
from headrace.planning.apps.candidates import AppCase
from headrace.planning.apps.explain import explain, explain_stock
from headrace.planning.apps.names import APP_PLANNERS
from headrace.planning.apps.solve import TIME_LIMIT_S, AppSolution, plan_least_cost
from headrace.planning.apps.stock.fit import search_stock
from headrace.planning.common.deadline import Deadline
from headrace.reporting.app_table import explanation
from headrace.verify import verify
from helpers.apps import make_app_problem


def with_devices(problem: Problem, **devices: int) -> Problem:
    nodes = (Node(name="n", devices={name: n for name, n in devices.items() if n}),)
    return replace(problem, cluster=replace(problem.cluster, nodes=nodes))


def tight(planner: str = "least-cost", **devices: int) -> Problem:
    """At 150 ms the cheapest machines are three T4."""
    return with_devices(make_app_problem(planner, slo_ms=150.0), **devices)


def with_apps(problem: Problem, *rates: float) -> Problem:
    (app,) = problem.apps
    apps = tuple(replace(app, name=f"app{i}", rate_rps=rate) for i, rate in enumerate(rates))
    return replace(problem, apps=apps)


def with_halves(problem: Problem) -> Problem:
    """T4s may be cut in two; a half takes as long for twice the time."""
    profiles = {
        name: replace(
            profile,
            block_times=profile.block_times
            + tuple(
                replace(
                    times,
                    share=Fraction(1, 2),
                    p50_us=tuple(tuple(2 * us for us in row) for row in times.p50_us),
                    p99_us=tuple(tuple(2 * us for us in row) for row in times.p99_us),
                )
                for times in profile.block_times
                if times.device == "T4"
            ),
        )
        for name, profile in problem.profiles.items()
    }
    types = tuple(
        replace(kind, shares=(Fraction(1), Fraction(1, 2))) if kind.name == "T4" else kind
        for kind in problem.cluster.device_types
    )
    return replace(problem, profiles=profiles, cluster=replace(problem.cluster, device_types=types))


def plan_of(problem: Problem) -> Plan:
    result = solve(problem)
    assert result.plan is not None, result.refusal
    assert verify(result.plan, problem.profiles) == []
    return result.plan


def used(plan: Plan, device: str) -> int:
    return len({slot.device_index for slot in plan.slots if slot.device == device})


def test_a_plan_within_stock_is_dearer_and_proven() -> None:
    plenty, few = plan_of(tight(T4=40, A100=40)), plan_of(tight(T4=1, A100=40))

    assert used(plenty, "T4") == 3
    assert used(few, "T4") <= 1
    assert few.stopped == "optimal"
    assert few.bound == pytest.approx(few.objective)
    assert few.objective > plenty.objective
    assert "1 T4 where the cheapest machines take 3; traffic: the SLO, or the stock;" in few.binding


def test_more_devices_never_cost_more() -> None:
    costs = [plan_of(tight(T4=n, A100=3)).objective for n in range(4)]

    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]


def test_apps_share_the_stock() -> None:
    alone = plan_of(tight(T4=3, A100=3))

    both = plan_of(with_apps(tight(T4=3, A100=3), 60.0, 60.0))

    assert used(both, "T4") == 3
    assert {deployment.app for deployment in both.deployments} == {"app0", "app1"}
    assert both.stopped == "optimal"
    assert both.objective > 2 * alone.objective


def test_one_module_takes_some_of_each_type_where_neither_is_enough() -> None:
    """A search that bars a module from one type after the other must leave it one."""
    problem = with_devices(make_app_problem(rate_rps=560.0, slo_ms=40.0), T4=2, A100=2)
    (app,) = problem.apps
    times = tuple(
        BlockTimes(device=device, share=Fraction(1), p50_us=((us,),), p99_us=((us,),))
        for device, us in (("T4", 6_500), ("A100", 5_000))
    )
    types = tuple(replace(kind, price_per_hour=1.0) for kind in problem.cluster.device_types)
    problem = replace(
        problem,
        apps=(replace(app, modules=app.modules[:1], edges=()),),
        profile_refs=tuple(ref for ref in problem.profile_refs if ref.model == "ssd"),
        profiles={"ssd": replace(problem.profiles["ssd"], block_times=times)},
        cluster=replace(problem.cluster, device_types=types),
        options=replace(problem.options, bill="devices"),
    )

    plan = plan_of(problem)

    assert (used(plan, "T4"), used(plan, "A100")) == (2, 2)


def test_halves_of_a_device_are_packed() -> None:
    whole = tight(T4=2, A100=2)

    halves = plan_of(with_halves(whole))

    assert {slot.share for slot in halves.slots} >= {Fraction(1, 2)}
    assert used(halves, "T4") <= 2
    assert halves.objective < plan_of(whole).objective


def test_a_refusal_within_stock_names_devices_that_are_enough_and_barely() -> None:
    result = solve(tight(T4=1))

    assert result.plan is None
    assert result.stopped == "infeasible"
    assert result.refusal is not None
    assert "too few T4" in result.refusal
    assert "needs     3 T4" in result.refusal
    assert "has       1 T4" in result.refusal
    found = re.search(r"try       (\d+) of T4", result.refusal)
    assert found
    enough = int(found[1])
    assert solve(tight(T4=enough)).plan is not None
    assert solve(tight(T4=enough - 1)).plan is None


def test_a_refusal_names_less_than_the_cheapest_machines_take_where_that_is_enough() -> None:
    slow = with_apps(tight(T4=3), 60.0, 60.0)
    cheapest = used(plan_of(with_devices(slow, T4=40)), "T4")

    refusal = solve(slow).refusal

    assert refusal is not None
    found = re.search(r"try       (\d+) of T4", refusal)
    assert found
    assert int(found[1]) <= cheapest
    assert solve(with_devices(slow, T4=int(found[1]))).plan is not None


def test_time_that_runs_out_is_said_and_proves_nothing() -> None:
    problem = tight(T4=2)
    options = replace(problem.options, time_limit_s=1e-9)

    result = solve(replace(problem, options=options))

    assert result.plan is None
    assert result.stopped == "time-limit"
    assert result.refusal is not None
    assert "--time-limit-s" in result.refusal


@pytest.mark.parametrize("planner", [name for name in APP_PLANNERS if name != "least-cost"])
def test_other_planners_refuse_and_point_to_least_cost(planner: str) -> None:
    result = solve(tight(planner, T4=1, A100=1))

    assert result.plan is None
    assert result.refusal is not None
    assert "--planner least-cost" in result.refusal


def test_an_explanation_says_which_stock_binds_and_what_one_more_saves() -> None:
    problem = tight(T4=1, A100=40)
    plan = plan_of(problem)

    reasons = explain_stock(plan, problem)

    (reason,) = reasons
    assert (reason.device, reason.there, reason.used, reason.wanted) == ("T4", 1, 1, 3)
    one_more = plan_of(tight(T4=2, A100=40))
    assert reason.proven
    assert reason.saved_by_one == pytest.approx(plan.objective - one_more.objective)
    text = io.StringIO()
    Console(file=text, width=200).print(explanation(explain(plan, problem), reasons))
    assert "stock: 1 of 1 T4 used" in text.getvalue()
    assert f"one more saves {reason.saved_by_one:.4g}" in text.getvalue()
    assert "batches of 6 on T4 are better per price but none is left" in text.getvalue()


def test_an_explanation_searches_no_longer_than_the_plan_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = tight(T4=1, A100=40)
    plan = plan_of(problem)
    given_s: list[float] = []

    def least_cost(case: AppCase, *, time_limit_s: float = TIME_LIMIT_S) -> AppSolution | None:
        given_s.append(time_limit_s)
        return plan_least_cost(case, time_limit_s=time_limit_s)

    def stock(problem: Problem, planned: Sequence[Planned], *, limit: Deadline, **more: Any) -> Any:
        given_s.append(limit.left_s)
        return search_stock(problem, planned, limit=limit, **more)

    monkeypatch.setattr(module, "plan_least_cost", least_cost)
    monkeypatch.setattr(module, "search_stock", stock)
    limited = replace(plan.options, time_limit_s=3.0)
    by_hand = replace(plan, planner="harpagon", options=limited)
    explain_stock(by_hand, replace(problem, options=limited))

    assert len(given_s) == 3
    assert sum(given_s) <= 3.0


def test_stock_that_does_not_bind_is_not_explained() -> None:
    problem = tight(T4=3, A100=1)

    assert explain_stock(plan_of(problem), problem) == ()
