"""What an app's own code takes: read from a server's log, and part of what is simulated."""

from bisect import bisect_right

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.dispatch.apps.app_dispatcher import AppTable, app_tables
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Arrived, Called, EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.simulation.apps.flow import flow
from headrace.simulation.apps.scripts import LEAST_SCRIPTS, Script, ScriptedCall, scripts_of
from headrace.simulation.apps.session import AppSession, simulate_apps
from headrace.simulation.offered.arrivals import Arrival, uniform
from headrace.verify import verify
from helpers.apps import make_app_problem
from helpers.served_app import app_plan

MODELS = ("app.first", "app.second", "app")
HEADER = EventLogHeader(
    clock="live", policy="none", models=MODELS, pipelines=((), (), ()), slots=(), nodes=()
)
APP = 1 << 40
Calls = list[tuple[str, int, int]]
"""Module, made at, answered at."""


def table() -> AppTable:
    return app_tables(app_plan())[0]


def log_of(calls: Calls, ended_at_us: int, times: int = LEAST_SCRIPTS) -> list[AnyEvent]:
    """The same request several times, at 0."""
    events: list[AnyEvent] = []
    for run in range(times):
        request = APP + run
        events.append(Arrived(0, request, MODELS.index("app"), 100_000))
        for number, (module, made_at_us, answered_at_us) in enumerate(calls):
            call = 100 * run + number
            events.append(Arrived(made_at_us, call, MODELS.index(f"app.{module}"), 100_000))
            events.append(Called(made_at_us, request, call))
            events.append(Answered(answered_at_us, call, 0))
        events.append(Answered(ended_at_us, request, -1))
    return events


def script_of(calls: Calls, ended_at_us: int) -> Script:
    found = scripts_of([table()], HEADER, log_of(calls, ended_at_us))["app"]
    assert len(found) == LEAST_SCRIPTS
    assert len(set(found)) == 1
    return found[0]


def test_the_time_between_an_answer_and_the_calls_that_waited_for_it_is_the_apps_own() -> None:
    calls = [("first", 300, 1_000), ("second", 1_400, 2_000), ("second", 1_500, 2_500)]

    assert script_of(calls, 2_800) == Script(
        calls=(
            ScriptedCall(module=0, after=(), lead_us=300),
            ScriptedCall(module=1, after=(0,), lead_us=400),
            ScriptedCall(module=1, after=(0,), lead_us=500),
        ),
        rest_us=300,
    )


def test_chains_that_run_beside_each_other_wait_for_their_own_answers_only() -> None:
    calls = [
        ("first", 300, 2_000),
        ("first", 300, 1_000),
        ("second", 1_100, 1_500),
        ("second", 2_200, 2_600),
    ]
    script = script_of(calls, 3_000)

    assert [(call.after, call.lead_us) for call in script.calls[2:]] == [((1,), 100), ((0,), 200)]


def test_calls_of_one_module_in_a_row_wait_for_each_other() -> None:
    calls = [("first", 300, 1_000), ("first", 1_200, 2_000), ("first", 2_500, 3_000)]
    script = script_of(calls, 3_100)

    assert [(call.after, call.lead_us) for call in script.calls] == [
        ((), 300),
        ((0,), 200),
        ((1,), 500),
    ]


def test_calls_of_one_module_that_are_out_together_do_not_wait_for_each_other() -> None:
    calls = [("first", 300, 3_000), ("first", 300, 1_000), ("first", 1_500, 2_000)]
    script = script_of(calls, 3_100)

    assert [call.after for call in script.calls] == [(), (), ()]


def test_calls_that_all_waited_for_all_do_so_in_the_script() -> None:
    calls = [
        ("first", 300, 2_000),
        ("first", 300, 1_000),
        ("second", 2_100, 2_500),
        ("second", 2_200, 2_600),
    ]
    script = script_of(calls, 3_000)

    assert [sorted(call.after) for call in script.calls[2:]] == [[0, 1], [0, 1]]


def test_a_call_that_nobody_waited_for_is_no_part_of_the_request() -> None:
    events = log_of([("first", 300, 1_000)], 1_500)
    left = [event for event in events if not (isinstance(event, Answered) and event.request == 0)]

    found = scripts_of([table()], HEADER, left)["app"]

    assert sorted(len(script.calls) for script in found) == [0] + [1] * (LEAST_SCRIPTS - 1)


def test_too_few_requests_say_nothing_of_an_app() -> None:
    events = log_of([("first", 300, 1_000)], 1_500, times=LEAST_SCRIPTS - 1)

    assert scripts_of([table()], HEADER, events) == {}


# -- simulated -----------------------------------------------------------------------------------

CODE_US = {"detect": 5_000, "vehicle": 7_000, "face": 3_000}
LAST_US = 2_000


def problem_with(code_us: dict[str, int], last_us: int, gateway_us: int = 0) -> Problem:
    problem = make_app_problem(slo_ms=400.0)
    (app,) = problem.apps
    modules = tuple(replace(m, code_us=code_us.get(m.name, 0)) for m in app.modules)
    profiles = {n: replace(p, gateway_us=gateway_us) for n, p in problem.profiles.items()}
    return replace(
        problem, apps=(replace(app, modules=modules, code_us=last_us),), profiles=profiles
    )


def planned(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    return plan


def alone(problem: Problem, plan: Plan) -> AppSession:
    """One request at a time."""
    arrivals = uniform("traffic", 1.0, 20.0)
    return simulate_apps(plan, problem.profiles, arrivals, jitter=False)


def mean_us(session: AppSession) -> float:
    latency = session.report().total.latency
    assert latency is not None
    return latency.mean_us


def test_what_an_apps_code_takes_leaves_the_budget_of_its_modules() -> None:
    free, costly = planned(problem_with({}, 0)), planned(problem_with(CODE_US, LAST_US, 100))

    # Of both paths the longer: detect, then vehicle with 2.5 calls.
    taken_us = 5_000 + 100 + 7_000 + 250 + LAST_US
    assert free.apps[0].budget_us - costly.apps[0].budget_us == taken_us
    assert costly.apps[0].worst_case_us <= costly.apps[0].budget_us


def test_a_call_leaves_time_for_the_code_behind_its_module() -> None:
    free, costly = (
        app_tables(planned(problem_with(code_us, last_us)))[0]
        for code_us, last_us in (({}, 0), (CODE_US, LAST_US))
    )
    own = {m.name: (m.behind_us, m.budget_us) for m in costly.modules}

    assert own["vehicle"][0] == own["face"][0] == LAST_US
    assert own["detect"][0] == LAST_US + max(
        CODE_US[name] + own[name][1] for name in ("vehicle", "face")
    )
    assert [m.behind_us for m in free.modules[1:]] == [0, 0]


def test_simulated_requests_take_the_apps_code_and_the_gateway() -> None:
    free, costly = problem_with({}, 0), problem_with(CODE_US, LAST_US)
    plan, costly_plan = planned(free), planned(costly)
    same_machines = replace(costly_plan, slots=plan.slots, deployments=plan.deployments)
    before = alone(free, plan)
    with_code = alone(costly, same_machines)
    with_gateway = alone(problem_with(CODE_US, LAST_US, 400), same_machines)

    more_us = mean_us(with_code) - mean_us(before)
    assert CODE_US["detect"] + CODE_US["face"] + LAST_US <= more_us
    assert more_us <= CODE_US["detect"] + CODE_US["vehicle"] + LAST_US
    assert mean_us(with_gateway) >= mean_us(with_code) + 2 * 400


def served(session: AppSession) -> tuple[EventLogHeader, list[AnyEvent]]:
    """The log that a server would have written of requests that never met: with the app."""
    header = session.header
    outcomes = session.outcomes["traffic"]
    events = list(session.events)
    for number, outcome in enumerate(outcomes):
        assert outcome.ended_at_us is not None
        app = len(header.models)
        events.append(Arrived(outcome.arrived_at_us, APP + number, app, outcome.deadline_at_us))
        events.append(Answered(outcome.ended_at_us, APP + number, -1))
    starts = [outcome.arrived_at_us for outcome in outcomes]
    for event in session.events:
        if isinstance(event, Arrived):
            owner = APP + bisect_right(starts, event.at_us) - 1
            events.append(Called(event.at_us, owner, event.request))
    return replace(
        header, models=(*header.models, "traffic"), pipelines=(*header.pipelines, ())
    ), sorted(events, key=lambda event: event.at_us)


def test_what_a_servers_log_shows_of_an_apps_code_is_what_is_simulated() -> None:
    free, costly = problem_with({}, 0), problem_with(CODE_US, LAST_US, 400)
    plan = planned(free)
    same_machines = replace(planned(costly), slots=plan.slots, deployments=plan.deployments)
    seen = alone(costly, same_machines)

    arrivals = uniform("traffic", 1.0, 200.0)
    as_planned = simulate_apps(plan, free.profiles, arrivals)
    as_served = simulate_apps(plan, free.profiles, arrivals, times=served(seen))

    assert mean_us(as_planned) < mean_us(seen) - 10_000
    assert mean_us(as_served) == pytest.approx(mean_us(seen), rel=0.02)
    # Requests have the calls that they had in the log, in the same proportions.
    calls = {name: summary.arrived for name, summary in as_served.report().models.items()}
    assert calls["traffic.vehicle"] == pytest.approx(2.5 * 200, rel=0.05)


def test_a_request_whose_function_is_not_done_by_its_deadline_has_no_answer() -> None:
    problem = problem_with({}, 0)
    plan = planned(problem)
    log = served(alone(problem_with({}, 500_000), plan_with_code(plan, 500_000)))

    session = simulate_apps(plan, problem.profiles, uniform("traffic", 1.0, 5.0), times=log)

    assert {outcome.reason for outcome in session.outcomes["traffic"]} == {"deadline"}


def plan_with_code(plan: Plan, last_us: int) -> Plan:
    (claim,) = plan.apps
    return replace(plan, apps=(replace(claim, app=replace(claim.app, code_us=last_us)),))


def test_both_ways_to_simulate_count_the_code_alike() -> None:
    problem = problem_with(CODE_US, LAST_US)
    plan = planned(problem)
    arrivals = uniform("traffic", 40.0, 10.0)
    session = simulate_apps(plan, problem.profiles, arrivals, jitter=False, seed=5)
    quick = flow(
        Topology.from_plan(plan, problem.profiles),
        plan.apps[0].app,
        app_tables(plan)[0],
        arrivals_us(arrivals),
        policy="batch-aware",
        seed=5,
    )

    assert [o.ended_at_us for o in session.outcomes["traffic"]] == quick.ended_at_us.tolist()


def arrivals_us(arrivals: list[Arrival]) -> Ints:
    return np.array([arrival.at_us for arrival in arrivals], dtype=np.int64)


def test_a_plan_that_forgets_the_apps_code_is_refused() -> None:
    problem = problem_with(CODE_US, LAST_US)
    plan = planned(problem_with({}, 0))
    forgetful = replace(plan, apps=(replace(plan.apps[0], app=problem.apps[0]),))

    assert "budget" in {found.check for found in verify(forgetful, problem.profiles)}


def test_calls_that_the_gateway_cannot_pass_are_refused_before_planning() -> None:
    problem = problem_with({}, 0, gateway_us=10_000)
    result = solve(problem)

    assert result.plan is None
    # 60 requests/s, each with 1 + 2.5 + 1.2 calls of 10 ms.
    assert "needs  2.82 s of every second" in (result.refusal or "")
    assert "10000 us per request of 'traffic.vehicle'" in (result.refusal or "")


def test_a_plan_with_more_calls_than_the_gateway_passes_is_no_plan() -> None:
    plan = planned(problem_with({}, 0))
    dear = problem_with({}, 0, gateway_us=10_000).profiles

    assert "gateway" in {found.check for found in verify(plan, dear)}
