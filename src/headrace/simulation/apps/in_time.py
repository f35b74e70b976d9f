"""Plans of apps whose requests are in time when they come at equal gaps, calls as they are made.

Worst cases of modules are for calls at equal gaps (Theorem 1). A request that calls a module four
times makes these calls at once: where requests are rare, they wait for each other, and a plan that
keeps every worst case may answer no request in time. So a plan is simulated with requests at equal
gaps before it is written. Where it is late, plans with more and more room are tried, as for other
arrivals (`headroom`); where none helps, the refusal names an SLO that was tried (decision 0088).
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from math import ceil

from msgspec.structs import replace

from headrace.domain.app import App
from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.simulation.apps.headroom import (
    EVEN_ROOMS,
    SEED,
    Rooms,
    attained,
    attains,
)
from headrace.simulation.apps.room_per_app import Room, cheapest_with_room, options_for_all

ATTAINMENT = 0.99
"""In time / arrived, of every app."""

SURELY = 0.995
"""With an SLO that a refusal names."""

REQUESTS = 2_000
"""Simulated per app."""

LONGER = 1.25
"""From one SLO that is tried to the next."""
STEPS = 14
"""SLOs that are tried: the last is more than twenty times what was asked for."""

TRIED_MARGINS = (0.0, 0.3, 0.6, 0.8)
"""With it; they are among those of `EVEN_ROOMS`."""
HALVINGS = 4
"""Of the last step."""

NAMED_SLO = re.compile(r"an SLO of ([\d.]+ ms)(?:, with which it does)?")
"""In what planners of apps say."""

Planning = Callable[[Problem], PlanResult]


def plan_in_time(
    problem: Problem,
    planning: Planning,
    *,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The planner's plan if it is in time, else the cheapest of those with room that is.

    Args:
        planning: any planner of apps.

    Returns:
        The plan; its `runtime_s` is all of the time that this took.

    Raises:
        InfeasibleError: no plan exists, or none that is in time; the message says what would do.
    """
    began = Deadline(problem.options.time_limit_s)
    plan = _planned(problem, planning, on_progress)
    return replace(plan, runtime_s=began.spent_s)


def _planned(problem: Problem, planning: Planning, on_progress: Callable[[str], None]) -> Plan:
    result = planning(problem)
    if result.plan is None:
        raise InfeasibleError(_refused(problem, result, on_progress))
    on_progress("simulating")
    share = even_attainment(result.plan, problem.profiles)
    if share >= ATTAINMENT:
        return result.plan
    limit = Deadline(problem.options.time_limit_s)
    try:
        found = _with_room(problem, on_progress)
    except OutOfTime:
        raise InfeasibleError(_out_of_time(problem, share)) from None
    if found is None:
        raise InfeasibleError(_late(problem, share, limit, on_progress))
    return found


def even_attainment(plan: Plan, profiles: Mapping[str, Profile]) -> float:
    """In time / arrived, of the app that attains least, with requests of each at equal gaps."""
    return attained(plan, profiles, "uniform", SEED, requests=REQUESTS)


def _with_room(problem: Problem, on_progress: Callable[[str], None]) -> Plan | None:
    """Plans are not made to keep worst cases besides: that requests are in time says more.

    Raises:
        OutOfTime: the limit passed before all room was tried.
    """

    def planning(options: PlanOptions) -> Plan | None:
        return solve(replace(problem, options=options)).plan

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


def _refused(problem: Problem, result: PlanResult, on_progress: Callable[[str], None]) -> str:
    """The planner's words; where calls of one request come at once, with an SLO that was simulated
    in place of the planner's, which is for calls one by one."""
    said = result.refusal or "no plan"
    if not NAMED_SLO.search(said) or not any(map(_calls, problem.apps)):
        return said
    longer = _longer_slo(problem, Deadline(problem.options.time_limit_s), on_progress)
    if longer is None:
        return NAMED_SLO.sub("an SLO that is more than \\1", said)
    slos = _slos(problem, longer)
    return NAMED_SLO.sub(f"an SLO of {slos}, simulated with all calls of a request at once", said)


def _late(
    problem: Problem, share: float, limit: Deadline, on_progress: Callable[[str], None]
) -> str:
    longer = _longer_slo(problem, limit, on_progress)
    advice = f"an SLO of {_slos(problem, longer)}" if longer else "a longer SLO"
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
    """
    Args:
        with_room: what became of plans with room, after the part in time of the one without.
    """
    together = "; ".join(
        f"{app.name!r} calls {', '.join(_calls(app))}" for app in problem.apps if _calls(app)
    )
    said = f"; at once a request of {together}" if together else ""
    slos = ", ".join(f"{app.name}: {app.slo_us / 1000:g} ms" for app in problem.apps)
    return (
        "requests would be late: there is a plan for calls at equal gaps, and calls come otherwise"
        f"\n  needs     {ATTAINMENT:.0%} in time with requests at equal gaps{said}\n"
        f"  has       {share:.2%} in time{with_room} (SLO of {slos})\n"
        f"  try       {advice}, faster devices, or fewer calls of more items each"
    )


def _calls(app: App) -> list[str]:
    return [
        f"{module.name} {ceil(module.fan_out.mean)} times"
        for module in app.modules
        if module.fan_out.mean > 1
    ]


def _slos(problem: Problem, times: float) -> str:
    return ", ".join(f"{app.name}: {_longer_us(app, times) / 1000:g} ms" for app in problem.apps)


def _longer_us(app: App, times: float) -> int:
    """Whole milliseconds, so that it can be typed."""
    return ceil(app.slo_us * times / 1000) * 1000


def _longer_slo(
    problem: Problem, limit: Deadline, on_progress: Callable[[str], None]
) -> float | None:
    """How many times as long all SLOs of apps would have to be; None: not found in time."""

    def does(times: float) -> bool:
        on_progress(f"trying an SLO {times:g} times as long")
        apps = tuple(replace(app, slo_us=_longer_us(app, times)) for app in problem.apps)
        for part in TRIED_MARGINS:
            margin = problem.options.margin + part * (1 - problem.options.margin)
            options = options_for_all(problem, Room(0.0, margin))
            plan = solve(replace(problem, apps=apps, options=options)).plan
            if limit.passed:
                return False
            if plan is not None and attains(
                plan, problem.profiles, "uniform", SEED, SURELY, requests=REQUESTS
            ):
                return True
        return False

    too_short, times = 1.0, LONGER
    for _ in range(STEPS):
        if limit.passed:
            return None
        if does(times):
            break
        too_short, times = times, times * LONGER
    else:
        return None
    for _ in range(HALVINGS):
        middle = (too_short + times) / 2
        if limit.passed:
            break
        if does(middle):
            times = middle
        else:
            too_short = middle
    return times
