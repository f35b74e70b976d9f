"""One app, planned by name: schedules, and what is proven of them."""

from dataclasses import dataclass

import numpy as np

from headrace.domain.plan import Reading, Stopped
from headrace.planning.apps.candidates import AppCase, ModuleCase, collect_us
from headrace.planning.apps.exact.bracket import OPTIMAL_GAP, least_cost_with_dummy
from headrace.planning.apps.exact.combine import CostCurve, least_cost
from headrace.planning.apps.exact.fronts import ModuleFront, front_schedule, module_front
from headrace.planning.apps.exhaustive import plan_exhaustively
from headrace.planning.apps.heuristics.schemes import SCHEMES, plan_scheme
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.order import decompose, rest_us


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSolution:
    """Machines of every module of an app, in the case's order."""

    modules: tuple[Schedule, ...]
    reading: Reading
    bound: float | None
    """No plan of the form of decision 0015 costs less; None: nothing is proven."""
    stopped: Stopped

    @property
    def cost(self) -> float:
        return sum(module.cost for module in self.modules)


def solve_app(case: AppCase, planner: str) -> AppSolution | None:
    """Plan one app; None where the planner finds nothing within the budget.

    Raises:
        TooManyError: `exhaustive` would take too long.
    """
    if planner == "least-cost":
        return plan_least_cost(case)
    if planner == "least-cost-dummy":
        return _with_any_dummy_load(case)
    if planner == "exhaustive":
        tried = plan_exhaustively(case)
        if tried is None:
            return None
        cost = sum(module.cost for module in tried)
        return AppSolution(modules=tuple(tried), reading="remaining", bound=cost, stopped="optimal")
    scheme = SCHEMES[planner]
    found = plan_scheme(case, scheme)
    if found is None:
        return None
    return AppSolution(
        modules=found.modules, reading=scheme.reading, bound=None, stopped="heuristic"
    )


def plan_least_cost(case: AppCase) -> AppSolution | None:
    """The least cost, proven."""
    fronts = app_fronts(case)
    part = decompose(case.before)
    chosen = least_cost(part, fronts, case.before, case.budget_us)
    if chosen is None:
        return None
    modules = tuple(
        front_schedule(module, front, point)
        for module, front, point in zip(case.modules, fronts, chosen, strict=True)
    )
    cost = sum(module.cost for module in modules)
    if all(front.proven for front in fronts):
        return AppSolution(modules=modules, reading="remaining", bound=cost, stopped="optimal")
    bound = min(cost, _relaxed_bound(case))
    return AppSolution(modules=modules, reading="remaining", bound=bound, stopped="time-limit")


def _with_any_dummy_load(case: AppCase) -> AppSolution | None:
    found = least_cost_with_dummy(case)
    if found is None:
        return None
    is_proven = found.bound >= found.cost * (1 - OPTIMAL_GAP)
    return AppSolution(
        modules=found.modules,
        reading="remaining",
        bound=found.bound,
        stopped="optimal" if is_proven else "time-limit",
    )


def app_fronts(case: AppCase, budget_us: int | None = None) -> list[ModuleFront]:
    """Every module's front, up to what the others' least durations leave it."""
    budget = case.budget_us if budget_us is None else budget_us
    least = [int(module.duration_us.min()) for module in case.modules]
    return [
        module_front(module, budget - rest)
        for module, rest in zip(case.modules, rest_us(case.before, least), strict=True)
    ]


def _relaxed_bound(case: AppCase) -> float:
    """What the app costs at least: all load at the price of each module's best configuration.

    The first machines of a stack see at most the module's load and one machine's dummy load, and
    none is better than they are.
    """
    curves = [_relaxed(module) for module in case.modules]
    chosen = least_cost(decompose(case.before), curves, case.before, case.budget_us)
    assert chosen is not None, "a plan was found, so its relaxation is feasible"
    return float(sum(curve.cost[i] for curve, i in zip(curves, chosen, strict=True)))


def _relaxed(module: ModuleCase) -> CostCurve:
    most = module.rate_rps + float(module.rates_rps.max())
    points = sorted(
        (c.duration_us + collect_us(c.batch, c.duration_us, most), module.rate_rps / c.per_price)
        for c in module.candidates
    )
    kept: list[tuple[int, float]] = []
    for latency, cost in points:
        if not kept or cost < kept[-1][1]:
            kept.append((latency, cost))
    return CostCurve(
        np.array([latency for latency, _ in kept], np.int64),
        np.array([cost for _, cost in kept], np.float64),
    )
