"""Why a plan of an app is as it is, and what a little more of something would buy.

What is said of an app is read off the exact fronts: of each module, and of the app as a whole. What
is said of more SLO or one more machine therefore holds of the cheapest plans, whoever made this
one, with as many devices as they take. What any amount of dummy load would save, and what the stock
of devices costs, is searched for anew.
"""

import dataclasses
from collections.abc import Collection
from math import isfinite

import numpy as np
from msgspec.structs import replace

from headrace.domain.app import App
from headrace.domain.base import Record
from headrace.domain.plan import AppClaim, Deployment, Plan, Reading
from headrace.domain.problem import Problem
from headrace.planning.apps.assembly import Planned
from headrace.planning.apps.candidates import (
    AppCase,
    Candidate,
    ModuleCase,
    app_case,
    worst_case_us,
)
from headrace.planning.apps.exact.bracket import least_cost_with_dummy
from headrace.planning.apps.exact.combine import Combined, app_front
from headrace.planning.apps.exact.fronts import ModuleFront
from headrace.planning.apps.order import decompose
from headrace.planning.apps.solve import app_fronts, plan_least_cost
from headrace.planning.apps.stock.fit import device_needs, search_stock
from headrace.planning.common.deadline import Deadline

LOOK_AHEAD = 1.5
"""How far beyond its budget an app's front is drawn."""

MORE_US = 1000
"""One more millisecond."""

AHEAD = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Parts of the budget by which more of it is looked at where there is no front to read."""

WITH_DUMMY = "least-cost-dummy"

STOCK_S = 10.0
"""At most, for what one more device of a type would save; less where the limit is shorter."""


class Rejected(Record, frozen=True, kw_only=True):
    """A configuration with more throughput / price than the module's first one."""

    batch_size: int
    device: str
    needs_us: int
    """Its worst case with all of the module's load."""


class ModuleReason(Record, frozen=True, kw_only=True):
    """Why a module's machines are what they are."""

    module: str
    worst_case_us: int
    path_fraction: float
    """Of the app's worst case, on whatever path it lies."""
    critical: bool
    """Whether it lies on a longest path."""
    cost_fraction: float
    first: str
    """Its first configuration, in words."""
    rejected: tuple[Rejected, ...]
    """Better ones by price that are too slow for what the module has, best first; at most three."""
    unavailable: Rejected | None
    """The best of those that would be fast enough, but of whose device type none is left."""
    faster_us: int | None
    """How much faster one more machine's price could make this module; None: no faster."""
    extra_rps: float
    """What one more machine of the first configuration would carry."""
    extra_cost: float
    """Its price per hour."""


class AppReason(Record, frozen=True, kw_only=True):
    """Why an app costs what it costs."""

    app: str
    cost: float
    least_cost: float
    """Where dummy load only fills machines; infinite: nothing keeps the SLO then."""
    least_cost_with_dummy: float
    """Where any amount of it may be planned for."""
    worst_case_us: int
    budget_us: int
    eater: str
    """The module with the longest worst case on a longest path."""
    saved_by_1_ms: float
    """Off `least_cost`, with one more millisecond of SLO; of a plan with any amount of dummy load,
    off that; where nothing in proportion to load keeps the SLO, off `cost`."""
    next_saving_us: int | None
    """How much more SLO the next saving takes; None: none within half as much again."""
    next_saving: float
    modules: tuple[ModuleReason, ...]


class StockReason(Record, frozen=True, kw_only=True):
    """A device type of which the cluster has fewer than the cheapest machines would take."""

    device: str
    there: int
    used: int
    wanted: int
    """By the cheapest machines, if there were enough of every type."""
    saved_by_one: float
    """Cost per hour that one more device of this type would save, of all apps together."""
    proven: bool
    """Whether no more than this could be saved."""


def explain(plan: Plan, problem: Problem) -> tuple[AppReason, ...]:
    """One explanation per app of the plan."""
    return tuple(_explain_app(plan, claim, problem) for claim in plan.apps)


def explain_stock(plan: Plan, problem: Problem) -> tuple[StockReason, ...]:
    """The device types whose stock makes the cheapest plan dearer; empty: none does.

    Takes as long as the problem's time limit allows a plan: half of it for the cheapest machines,
    the other for what more devices would save.
    """
    half_s = problem.options.time_limit_s / 2
    # With the plan's own head-room, that its costs contain.
    problem = replace(problem, options=plan.options)
    planned = []
    for claim in plan.apps:
        case = app_case(problem, claim.app)
        solution = plan_least_cost(case, time_limit_s=half_s / len(plan.apps))
        if solution is None:
            return ()
        planned.append(Planned(app=claim.app, case=case, solution=solution))
    wanted = device_needs(problem, planned)
    count = problem.cluster.count
    if all(needed <= count(device) for device, needed in wanted.items()):
        return ()
    used = {device: _devices_used(plan, device) for device in wanted}
    short = {
        device: needed
        for device, needed in wanted.items()
        if count(device) and (used[device] >= count(device) or needed > count(device))
    }
    limit_s = min(STOCK_S, half_s / (1 + len(short)))
    least = plan.objective
    if plan.planner != "least-cost":
        now = search_stock(problem, planned, limit=Deadline(limit_s))
        least = min(least, now.cost)
    reasons = []
    for device, needed in short.items():
        more = search_stock(problem, planned, limit=Deadline(limit_s), more={device: 1})
        reasons.append(
            StockReason(
                device=device,
                there=count(device),
                used=used[device],
                wanted=needed,
                saved_by_one=max(0.0, least - more.cost),
                proven=more.proven,
            )
        )
    return tuple(reasons)


def _devices_used(plan: Plan, device: str) -> int:
    return len({(slot.node, slot.device_index) for slot in plan.slots if slot.device == device})


def _explain_app(plan: Plan, claim: AppClaim, problem: Problem) -> AppReason:
    case = app_case(problem, claim.app)
    farther = int(case.budget_us * LOOK_AHEAD) + MORE_US
    fronts = app_fronts(case, farther)
    front = app_front(decompose(case.before), fronts, case.before, farther)
    own = {d.module: d for d in plan.deployments if d.app == claim.app.name}
    worst = {module.name: int(own[module.name].worst_case_us or 0) for module in case.modules}
    critical = _critical(claim.app, worst)
    used_up = {
        kind.name
        for kind in problem.cluster.device_types
        if _devices_used(plan, kind.name) >= problem.cluster.count(kind.name)
    }
    modules = tuple(
        _explain_module(
            module,
            module_front,
            own[module.name],
            claim,
            critical=module.name in critical,
            used_up=used_up,
        )
        for module, module_front in zip(case.modules, fronts, strict=True)
    )
    least, with_dummy = _cost_within(front, case.budget_us), _with_dummy(case, 0)
    # Whole devices, taken as full, can keep an SLO that nothing in proportion to load does.
    known = least if isfinite(least) else claim.cost_per_hour
    saved = max(0.0, known - _cost_within(front, case.budget_us + MORE_US))
    next_us, saving = _next_saving(front, case, known)
    if plan.planner == WITH_DUMMY:
        saved = with_dummy - _with_dummy(case, MORE_US)
        next_us, saving = _next_saving_with_dummy(case, with_dummy)
    return AppReason(
        app=claim.app.name,
        cost=claim.cost_per_hour,
        least_cost=least,
        least_cost_with_dummy=with_dummy,
        worst_case_us=claim.worst_case_us,
        budget_us=case.budget_us,
        eater=max(critical, key=lambda name: worst[name]),
        saved_by_1_ms=saved,
        next_saving_us=next_us,
        next_saving=saving,
        modules=modules,
    )


def _critical(app: App, worst: dict[str, int]) -> list[str]:
    """Modules whose slowing down would slow the app down."""
    now = app.longest_path_us(worst)
    return [m for m in worst if app.longest_path_us({**worst, m: worst[m] + 1}) > now]


def _cost_within(front: Combined, budget_us: int) -> float:
    within = int(np.searchsorted(front.latency_us, budget_us, side="right")) - 1
    return float(front.cost[within]) if within >= 0 else float("inf")


def _next_saving(front: Combined, case: AppCase, least: float) -> tuple[int | None, float]:
    later = np.flatnonzero((front.latency_us > case.budget_us) & (front.cost < least * (1 - 1e-9)))
    if not len(later):
        return None, 0.0
    return int(front.latency_us[later[0]]) - case.budget_us, least - float(front.cost[later[0]])


def _with_dummy(case: AppCase, more_us: int) -> float:
    found = least_cost_with_dummy(dataclasses.replace(case, budget_us=case.budget_us + more_us))
    return float("inf") if found is None else found.cost


def _next_saving_with_dummy(case: AppCase, least: float) -> tuple[int | None, float]:
    """Cost falls steadily with the budget, save where it is flat: some steps tell."""
    for part in AHEAD:
        more_us = max(MORE_US, round(part * case.budget_us))
        saved = least - _with_dummy(case, more_us)
        if saved > 1e-6 * least:
            return more_us, saved
    return None, 0.0


def _explain_module(
    module: ModuleCase,
    front: ModuleFront,
    deployment: Deployment,
    claim: AppClaim,
    *,
    critical: bool,
    used_up: Collection[str],
) -> ModuleReason:
    first = deployment.pipelines[0]
    stage = first.stages[0]
    worst_us = int(deployment.worst_case_us or 0)
    chosen = next(
        c
        for c in module.candidates
        if (c.batch, c.device, c.share) == (first.batch_size, stage.device, stage.share)
    )
    too_slow, unavailable = _better_by_price(module, chosen, worst_us, claim.reading, used_up)
    affordable = np.flatnonzero(front.cost <= float(deployment.cost_per_hour or 0) + chosen.price)
    faster = worst_us - int(front.latency_us[affordable[0]]) if len(affordable) else 0
    return ModuleReason(
        module=module.name,
        worst_case_us=worst_us,
        path_fraction=worst_us / claim.worst_case_us,
        critical=critical,
        cost_fraction=float(deployment.cost_per_hour or 0.0) / claim.cost_per_hour,
        first=f"batches of {first.batch_size} on {stage.device}",
        rejected=tuple(too_slow[:3]),
        unavailable=unavailable,
        faster_us=faster if faster > 0 else None,
        extra_rps=chosen.rate_rps,
        extra_cost=chosen.price,
    )


def _better_by_price(
    module: ModuleCase,
    chosen: Candidate,
    worst_us: int,
    reading: Reading,
    used_up: Collection[str],
) -> tuple[list[Rejected], Rejected | None]:
    """Candidates that are too slow, best first; and the best of whose devices none is left."""
    too_slow: list[Rejected] = []
    unavailable: Rejected | None = None
    for candidate in module.candidates:
        if candidate.per_price <= chosen.per_price:
            continue
        machines = module.rate_rps / candidate.rate_rps
        count = float(int(machines)) if machines >= 1 else machines
        better = Rejected(
            batch_size=candidate.batch,
            device=candidate.device,
            needs_us=worst_case_us(reading, candidate, module.rate_rps, count),
        )
        if better.needs_us > worst_us:
            too_slow.append(better)
        elif candidate.device in used_up and candidate.device != chosen.device:
            unavailable = unavailable or better
    return too_slow, unavailable
