"""Plans of apps for arrivals that are not uniform (decision 0017)."""

import dataclasses
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from headrace.dispatch.policies import policy_for
from headrace.domain.errors import DocumentError, InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.simulation.apps.headroom import HEADROOMS, ROOMS, SEED, Headroom
from headrace.simulation.apps.room_per_app import cheapest_with_room


def plan_for_arrivals(
    problem: Problem,
    arrivals: str,
    *,
    attainment: float = 0.99,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Headroom:
    """Plan the apps of a problem with room for such arrivals; the plan's `runtime_s` is all of the
    time that this took.

    Raises:
        DocumentError: the problem has no apps, or the attainment lies outside (0, 1).
        InfeasibleError: no plan exists, or none attains, or none was found within the problem's
            time limit.
    """
    if not problem.apps:
        raise DocumentError(
            f"--arrivals {arrivals}: the problem has no apps\n"
            "  try       --margin auto, which simulates plans of models under Poisson load"
        )
    if not 0 < attainment < 1:
        raise DocumentError(f"--attainment: {attainment} must lie between 0 and 1")
    began = Deadline(problem.options.time_limit_s)
    refusals: list[str] = []

    def planning(options: PlanOptions) -> Plan | None:
        result = solve(replace(problem, options=replace(options, arrivals="poisson")))
        if result.plan is None:
            refusals.append(result.refusal or "no plan")
        return result.plan

    try:
        found = cheapest_with_room(
            problem,
            planning,
            rooms=ROOMS,
            arrivals=arrivals,
            attainment=attainment,
            on_progress=on_progress,
        )
    except OutOfTime:
        raise InfeasibleError(_out_of_time(problem, arrivals, attainment)) from None
    if found is None:
        raise InfeasibleError(_refusal(refusals, arrivals, attainment))
    reason = (
        f"simulated ({arrivals}, {policy_for(found.plan)}, seed {SEED}): {found.attainment:.2%}"
        f" in time; {found.premium:.1%} above the cost for uniform arrivals; {found.tried} plans"
        " simulated"
    )
    options = replace(found.plan.options, margin_reason=reason)
    plan = replace(found.plan, options=options, runtime_s=began.spent_s)
    return dataclasses.replace(found, plan=plan)


def _out_of_time(problem: Problem, arrivals: str, attainment: float) -> str:
    return (
        f"--arrivals {arrivals}: of the plans that were tried before time ran out, none answers"
        f" {attainment:.4g} of the requests within the SLO\n"
        f"  try       a --time-limit-s of more than {problem.options.time_limit_s:g}, a longer SLO,"
        " or a lower --attainment"
    )


def _refusal(refusals: Sequence[str], arrivals: str, attainment: float) -> str:
    if refusals:
        return refusals[0]
    return (
        f"--arrivals {arrivals}: no plan with up to {HEADROOMS[-1]:.0%} head-room answers"
        f" {attainment:.4g} of the requests within the SLO\n"
        "  try       a longer SLO, or a lower --attainment"
    )
