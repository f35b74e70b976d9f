"""Least cost of an app whose modules may carry any dummy load, with a bound that closes in on it.

Every module has points (`any_dummy`) of which each says what plans within somewhat smaller budgets,
from `least_us` to `latency_us`, cost at least. So there are two cost curves per module:

(latency_us, cost)   plans; the least cost of an app over these (`combine`) is a plan's
(least_us, cost)     bounds; the least cost over these is one that no plan stays below

Where the two differ, the points that the bound chose are split: one more search per module at a
budget inside its point's range. Where one module alone has a range left, at the budget that the
others leave, which ends it at once; where several have, in halves. It ends when plan and bound meet
to half of `OPTIMAL_GAP`, when nothing is left to split, after `ROUNDS` or in time: with two modules
that carry dummy load at once costs near the best budgets are so flat that 300 may leave 0.012 %. A
round takes one point per module and one combination of the curves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.domain.plan import OPTIMAL_GAP
from headrace.planning.apps.candidates import AppCase, ModuleCase
from headrace.planning.apps.exact.any_dummy import Point, PointSearch, point_schedule
from headrace.planning.apps.exact.combine import CostCurve, least_cost
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.order import Part, decompose, rest_us
from headrace.planning.common.deadline import Deadline

ROUNDS = 300
PLAN_EVERY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesFound:
    """The cheapest machines that were found."""

    modules: tuple[Schedule, ...]
    bound: float
    """None cost less."""

    @property
    def cost(self) -> float:
        return sum(module.cost for module in self.modules)


class _Bracket:
    """One module's points, fastest first; budgets between two `least_us` belong to the lower."""

    def __init__(self, module: ModuleCase, budget_us: int) -> None:
        self._search = PointSearch(module)
        self.module = module
        self.points = self._search.points(budget_us)[::-1]

    def plans(self) -> CostCurve:
        return CostCurve(
            np.array([p.latency_us for p in self.points], np.int64),
            np.array([p.cost for p in self.points]),
        )

    def bounds(self) -> CostCurve:
        return CostCurve(
            np.array([p.least_us for p in self.points], np.int64),
            np.array([p.cost for p in self.points]),
        )

    def split(self, index: int, budget_us: int) -> bool:
        """Look at a budget inside a point's range; False: it has none but its own."""
        upper = self.points[index]
        budget_us = min(max(budget_us, upper.least_us), upper.latency_us - 1)
        if budget_us < upper.least_us:
            return False
        below = self._search.cheapest(budget_us)
        narrowed = replace(upper, least_us=budget_us + 1)
        if below is None:
            self.points[index] = narrowed
            return True
        below = replace(below, least_us=min(upper.least_us, below.latency_us))
        if below.cost <= upper.cost:
            self.points[index] = below  # As cheap, and faster.
        elif index == 0 or below.cost < self.points[index - 1].cost:
            self.points[index : index + 1] = [below, narrowed]
        else:
            self.points[index] = narrowed  # The faster point's own machines.
        return True


def least_cost_with_dummy(case: AppCase, limit: Deadline | None = None) -> MachinesFound | None:
    """The cheapest plan found, and the bound; None where nothing fits the budget.

    Args:
        limit: ends it with what is known by then.
    """
    least = [int(module.duration_us.min()) for module in case.modules]
    brackets = [
        _Bracket(module, case.budget_us - rest)
        for module, rest in zip(case.modules, rest_us(case.before, least), strict=True)
    ]
    part = decompose(case.before)
    best: list[Point] | None = None
    bound = 0.0
    for turn in range(ROUNDS):
        curves = [one.bounds() for one in brackets]
        lowest = least_cost(part, curves, case.before, case.budget_us, limit)
        if lowest is None:
            return None
        hoped = lowest.at_least
        chosen = [one.points[i] for one, i in zip(brackets, hoped, strict=True)]
        bound = sum(point.cost for point in chosen)
        in_time = limit is None or not limit.passed
        is_split = in_time and _split(case, brackets, hoped, chosen)
        if turn % PLAN_EVERY == 0 or not is_split or turn + 1 == ROUNDS:
            best = _cheaper(best, _choose(part, case, brackets, limit))
        if not is_split or (best is not None and bound >= _cost(best) * (1 - OPTIMAL_GAP / 2)):
            break
    if best is None:
        return None
    modules = tuple(point_schedule(o.module, p) for o, p in zip(brackets, best, strict=True))
    return MachinesFound(modules=modules, bound=min(bound, sum(module.cost for module in modules)))


def _choose(
    part: Part, case: AppCase, brackets: Sequence[_Bracket], limit: Deadline | None
) -> list[Point] | None:
    curves = [one.plans() for one in brackets]
    chosen = least_cost(part, curves, case.before, case.budget_us, limit)
    if chosen is None:
        return None
    return [one.points[i] for one, i in zip(brackets, chosen.points, strict=True)]


def _cheaper(some: list[Point] | None, other: list[Point] | None) -> list[Point] | None:
    if some is None or other is None:
        return some or other
    return other if _cost(other) < _cost(some) else some


def _cost(points: Sequence[Point]) -> float:
    return sum(point.cost for point in points)


def _split(
    case: AppCase, brackets: Sequence[_Bracket], hoped: Sequence[int], chosen: Sequence[Point]
) -> bool:
    """Split the points that the bound chose; False: none has a range left."""
    rest = rest_us(case.before, [point.least_us for point in chosen])
    is_open = [point.least_us < point.latency_us for point in chosen]
    is_split = False
    for one, index, point, others_us in zip(brackets, hoped, chosen, rest, strict=True):
        left_us = case.budget_us - others_us
        halfway = (point.least_us + point.latency_us) // 2
        at_us = left_us if left_us < point.latency_us and sum(is_open) == 1 else halfway
        is_split |= one.split(index, at_us)
    return is_split
