"""Least cost of a module within a budget where the last machine may carry any dummy load.

The form of `fronts` with one choice more: what is left after the whole machines goes to one
machine, and with it as much dummy load as makes all batches collect in time (Theorem 2 of Harpagon
adds it only to fill a machine). Cost is then no staircase: dummy load falls as the budget grows, as
batch / (budget - duration) does, until the next stack of machines is cheaper. So a front is a
ladder that brackets it: each point is a plan, and no plan within a smaller budget, down to
`least_us`, costs less.

The walk is that of `fronts`: depth first, best throughput / price first, cut where cost and
all that is left, with the dummy load that the machines above need, exceed the best.
"""

from dataclasses import dataclass, replace

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.apps.candidates import ModuleCase
from headrace.planning.apps.machines import Entry, Schedule, schedule_of
from headrace.planning.common.candidates import NEVER_US, Floats, Ints

NODES_MAX = 100_000
"""Per point, some 5 ms. Past it the point is a plan, and proves nothing new."""
POINTS_MAX = 4096
STEP = 0.05
"""From one point to the next, cost along a stack's curve grows by this part."""

_TINY = 1e-9
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


@compiled
def _needed(batch: int, duration: int, budget: int) -> float:
    """The rate at which a batch must be collected; below 0: in no case in time.

    Half of `candidates.ROUNDING_US` is used up, so that the worst case rounds to the budget.
    """
    if duration >= budget:
        return -1.0
    if batch == 1 and 2 * duration <= budget:
        return 0.0
    return 1e6 * batch / (budget - duration + 5e-4)


@compiled
def _worst(
    last: int,
    last_load: float,
    whole: Ints,
    batch: Ints,
    duration: Ints,
    rate: Floats,
) -> int:
    """Theorem 1's worst case of whole machines and one with `last_load`; as `schedule_of`."""
    behind = 0.0
    worst = 0
    for k in range(batch.shape[0] - 1, -1, -1):
        # A last machine of the same configuration stands behind the whole ones.
        for own in (last_load if k == last else 0.0, whole[k] * rate[k]):
            if own > 0:
                behind += own
                wait = int(np.ceil(1e6 * batch[k] / behind - 1e-3))
                if batch[k] == 1:
                    wait = min(wait, duration[k])
                worst = max(worst, duration[k] + wait)
    return worst


@compiled
def _write_down(
    best: Ints, depth: int, chosen: Ints, count: Ints, j: int, whole: int, is_part: bool
) -> None:
    """The stack as counts per candidate: `whole` of j at the end, or j as the part of a machine."""
    best[:] = 0
    best[-1] = j if is_part else -1
    for level in range(depth):
        best[chosen[level]] += count[level]
    best[j] += whole


@compiled
def _cheapest(
    load: float,
    budget: int,
    batch: Ints,
    duration: Ints,
    rate: Floats,
    price: Floats,
    best: Ints,
    nodes_max: int,
) -> tuple[float, float, int]:
    """The cheapest machines within the budget.

    Args:
        best: (K + 1,), out: whole machines, and the last machine's candidate or -1.

    Returns:
        cost (infinite: none), load of the last machine, nodes visited.
    """
    kinds = batch.shape[0]
    needed = np.empty(kinds, np.float64)
    most_behind = np.empty(kinds + 1, np.float64)
    most_behind[kinds] = 0.0
    for k in range(kinds - 1, -1, -1):
        needed[k] = _needed(batch[k], duration[k], budget)
        most_behind[k] = max(most_behind[k + 1], rate[k] if needed[k] >= 0 else 0.0)
    chosen = np.empty(kinds + 1, np.int64)
    count = np.empty(kinds + 1, np.int64)
    at = np.empty(kinds + 1, np.int64)
    left = np.empty(kinds + 1, np.float64)
    cost = np.empty(kinds + 1, np.float64)
    short = np.empty(kinds + 1, np.float64)
    """Dummy load that the machines above need."""
    best_cost, best_load = np.inf, 0.0
    depth, nodes, entering = 0, 0, True
    at[0], left[0], cost[0], short[0] = 0, load, 0.0, 0.0
    while depth >= 0:
        nodes += 1
        here, spent, lacking = left[depth], cost[depth], short[depth]
        if entering:
            entering = False
            if depth > 0 and here <= 0 and lacking <= 0 and spent < best_cost * (1 - _SAME):
                best_cost, best_load = spent, 0.0
                _write_down(best, depth, chosen, count, 0, 0, False)
            for j in range(chosen[depth - 1] if depth > 0 else 0, kinds):
                least = here + max(0.0, lacking)
                if spent + least * price[j] / rate[j] >= best_cost * (1 - _SAME):
                    break
                if needed[j] < 0:
                    continue
                # Whole machines alone, the last one filled up.
                full = int(np.ceil(here / rate[j] - _TINY))
                is_new = depth == 0 or chosen[depth - 1] != j
                total = spent + full * price[j]
                if (
                    is_new
                    and full > 0
                    and full * rate[j] >= max(least, needed[j])
                    and total < best_cost * (1 - _SAME)
                ):
                    best_cost, best_load = total, 0.0
                    _write_down(best, depth, chosen, count, j, full, False)
                # One machine with what is left, and as much dummy load as it takes.
                last_load = max(least, needed[j])
                total = spent + last_load * price[j] / rate[j]
                if 0 < last_load <= rate[j] * (1 + _SAME) and total < best_cost * (1 - _SAME):
                    best_cost, best_load = total, min(last_load, rate[j])
                    _write_down(best, depth, chosen, count, j, 0, True)
        j = at[depth]
        if (
            j >= kinds
            or nodes > nodes_max
            or spent + (here + max(0.0, lacking)) * price[j] / rate[j] >= best_cost * (1 - _SAME)
        ):
            # Back: one machine fewer of the choice that led here, or the next candidate there.
            depth -= 1
            if depth < 0:
                break
            k = chosen[depth]
            count[depth] -= 1
            at[depth] = k + 1
            rest = left[depth] - count[depth] * rate[k]
            before = cost[depth] + count[depth] * price[k]
            if (
                count[depth] >= 1
                and k + 1 < kinds
                and nodes <= nodes_max
                and before + rest * price[k + 1] / rate[k + 1] < best_cost * (1 - _SAME)
            ):
                depth += 1
                left[depth], cost[depth], at[depth] = rest, before, k + 1
                entering = True
            continue
        machines = int(np.floor(here / rate[j] + _TINY))
        lacks = max(lacking, needed[j] - here)
        if machines == 0 or needed[j] < 0 or lacks > most_behind[j] * (1 + _SAME):
            at[depth] = j + 1
            continue
        rest = here - machines * rate[j]
        chosen[depth], count[depth] = j, machines
        depth += 1
        left[depth] = rest if rest > _TINY * max(1.0, load) else 0.0
        cost[depth] = spent + machines * price[j]
        short[depth] = lacks
        at[depth] = j + 1
        entering = True
    return best_cost, best_load, nodes


def _point_kernel(
    load: float,
    budget: int,
    batch: Ints,
    duration: Ints,
    rate: Floats,
    price: Floats,
    best: Ints,
    nodes_max: int,
) -> tuple[float, float, int, int, bool]:
    """(cost, load of the last machine, worst case, where to go on, whether it is proven)."""
    kinds = batch.shape[0]
    cost, last_load, nodes = _cheapest(load, budget, batch, duration, rate, price, best, nodes_max)
    if cost == np.inf:
        return cost, 0.0, 0, 0, nodes <= nodes_max
    last, whole = int(best[kinds]), best[:kinds]
    latency = _worst(last, last_load, whole, batch, duration, rate)
    following = latency - 1
    rest = load - float((whole * rate).sum())
    if last >= 0 and last_load > rest * (1 + _TINY) and last_load < rate[last]:
        more = min(float(rate[last]), last_load + STEP * cost * float(rate[last] / price[last]))
        following = min(following, _worst(last, more, whole, batch, duration, rate))
    return cost, last_load, latency, following, nodes <= nodes_max


_point_compiled = compiled(_point_kernel)


def cheapest_point(module: ModuleCase, budget_us: int, known: float) -> Point | None:
    """The cheapest machines within the budget; None where there are none.

    Args:
        known: a bound that holds anyway.
    """
    kinds = len(module.candidates)
    best = np.zeros(kinds + 1, np.int64)
    cost, load_rps, latency_us, following_us, proven = _point_compiled(
        module.rate_rps,
        min(budget_us, NEVER_US),
        module.batch,
        module.duration_us,
        module.rates_rps,
        module.price,
        best,
        NODES_MAX,
    )
    if not np.isfinite(cost):
        return None
    return Point(
        latency_us=latency_us,
        least_us=following_us + 1,
        cost=cost,
        bound=cost if proven else known,
        whole=best[:kinds],
        last=int(best[kinds]),
        load_rps=load_rps,
    )


def coarse_front(module: ModuleCase, budget_us: int) -> list[Point]:
    """A ladder from the cheapest point to the fastest; none is as fast as the next one."""
    points: list[Point] = []
    known = module.rate_rps * float((module.price / module.rates_rps).min())
    while len(points) < POINTS_MAX:
        point = cheapest_point(module, budget_us, known)
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
    entries = []
    for k, candidate in enumerate(module.candidates):
        if point.whole[k]:
            entries.append(Entry(candidate=candidate, machines=float(point.whole[k])))
        if point.last == k:
            part = point.load_rps / candidate.rate_rps
            entries.append(Entry(candidate=candidate, machines=min(1.0, part)))
    return schedule_of(entries, module.rate_rps, "remaining")
