"""Apps in virtual time: fan-outs, deadlines behind one another, and both ways to simulate."""

from itertools import count

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.dispatch.apps.app_dispatcher import (
    AppRun,
    AppTable,
    AppTracker,
    ModuleTable,
    app_tables,
)
from headrace.dispatch.topology import Topology
from headrace.domain.app import FanOut
from headrace.domain.errors import DocumentError, PlanError
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.metrics import Summary
from headrace.planning import solve
from headrace.simulation.apps.fan_out import draw_calls
from headrace.simulation.apps.flow import flow
from headrace.simulation.apps.for_arrivals import plan_for_arrivals
from headrace.simulation.apps.headroom import attained
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.slower import slower_of
from headrace.verify import verify
from helpers.apps import make_app_problem
from helpers.problems import make_problem


def planned(slo_ms: float = 200.0) -> tuple[Plan, Problem]:
    problem = make_app_problem(slo_ms=slo_ms)
    plan = solve(problem).plan
    assert plan is not None
    return plan, problem


def diamond() -> AppTable:
    """a -> b, c -> d, with budgets of 10, 20, 30 and 40 us; a -> d as well."""
    before = ((), (0,), (0,), (0, 1, 2))
    after = ((1, 2, 3), (3,), (3,), ())
    return AppTable(
        name="app",
        slo_us=100,
        priority=0,
        modules=tuple(
            ModuleTable(
                name=name,
                model=i,
                before=before[i],
                after=after[i],
                budget_us=10 * (i + 1),
                behind_us=(70, 40, 40, 0)[i],
            )
            for i, name in enumerate("abcd")
        ),
    )


def test_a_module_is_called_once_all_before_it_are_over_and_only_once() -> None:
    tracker = AppTracker([diamond()])
    run = tracker.open(7, "app", 100, lambda run, module: (1, 0, 2, 1)[module])
    (a,) = tracker.start(run, 0).calls

    step = tracker.on_answered(a.id, 10)

    assert [(call.module, call.number) for call in step.calls] == [(2, 0), (2, 1)]
    assert tracker.on_answered(step.calls[0].id, 20).calls == []
    (d,) = tracker.on_answered(step.calls[1].id, 25).calls
    assert (d.module, d.deadline_at_us) == (3, 100)
    ended = tracker.on_answered(d.id, 60).ended
    assert ended is not None
    assert ended.state == "answered"
    assert tracker.in_flight == 0


def test_a_refused_call_cancels_its_siblings_and_what_would_follow() -> None:
    tracker = AppTracker([diamond()])
    run = tracker.open(7, "app", 100, lambda run, module: 1)
    (a,) = tracker.start(run, 0).calls
    b, c = tracker.on_answered(a.id, 10).calls

    step = tracker.on_refused(b.id, "deadline", 5)

    assert step.cancels == [c.id]
    assert step.ended is not None
    assert (step.ended.reason, step.ended.module) == ("deadline", "b")
    assert tracker.on_answered(c.id, 20).calls == []


def test_a_request_that_calls_nothing_is_answered_at_once() -> None:
    run = AppRun(
        id=0,
        table=diamond(),
        deadline_at_us=100,
        priority=0,
        next_call=count().__next__,
        fan_out=lambda run, module: 0,
    )

    step = run.start(0)

    assert step.calls == []
    assert step.ended is not None
    assert step.ended.state == "answered"


@pytest.mark.parametrize(
    "fan_out",
    [
        FanOut(mean=2.3),
        FanOut(mean=2.3, distribution="poisson"),
        FanOut(mean=2.3, distribution="geometric"),
        FanOut(mean=1.25, distribution="empirical", weights=(1.0, 2.0, 0.0, 1.0)),
    ],
)
def test_drawn_calls_keep_the_mean(fan_out: FanOut) -> None:
    calls = draw_calls(fan_out, 100_000, np.random.default_rng(1))

    assert calls.min() >= 0
    assert calls.mean() == pytest.approx(fan_out.mean, rel=0.02)


def test_an_app_under_uniform_arrivals_is_always_in_time() -> None:
    plan, problem = planned()
    arrivals = [Arrival(at_us=round(i * 1e6 / 60), model="traffic") for i in range(600)]

    session = simulate_apps(plan, problem.profiles, arrivals, jitter=False)
    report = session.report()

    assert report.models["traffic"].slo_attainment == 1.0
    assert report.models["traffic.vehicle"].arrived == 1_500
    assert report.total.arrived == 600


def test_both_ways_to_simulate_an_app_agree_to_the_microsecond() -> None:
    plan, problem = planned(slo_ms=400.0)
    rng = np.random.default_rng(3)
    at_us = np.cumsum(rng.exponential(1e6 / 50, 400)).astype(np.int64)
    arrivals = [Arrival(at_us=int(at), model="traffic") for at in at_us]

    session = simulate_apps(plan, problem.profiles, arrivals, jitter=False, seed=5)
    quick = flow(
        Topology.from_plan(plan, problem.profiles),
        plan.apps[0].app,
        app_tables(plan)[0],
        at_us,
        policy="batch-aware",
        seed=5,
    )

    slow = [
        -1 if one.ended_at_us is None else one.ended_at_us for one in session.outcomes["traffic"]
    ]
    assert -1 not in slow, "refusals are where the two may differ"
    assert quick.ended_at_us.tolist() == slow


def test_headroom_for_poisson_arrivals_attains_with_other_arrivals_too() -> None:
    problem = make_app_problem(slo_ms=150.0)

    room = plan_for_arrivals(problem, "poisson")

    assert verify(room.plan, problem.profiles) == []
    assert room.plan.deployments[0].rate_rps == 60.0
    assert room.premium > 0
    assert attained(room.plan, problem.profiles, "poisson", 99, requests=4_000) >= 0.985
    assert "simulated (poisson" in room.plan.options.margin_reason


def test_a_plan_that_deploys_what_its_app_has_not_is_refused() -> None:
    plan, problem = planned()
    app = plan.apps[0].app.name
    astray = replace(plan.deployments[0], module="gone")

    with pytest.raises(PlanError, match=f"app '{app}': has no module 'gone'"):
        simulate_apps(
            replace(plan, deployments=(astray, *plan.deployments[1:])), problem.profiles, ()
        )


def test_headroom_needs_an_app() -> None:
    with pytest.raises(DocumentError, match="--margin auto"):
        plan_for_arrivals(make_problem(), "poisson")


def test_modules_of_apps_can_be_slower_than_profiled() -> None:
    plan, problem = planned(slo_ms=400.0)
    topology = Topology.from_plan(plan, problem.profiles)
    [claim] = plan.apps
    arrivals = [Arrival(at_us=50_000 * i, model=claim.app.name) for i in range(60)]

    def simulated(*given: str) -> Summary:
        slower = slower_of(topology, {slot.name: slot.device for slot in plan.slots}, given)
        session = simulate_apps(plan, problem.profiles, arrivals, jitter=False, slower=slower)
        return session.report(None).total

    usual, slowed, late = simulated(), simulated("1.5"), simulated("9")
    assert usual.slo_attainment == 1.0
    assert (late.slo_attainment or 0.0) < 0.2
    assert usual.latency is not None
    assert slowed.latency is not None
    assert slowed.latency.p50_us > usual.latency.p50_us + 20_000
