"""Modules of apps in rounds on a shared slot: order, following, machines, and the promise."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from headrace.dispatch.apps.admission import admission
from headrace.dispatch.apps.app_dispatcher import AppTable, ModuleTable, app_tables
from headrace.dispatch.policies import policy_for
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Dispatched
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.domain.request import Request
from headrace.planning import solve
from headrace.simulation.apps.worst_cases import even_session, keep_worst_cases
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import exact_durations
from helpers.apps import make_app_problem
from helpers.sim import Sim
from helpers.topologies import make_route, make_stage, make_topology

TURN_US = 10_000


def on_one_slot(*models: int, follows: dict[int, int] | None = None) -> Topology:
    """As many requests in a turn of each model; all turns take 10 ms."""
    routes = [[make_route(make_stage([0], [TURN_US] * size))] for size in models]
    topology = make_topology(*routes, slo_us=200_000)
    led = tuple(
        replace(model, follows=(follows[i],), lead_us=500) if follows and i in follows else model
        for i, model in enumerate(topology.models)
    )
    return replace(topology, models=led, slot_duty_us=(TURN_US * len(models),))


def requests(*arrivals: tuple[int, int]) -> list[Request]:
    return [
        Request(id=i, model=model, arrived_at_us=at_us, deadline_at_us=at_us + 200_000)
        for i, (at_us, model) in enumerate(arrivals)
    ]


def batches(events: list[AnyEvent]) -> list[tuple[int, tuple[int, ...]]]:
    return [(e.model, e.requests) for e in events if isinstance(e, Dispatched)]


def run(topology: Topology, *arrivals: tuple[int, int]) -> list[AnyEvent]:
    return Sim(topology, policy="rounds", durations=exact_durations).run(requests(*arrivals))


def test_tenants_run_in_the_order_of_the_round_whoever_waits_longer() -> None:
    events = run(on_one_slot(2, 2, 2), (0, 1), (1_000, 0), (2_000, 1), (3_000, 2))
    # The round goes on behind the second model, and comes back to it last.
    assert [model for model, _ in batches(events)] == [1, 2, 0, 1]


def test_a_turn_takes_no_more_than_its_places_and_nobody_waits_longer_than_a_round() -> None:
    events = run(on_one_slot(2, 1), *[(i, 0) for i in range(5)], (5, 1))
    assert [(model, len(ids)) for model, ids in batches(events)] == [(0, 1), (1, 1), (0, 2), (0, 2)]


def test_the_slot_waits_for_calls_that_follow_the_batch_that_has_just_ended() -> None:
    arrivals = ((0, 0), (1_000, 0), (TURN_US + 300, 1))
    assert [m for m, _ in batches(run(on_one_slot(1, 1, follows={1: 0}), *arrivals))] == [0, 1, 0]
    # Without that, the first model would go round again.
    assert [m for m, _ in batches(run(on_one_slot(1, 1), *arrivals))] == [0, 0, 1]


def test_a_slot_does_not_wait_for_calls_that_do_not_come() -> None:
    events = run(on_one_slot(1, 1, follows={1: 0}), (0, 0), (1_000, 0))
    ended = [event.at_us for event in events if isinstance(event, Answered)]
    assert ended == [TURN_US, 2 * TURN_US + 500]


def test_requests_that_no_machine_collects_run_in_the_turn() -> None:
    own = make_route(make_stage([1], [40_000] * 4), name="own")
    turn = make_route(make_stage([0], [TURN_US] * 2), name="turn")
    topology = replace(make_topology([own, turn], slo_us=200_000), slot_duty_us=(TURN_US, None))
    events = run(topology, *[(i * 7_000, 0) for i in range(24)])
    used = {e.path[0].slot for e in events if isinstance(e, Dispatched)}
    assert used == {0, 1}
    assert sum(isinstance(event, Answered) for event in events) == 24


@pytest.mark.parametrize("places", [1, 2], ids=["a turn and no machine", "more than the turn has"])
def test_who_can_just_be_in_time_behind_what_runs_is_not_looked_at_again_until_it_ends(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the slot runs, being late comes no nearer: one microsecond, at every look."""
    own = make_route(make_stage([1], [TURN_US]), name="own")
    turn = make_route(make_stage([0], [TURN_US]), name="turn")
    first = make_route(make_stage([0], [TURN_US]))
    topology = make_topology([first], [own, turn] if places > 1 else [turn], slo_us=200_000)
    sim = Sim(replace(topology, slot_duty_us=(2 * TURN_US, None)), policy="rounds")
    if places > 1:
        sim.clock.call_at(0, lambda: sim.dispatcher.on_slot_lost(1))
    looks: list[int] = []
    schedule = SimClock.call_at

    def note(clock: SimClock, at_us: int, callback: Callable[[], None]) -> None:
        looks.append(at_us)
        schedule(clock, at_us, callback)

    monkeypatch.setattr(SimClock, "call_at", note)
    due_us = 2 * TURN_US
    asked = [Request(id=0, model=0, arrived_at_us=0, deadline_at_us=due_us)]
    asked += [
        Request(id=i, model=1, arrived_at_us=10, deadline_at_us=due_us)
        for i in range(1, places + 1)
    ]
    events = sim.run(asked)

    ends = {event.request: event.at_us for event in events if isinstance(event, Answered)}
    assert ends == {0: TURN_US, 1: due_us}
    assert len(looks) < 40


# -- whole apps -----------------------------------------------------------------------------------


def on_devices(rate_rps: float, slo_ms: float = 400.0) -> tuple[Plan, Problem]:
    base = make_app_problem(rate_rps=rate_rps, slo_ms=slo_ms)
    problem = changed(base, options=changed(base.options, bill="devices"))
    plan = solve(problem).plan
    assert plan is not None
    assert any(slot.duty_us is not None for slot in plan.slots)
    return plan, problem


def test_a_plan_with_turns_of_apps_is_dispatched_in_rounds() -> None:
    plan, problem = on_devices(20)
    assert policy_for(plan) == "rounds"
    topology = Topology.from_plan(plan, problem.profiles)
    followed = {model.name: model.follows for model in topology.models}
    assert any(followed.values())
    (slot,) = plan.slots
    turns = [route.turn for model in topology.models for route in model.routes]
    assert sorted(turns) == list(range(len(slot.tenants)))


@pytest.mark.parametrize("rate_rps", [5.0, 20.0, 60.0])
def test_an_app_on_shared_devices_answers_everything_in_time(rate_rps: float) -> None:
    plan, problem = on_devices(rate_rps)
    assert even_session(plan, problem.profiles).report().total.slo_attainment == 1.0


def test_a_plan_that_loses_requests_gets_head_room_where_they_are_lost() -> None:
    plan, problem = on_devices(20)
    # Planned for half of what comes.
    claim = plan.apps[0]
    busy = changed(plan, apps=(changed(claim, app=changed(claim.app, rate_rps=60.0)),))
    asked: list[dict[str, float]] = []

    def planning(headroom: dict[str, float]) -> object:
        asked.append(headroom)
        result = solve(problem)
        return result if headroom else changed(result, plan=busy)

    kept = keep_worst_cases(planning, problem.profiles)  # type: ignore[arg-type]
    assert kept.plan is not None
    assert len(asked) == 2
    assert set(asked[1]) <= {deployment.name for deployment in plan.deployments}


def test_the_door_of_an_app_in_turns_counts_only_what_cannot_run_yet() -> None:
    plan, problem = on_devices(20)
    [table] = app_tables(plan)
    topology = Topology.from_plan(plan, problem.profiles)
    fastest = [topology.models[module.model].fastest_us for module in table.modules]
    door = admission(plan, table, fastest)
    assert len(door.running) == len(door.rest_us) == len(table.modules)
    assert max(door.rest_us) == door.fastest_us
    assert min(door.rest_us) < door.fastest_us


def _before_another(round_us: int) -> AppTable:
    """A module of 17 ms, and one behind it that may take 327 ms and needs 20."""
    first = ModuleTable(
        name="orient", model=0, before=(), after=(1,), budget_us=17_000, behind_us=327_000,
        least_behind_us=20_000, round_us=round_us,
    )  # fmt: skip
    last = ModuleTable(
        name="recognise", model=1, before=(0,), after=(), budget_us=327_000, behind_us=0
    )
    return AppTable(name="ocr", slo_us=800_000, priority=1, modules=(first, last))


def test_a_call_that_has_fallen_behind_may_wait_a_round_for_its_turn() -> None:
    alone, in_turns = _before_another(0), _before_another(100_000)
    # With time for all budgets they are what counts, and with less their parts of it.
    assert alone.deadline_at_us(0, 700_000, 0) == in_turns.deadline_at_us(0, 700_000, 0) == 373_000
    assert alone.deadline_at_us(0, 200_000, 0) == 200_000 * 17 // 344
    assert in_turns.deadline_at_us(0, 200_000, 0) == 100_000
    # What follows keeps what it takes at least.
    assert in_turns.deadline_at_us(0, 90_000, 0) == 70_000
    assert in_turns.deadline_at_us(0, 10_000, 0) == alone.deadline_at_us(0, 10_000, 0)


def test_the_longest_round_of_a_modules_slots_is_known_to_its_app() -> None:
    problem = make_app_problem(rate_rps=20)
    plan = solve(changed(problem, options=changed(problem.options, bill="devices"))).plan
    assert plan is not None
    (slot,) = plan.slots
    (table,) = app_tables(plan)
    assert {module.round_us for module in table.modules} == {slot.duty_us}
    detect, vehicle = table.modules[table.index("detect")], table.modules[table.index("vehicle")]
    assert vehicle.least_behind_us == 0
    assert 0 < detect.least_behind_us < detect.behind_us
