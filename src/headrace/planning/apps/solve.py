"""One app, planned by name: schedules, and what is proven of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from headrace.domain.plan import OPTIMAL_GAP, Reading, Stopped
from headrace.planning.apps.candidates import AppCase
from headrace.planning.apps.exact.bracket import least_cost_with_dummy
from headrace.planning.apps.exact.combine import least_cost
from headrace.planning.apps.exact.fronts import (
    PROVEN,
    Form,
    ModuleFront,
    front_schedule,
    module_front,
)
from headrace.planning.apps.exact.walk import Effort
from headrace.planning.apps.exhaustive import plan_exhaustively
from headrace.planning.apps.heuristics.schemes import SCHEMES, plan_scheme
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.order import Part, decompose, rest_us
from headrace.planning.common.deadline import Deadline

TIME_LIMIT_S = 60.0

FORMS: Mapping[str, Form] = {"least-cost": "even", "harpagon-optimal": "part"}
"""What machines the exact planners look at (decisions 0015 and 0065)."""

FIRST = Effort(500_000, 2_000_000)
"""Nodes of the first round, some 40 ms per module. In the studies it proves everything."""

MORE = 8
"""From round to round, that many times as many."""

NODES_PER_S = 25_000_000
"""No fewer."""

LATER = (PROVEN / 4, 1e-4, 1e-3)
"""From the second round on a point need only be this close to the least: as far as is called
proven, or what a walk that is cut short proves at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSolution:
    """Machines of every module of an app, in the case's order."""

    modules: tuple[Schedule, ...]
    reading: Reading
    bound: float | None
    """No plan of the planner's form costs less; None: nothing is proven."""
    stopped: Stopped

    @property
    def cost(self) -> float:
        return sum(module.cost for module in self.modules)


def solve_app(
    case: AppCase, planner: str, time_limit_s: float = TIME_LIMIT_S
) -> AppSolution | None:
    """Plan one app; None where the planner finds nothing within the budget.

    Args:
        time_limit_s: after which the exact planners return what they have, and what they know.

    Raises:
        AppTooLargeError: `exhaustive` would take too long.
    """
    if planner in FORMS:
        return plan_least_cost(case, form=FORMS[planner], time_limit_s=time_limit_s)
    if planner == "least-cost-dummy":
        return _with_any_dummy_load(case, time_limit_s)
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


def plan_least_cost(
    case: AppCase, *, form: Form = "even", time_limit_s: float = TIME_LIMIT_S
) -> AppSolution | None:
    """The least cost of a form, proven; past the limit, the cheapest found and a bound.

    Fronts that a few nodes do not prove are searched again with more, from round to round, as long
    as the limit allows and plan and bound differ.
    """
    limit = Deadline(time_limit_s)
    part, effort = decompose(case.before), FIRST
    fronts = app_fronts(case, form=form, nodes=effort)
    best = _chosen(part, fronts, case, limit)
    while True:
        in_time = int(limit.left_s * NODES_PER_S / len(fronts))
        effort = Effort(MORE * effort.a_walk, min(MORE * effort.in_all, in_time))
        are_proven = best.ended and all(front.proven for front in fronts)
        is_proven = are_proven or best.gap <= PROVEN
        if is_proven or effort.in_all <= 0:
            break
        fronts = [
            front
            if front.proven
            else module_front(module, room, form=form, nodes=effort, slacks=LATER)
            for module, front, room in zip(case.modules, fronts, _rooms(case), strict=True)
        ]
        best = _cheaper(best, _chosen(part, fronts, case, limit))
    if best.modules is None:
        return None
    return AppSolution(
        modules=best.modules,
        reading="remaining",
        bound=best.cost if is_proven else best.bound,
        stopped="optimal" if is_proven else "time-limit",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The cheapest machines of fronts, and what none cost less than."""

    modules: tuple[Schedule, ...] | None
    cost: float
    """Infinite: nothing fits."""
    bound: float
    ended: bool
    """Whether all choices were looked at, or excluded."""

    @property
    def gap(self) -> float:
        return inf if self.modules is None else 1 - self.bound / self.cost


def _chosen(part: Part, fronts: Sequence[ModuleFront], case: AppCase, limit: Deadline) -> _Chosen:
    curves = [front.at_least or front for front in fronts]
    lowest, found = (
        least_cost(part, c, case.before, case.budget_us, limit) for c in (curves, fronts)
    )
    bound, ended = inf, all(choice is None or choice.proven for choice in (lowest, found))
    if lowest is not None:
        bound = sum(float(c.cost[i]) for c, i in zip(curves, lowest.at_least, strict=True))
    if found is None:
        return _Chosen(modules=None, cost=inf, bound=bound, ended=ended)
    modules = tuple(
        front_schedule(module, front, point)
        for module, front, point in zip(case.modules, fronts, found.points, strict=True)
    )
    cost = sum(module.cost for module in modules)
    return _Chosen(modules=modules, cost=cost, bound=min(cost, bound), ended=ended)


def _cheaper(one: _Chosen, other: _Chosen) -> _Chosen:
    """The cheaper machines, and the better bound."""
    bound = max(one.bound, other.bound)
    best = one if one.cost <= other.cost else other
    return replace(best, bound=min(best.cost, bound))


def _with_any_dummy_load(case: AppCase, time_limit_s: float) -> AppSolution | None:
    found = least_cost_with_dummy(case, Deadline(time_limit_s))
    if found is None:
        return None
    is_proven = found.bound >= found.cost * (1 - OPTIMAL_GAP)
    return AppSolution(
        modules=found.modules,
        reading="remaining",
        bound=found.bound,
        stopped="optimal" if is_proven else "time-limit",
    )


def app_fronts(
    case: AppCase,
    budget_us: int | None = None,
    *,
    form: Form = "even",
    nodes: Effort | None = None,
) -> list[ModuleFront]:
    """Every module's front, up to what the others' least durations leave it."""
    return [
        module_front(module, room, form=form, nodes=nodes)
        for module, room in zip(case.modules, _rooms(case, budget_us), strict=True)
    ]


def _rooms(case: AppCase, budget_us: int | None = None) -> list[int]:
    """What the others' least durations leave each module of the budget."""
    budget = case.budget_us if budget_us is None else budget_us
    least = [int(module.duration_us.min()) for module in case.modules]
    return [budget - rest for rest in rest_us(case.before, least)]
