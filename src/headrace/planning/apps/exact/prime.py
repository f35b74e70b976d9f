"""Modules whose order is neither series nor parallel: depth first, with bounds.

Modules are fixed one by one in topological order, each first at the cheapest point that fits,
then at faster ones. What is not fixed yet costs at least its price at the largest latency that
the fixed modules, and all others at their fastest, leave room for. Exponential in the number of
modules, but only of those that `order` cannot split into series or parallel parts: 4 at least.
So the compiled search runs `NODES` at a time, and between them asks whether there is time left.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from headrace.compilation.loops import compiled, hot
from headrace.planning.apps.order import path_us
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline

NODES = 200_000
"""Of one call of the compiled search, some 0.1 s; the first call needs no time left. Its first
plan takes a node per point at most."""


class Curve(Protocol):
    """Undominated (latency, cost) of one module, fastest first."""

    @property
    def latency_us(self) -> Ints: ...

    @property
    def cost(self) -> Floats: ...


class PrimeFront(NamedTuple):
    """Undominated (latency, cost) of a prime part."""

    latency_us: Ints
    cost: Floats
    points: Ints
    """Shape (P, modules): the point of every module."""
    ended: bool
    """False: time ran out. Cheaper points may be missing; the fastest is there."""


def prime_front(
    fronts: Sequence[Curve],
    before: Sequence[Sequence[int]],
    budget_us: int,
    *,
    last_only: bool,
    limit: Deadline | None = None,
) -> PrimeFront:
    """Undominated points up to the budget; with `last_only` the cheapest alone.

    Args:
        before: per module, those it waits for, as indices into `fronts`.
        limit: ends the search; None: nothing does.
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
    walked, ended = 0, True
    while ended:
        walk, nodes = _Walk.begin(sizes), 0
        while not (ended := walk.level[0] < 0):
            if walked + nodes >= NODES and limit is not None and limit.passed:
                break
            nodes += _cheapest_choice(latency, cost, sizes, waits, budget_us, walk, NODES)
        walked += nodes
        if not np.isfinite(walk.best[0]):
            break
        found = walk.best_point
        chosen = [int(latency[i, point]) for i, point in enumerate(found)]
        latencies.append(path_us(before, chosen))
        costs.append(float(walk.best[0]))
        points.append(found)
        budget_us = latencies[-1] - 1
        if last_only:
            break
    fastest_us = path_us(before, latency[:, 0].tolist())
    if not ended and fastest_us <= budget_us and not (last_only and points):
        latencies.append(fastest_us)
        costs.append(float(cost[:, 0].sum()))
        points.append(np.zeros(count, np.int64))
    return PrimeFront(
        np.array(latencies[::-1], np.int64),
        np.array(costs[::-1], np.float64),
        np.array(points[::-1], np.int64).reshape(len(points), count),
        ended,
    )


class _Curves(NamedTuple):
    """Curves of M modules of at most P points, and who waits for whom."""

    latency: Ints
    """Shape (M, P)."""
    cost: Floats
    """Shape (M, P)."""
    sizes: Ints
    """Shape (M,): points of each."""
    waits: "np.ndarray"
    """Shape (M, M): whether the module of the row waits for that of the column."""


class _Walk(NamedTuple):
    """Where a search of M modules stands; it is written to."""

    level: Ints
    """Shape (1,): the module at hand; negative: it has ended."""
    best: Floats
    """Shape (1,): the cheapest cost so far."""
    best_point: Ints
    point: Ints
    start: Ints
    ends: Ints
    spent: Floats
    """Shape (M + 1,)."""

    @classmethod
    def begin(cls, sizes: Ints) -> "_Walk":
        count = len(sizes)
        point, start, ends, best_point = np.zeros((4, count), np.int64)
        point[0] = sizes[0]
        level, best = np.zeros(1, np.int64), np.full(1, np.inf)
        return cls(level, best, best_point, point, start, ends, np.zeros(count + 1))


@hot
def _start_us(c: _Curves, module: int, ends: Ints) -> int:
    """When a module may start: all that it waits for have ended."""
    start = 0
    for k in range(module):
        if c.waits[module, k]:
            start = max(start, ends[k])
    return start


@hot
def _at_least(c: _Curves, level: int, total: float, tail: Ints, budget: int, ends: Ints) -> float:
    """`total` and what the modules behind `level` cost at least; infinite: one is not so fast."""
    for i in range(level + 1, c.sizes.shape[0]):
        start = _start_us(c, i, ends)
        ends[i] = start + c.latency[i, 0]
        room = budget - start - tail[i]
        j = np.searchsorted(c.latency[i, : c.sizes[i]], room, side="right") - 1
        if j < 0:
            return np.inf
        total += c.cost[i, j]
    return total


@hot
def _write_tails(c: _Curves, tail: Ints) -> None:
    """The longest path behind each module, all at their fastest."""
    for i in range(tail.shape[0] - 1, -1, -1):
        for k in range(tail.shape[0]):
            if c.waits[i, k]:
                tail[k] = max(tail[k], tail[i] + c.latency[i, 0])


@compiled
def _cheapest_choice(
    latency: Ints,
    cost: Floats,
    sizes: Ints,
    waits: "np.ndarray",
    budget: int,
    walk: _Walk,
    nodes_max: int,
) -> int:
    """Walk on towards the cheapest points with which every path keeps the budget.

    Returns:
        How many nodes it looked at.
    """
    c, count = _Curves(latency, cost, sizes, waits), sizes.shape[0]
    tail = np.zeros(count, np.int64)
    _write_tails(c, tail)
    point, start, ends, spent = walk.point, walk.start, walk.ends, walk.spent
    best, level, nodes = walk.best[0], walk.level[0], 0
    while level >= 0 and nodes < nodes_max:
        nodes += 1
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
        if _at_least(c, level, total, tail, budget, ends) >= best:
            continue
        if level + 1 == count:
            best = total
            walk.best_point[:] = point
            continue
        level += 1
        spent[level], start[level] = total, _start_us(c, level, ends)
        point[level] = sizes[level]
    walk.best[0], walk.level[0] = best, level
    return nodes
