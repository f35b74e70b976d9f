"""How many requests of a model may wait: the same number in every simulation as on a server."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import sha256_file, write_document
from headrace.cli import app
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent, Dropped
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.metrics import Report
from headrace.planning import solve
from headrace.serving.engine.served_plan import ServiceOptions
from headrace.simulation.apps.migration import simulate_app_migration
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.migration import simulate_migration
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate
from helpers.apps import make_app_problem
from helpers.problems import make_problem

UNHURRIED_US = 10**9
"""Requests with more time than their model's objective wait: nothing is promised them early."""


def planned(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assert plan is not None
    return plan


def at_once(name: str, count: int) -> list[Arrival]:
    return [Arrival(at_us=0, model=name, timeout_us=UNHURRIED_US) for _ in range(count)]


def turned_away(events: Sequence[AnyEvent]) -> int:
    """Of those that come at once; calls of an app's later modules are not among them."""
    refused = [event for event in events if isinstance(event, Dropped) and not event.at_us]
    return sum(event.reason == "queue-full" for event in refused)


def alone(problem: Problem, plan: Plan, count: int, limit: int) -> Sequence[AnyEvent]:
    return simulate(
        plan, problem.profiles, at_once(plan.deployments[0].model, count), queue_limit=limit
    )[1]


def with_a_servers_log(problem: Problem, plan: Plan, count: int, limit: int) -> Sequence[AnyEvent]:
    header = Topology.from_plan(plan, problem.profiles).event_log_header("live", "reservation")
    arrivals = at_once(plan.deployments[0].model, count)
    return simulate(plan, problem.profiles, arrivals, times=(header, []), queue_limit=limit)[1]


def moving(problem: Problem, plan: Plan, count: int, limit: int) -> Sequence[AnyEvent]:
    of = (plan, problem.profiles)
    arrivals = at_once(plan.deployments[0].model, count)
    run = simulate_migration(of, of, arrivals, at_us=UNHURRIED_US, queue_limit=limit)
    return list(chain.from_iterable(epoch.events for epoch in run.epochs))


def of_apps(problem: Problem, plan: Plan, count: int, limit: int) -> Sequence[AnyEvent]:
    arrivals = at_once(plan.apps[0].app.name, count)
    return simulate_apps(
        plan, problem.profiles, arrivals, policy="reservation", queue_limit=limit
    ).events


def apps_moving(problem: Problem, plan: Plan, count: int, limit: int) -> Sequence[AnyEvent]:
    of = (plan, problem.profiles)
    run = simulate_app_migration(
        *(of, of, at_once(plan.apps[0].app.name, count)),
        at_us=UNHURRIED_US,
        policy="reservation",
        queue_limit=limit,
    )
    return run.session.events


@pytest.mark.parametrize("simulated", [alone, with_a_servers_log, moving, of_apps, apps_moving])
def test_a_simulation_lets_as_many_wait_as_it_is_told(
    simulated: Callable[[Problem, Plan, int, int], Sequence[AnyEvent]],
) -> None:
    problem = make_app_problem() if "apps" in simulated.__name__ else make_problem()
    plan = planned(problem)
    strict, lenient = (turned_away(simulated(problem, plan, 400, limit)) for limit in (5, 9))
    assert strict > 0
    assert strict - lenient == 4


def test_unless_told_it_lets_as_many_wait_as_a_server_does() -> None:
    problem = make_problem()
    plan = planned(problem)
    arrivals = at_once(plan.deployments[0].model, QUEUE_LIMIT + 100)
    _, unsaid = simulate(plan, problem.profiles, arrivals)
    _, served = simulate(plan, problem.profiles, arrivals, queue_limit=ServiceOptions().queue_limit)
    assert turned_away(unsaid) == turned_away(served) > 0


def test_the_command_takes_the_limit(tmp_path: Path) -> None:
    problem = make_problem()
    plan = planned(problem)
    (ref,) = plan.profiles
    write_document(problem.profiles[ref.model], tmp_path / "m.json")
    kept = replace(ref, path="m.json", sha256=sha256_file(tmp_path / "m.json"))
    write_document(replace(plan, profiles=(kept,)), tmp_path / "plan.json")
    (tmp_path / "arrivals.csv").write_text("at_us,timeout_ms\n" + "0,1000000\n" * 100)
    command = ["simulate", str(tmp_path / "plan.json"), "--json"]
    arrivals = ["--arrivals", str(tmp_path / "arrivals.csv")]

    refused = []
    for stated in ([], ["--queue-limit", "9"], ["--queue-limit", "5"]):
        found = CliRunner().invoke(app, [*command, *arrivals, *stated])
        report = msgspec.json.decode(found.stdout, type=Report)
        refused.append(report.total.dropped.get("queue-full", 0))

    unsaid, lenient, strict = refused
    assert unsaid == 0
    assert strict == lenient + 4 > 4
