"""A module's front where slots are limited, or dearer than their price; proven.

The stacks searched are those of `exact.fronts`, in the same order of dispatch. Two things are
added, per kind of slot (a share of a device type): how many slots there are, and a charge for each
slot taken, which a part of a machine pays in full. A charge is the price of a device's scarcity
(`prices`); costs below contain it.

The order by throughput / price is then no longer that of throughput / (price + charge), and the
best kinds may be used up. So a branch ends where its cost, with what is left spread over the kinds
that may follow, cheapest first and each as far as its slots can carry it, exceeds the best found.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.apps.candidates import Candidate, ModuleCase
from headrace.planning.apps.exact.combine import Ladder
from headrace.planning.apps.exact.fronts import FRONT_MAX, Front
from headrace.planning.common.candidates import Floats, Ints

NODES_MAX = 1_000_000
"""Per walk, some 20 ms."""

SLACKS = (0.0, 1e-3, 1e-2)
"""Where a walk takes longer, its point need only be this close to the least."""

_TINY = 1e-9
_SAME = 1e-12


class FrontWithin(NamedTuple):
    """A module's front, and what is proven of it."""

    front: Front
    at_least: Ladder | None
    """Per latency, a cost that no machines as fast stay below; None: the front's own costs."""


@compiled
def _wait(batch: int, duration: int, rate: float) -> int:
    """As `candidates.collect_us`; a kernel calls only kernels of its own file."""
    if rate < 1e-9:
        return 1 << 50
    wait = int(np.ceil(1e6 * batch / rate - 1e-3))
    if batch == 1 and duration < wait:
        return duration
    return wait


@compiled
def _least_rate(batch: int, duration: int, budget: int) -> float:
    """The rate below which a batch is not together in time; a little less, against rounding."""
    if batch == 1 and 2 * duration <= budget:
        return 0.0
    return 1e6 * batch / (budget - duration + 1) * (1 - 1e-9)


@compiled
def _filled_worst(
    depth: int,
    chosen: Ints,
    left: Floats,
    extra: float,
    j: int,
    here: float,
    batch: Ints,
    duration: Ints,
) -> int:
    """Worst case of a stack whose last configuration is j, with `extra` dummy load below all."""
    worst = int(duration[j]) + _wait(batch[j], duration[j], here + extra)
    for level in range(depth):
        k = chosen[level]
        worst = max(worst, int(duration[k]) + _wait(batch[k], duration[k], left[level] + extra))
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
def _behind(kind: Ints, rate: Floats, unit: Floats, kinds: int) -> tuple[Floats, Floats, Ints]:
    """Of candidates j and behind, per kind of slot: least cost per load, most load of one slot.

    Returns:
        least and most, shape (K, Q); and the kinds in the order of `least`.
    """
    candidates = rate.shape[0]
    least, most = np.zeros((candidates, kinds)), np.zeros((candidates, kinds))
    order = np.zeros((candidates, kinds), np.int64)
    for j in range(candidates - 1, -1, -1):
        if j + 1 < candidates:
            least[j], most[j] = least[j + 1], most[j + 1]
        q = kind[j]
        ratio = unit[j] / rate[j]
        least[j, q] = ratio if most[j, q] == 0 else min(least[j, q], ratio)
        most[j, q] = max(most[j, q], rate[j])
        # Kinds without a candidate carry nothing, at whatever place.
        order[j] = np.argsort(least[j])
    return least, most, order


@compiled
def _cheapest(
    load: float,
    budget: int,
    batch: Ints,
    duration: Ints,
    rate: Floats,
    price: Floats,
    charge: Floats,
    kind: Ints,
    room: Ints,
    least: Floats,
    most: Floats,
    order: Ints,
    filled: bool,
    slack: float,
    best_cost: float,
    best_latency: int,
    best: Ints,
    nodes_max: int,
) -> tuple[float, int, int]:
    """The cheapest leaf within the budget and the room, the fastest of equals.

    Args:
        charge: (K,), on top of the price, per slot.
        room: (Q,), slots that there are; as it was when the walk ends within `nodes_max`.
        filled: the last machine is filled up with dummy load.
        slack: a leaf is passed over that would save no more than this part of the cost.
        best: (K + 1,), out: whole machines, and the last machine's candidate or -1.

    Returns:
        cost with charges, worst case, nodes visited.
    """
    candidates, kinds = least.shape
    chosen = np.empty(candidates + 1, np.int64)
    count = np.empty(candidates + 1, np.int64)
    left = np.empty(candidates + 1, np.float64)
    cost = np.empty(candidates + 1, np.float64)
    slowest = np.empty(candidates + 1, np.int64)
    dummy = np.zeros(candidates + 1, np.float64)
    """Dummy load without which what is chosen so far would collect for too long."""
    at = np.empty(candidates + 1, np.int64)
    """Next candidate to try on this level; the one of the level above may serve a last part."""
    tiny = _TINY * max(1.0, load)
    nodes = 0
    depth = 0
    left[0], cost[0], slowest[0], at[0] = load, 0.0, 0, 0
    while depth >= 0:
        j = at[depth]
        here = left[depth]
        nodes += 1
        over = j >= candidates or nodes > nodes_max
        if not over:
            hoped, carried = cost[depth], here + dummy[depth]
            for place in range(kinds):
                q = order[j, place]
                taken = min(carried, room[q] * most[j, q])
                hoped += taken * least[j, q]
                carried -= taken
                if carried <= tiny:
                    break
            over = carried > tiny or hoped > best_cost * (1 + _SAME - slack)
        if over:
            # One machine fewer of the choice that led here, or the next candidate there. Fewer may
            # be cheaper again: their slots may go to configurations that carry more.
            depth -= 1
            if depth < 0:
                break
            k = chosen[depth]
            count[depth] -= 1
            room[kind[k]] += 1
            at[depth] = k + 1
            if count[depth] >= 1 and k + 1 < candidates and nodes <= nodes_max:
                left[depth + 1] = left[depth] - count[depth] * rate[k]
                cost[depth + 1] = cost[depth] + count[depth] * (price[k] + charge[k])
                at[depth + 1] = k + 1
                depth += 1
            else:
                room[kind[k]] += count[depth]
            continue
        q = kind[j]
        again = depth > 0 and chosen[depth - 1] == j
        collecting = here
        if filled:
            # The last machine is never filled up with more than it can carry.
            behind = rate[j]
            for other in range(kinds):
                behind = max(behind, most[j, other])
            if behind < dummy[depth]:
                at[depth] = candidates
                continue
            collecting += behind
        own = duration[j] + _wait(batch[j], duration[j], collecting)
        if own > budget or room[q] == 0:
            at[depth] = j + 1
            continue
        latency = max(slowest[depth], own)
        unit = price[j] + charge[j]
        n = int(np.floor(here / rate[j] + _TINY))
        rest = here - n * rate[j]
        ends = rest <= tiny
        if filled:
            total = cost[depth] + (n + 1) * unit
            # The worst case takes a look at every level: only for what is cheap enough.
            if not again and not ends and n + 1 <= room[q] and total <= best_cost * (1 + _SAME):
                extra = (n + 1) * rate[j] - here
                worst = _filled_worst(depth, chosen, left, extra, j, here, batch, duration)
                if worst <= budget and (total < best_cost * (1 - _SAME) or worst < best_latency):
                    best_cost, best_latency = min(best_cost, total), worst
                    _write_down(best, depth, chosen, count, j, n + 1, False)
        elif (n == 0 or ends) and not (again and ends) and n <= room[q]:
            total = cost[depth] + (n * unit if ends else price[j] * here / rate[j] + charge[j])
            if total < best_cost * (1 - _SAME) or (
                total <= best_cost * (1 + _SAME) and latency < best_latency
            ):
                best_cost, best_latency = min(best_cost, total), latency
                _write_down(best, depth, chosen, count, j, n if ends else 0, not ends)
        # All the machines that it fills; with the load gone, one fewer, and others behind it.
        taken_all = not ends and n <= room[q]
        n = min(n - 1 if ends else n, room[q])
        if n == 0 or again:
            at[depth] = j + 1
            continue
        chosen[depth] = j
        count[depth] = n
        room[q] -= n
        left[depth + 1] = here - n * rate[j]
        cost[depth + 1] = cost[depth] + n * unit
        slowest[depth + 1] = latency
        if filled:
            dummy[depth + 1] = max(dummy[depth], _least_rate(batch[j], duration[j], budget) - here)
        # A part of the load of one machine may go to the same configuration.
        at[depth + 1] = j if taken_all and not filled else j + 1
        depth += 1
    return best_cost, best_latency, nodes


@compiled
def _front(
    load: float,
    budget: int,
    batch: Ints,
    duration: Ints,
    rate: Floats,
    price: Floats,
    charge: Floats,
    kind: Ints,
    room: Ints,
    latencies: Ints,
    costs: Floats,
    machines: Ints,
    least: Floats,
    slacks: Floats,
    nodes_max: int,
) -> tuple[int, bool]:
    """Fill in the front, cheapest first; number of points, and whether nothing is faster.

    Args:
        least: out, per point and one more: what machines as fast cost at least.
    """
    candidates = batch.shape[0]
    per_load, most, order = _behind(kind, rate, price + charge, room.shape[0])
    best = np.zeros(candidates + 1, np.int64)
    least[0], points = load * per_load[0][most[0] > 0].min(), 0
    while points < latencies.shape[0]:
        cost, latency, known = np.inf, 1 << 50, False
        for slack in slacks:
            known = True
            for filled in (False, True):
                cost, latency, nodes = _cheapest(
                    load,
                    budget,
                    batch,
                    duration,
                    rate,
                    price,
                    charge,
                    kind,
                    room.copy(),
                    per_load,
                    most,
                    order,
                    filled,
                    slack,
                    cost,
                    latency,
                    best,
                    nodes_max,
                )
                known = known and nodes <= nodes_max
            if known:
                least[points] = max(least[points], cost * (1 - slack))
                break
        if cost == np.inf:
            return points, known
        latencies[points] = latency
        costs[points] = cost
        machines[points] = best
        points += 1
        # What is faster is not cheaper.
        least[points] = least[points - 1]
        budget = latency - 1
    return points, False


def front_within(
    module: ModuleCase, budget_us: int, kind: Ints, room: Ints, charge: Floats
) -> FrontWithin:
    """Every undominated (worst case, cost with charges) of machines that have a slot each.

    Args:
        kind: shape (K,), the kind of slot of each candidate.
        room: shape (Q,), slots of each kind.
        charge: shape (Q,), what a slot of each kind costs on top of its price.
    """
    candidates = len(module.candidates)
    latencies = np.empty(FRONT_MAX + 1, np.int64)
    costs = np.empty(FRONT_MAX, np.float64)
    machines = np.empty((FRONT_MAX, candidates + 1), np.int64)
    least = np.empty(FRONT_MAX + 1, np.float64)
    points, ends = _front(
        module.rate_rps,
        budget_us,
        module.batch,
        module.duration_us,
        module.rates_rps,
        module.price,
        charge[kind],
        kind,
        room,
        latencies[:-1],
        costs,
        machines,
        least,
        np.array(SLACKS),
        NODES_MAX,
    )
    whole = machines[:points][::-1].copy()
    last = whole[:, candidates]
    left = module.rate_rps - whole[:, :candidates] @ module.rates_rps
    proven = ends and bool((least[:points] == costs[:points]).all())
    front = Front(
        latency_us=latencies[:points][::-1].copy(),
        cost=costs[:points][::-1].copy(),
        whole=whole[:, :candidates],
        last=last,
        part=np.where(last >= 0, left / module.rates_rps[last], 0.0),
        proven=proven,
    )
    if proven:
        return FrontWithin(front, None)
    known = points if ends else points + 1
    latencies[points] = module.duration_us.min()
    return FrontWithin(front, Ladder(latencies[:known][::-1].copy(), least[:known][::-1].copy()))


def load_kernel() -> None:
    """Load the compiled walk, or compile it: once per machine, some seconds."""
    one = np.ones(1)
    only = Candidate(batch=1, duration_us=1, rate_rps=1.0, device="x", share=Fraction(1), price=1.0)
    front_within(
        ModuleCase.of("x", 0.5, [only]), 10, one.astype(np.int64) - 1, one.astype(np.int64), one
    )
