"""Does the plan say the truth of itself: rates, objective, bound, cost."""

import math

from headrace.verify.binding import check_binding
from headrace.verify.case import Case, at_most
from headrace.verify.figures import Throughputs

OPTIMAL_GAP = 1e-6
"""Relative distance from the bound up to which a plan may call itself optimal."""


def check_claims(case: Case, throughputs: Throughputs) -> None:
    check_modules_figures(case)
    check_rates(case, throughputs)
    cost = check_cost(case)
    check_objective(case, throughputs, cost)
    check_stated(case)


def check_modules_figures(case: Case) -> None:
    """What only a module of an app may state is checked there, so it must not stand elsewhere."""
    for deployment in case.alone:
        for name in ("app", "module", "rate_rps", "worst_case_us", "cost_per_hour"):
            value = getattr(deployment, name)
            if value is not None:
                _only_of_apps(case, deployment.model, name, value)
        for pipeline in deployment.pipelines:
            if pipeline.load is not None:
                _only_of_apps(case, f"{deployment.model}/{pipeline.name}", "load", pipeline.load)


def _only_of_apps(case: Case, where: str, name: str, value: object) -> None:
    what = f"{name!r} belongs to modules of apps"
    case.report("claims", where, what, "nothing", value)


def check_rates(case: Case, throughputs: Throughputs) -> None:
    """Of models on their own."""
    for deployment in case.alone:
        model, dummy = deployment.model, deployment.dummy_rps
        throughput = throughputs.deployments.get(model, 0.0)
        if not (dummy >= 0 and at_most(dummy, throughput)):
            case.report("dummy", model, "dummy load (rps)", f"0..{throughput}", dummy)
        demand = case.demands.get(model)
        if demand is not None and demand.rate_rps is not None:
            wanted = demand.rate_rps * (1 + case.plan.options.rate_headroom)
            case.limit("rates", model, "rate and its head-room (rps)", wanted, throughput - dummy)


def _cost_per_hour(case: Case) -> float | None:
    used = {(slot.node, slot.device, slot.device_index) for slot in case.plan.slots}
    total = 0.0
    for _, device, _ in sorted(used):
        kind = case.types.get(device)
        if kind is None or kind.price_per_hour is None:
            return None
        total += kind.price_per_hour
    return total


def check_cost(case: Case) -> float | None:
    """Compare the price of all devices with a slot; returns it, None where one is unknown."""
    cost = _cost_per_hour(case)
    claimed = case.plan.cost_per_hour
    if cost is None or claimed is None:
        if cost is not claimed:
            case.report("cost", "plan", "cost per hour of the devices used", cost, claimed)
    else:
        case.expect("cost", "plan", "cost per hour of the devices used", cost, claimed)
    return cost


def check_objective(case: Case, throughputs: Throughputs, cost: float | None) -> None:
    """That of the options. `cost`: of the devices used."""
    served, demands = throughputs.deployments, case.plan.demands
    parts = case.plan.options.carried_parts
    match case.plan.options.objective:
        case "throughput":
            value: float | None = sum(served.values())
        case "max-min":
            value = min(
                (served.get(d.model, 0.0) * parts.get(d.model, 1.0) / d.weight for d in demands),
                default=0.0,
            )
        case "least-cost":
            value = cost
        case "least-devices":
            used = {(slot.node, slot.device, slot.device_index) for slot in case.plan.slots}
            value = float(len(used))
    if value is None:
        what = "least cost needs the price of every device used"
        case.report("objective", "plan", what, "prices", "none")
    else:
        name = f"objective ({case.plan.options.objective})"
        case.expect("objective", "plan", name, value, case.plan.objective)


def _check_bound(case: Case) -> None:
    plan = case.plan
    if plan.bound is None or plan.gap is None:
        if plan.bound is not plan.gap:
            what, stated = "a bound and a gap are stated together", f"{plan.bound}, gap {plan.gap}"
            case.report("bound", "plan", what, "both or neither", f"bound {stated}")
        return
    least = plan.options.objective in ("least-cost", "least-devices")
    worse, better = (plan.bound, plan.objective) if least else (plan.objective, plan.bound)
    if not (math.isfinite(plan.bound) and at_most(worse, better)):
        what = "the objective is better than its proven bound"
        case.report("bound", "plan", what, plan.objective, plan.bound)
    gap = abs(plan.bound - plan.objective) / plan.objective if plan.objective else 0.0
    case.expect("bound", "plan", "gap", gap, plan.gap)


def check_stated(case: Case) -> None:
    """Bound, gap, reason to stop, planner, binding constraint and runtime."""
    _check_bound(case)
    plan = case.plan
    unproven = plan.gap is None or not plan.gap <= OPTIMAL_GAP
    if plan.stopped == "infeasible" or (plan.stopped == "optimal" and unproven):
        what = f"a plan that stopped as {plan.stopped!r}"
        case.report("stopped", "plan", what, f"a gap of at most {OPTIMAL_GAP}", plan.gap)
    if plan.planner != plan.options.planner or not plan.binding or not plan.runtime_s >= 0:
        what = "planner as in its options, binding constraint, runtime"
        needed = f"{plan.options.planner!r}, some text, at least 0 s"
        stated = f"{plan.planner!r}, {plan.binding!r}, {plan.runtime_s} s"
        case.report("claims", "plan", what, needed, stated)
    check_binding(case)
