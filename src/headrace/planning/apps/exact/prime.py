"""Modules whose order is neither series nor parallel: depth first, with bounds.

Modules are fixed one by one in topological order, each first at the cheapest point that fits,
then at faster ones. What is not fixed yet costs at least its price at the largest latency that
the fixed modules, and all others at their fastest, leave room for.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.common.candidates import Floats, Ints


class Steps(Protocol):
    """Undominated (latency, cost) of one module, fastest first."""

    @property
    def latency_us(self) -> Ints: ...

    @property
    def cost(self) -> Floats: ...


def prime_front(
    fronts: Sequence[Steps], before: Sequence[Sequence[int]], budget_us: int, *, last_only: bool
) -> tuple[Ints, Floats, Ints]:
    """Undominated (latency, cost, points) up to the budget; with `last_only` the cheapest alone.

    Args:
        before: per module, those it waits for, as indices into `fronts`.
    """
    size = max(len(front.cost) for front in fronts)
    count = len(fronts)
    latency = np.zeros((count, size), np.int64)
    cost = np.full((count, size), np.inf)
    for i, front in enumerate(fronts):
        latency[i, : len(front.cost)] = front.latency_us
        cost[i, : len(front.cost)] = front.cost
    sizes = np.array([len(front.cost) for front in fronts], np.int64)
    waits = np.zeros((count, count), np.bool_)
    for i, direct in enumerate(before):
        waits[i, list(direct)] = True
    latencies, costs, points = [], [], []
    while True:
        best, found = _cheapest_choice(latency, cost, sizes, waits, budget_us)
        if not np.isfinite(best):
            break
        ends: list[int] = []
        for i, direct in enumerate(before):
            ends.append(int(latency[i, found[i]]) + max((ends[k] for k in direct), default=0))
        latencies.append(max(ends))
        costs.append(best)
        points.append(found)
        budget_us = latencies[-1] - 1
        if last_only:
            break
    return (
        np.array(latencies[::-1], np.int64),
        np.array(costs[::-1], np.float64),
        np.array(points[::-1], np.int64).reshape(len(points), count),
    )


@compiled
def _cheapest_choice(
    latency: Ints, cost: Floats, sizes: Ints, waits: "np.ndarray", budget: int
) -> tuple[float, Ints]:
    """The cheapest point of every module such that every path keeps the budget."""
    count = sizes.shape[0]
    fastest = latency[:, 0].copy()
    tail = np.zeros(count, np.int64)
    """Longest path behind each module, all at their fastest."""
    for i in range(count - 1, -1, -1):
        for k in range(count):
            if waits[i, k]:
                tail[k] = max(tail[k], tail[i] + fastest[i])
    best = np.inf
    best_point = np.zeros(count, np.int64)
    point = np.zeros(count, np.int64)
    start, spent = np.zeros(count, np.int64), np.zeros(count + 1)
    ends = np.zeros(count, np.int64)
    level = 0
    point[0] = sizes[0]
    while level >= 0:
        point[level] -= 1
        if point[level] < 0:
            level -= 1
            continue
        own = latency[level, point[level]]
        if start[level] + own + tail[level] > budget:
            continue
        total = spent[level] + cost[level, point[level]]
        if total >= best:
            # Faster points are dearer still.
            level -= 1
            continue
        ends[level] = start[level] + own
        bound = total
        for i in range(level + 1, count):
            begin = 0
            for k in range(i):
                if waits[i, k]:
                    begin = max(begin, ends[k])
            ends[i] = begin + fastest[i]
            room = budget - begin - tail[i]
            j = np.searchsorted(latency[i, : sizes[i]], room, side="right") - 1
            if j < 0:
                bound = np.inf
                break
            bound += cost[i, j]
        if bound >= best:
            continue
        if level + 1 == count:
            best = total
            best_point[:] = point
            continue
        level += 1
        spent[level] = total
        begin = 0
        for k in range(level):
            if waits[level, k]:
                begin = max(begin, ends[k])
        start[level] = begin
        point[level] = sizes[level]
    return best, best_point
