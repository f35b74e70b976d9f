"""Plans of apps whose requests are in time when they come at equal gaps, calls as they are made.

Worst cases of modules are for calls at equal gaps (Theorem 1). A request that calls a module four
times makes these calls at once: where requests are rare, they wait for each other, and a plan that
keeps every worst case may answer no request in time. So a plan is simulated with requests at equal
gaps before it is written. Where it is late, plans with more and more room are tried, as for other
arrivals (`headroom`); where none helps, the refusal names an SLO that was tried (decision 0088).
Where modules that take turns are late, plans with devices of their own are tried first (`apart`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.simulation.apps.apart import in_proportion, may_take_turns, on_own_devices
from headrace.simulation.apps.headroom import (
    EVEN_ROOMS,
    SEED,
    Rooms,
    attained,
    attains,
)
from headrace.simulation.apps.room_per_app import Room, cheapest_with_room
from headrace.simulation.apps.what_would_do import RoomTrial, calls, late_text

ATTAINMENT = 0.99
"""In time / arrived, of every app."""

SURELY = 0.995
"""With what a refusal names."""

REQUESTS = 2_000
"""Simulated per app."""

TRIED = (
    Room(0.0, 0.0),
    Room(0.5, 0.0),
    Room(0.0, 0.3),
    Room(1.0, 0.3),
    Room(0.0, 0.6),
    Room(0.0, 0.8),
)
"""With what a refusal names; they are among those of `EVEN_ROOMS`."""

LEAST_S = 0.05
"""For plans with room, however long planning took."""

Planning = Callable[[Problem], PlanResult]


def plan_in_time(
    problem: Problem,
    planning: Planning,
    *,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The planner's plan if it is in time, else the cheapest that is of those with room, and with
    devices of their own.

    Args:
        planning: any planner of apps; it and plans with room take twice the time limit at most,
            and those with devices of their own as long again.

    Returns:
        The plan; its `runtime_s` is all of the time that this took.

    Raises:
        InfeasibleError: no plan exists, or none that is in time; the message says what would do.
    """
    limit = Deadline(2 * problem.options.time_limit_s)
    plan = _planned(problem, planning, limit, on_progress)
    options = replace(plan.options, time_limit_s=problem.options.time_limit_s)
    return replace(plan, options=options, runtime_s=limit.spent_s)


def _planned(
    problem: Problem, planning: Planning, limit: Deadline, on_progress: Callable[[str], None]
) -> Plan:
    """
    Raises:
        InfeasibleError: see `plan_in_time`.
    """
    found = _first(problem, planning, on_progress)
    if found.in_time is not None:
        return found.in_time
    apart = _apart(problem, planning, found.result, on_progress)
    if found.result.plan is None:
        if apart is not None:
            return apart
        raise InfeasibleError(_refused(problem, found.result, limit, on_progress))
    try:
        with_room = _with_room(problem, limit, on_progress)
    except OutOfTime:
        if apart is not None:
            return apart
        raise InfeasibleError(_out_of_time(problem, found.share)) from None
    in_time = [plan for plan in (with_room, apart) if plan is not None]
    if not in_time:
        raise InfeasibleError(_late(problem, found.share, limit, on_progress))
    return min(in_time, key=lambda plan: plan.objective)


@dataclass(frozen=True, slots=True, kw_only=True)
class _First:
    """What the planner answers, without room."""

    result: PlanResult
    share: float
    """In time / arrived; 0 without a plan."""

    @property
    def in_time(self) -> Plan | None:
        return self.result.plan if self.share >= ATTAINMENT else None


def _first(problem: Problem, planning: Planning, on_progress: Callable[[str], None]) -> _First:
    result = planning(problem)
    if result.plan is None:
        return _First(result=result, share=0.0)
    on_progress("simulating")
    return _First(result=result, share=even_attainment(result.plan, problem.profiles))


def _apart(
    problem: Problem,
    planning: Planning,
    result: PlanResult,
    on_progress: Callable[[str], None],
) -> Plan | None:
    """A plan in time whose modules have devices of their own; None: there is none, none was found
    in time, or they have them anyhow.

    Args:
        result: of the problem, not in time.
    """
    if not may_take_turns(problem) or result.stopped == "infeasible":
        return None
    limit = Deadline(2 * problem.options.time_limit_s)
    by_load = in_proportion(problem)
    found = _first(by_load, planning, on_progress)
    plan = found.in_time
    if plan is None and found.result.plan is not None:
        try:
            plan = _with_room(by_load, limit, on_progress)
        except OutOfTime:
            return None
    return None if plan is None else on_own_devices(plan, result.plan)


def even_attainment(plan: Plan, profiles: Mapping[str, Profile]) -> float:
    """In time / arrived, of the app that attains least, with requests of each at equal gaps."""
    return attained(plan, profiles, "uniform", SEED, requests=REQUESTS)


def _with_room(
    problem: Problem, limit: Deadline, on_progress: Callable[[str], None]
) -> Plan | None:
    """Plans are not made to keep worst cases besides: that requests are in time says more.

    Args:
        limit: besides the problem's own.

    Raises:
        OutOfTime: time was out before all room was tried.
    """
    limit_s = max(LEAST_S, min(limit.left_s, problem.options.time_limit_s))
    problem = replace(problem, options=replace(problem.options, time_limit_s=limit_s))

    def planning(options: PlanOptions) -> Plan | None:
        return solve(replace(problem, options=options), advise=False).plan

    found = cheapest_with_room(
        problem,
        planning,
        rooms=_rooms(problem),
        arrivals="uniform",
        attainment=ATTAINMENT,
        on_progress=on_progress,
    )
    if found is None:
        return None
    beyond = "above" if found.premium >= 0 else "below"
    reason = (
        f"simulated (requests at equal gaps, their calls as they are made): {found.attainment:.2%}"
        f" in time; {abs(found.premium):.1%} {beyond} the cost of calls at equal gaps;"
        f" {found.tried} plans simulated"
    )
    return replace(found.plan, options=replace(found.plan.options, margin_reason=reason))


def _rooms(problem: Problem) -> Rooms:
    if problem.options.planner == "shares":
        # What it promises holds beside models too, whose rates are not the apps'.
        return dataclasses.replace(EVEN_ROOMS, rates=(0.0,))
    return EVEN_ROOMS


def _refused(
    problem: Problem, result: PlanResult, limit: Deadline, on_progress: Callable[[str], None]
) -> str:
    """The planner's words; where calls of one request come at once, with what was simulated in
    place of what the planner names, which is for calls one by one."""
    said = result.refusal or "no plan"
    if not any(map(calls, problem.apps)):
        return said
    return _trial(problem, limit, on_progress).completed(said)


def _trial(problem: Problem, limit: Deadline, on_progress: Callable[[str], None]) -> RoomTrial:
    def in_time(plan: Plan) -> bool:
        return attains(plan, problem.profiles, "uniform", SEED, SURELY, requests=REQUESTS)

    return RoomTrial(
        problem=problem,
        rooms=tuple(room for room in TRIED if room.rate_headroom in _rooms(problem).rates),
        in_time=in_time,
        limit=limit,
        how="with all calls of a request at once",
        on_progress=on_progress,
    )


def _late(
    problem: Problem, share: float, limit: Deadline, on_progress: Callable[[str], None]
) -> str:
    advice = _trial(problem, limit, on_progress).longer_slos() or "a longer SLO"
    rooms, least = _rooms(problem), problem.options.margin
    more_rate = f"{rooms.rates[-1]:.0%} more rate or " if rooms.rates[-1] else ""
    margin = least + rooms.margins[-1] * (1 - least)
    with_room = f", and too few with up to {more_rate}{margin:.0%} of the SLO kept free"
    return _text_of_late(problem, share, with_room, advice)


def _out_of_time(problem: Problem, share: float) -> str:
    with_room = ", and too few with the room that was tried before time ran out"
    advice = f"a --time-limit-s of more than {problem.options.time_limit_s:g}, a longer SLO"
    return _text_of_late(problem, share, with_room, advice)


def _text_of_late(problem: Problem, share: float, with_room: str, advice: str) -> str:
    needed = f"{ATTAINMENT:.0%} in time with requests at equal gaps"
    return late_text(problem, needed=needed, share=share, with_room=with_room, advice=advice)
