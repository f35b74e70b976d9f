"""Least cost of an app whose modules may carry any dummy load, with a bound that closes in on it.

Every module has a ladder of points (`any_dummy`) of which each says what plans within somewhat
smaller budgets cost at least. The cheapest choice of the points themselves is a plan; the cheapest
choice at their lowest budgets is a bound on all plans. Where the two differ, the points that the
bound chose are split, first at the budgets that the other modules leave, then in halves, until plan
and bound meet or `ROUNDS` are over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.planning.apps.candidates import AppCase, ModuleCase
from headrace.planning.apps.exact.any_dummy import (
    Point,
    cheapest_point,
    coarse_front,
    point_schedule,
)
from headrace.planning.apps.exact.combine import Ladder, least_cost
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.order import Part, decompose, rest_us

ROUNDS = 300
PLAN_EVERY = 8
OPTIMAL_GAP = 1e-6
"""Relative. Half of it is looked for."""
SAME = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The cheapest machines that were found."""

    modules: tuple[Schedule, ...]
    bound: float
    """None cost less."""

    @property
    def cost(self) -> float:
        return sum(module.cost for module in self.modules)


class _Rungs:
    """One module's points, fastest first; budgets between two `least_us` belong to the lower."""

    def __init__(self, module: ModuleCase, budget_us: int) -> None:
        self.module = module
        self.points = coarse_front(module, budget_us)[::-1]

    def plans(self) -> Ladder:
        return Ladder(
            np.array([p.latency_us for p in self.points], np.int64),
            np.array([p.cost for p in self.points]),
        )

    def bounds(self) -> Ladder:
        return Ladder(
            np.array([p.least_us for p in self.points], np.int64),
            np.array([p.bound for p in self.points]),
        )

    def split(self, index: int, budget_us: int) -> bool:
        """Look at a budget inside a point's range; False: it has none but its own."""
        upper = self.points[index]
        budget_us = min(max(budget_us, upper.least_us), upper.latency_us - 1)
        if budget_us < upper.least_us:
            return False
        below = cheapest_point(self.module, budget_us, upper.bound)
        narrowed = replace(upper, least_us=budget_us + 1)
        if below is None:
            self.points[index] = narrowed
            return True
        below = replace(below, least_us=min(upper.least_us, below.latency_us))
        if below.cost <= upper.cost:
            self.points[index] = below  # As cheap, and faster.
        elif index == 0 or below.cost < self.points[index - 1].cost:
            self.points[index : index + 1] = [below, narrowed]
        elif below.cost <= self.points[index - 1].bound * (1 + SAME):
            self.points[index] = narrowed  # The faster point's own machines.
        else:
            return False  # A search that was cut short found worse than is known.
        return True


def least_cost_with_dummy(case: AppCase) -> Found | None:
    """The cheapest plan found, and the bound; None where nothing fits the budget."""
    least = [int(module.duration_us.min()) for module in case.modules]
    rungs = [
        _Rungs(module, case.budget_us - rest)
        for module, rest in zip(case.modules, rest_us(case.before, least), strict=True)
    ]
    part = decompose(case.before)
    best: list[Point] | None = None
    bound = 0.0
    for turn in range(ROUNDS):
        hoped = least_cost(part, [one.bounds() for one in rungs], case.before, case.budget_us)
        if hoped is None:
            return None
        chosen = [one.points[i] for one, i in zip(rungs, hoped, strict=True)]
        bound = sum(point.bound for point in chosen)
        is_split = _split(case, rungs, hoped, chosen)
        if turn % PLAN_EVERY == 0 or not is_split or turn + 1 == ROUNDS:
            best = _cheaper(best, _choose(part, case, rungs))
        if not is_split or (best is not None and bound >= _cost(best) * (1 - OPTIMAL_GAP / 2)):
            break
    if best is None:
        return None
    modules = tuple(point_schedule(o.module, p) for o, p in zip(rungs, best, strict=True))
    return Found(modules=modules, bound=min(bound, sum(module.cost for module in modules)))


def _choose(part: Part, case: AppCase, rungs: Sequence[_Rungs]) -> list[Point] | None:
    chosen = least_cost(part, [one.plans() for one in rungs], case.before, case.budget_us)
    if chosen is None:
        return None
    return [one.points[i] for one, i in zip(rungs, chosen, strict=True)]


def _cheaper(some: list[Point] | None, other: list[Point] | None) -> list[Point] | None:
    if some is None or other is None:
        return some or other
    return other if _cost(other) < _cost(some) else some


def _cost(points: Sequence[Point]) -> float:
    return sum(point.cost for point in points)


def _split(
    case: AppCase, rungs: Sequence[_Rungs], hoped: Sequence[int], chosen: Sequence[Point]
) -> bool:
    """Split the points that the bound chose; False: none has a range left."""
    rest = rest_us(case.before, [point.least_us for point in chosen])
    is_open = [point.least_us < point.latency_us for point in chosen]
    is_split = False
    for one, index, point, others_us in zip(rungs, hoped, chosen, rest, strict=True):
        left_us = case.budget_us - others_us
        halfway = (point.least_us + point.latency_us) // 2
        at_us = left_us if left_us < point.latency_us and sum(is_open) == 1 else halfway
        is_split |= one.split(index, at_us)
    return is_split
