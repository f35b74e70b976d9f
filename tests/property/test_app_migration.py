"""Plans of apps that follow each other: every request ends once, whichever plan has its calls."""

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.dispatch.changes.migration import How
from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, Arrived, Dropped
from headrace.domain.plan import Plan
from headrace.metrics import UNFINISHED
from headrace.planning import solve
from headrace.simulation.apps.migration import AppMigrationRun, Planned, simulate_app_migration
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.offered.arrivals import Arrival
from helpers.apps import make_app_problem
from helpers.lengthy import with_lengthy

SECOND_US = 1_000_000


def planned(slo_ms: float, rate_rps: float = 60.0) -> Planned:
    problem = make_app_problem(slo_ms=slo_ms)
    [app] = problem.apps
    problem = replace(problem, apps=(replace(app, rate_rps=rate_rps),))
    plan = solve(problem).plan
    assert plan is not None
    return plan, problem.profiles


@pytest.fixture(scope="module")
def lenient() -> Planned:
    return planned(400.0)


@pytest.fixture(scope="module")
def strict() -> Planned:
    """Shorter budgets, other batch sizes, and room for more."""
    return planned(250.0, 80.0)


def poisson(rps: float, seed: int, count: int = 240) -> list[Arrival]:
    gaps_us = np.random.default_rng(seed).exponential(SECOND_US / rps, count)
    return [Arrival(at_us=int(at_us), model="traffic") for at_us in np.cumsum(gaps_us)]


def assert_all_ended_once(run: AppMigrationRun, requests: int) -> None:
    assert run.migration.done_at_us is not None
    calls: Counter[int] = Counter()
    arrived = set()
    for log in run.migration.epochs:
        for event in log.events:
            if isinstance(event, Arrived):
                assert event.request not in arrived, "a call belongs to one plan"
                arrived.add(event.request)
            elif isinstance(event, Answered | Dropped):
                calls[event.request] += 1
    assert set(calls) == arrived
    assert set(calls.values()) == {1}
    [outcomes] = run.session.outcomes.values()
    assert len(outcomes) == requests
    assert UNFINISHED not in {outcome.reason for outcome in outcomes}


@pytest.mark.parametrize("how", ["drain", "flush"])
@pytest.mark.parametrize("policy", [None, "reservation"])
@pytest.mark.parametrize(
    "rps", with_lengthy([40.0, 150.0], lengthy=[40.0]), ids=["in its rate", "overloaded"]
)
def test_every_call_and_request_ends_once_across_a_change_of_plans(
    lenient: Planned, strict: Planned, how: How, policy: str | None, rps: float
) -> None:
    for seed in range(5):
        arrivals = poisson(rps, seed)
        at_us = arrivals[len(arrivals) // 2].at_us
        for old, new in ((lenient, strict), (strict, lenient)):
            run = simulate_app_migration(
                old, new, arrivals, at_us=at_us, how=how, policy=policy, seed=seed
            )
            assert_all_ended_once(run, len(arrivals))
            assert all(any(isinstance(e, Answered) for e in log.events) for log in run[0].epochs)


def test_an_app_in_its_rate_loses_no_request_when_its_plan_changes(
    lenient: Planned, strict: Planned
) -> None:
    arrivals = [Arrival(at_us=round(i * SECOND_US / 30), model="traffic") for i in range(240)]
    run = simulate_app_migration(lenient, strict, arrivals, at_us=4 * SECOND_US, jitter=False)
    outcomes = run.session.outcomes["traffic"]
    assert all(outcome.ended_at_us is not None for outcome in outcomes)
    report = run.session.report()
    assert report.models["traffic"].arrived == 240
    assert report.models["traffic.vehicle"].arrived == 600
    # Objectives are those of the plan in whose time a request arrives.
    slos_us = {outcome.deadline_at_us - outcome.arrived_at_us for outcome in outcomes}
    assert slos_us == {400_000, 250_000}


def test_until_the_plan_changes_all_goes_as_without_a_change(
    lenient: Planned, strict: Planned
) -> None:
    arrivals = poisson(40.0, 3)
    end_us = arrivals[-1].at_us
    alone = simulate_apps(lenient[0], lenient[1], arrivals, seed=3)
    run = simulate_app_migration(lenient, strict, arrivals, at_us=end_us + 5 * SECOND_US, seed=3)
    assert run.session.outcomes == alone.outcomes
    old, _ = run.migration.epochs
    assert [e for e in old.events if e.at_us <= end_us] == [
        e for e in alone.events if e.at_us <= end_us
    ]


def renamed(plan: Plan, name: str) -> Plan:
    [claim] = plan.apps
    return replace(
        plan,
        apps=(replace(claim, app=replace(claim.app, name=name)),),
        deployments=tuple(replace(deployment, app=name) for deployment in plan.deployments),
        slots=tuple(
            replace(
                slot,
                tenants=tuple(
                    replace(t, model=t.model.replace("traffic", name)) for t in slot.tenants
                ),
            )
            for slot in plan.slots
        ),
    )


def test_an_app_that_leaves_takes_its_unmade_calls_with_it(lenient: Planned) -> None:
    other = renamed(lenient[0], "other"), lenient[1]
    # The last one has made its first call when the plan changes.
    arrivals = [Arrival(at_us=at_us, model="traffic") for at_us in (0, SECOND_US)]
    run = simulate_app_migration(
        lenient, other, arrivals, at_us=SECOND_US + 1, policy="reservation", jitter=False
    )
    first, last = run.session.outcomes["traffic"]
    assert first.ended_at_us is not None
    assert (last.ended_at_us, last.reason) == (None, "draining")


def test_requests_for_an_app_that_has_left_are_told_and_not_counted(lenient: Planned) -> None:
    """As by the server, which knows its name no more."""
    other = renamed(lenient[0], "other"), lenient[1]
    arrivals = [Arrival(at_us=at_us, model="traffic") for at_us in (0, SECOND_US, 2 * SECOND_US)]
    run = simulate_app_migration(lenient, other, arrivals, at_us=SECOND_US // 2, jitter=False)

    assert run.migration.unserved == {"traffic": 2}
    [outcome] = run.session.outcomes["traffic"]
    assert outcome.ended_at_us is not None
    assert run.session.report().models["traffic"].arrived == 1


def test_requests_for_an_app_that_no_plan_has_had_are_a_mistake(lenient: Planned) -> None:
    other = renamed(lenient[0], "other"), lenient[1]
    for name, at_us in (("nobody", SECOND_US), ("other", 0)):
        with pytest.raises(PlanError, match=f"no app '{name}'"):
            simulate_app_migration(
                lenient, other, [Arrival(at_us=at_us, model=name)], at_us=SECOND_US // 2
            )
