"""Problem -> PlanResult: apps on the cheapest whole devices (decision 0044).

What `least-cost` finds by the fraction comes first: its devices are the price to beat, and its
plan is the answer where sharing and other budgets are no cheaper. Where the devices found are more
than the cluster has, those that lack get a charge on top of their price and the search is
repeated; what is charged is taken off the bound (Lagrange)."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from msgspec.structs import replace as changed

from headrace.cost import cost_model, shares_gateway_cores
from headrace.domain.cluster import WHOLE
from headrace.domain.plan import Plan, PlanResult, Stopped
from headrace.domain.problem import Problem
from headrace.planning.apps.bill.assembly import Billed, assemble_bill
from headrace.planning.apps.bill.bound import least_bill
from headrace.planning.apps.bill.budgets import SAME
from headrace.planning.apps.bill.case import BillCase, ModuleBill, bill_of
from headrace.planning.apps.bill.refusal import Found, Refusal
from headrace.planning.apps.bill.search import least_devices_bill
from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase, app_case
from headrace.planning.common.deadline import Deadline

CHARGES = 16
"""Rounds of charging device types that lack."""

Charges = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    modules: tuple[ModuleBill, ...]
    bill: float


def plan_bill(problem: Problem, by_fraction: PlanResult) -> PlanResult:
    """The apps on whole devices, at most as dear as those of `by_fraction`.

    Args:
        by_fraction: the same problem, planned for least cost in proportion to load.
    """
    began = time.perf_counter()
    limit = Deadline(problem.options.time_limit_s)
    ends_at = began + problem.options.time_limit_s
    cases = [app_case(problem, app) for app in problem.apps]
    today = by_fraction.plan
    if not _on_whole_devices(cases):
        return by_fraction if today is None else _kept(today, by_fraction, began)
    most = inf if today is None or today.cost_per_hour is None else today.cost_per_hour
    start = _start_price(problem) if most == inf else most
    found, bound = _within_stock(problem, cases, start, ends_at)
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
            runtime_s=by_fraction.runtime_s + limit.spent_s,
        )
    if _offers_parts(cases):
        # Parts of devices stand in no shared slot; what they cost at least bounds them.
        bound = min(bound, by_fraction.bound or 0.0)
    apart = apart_bill(problem, cases, ends_at)
    runtime_s = by_fraction.runtime_s + time.perf_counter() - began
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


def _search(problem: Problem, limit: Deadline) -> Found:
    """Whether a problem's apps have a plan on the whole devices that there are."""
    cases = [app_case(problem, app) for app in problem.apps]
    most = _start_price(problem)
    ends_at = time.perf_counter() + limit.left_s
    found, bound = _within_stock(problem, cases, most, ends_at)
    if found is None:
        return Found(devices=None, certain=_excludes(bound, most, cases))
    return Found(devices=Counter(devices_of(found.modules)), certain=True)


def _excludes(bound: float, most: float, cases: Sequence[AppCase]) -> bool:
    """Whether a bound says that there is no plan at all, as all devices cost less than `most`."""
    return bound >= most * (1 - SAME) and not _offers_parts(cases)


def _on_whole_devices(cases: Sequence[AppCase]) -> bool:
    """Whether every module has a whole device that can run it."""
    return all(any(c.share == WHOLE for c in m.candidates) for case in cases for m in case.modules)


def _offers_parts(cases: Sequence[AppCase]) -> bool:
    return any(c.share < WHOLE for case in cases for m in case.modules for c in m.candidates)


def _kept(today: Plan, by_fraction: PlanResult, began: float) -> PlanResult:
    """Where a module has parts of devices only, nothing can be shared in turns."""
    runtime_s = by_fraction.runtime_s + time.perf_counter() - began
    why = "a module has parts of devices only, which take no turns"
    plan = _as_billed(today, by_fraction.bound or 0.0, runtime_s, why, "heuristic")
    return PlanResult(plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=runtime_s)


def bill_case(
    problem: Problem, cases: Sequence[AppCase], charges: Charges | None = None
) -> BillCase:
    """A problem's apps as the search reads them, device types that lack charged."""
    modules = [
        (app.module(module.name), app)
        for app, case in zip(problem.apps, cases, strict=True)
        for module in case.modules
    ]
    profiles = [problem.profiles[module.model] for module, _ in modules]
    costs = cost_model(problem.profiles)
    utilisation = {k.name: k.max_utilisation for k in problem.cluster.device_types}

    def turn_us(module: int, candidate: Candidate) -> int:
        shares = shares_gateway_cores(problem.cluster, candidate.device)
        each_us = costs.gateway_on_slot_us(modules[module][0].model) if shares else 0
        busy_us = candidate.duration_us + each_us * candidate.batch
        return ceil(busy_us / utilisation[candidate.device] - 1e-9)

    return BillCase.of(
        [_charged(case, charges or {}) for case in cases],
        weights_bytes=[profile.weights_bytes(0, len(profile.blocks)) for profile in profiles],
        memory_bytes={
            kind.name: kind.memory_bytes
            for kind in problem.cluster.device_types
            if kind.memory_bytes is not None
        },
        turn_us=turn_us,
        gap_us=[
            module.code_us + ceil(module.fan_out.mean * costs.gateway_us(module.model))
            if any(after == module.name for _, after in app.edges)
            else 0
            for module, app in modules
        ],
    )


def _charged(case: AppCase, charges: Charges) -> AppCase:
    return replace(
        case,
        modules=tuple(
            ModuleCase.of(
                module.name,
                module.rate_rps,
                [replace(c, price=c.price + charges.get(c.device, 0.0)) for c in module.candidates],
            )
            for module in case.modules
        ),
    )


def _start_price(problem: Problem) -> float:
    """More than all devices of the cluster cost."""
    prices = {kind.name: kind.price_per_hour or 0.0 for kind in problem.cluster.device_types}
    return 1 + sum(problem.cluster.count(name) * price for name, price in prices.items()) * 2


def _within_stock(
    problem: Problem, cases: Sequence[AppCase], most: float, ends_at: float
) -> tuple[_Found | None, float]:
    """The cheapest found that the cluster has devices for, and the best bound."""
    stock = {kind.name: problem.cluster.count(kind.name) for kind in problem.cluster.device_types}
    prices = {kind.name: kind.price_per_hour or 0.0 for kind in problem.cluster.device_types}
    charges: Charges = {}
    best: _Found | None = None
    bound = 0.0
    for _ in range(CHARGES):
        allowance = sum(charge * stock[name] for name, charge in charges.items())
        case = bill_case(problem, cases, charges)
        found = least_devices_bill(case, (most + allowance) * (1 + 2 * SAME), ends_at)
        bound = max(bound, found.bound - allowance)
        if found.modules is None:
            break
        modules = tuple(module.at_prices(prices) for module in found.modules)
        used = Counter(device for device in devices_of(modules))
        lacking = [name for name, count in used.items() if count > stock[name]]
        if not lacking:
            bill = bill_of(modules)
            if best is None or bill < best.bill:
                best = _Found(modules=modules, bill=bill)
            break
        for name in lacking:
            charges[name] = 2 * charges.get(name, 0.0) or prices[name] / 8
        if time.perf_counter() > ends_at:
            break
    return best, min(bound, best.bill) if best else min(bound, most)


def devices_of(modules: Sequence[ModuleBill]) -> list[str]:
    """The type of every device used."""
    whole = [
        e.candidate.device for m in modules for e in m.entries for _ in range(round(e.machines))
    ]
    shared = {m.turn.slot: m.turn.batches[0].device for m in modules if m.turn}
    return whole + list(shared.values())


def apart_bill(problem: Problem, cases: Sequence[AppCase], ends_at: float) -> float:
    """The least price of whole devices if every device had one module, of those there are
    enough."""
    case = bill_case(problem, cases)
    return least_devices_bill(case, _start_price(problem), ends_at, sharing=False).bill


def whole_devices_bound(problem: Problem) -> float:
    """A price per hour that no plan on whole devices stays below, whatever turns its modules take
    (decision 0077); infinite: no plan on whole devices meets the SLOs."""
    return least_bill(bill_case(problem, [app_case(problem, app) for app in problem.apps]))


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


def _binding(found: _Found, apart: float, today: Plan | None) -> str:
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
