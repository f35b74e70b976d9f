"""Least cost of an app over all ways to split its budget, proven.

Every module has a front of undominated (worst case, cost). Fronts of parallel parts merge (the
slower latency, the summed cost), those in series add; both keep only what is undominated, so the
cheapest point within the budget is the least cost. The last two parts of a series are not
combined at all: one walks up while the other walks down. Parts that are neither (`order`) are
searched depth first (`prime`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.apps.exact.prime import Curve, prime_front
from headrace.planning.apps.order import Part, closure, path_us, rest_us
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline


class CostCurve(NamedTuple):
    """Undominated (latency, cost) of one module, of whatever kind."""

    latency_us: Ints
    """Increasing."""
    cost: Floats
    """Decreasing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Undominated (latency, cost) of a part, and which point of every module each one takes."""

    latency_us: Ints
    """Shape (P,), increasing."""
    cost: Floats
    """Shape (P,), decreasing."""
    points: Ints
    """Shape (P, modules of the part), in the order of `modules`."""
    modules: tuple[int, ...]
    ended: bool = True
    """False: time ran out, cheaper points may be missing."""

    def take(self, rows: Ints) -> "Combined":
        return Combined(
            latency_us=self.latency_us[rows],
            cost=self.cost[rows],
            points=self.points[rows],
            modules=self.modules,
            ended=self.ended,
        )


class Choice(NamedTuple):
    """One point of each module's front, as indices."""

    points: list[int]
    """The cheapest found within the budget."""
    at_least: list[int]
    """No choice within the budget costs less than these together; `points` where that is proven,
    else what every module would take by itself."""

    @property
    def proven(self) -> bool:
        return self.points is self.at_least


def least_cost(
    part: Part,
    fronts: Sequence[Curve],
    before: Sequence[Sequence[int]],
    budget_us: int,
    limit: Deadline | None = None,
) -> Choice | None:
    """One point of each module's front such that the app costs least within its budget.

    Args:
        limit: ends searches of prime parts; None: nothing does.

    Returns:
        None where nothing fits.
    """
    if not all(len(front.cost) for front in fronts):
        return None
    best = _combine(part, fronts, before, budget_us, last_only=True, limit=limit)
    if not len(best.cost):
        return None
    chosen = dict(zip(best.modules, best.points[-1].tolist(), strict=True))
    points = [chosen[module] for module in range(len(fronts))]
    return Choice(points, points if best.ended else _alone(fronts, before, budget_us))


def _alone(fronts: Sequence[Curve], before: Sequence[Sequence[int]], budget_us: int) -> list[int]:
    """The cheapest point of each module that the others, all at their fastest, leave room for."""
    rest = rest_us(before, [int(front.latency_us[0]) for front in fronts])
    return [
        int(np.searchsorted(front.latency_us, budget_us - others, side="right")) - 1
        for front, others in zip(fronts, rest, strict=True)
    ]


def app_front(
    part: Part, fronts: Sequence[Curve], before: Sequence[Sequence[int]], budget_us: int
) -> Combined:
    """Every undominated (latency, cost) of the app up to the budget."""
    return _combine(part, fronts, before, budget_us, last_only=False)


def _combine(
    part: Part,
    fronts: Sequence[Curve],
    before: Sequence[Sequence[int]],
    budget_us: int,
    *,
    last_only: bool,
    limit: Deadline | None = None,
) -> Combined:
    """The part's front up to `budget_us`; with `last_only`, at least its cheapest point."""
    if part.kind == "module":
        front = fronts[part.modules[0]]
        within = int(np.searchsorted(front.latency_us, budget_us, side="right"))
        return Combined(
            latency_us=front.latency_us[:within],
            cost=front.cost[:within],
            points=np.arange(within, dtype=np.int64)[:, None],
            modules=part.modules,
        )
    if part.kind == "prime":
        found = prime_front(
            [fronts[m] for m in part.modules],
            _inner(part.modules, before),
            budget_us,
            last_only=last_only,
            limit=limit,
        )
        return Combined(
            latency_us=found.latency_us,
            cost=found.cost,
            points=found.points,
            modules=part.modules,
            ended=found.ended,
        )
    if part.kind == "parallel":
        joined = [
            _combine(p, fronts, before, budget_us, last_only=last_only, limit=limit)
            for p in part.parts
        ]
        while len(joined) > 1:
            joined.append(_parallel(joined.pop(0), joined.pop(0)))
        return joined[0]
    least = [_least_us(inner, fronts, before) for inner in part.parts]
    rooms = [budget_us - sum(least) + own for own in least]
    joined = [
        _combine(inner, fronts, before, room, last_only=False, limit=limit)
        for inner, room in zip(part.parts, rooms, strict=True)
    ]
    return _in_series(joined, budget_us, last_only=last_only)


def _least_us(part: Part, fronts: Sequence[Curve], before: Sequence[Sequence[int]]) -> int:
    """The least latency of a part: every module at its fastest."""
    if part.kind == "module":
        return int(fronts[part.modules[0]].latency_us[0])
    inner = [_least_us(p, fronts, before) for p in part.parts]
    if part.kind == "series":
        return sum(inner)
    if part.kind == "parallel":
        return max(inner)
    fastest = [int(fronts[module].latency_us[0]) for module in part.modules]
    return path_us(_inner(part.modules, before), fastest)


def _inner(modules: Sequence[int], before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Who waits for whom among these modules only, directly or over modules outside."""
    reach = closure(before)
    place = {module: i for i, module in enumerate(modules)}
    return [[place[i] for i in sorted(reach[m]) if i in place] for m in modules]


def _parallel(a: Combined, b: Combined) -> Combined:
    if not len(a.cost) or not len(b.cost):
        return _joined(a, b, np.empty(0, np.int64), np.empty(0, np.int64), parallel=True)
    left, right = _parallel_pairs(a.latency_us, b.latency_us)
    return _joined(a, b, left, right, parallel=True)


def _in_series(parts: list[Combined], budget_us: int, *, last_only: bool) -> Combined:
    if not all(len(part.cost) for part in parts):
        empty = np.empty(0, np.int64)
        while len(parts) > 1:
            parts.append(_joined(parts.pop(), parts.pop(), empty, empty, parallel=False))
        return parts[0].take(empty)
    while len(parts) > 1:
        # The two smallest first: their sum is the smallest table.
        parts.sort(key=lambda part: len(part.cost))
        a, b = parts.pop(0), parts.pop(0)
        others_us = sum(int(part.latency_us[0]) for part in parts)
        if last_only and not parts:
            i, j = _cheapest_pair(a.latency_us, a.cost, b.latency_us, b.cost, budget_us)
            found = np.array([i] if i >= 0 else [], np.int64)
            return _joined(a, b, found, np.full(len(found), j, np.int64), parallel=False)
        left, right = _series_pairs(
            a.latency_us, a.cost, b.latency_us, b.cost, budget_us - others_us
        )
        parts.append(_joined(a, b, left, right, parallel=False))
    return parts[0]


def _joined(a: Combined, b: Combined, left: Ints, right: Ints, *, parallel: bool) -> Combined:
    one, two = a.latency_us[left], b.latency_us[right]
    return Combined(
        latency_us=np.maximum(one, two) if parallel else one + two,
        cost=a.cost[left] + b.cost[right],
        points=np.hstack([a.points[left], b.points[right]]),
        modules=a.modules + b.modules,
        ended=a.ended and b.ended,
    )


@compiled
def _parallel_pairs(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """For every latency at which either front gets cheaper, the cheapest points within it."""
    size = a.shape[0] + b.shape[0]
    left, right = np.empty(size, np.int64), np.empty(size, np.int64)
    i, j, found = 0, 0, 0
    start = max(a[0], b[0])
    while i + 1 < a.shape[0] and a[i + 1] <= start:
        i += 1
    while j + 1 < b.shape[0] and b[j + 1] <= start:
        j += 1
    while True:
        left[found], right[found] = i, j
        found += 1
        more_a, more_b = i + 1 < a.shape[0], j + 1 < b.shape[0]
        if not more_a and not more_b:
            return left[:found], right[:found]
        if more_a and more_b and a[i + 1] == b[j + 1]:
            i += 1
            j += 1
        elif not more_b or (more_a and a[i + 1] < b[j + 1]):
            i += 1
        else:
            j += 1


@compiled
def _series_pairs(
    latency_a: Ints, cost_a: Floats, latency_b: Ints, cost_b: Floats, budget: int
) -> tuple[Ints, Ints]:
    """Undominated pairs whose latencies sum to at most the budget, fastest first."""
    rows, columns = latency_a.shape[0], latency_b.shape[0]
    size = 0
    last = columns
    for i in range(rows):
        while last > 0 and latency_a[i] + latency_b[last - 1] > budget:
            last -= 1
        size += last
    latency, cost = np.empty(size, np.int64), np.empty(size, np.float64)
    pair = np.empty(size, np.int64)
    found, last = 0, columns
    for i in range(rows):
        while last > 0 and latency_a[i] + latency_b[last - 1] > budget:
            last -= 1
        for j in range(last):
            latency[found] = latency_a[i] + latency_b[j]
            cost[found] = cost_a[i] + cost_b[j]
            pair[found] = i * columns + j
            found += 1
    order = np.argsort(latency)
    kept = 0
    for at in order:
        if kept == 0 or cost[at] < cost[order[kept - 1]] * (1 - 1e-13):
            if kept and latency[at] == latency[order[kept - 1]]:
                order[kept - 1] = at
            else:
                order[kept] = at
                kept += 1
    left, right = np.empty(kept, np.int64), np.empty(kept, np.int64)
    for k in range(kept):
        left[k] = pair[order[k]] // columns
        right[k] = pair[order[k]] % columns
    return left, right


@compiled
def _cheapest_pair(
    latency_a: Ints, cost_a: Floats, latency_b: Ints, cost_b: Floats, budget: int
) -> tuple[int, int]:
    """The cheapest pair whose latencies sum to at most the budget; (-1, -1): there is none."""
    best, best_i, best_j = np.inf, -1, -1
    j = latency_b.shape[0] - 1
    for i in range(latency_a.shape[0]):
        while j >= 0 and latency_a[i] + latency_b[j] > budget:
            j -= 1
        if j < 0:
            break
        if cost_a[i] + cost_b[j] < best:
            best, best_i, best_j = cost_a[i] + cost_b[j], i, j
    return best_i, best_j
