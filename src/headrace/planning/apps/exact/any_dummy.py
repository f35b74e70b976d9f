"""Least cost of a module with any dummy load, machines sharing theirs evenly, for every budget.

One configuration carries everything, as without dummy load (`walk`): whichever stands first needs
max(load, needed), and no other that meets the budget is cheaper per load than the best that does.
So a module costs at least

    min over k of max(load, b_k / (budget - d_k)) price_k / throughput_k

and machines that share that load evenly cost as much. No more dummy load is looked at than one
machine of any configuration takes. This is no staircase: between configurations cost falls as the
budget grows. So it is given by points: each is a plan, and no plan within a
smaller budget, down to its `least_us`, costs less.
"""

from dataclasses import dataclass, replace

import numpy as np

from headrace.planning.apps.candidates import ModuleCase, collect_us
from headrace.planning.apps.machines import Entry, Schedule, schedule_of

POINTS_MAX = 4096

STEP = 0.05
"""From one point to the next, the same machines cost this part more."""

_SAME = 1e-12

ROUNDING_US = 5e-4
"""Half of what `collect_us` allows for: rates that are chosen to reach a budget do reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The cheapest machines of a module within a budget."""

    latency_us: int
    """Their worst case."""
    least_us: int
    """Within a budget from here to `latency_us`, no machines cost less than `cost`."""
    cost: float
    candidate: int
    load_rps: float
    """Of all its machines, dummy load included."""


class PointSearch:
    """Points of one module."""

    def __init__(self, module: ModuleCase) -> None:
        self.module = module
        self._per_rps = module.price / module.rates_rps
        self._most_rps = module.rate_rps + float(module.rates_rps.max())
        wait_us = np.ceil(1e6 * module.batch / module.rate_rps - 2 * ROUNDING_US)
        alone = module.batch == 1
        wait_us[alone] = np.minimum(wait_us, module.duration_us)[alone]
        self._enough_us = module.duration_us + wait_us

    def cheapest(self, budget_us: int) -> Point | None:
        """The cheapest machines within the budget; None where there are none."""
        module = self.module
        left_us = budget_us - module.duration_us
        # Where nothing is left, more than anyone takes.
        needed_rps = 1e6 * module.batch / (np.maximum(left_us, 0) + ROUNDING_US)
        load_rps = np.where(
            self._enough_us <= budget_us,
            module.rate_rps,
            np.where(needed_rps <= self._most_rps, np.maximum(needed_rps, module.rate_rps), np.inf),
        )
        costs = load_rps * self._per_rps
        k = int(np.argmin(costs))
        if not np.isfinite(costs[k]):
            return None
        load = float(load_rps[k])
        latency_us = self._latency_us(k, load)
        least_us = latency_us
        if load > module.rate_rps:
            least_us = min(latency_us, self._latency_us(k, load * (1 + STEP)) + 1)
        return Point(
            latency_us=latency_us,
            least_us=least_us,
            cost=float(costs[k]),
            candidate=k,
            load_rps=load,
        )

    def _latency_us(self, k: int, load_rps: float) -> int:
        duration_us = int(self.module.duration_us[k])
        return duration_us + collect_us(int(self.module.batch[k]), duration_us, load_rps)

    def points(self, budget_us: int) -> list[Point]:
        """From the cheapest point to the fastest; none is as fast as the next one."""
        points: list[Point] = []
        while len(points) < POINTS_MAX:
            point = self.cheapest(budget_us)
            if point is None:
                break
            if points and point.cost <= points[-1].cost * (1 + _SAME):
                points.pop()  # The same machines, or as cheap and faster.
            points.append(point)
            budget_us = point.least_us - 1
        else:
            # Faster ones cost no less; that much is known of those that were not looked for.
            points[-1] = replace(points[-1], least_us=0)
        return points


def point_schedule(module: ModuleCase, point: Point) -> Schedule:
    """The machines of a point."""
    candidate = module.candidates[point.candidate]
    entry = Entry(candidate=candidate, machines=point.load_rps / candidate.rate_rps)
    return schedule_of([entry], module.rate_rps, "remaining")
