"""Problem -> PlanResult: apps on the cheapest whole devices (decision 0044).

What `least-cost` finds by the fraction comes first: its devices are the price to beat, and its
plan is the answer where sharing and other budgets are no cheaper."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from msgspec.structs import replace as changed

from headrace.domain.cluster import WHOLE
from headrace.domain.plan import Plan, PlanResult, Stopped
from headrace.domain.problem import Problem
from headrace.planning.apps.bill.assembly import Billed, assemble_bill
from headrace.planning.apps.bill.bound import least_bill
from headrace.planning.apps.bill.budgets import SAME
from headrace.planning.apps.bill.case import ModuleBill, devices_of
from headrace.planning.apps.bill.of_problem import bill_case
from headrace.planning.apps.bill.refusal import DevicesFound, Refusal
from headrace.planning.apps.bill.search import least_devices_bill
from headrace.planning.apps.bill.stock import InStock, StockSearch
from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase, app_case
from headrace.planning.common.deadline import Deadline


def plan_bill(problem: Problem, by_fraction: PlanResult, limit: Deadline) -> PlanResult:
    """The apps on whole devices, at most as dear as those of `by_fraction`.

    Args:
        by_fraction: the same problem, planned for least cost in proportion to load.
        limit: of both, begun before it.
    """
    cases = [app_case(problem, app) for app in problem.apps]
    today = by_fraction.plan
    if not _on_whole_devices(cases):
        return by_fraction if today is None else _kept(today, by_fraction, limit)
    most = inf if today is None or today.cost_per_hour is None else today.cost_per_hour
    start = _start_price(problem) if most == inf else most
    search = StockSearch(problem, cases, start, limit)
    search.run()
    found, bound = search.best, search.bound
    if found is None and today is None:
        certain = _excludes(bound, start, cases)
        refusal = Refusal(
            problem=problem, cases=cases, search=_search, limit=limit, certain=certain
        )
        return changed(
            by_fraction,
            stopped="infeasible" if certain else "time-limit",
            refusal=None,
            refuse=refusal.text,
            runtime_s=limit.spent_s,
        )
    if _offers_parts(cases):
        # Parts of devices stand in no shared slot; what they cost at least bounds them.
        bound = min(bound, max(by_fraction.bound or 0.0, _bound_with_parts(problem, cases)))
    apart = apart_bill(problem, cases, limit)
    runtime_s = limit.spent_s
    # Where devices are short the search may end without a proof long before its limit.
    unproven: Stopped = "time-limit" if limit.passed else "heuristic"
    if found is None or found.bill >= most * (1 - SAME):
        assert today is not None
        plan = _as_billed(
            today, min(bound, most), runtime_s, "sharing them saves nothing", unproven
        )
    else:
        gap = found.bill - bound
        plan = assemble_bill(
            problem,
            _per_app(problem, cases, found.modules),
            bound=bound,
            stopped="optimal" if gap <= SAME * found.bill else unproven,
            binding=_binding(found, apart, today),
            runtime_s=runtime_s,
        )
    return PlanResult(plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=plan.runtime_s)


def _search(problem: Problem, limit: Deadline) -> DevicesFound:
    """Whether a problem's apps have a plan on the whole devices that there are."""
    cases = [app_case(problem, app) for app in problem.apps]
    most = _start_price(problem)
    search = StockSearch(problem, cases, most, limit)
    search.run(first_will_do=True)
    if search.best is None:
        return DevicesFound(devices=None, certain=_excludes(search.bound, most, cases))
    return DevicesFound(devices=Counter(devices_of(search.best.modules)), certain=True)


def _excludes(bound: float, most: float, cases: Sequence[AppCase]) -> bool:
    """Whether a bound says that there is no plan at all, as all devices cost less than `most`."""
    return bound >= most * (1 - SAME) and not _offers_parts(cases)


def _on_whole_devices(cases: Sequence[AppCase]) -> bool:
    """Whether every module has a whole device that can run it."""
    return all(any(c.share == WHOLE for c in m.candidates) for case in cases for m in case.modules)


def _offers_parts(cases: Sequence[AppCase]) -> bool:
    return any(c.share < WHOLE for case in cases for m in case.modules for c in m.candidates)


def _kept(today: Plan, by_fraction: PlanResult, limit: Deadline) -> PlanResult:
    """Where a module has parts of devices only, nothing can be shared in turns."""
    runtime_s = limit.spent_s
    why = "a module has parts of devices only, which take no turns"
    plan = _as_billed(today, by_fraction.bound or 0.0, runtime_s, why, "heuristic")
    return PlanResult(plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=runtime_s)


def _start_price(problem: Problem) -> float:
    """More than all devices of the cluster cost."""
    prices = {kind.name: kind.price_per_hour or 0.0 for kind in problem.cluster.device_types}
    return 1 + sum(problem.cluster.count(name) * price for name, price in prices.items()) * 2


def apart_bill(problem: Problem, cases: Sequence[AppCase], limit: Deadline) -> float:
    """The least price of whole devices if every device had one module, of those there are
    enough."""
    case = bill_case(problem, cases)
    return least_devices_bill(case, _start_price(problem), limit, sharing=False).bill


def whole_devices_bound(problem: Problem) -> float:
    """A price per hour that no plan on whole devices stays below, whatever turns its modules take
    (decision 0077); infinite: no plan on whole devices meets the SLOs."""
    case = bill_case(problem, [app_case(problem, app) for app in problem.apps])
    return least_bill(case, problem.options.time_limit_s)


def _bound_with_parts(problem: Problem, cases: Sequence[AppCase]) -> float:
    """A price per hour that no plan stays below whose modules have parts of devices as well.

    For the bound, which is a sum of devices' seconds, a part of a device is a device that does as
    much of a request in a part of the time.
    """

    def whole(part: Candidate) -> Candidate:
        share = float(part.share)
        return replace(part, share=WHOLE, price=part.price / share, rate_rps=part.rate_rps / share)

    wholes = [
        replace(
            case,
            modules=tuple(
                ModuleCase.of(m.name, m.rate_rps, list(map(whole, m.candidates)))
                for m in case.modules
            ),
        )
        for case in cases
    ]
    return least_bill(bill_case(problem, wholes), problem.options.time_limit_s)


def _per_app(
    problem: Problem, cases: Sequence[AppCase], modules: Sequence[ModuleBill]
) -> list[Billed]:
    billed, first = [], 0
    for app, case in zip(problem.apps, cases, strict=True):
        end = first + len(case.modules)
        billed.append(Billed(app=app, case=case, modules=tuple(modules[first:end])))
        first = end
    return billed


def _as_billed(
    plan: Plan,
    bound: float,
    runtime_s: float,
    why: str,
    unproven: Stopped,
) -> Plan:
    """The plan by the fraction, judged by the price of its devices."""
    bill = plan.cost_per_hour
    assert bill is not None, "every device has a price"
    bound = float(min(bound, bill))
    gap = (bill - bound) / bill
    return changed(
        plan,
        objective=bill,
        bound=bound,
        gap=gap,
        stopped="optimal" if gap <= SAME else unproven,
        binding=f"whole devices: {why}; {plan.binding}",
        runtime_s=runtime_s,
    )


def _binding(found: InStock, apart: float, today: Plan | None) -> str:
    """
    Args:
        today: the plan by the fraction; None: there is none that the cluster has devices for.
    """
    shared = sum(module.turn is not None for module in found.modules)
    text = f"whole devices: {len(devices_of(found.modules))} of them"
    if shared:
        saved = max(0.0, apart - found.bill)
        text += f"; {shared} modules take turns on shared ones, which saves {saved:,.4g} per hour"
    if today is not None:
        text += (
            f"; the least in proportion to load is {today.objective:,.4g}, and the devices of that"
            f" plan cost {today.cost_per_hour:,.4g}"
        )
    return text
