"""Least cost of a module where its last machine may carry any dummy load, for every budget.

Cost is then no staircase: on given machines the dummy load that is needed falls as the budget
grows, as batch / (budget - duration) does (`walk`), until the next machines are cheaper. So a
module's cost is bracketed by points: each is a plan, and no plan within a smaller budget, down to
its `least_us`, costs less.
"""

from dataclasses import dataclass, replace

import numpy as np

from headrace.planning.apps.candidates import ModuleCase
from headrace.planning.apps.exact.fronts import candidate_rows, machines_schedule
from headrace.planning.apps.exact.walk import ENDLESS, find_point
from headrace.planning.apps.machines import Schedule
from headrace.planning.common.candidates import NEVER_US, Ints

NODES_MAX = 100_000
"""Per point, some 5 ms. Past it the point is a plan, and proves nothing new."""

POINTS_MAX = 4096

_SAME = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The cheapest machines of a module within a budget."""

    latency_us: int
    """Their worst case."""
    least_us: int
    """Within a budget from here to `latency_us`, no machines cost less than `bound`."""
    cost: float
    bound: float
    """`cost`, unless the search was cut short."""
    whole: Ints
    """Shape (K,): whole machines of each candidate."""
    last: int
    """The candidate of the last machine, that has part of a load; -1: none."""
    load_rps: float
    """Of that machine, dummy load included."""


class PointSearch:
    """Points of one module."""

    def __init__(self, module: ModuleCase) -> None:
        self.module = module
        self._rows = candidate_rows(module)
        self._room = np.array([ENDLESS])

    def cheapest(self, budget_us: int, known: float) -> Point | None:
        """The cheapest machines within the budget; None where there are none.

        Args:
            known: a bound that holds anyway.
        """
        machines = np.empty(len(self._rows) + 1, np.int64)
        cost, load_rps, latency_us, following_us, proven = find_point(
            self._rows,
            self._room,
            machines,
            self.module.rate_rps,
            min(budget_us, NEVER_US),
            NODES_MAX,
        )
        if not np.isfinite(cost):
            return None
        return Point(
            latency_us=latency_us,
            least_us=following_us + 1,
            cost=cost,
            bound=cost if proven else known,
            whole=machines[:-1],
            last=int(machines[-1]),
            load_rps=load_rps,
        )

    def points(self, budget_us: int) -> list[Point]:
        """From the cheapest point to the fastest; none is as fast as the next one."""
        points: list[Point] = []
        known = self.module.rate_rps * float((self.module.price / self.module.rates_rps).min())
        while len(points) < POINTS_MAX:
            point = self.cheapest(budget_us, known)
            if point is None:
                break
            if points and point.cost <= points[-1].cost * (1 + _SAME):
                points.pop()  # The same machines, or as cheap and faster.
            points.append(point)
            known, budget_us = point.bound, point.least_us - 1
        else:
            # Faster ones cost no less; that much is known of those that were not looked for.
            points[-1] = replace(points[-1], least_us=0)
        return points


def point_schedule(module: ModuleCase, point: Point) -> Schedule:
    """The machines of a point."""
    part = point.load_rps / module.rates_rps[point.last] if point.last >= 0 else 0.0
    return machines_schedule(module, point.whole, point.last, min(1.0, float(part)))
