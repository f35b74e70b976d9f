"""Worst cases of apps under uniform arrivals, simulated; head-room where one does not hold.

Theorem 1 (Harpagon, III.B) has load flow like a fluid. Requests are whole, so that a module whose
last machine is nearly full may have a worst case that no schedule keeps (decision 0017). Such a
module is planned for a little more load than it gets, the least of `HEADROOMS` with which no
simulated call takes longer than the plan says. Modules that take turns on shared slots depend on
each other: there whole apps are simulated, and modules that drop calls get more (decision 0044).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import inf

import numpy as np
from msgspec.structs import replace

from headrace.dispatch.policies import policy_for
from headrace.dispatch.topology import Topology
from headrace.domain.plan import OPTIMAL_GAP, Plan, PlanResult, Stopped
from headrace.domain.problem import Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.simulation.apps.session import AppSession, simulate_apps
from headrace.simulation.compiled import Offered, run
from headrace.simulation.offered.arrivals import Arrival

HEADROOMS = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
LEAST_CALLS, MOST_CALLS = 2_000, 20_000
SECONDS = 20
"""Of calls that a module is given, within these limits: what fails, fails early or never."""
LEAST_REQUESTS, MOST_REQUESTS = 2_000, 8_000
SLOS = 30
"""Of whole apps: a session's length in SLOs, within these limits."""
PART, LEAST_S = 0.5, 0.05
"""Of the time that is left, for one plan with head-room; and seconds that it has at least."""
ROUNDING = 1e-9
"""Relative, of sums of prices."""


def slowest_calls(plan: Plan, profiles: Mapping[str, Profile]) -> dict[str, float]:
    """Module -> its slowest call / its worst case; inf: a call was dropped.

    Every module by itself, with calls at equal gaps at its rate, as Theorem 1 assumes. Together
    they see what the modules before them let out, which is never uniform.
    """
    topology = Topology.from_plan(plan, profiles)
    policy = policy_for(plan)
    slowest = {}
    for index, deployment in enumerate(plan.deployments):
        rate_rps, worst_us = deployment.rate_rps or 0.0, deployment.worst_case_us or 0
        count = int(min(MOST_CALLS, max(LEAST_CALLS, SECONDS * rate_rps)))
        at_us = np.round(np.arange(count) * 1e6 / rate_rps).astype(np.int64)
        offered = Offered(
            arrived_at_us=at_us,
            model=np.full(count, index),
            deadline_at_us=at_us + worst_us,
            priority=np.zeros(count, dtype=np.int64),
        )
        ended_at_us = run(topology, policy, offered).ended_at_us
        dropped = (ended_at_us < 0).any()
        ratio = float((ended_at_us - at_us).max()) / worst_us
        slowest[deployment.name] = float("inf") if dropped else ratio
    return slowest


def even_session(plan: Plan, profiles: Mapping[str, Profile]) -> AppSession:
    """All apps together, requests of each at equal gaps, exact times."""
    apps = [claim.app for claim in plan.apps]
    rate_rps = sum(app.rate_rps for app in apps)
    slos_s = SLOS * max(app.slo_us for app in apps) / 1e6
    span_s = min(MOST_REQUESTS, max(LEAST_REQUESTS, slos_s * rate_rps)) / rate_rps
    arrivals = [
        Arrival(model=app.name, at_us=round(number * 1e6 / app.rate_rps))
        for app in apps
        for number in range(max(1, int(span_s * app.rate_rps)))
    ]
    arrivals.sort(key=lambda arrival: arrival.at_us)
    return simulate_apps(plan, profiles, arrivals, jitter=False)


def _failing(plan: Plan, profiles: Mapping[str, Profile]) -> list[str]:
    """Modules that do not do what the plan says of them."""
    if all(slot.duty_us is None for slot in plan.slots):
        return [name for name, ratio in slowest_calls(plan, profiles).items() if ratio > 1]
    report = even_session(plan, profiles).report()
    late = {c.app.name for c in plan.apps if report.models[c.app.name].slo_attainment != 1.0}
    modules = [d.name for d in plan.deployments if d.app in late]
    dropping = [name for name in modules if report.models[name].dropped.get("deadline")]
    return dropping or modules


def _run_alike(plan: Plan, other: Plan) -> bool:
    """Whether their sessions are the same: a little more load often fits into what is planned."""
    mine, theirs = ((each.slots, each.deployments, each.apps) for each in (plan, other))
    return mine == theirs


Planning = Callable[[dict[str, float]], PlanResult]
"""Head-room of modules -> plan."""


def plan_keeping_worst_cases(problem: Problem) -> PlanResult:
    """Plan apps such that simulated calls keep the worst cases of their modules.

    Planning takes the problem's time limit at most, and head-room half as long again.

    Raises:
        DocumentError: see `solve`.
    """
    asked = problem.options
    limit = Deadline(1.5 * asked.time_limit_s)

    def planning(headroom: dict[str, float]) -> PlanResult:
        room = {**asked.module_headroom, **headroom}
        limit_s = PART * limit.left_s if headroom else asked.time_limit_s
        options = replace(asked, module_headroom=room, time_limit_s=max(LEAST_S, limit_s))
        result = solve(replace(problem, options=options), advise=not headroom)
        if result.plan is None:
            return result
        options = replace(result.plan.options, time_limit_s=asked.time_limit_s)
        return replace(result, plan=replace(result.plan, options=options))

    return keep_worst_cases(planning, problem.profiles, limit)


def keep_worst_cases(
    planning: Planning, profiles: Mapping[str, Profile], limit: Deadline | None = None
) -> PlanResult:
    """The first plan without head-room, or with more and more, that keeps its worst cases.

    Where head-room was needed, `bound` stays that of the plan without, so that `gap` is what
    keeping the worst cases costs at most. Where none helps, or none is found within the limit, the
    plan is the one without, and `binding` says which modules may be slower than planned.
    """
    limit = limit or Deadline(inf)
    first = result = planning({})
    tried: Counter[str] = Counter()
    failing, simulated = list[str](), None
    while result.plan is not None:
        if simulated is None or not _run_alike(result.plan, simulated):
            failing, simulated = _failing(result.plan, profiles), result.plan
        if not failing:
            return result if result is first else _kept(result, first)
        tried.update(failing)
        if max(tried.values()) > len(HEADROOMS) or limit.passed:
            break
        result = planning({name: HEADROOMS[times - 1] for name, times in tried.items()})
    return first if first.plan is None else _not_kept(first, first.plan, tried)


def _kept(result: PlanResult, first: PlanResult) -> PlanResult:
    assert result.plan is not None, "it keeps its worst cases"
    plan = bounded_by(result.plan, first.plan)
    rooms = sorted(plan.options.module_headroom.items())
    more = ", ".join(f"{part:.2%} more load for {name}" for name, part in rooms)
    told = f"planned with {more} to keep worst cases"
    plan = replace(plan, binding=f"{plan.binding}; {told}")
    return replace(result, plan=plan, stopped=plan.stopped, bound=plan.bound)


def bounded_by(plan: Plan, without: Plan | None) -> Plan:
    """A plan with head-room, and what is proven of plans without: none is cheaper than the bound.

    One with head-room may be, for it has dummy load of another form. Then nothing is proven of it.

    Args:
        without: of the same problem, without head-room; None: there is none.
    """
    bound = None if without is None else without.bound
    if bound is not None:
        bound = min(bound, plan.objective) if bound <= plan.objective * (1 + ROUNDING) else None
    gap = None if bound is None else (plan.objective - bound) / plan.objective
    stopped: Stopped = "heuristic" if without is None else without.stopped
    if gap is not None and gap <= OPTIMAL_GAP:
        stopped = "optimal"
    elif stopped == "optimal":
        stopped = "heuristic"
    return replace(plan, bound=bound, gap=gap, stopped=stopped)


def _not_kept(first: PlanResult, plan: Plan, failing: Iterable[str]) -> PlanResult:
    told = f"{', '.join(sorted(failing))} may be slower than planned, also under uniform arrivals"
    return replace(first, plan=replace(plan, binding=f"{plan.binding}; {told}"))
