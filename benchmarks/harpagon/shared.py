"""Plans whose modules share devices, simulated as whole apps (`bill --simulate`).

Requests at equal gaps, exact times, fan-outs as even as possible: what worst cases assume. First
plans by the formulas alone; then as `headrace plan` writes them, with head-room where one does not
hold.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from benchmarks.harpagon.uniform import planned as planned_by_fraction
from benchmarks.harpagon.verified import problem_of
from benchmarks.harpagon.workloads import Workload
from msgspec.structs import replace

from headrace.dispatch.policies import policy_for
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions
from headrace.domain.profile import Profile
from headrace.planning.apps.bill.assembly import Billed, assemble_bill
from headrace.planning.apps.bill.case import devices_of
from headrace.planning.apps.bill.search import LeastBill
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.apps.worst_cases import even_session, keep_worst_cases
from headrace.simulation.offered.arrivals import Arrival

Written = tuple[Plan, dict[str, Profile]]
Search = Callable[[Workload], LeastBill]
OPTIONS = PlanOptions(
    planner="least-cost", objective="least-cost", bill="devices", margin=0.0, max_stages=1
)
COMPARED_REQUESTS = 2_000
"""Under another policy."""


def written(
    one: Workload, found: LeastBill, headroom: dict[str, float] | None = None
) -> Written | None:
    """A plan of whole devices; None: nothing is cheaper than that by the fraction."""
    if found.modules is None:
        return None
    options = replace(OPTIONS, module_headroom=headroom or {})
    problem = problem_of(one, Counter(devices_of(found.modules)), options)
    plan = assemble_bill(
        problem,
        [Billed(app=problem.apps[0], case=one.case, modules=found.modules)],
        bound=found.bound,
        stopped="optimal" if found.proven else "time-limit",
        binding="not asked",
        runtime_s=0.0,
    )
    return plan, dict(problem.profiles)


def print_shared(
    found: Sequence[tuple[Workload, LeastBill]], search: Search, count: int, policy: str | None
) -> None:
    """How many of `count` sharing plans, evenly chosen, answer every request in time.

    Args:
        search: with loads that head-room has raised.
        policy: None: the plans' own, and head-room where it is needed.
    """
    sharing = [
        (one, plan)
        for one, bill in found
        if (plan := written(one, bill)) is not None and _shares(plan[0])
    ]
    places = np.linspace(0, len(sharing) - 1, min(count, len(sharing)))
    some = [sharing[int(place)] for place in places]
    began = time.perf_counter()
    reached = [_attained(*plan, policy) for _, plan in some]
    for (one, _), attained in zip(some, reached, strict=True):
        if attained < 1:
            print(f"  {one.app} {one.rate_rps:g} rps, {one.slo_us / 1e3:g} ms: {attained:.2%}")
    name = policy or policy_for(some[0][1][0])
    print(
        f"sharing plans simulated ({name}), by the formulas alone: every request in time in"
        f" {sum(r == 1 for r in reached)} of {len(reached)} (of {len(sharing)} that share); mean"
        f" {np.mean(reached):.2%}, least {min(reached):.2%}  ({time.perf_counter() - began:.0f} s)"
    )
    if policy is None:
        failing = [pair for pair, attained in zip(some, reached, strict=True) if attained < 1]
        _print_kept(failing, search, len(some))


def _print_kept(failing: Sequence[tuple[Workload, Written]], search: Search, count: int) -> None:
    """The others keep their worst cases as they are."""
    dearer, held = [], count - len(failing)
    for one, (plan, profiles) in failing:
        kept = _kept(one, profiles, search)
        held += _attained(kept, profiles, None) == 1
        dearer.append((kept.cost_per_hour or 0.0) / plan.objective - 1)
        rooms = ", ".join(
            f"{name} {part:.2%}" for name, part in kept.options.module_headroom.items()
        )
        print(f"  {one.app} {one.rate_rps:g} rps: {rooms}; {dearer[-1]:+.1%}")
    print(
        f"as planned: every request in time in {held} of {count} | target all; head-room in"
        f" {len(failing)}, bill {sum(dearer) / count:+.2%} on average, most"
        f" {max(dearer, default=0.0):+.1%}"
    )


def _kept(one: Workload, profiles: dict[str, Profile], search: Search) -> Plan:
    """What `headrace plan` does, on the study's candidates."""

    def planned(headroom: dict[str, float]) -> PlanResult:
        raised = tuple(
            dataclasses.replace(
                m, rate_rps=m.rate_rps * (1 + headroom.get(f"{one.app}.{m.name}", 0))
            )
            for m in one.case.modules
        )
        asked = dataclasses.replace(one, case=dataclasses.replace(one.case, modules=raised))
        plan = written(asked, search(asked), headroom)
        if plan is None:
            return planned_by_fraction(one, headroom)[0]
        bound = plan[0].bound
        return PlanResult(plan=plan[0], stopped=plan[0].stopped, bound=bound, runtime_s=0.0)

    kept = keep_worst_cases(planned, profiles).plan
    assert kept is not None, "every workload has a plan"
    return kept


def _shares(plan: Plan) -> bool:
    return any(slot.duty_us is not None for slot in plan.slots)


def _attained(plan: Plan, profiles: dict[str, Profile], policy: str | None) -> float:
    """In time / arrived."""
    if policy is None:
        session = even_session(plan, profiles)
    else:
        app = plan.apps[0].app
        gap_us = 1e6 / app.rate_rps
        arrivals = [
            Arrival(model=app.name, at_us=round(number * gap_us))
            for number in range(COMPARED_REQUESTS)
        ]
        session = simulate_apps(plan, profiles, arrivals, policy=policy, jitter=False)
    return float(session.report().total.slo_attainment or 0.0)
