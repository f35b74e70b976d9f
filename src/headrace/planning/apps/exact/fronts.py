"""Least cost of a module for every budget, proven: the module's front of (worst case, cost).

What is searched (decision 0015): whole machines of any number of configurations in the order of
throughput / price, then at most one machine with what is left; or whole machines alone, whose
last one may be filled up with dummy load. This is the form of everything that Algorithm 1 and the
dummy generator can write down, without their greed.

`cheapest` walks this tree depth first, best throughput / price first, so that its first leaf is
Algorithm 1's. A branch ends where its cost, with all that is left at the best price of what may
follow, exceeds the best found. The front is a walk too: the cheapest within the budget, then the
cheapest that is faster than that, until nothing is.

Harpagon's Theorem 2 is not used: its proof takes for granted that what remains after moving load
to a better configuration costs about as much per request as before, which need not be so.
"""

from dataclasses import dataclass

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.apps.candidates import ModuleCase
from headrace.planning.apps.machines import Entry, Schedule, schedule_of
from headrace.planning.common.candidates import Floats, Ints

NODES_MAX = 5_000_000
"""Per point of the front, some 0.1 s. Past it the point is good but not proven, and the planner
says so. Hundreds of machines of configurations that hardly differ in throughput / price get
there."""

FRONT_MAX = 4096

_TINY = 1e-9
_SAME = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Undominated (worst case, cost) of one module, fastest and dearest first. P points."""

    latency_us: Ints
    """Shape (P,), increasing."""
    cost: Floats
    """Shape (P,), decreasing."""
    whole: Ints
    """Shape (P, K): whole machines of each candidate."""
    last: Ints
    """Shape (P,): the candidate of the machine with less load than it can take; -1: none."""
    part: Floats
    """Shape (P,): the part of its throughput that it is given."""
    proven: bool

    def __len__(self) -> int:
        return len(self.cost)


@compiled
def _wait(batch: int, duration: int, rate: float) -> int:
    """As `candidates.collect_us`."""
    if rate < 1e-9:
        return 1 << 50
    wait = int(np.ceil(1e6 * batch / rate - 1e-3))
    if batch == 1 and duration < wait:
        return duration
    return wait


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
def _cheapest(
    load: float,
    budget: int,
    batch: Ints,
    duration: Ints,
    rate: Floats,
    price: Floats,
    most_behind: Floats,
    filled: bool,
    best_cost: float,
    best_latency: int,
    best: Ints,
    nodes_max: int,
) -> tuple[float, int, int]:
    """The cheapest leaf within the budget, the fastest of equals; `filled`: with dummy load.

    Args:
        most_behind: (K,), the largest throughput among candidates k and behind.
        best: (K + 1,), out: whole machines, and the last machine's candidate or -1.

    Returns:
        cost, worst case, nodes visited.
    """
    kinds = batch.shape[0]
    # One level of the walk per configuration chosen so far.
    chosen = np.empty(kinds + 1, np.int64)
    count = np.empty(kinds + 1, np.int64)
    left = np.empty(kinds + 1, np.float64)
    cost = np.empty(kinds + 1, np.float64)
    slowest = np.empty(kinds + 1, np.int64)
    at = np.empty(kinds + 1, np.int64)
    """Next candidate to try on this level; the one of the level above may serve a last part."""
    nodes = 0
    depth = 0
    left[0], cost[0], slowest[0], at[0] = load, 0.0, 0, 0
    while depth >= 0:
        j = at[depth]
        here = left[depth]
        nodes += 1
        if (
            j >= kinds
            or cost[depth] + here * (price[j] / rate[j]) > best_cost * (1 + _SAME)
            or nodes > nodes_max
        ):
            # Candidates further on are dearer still: one machine fewer of the choice that led here,
            # or the next candidate there. (In a function of its own this takes three times as long:
            # numba counts references to every array that it hands over.)
            depth -= 1
            if depth < 0:
                break
            k = chosen[depth]
            count[depth] -= 1
            rest = left[depth] - count[depth] * rate[k]
            spent = cost[depth] + count[depth] * price[k]
            at[depth] = k + 1
            # Fewer machines leave more for dearer ones: where one fewer costs too much, all do.
            if (
                count[depth] >= 1
                and k + 1 < kinds
                and nodes <= nodes_max
                and spent + rest * (price[k + 1] / rate[k + 1]) <= best_cost * (1 + _SAME)
            ):
                depth += 1
                left[depth], cost[depth], at[depth] = rest, spent, k + 1
            continue
        again = depth > 0 and chosen[depth - 1] == j
        hoped = here + most_behind[j] if filled else here
        wait = _wait(batch[j], duration[j], hoped)
        latency = max(slowest[depth], duration[j] + wait)
        if duration[j] + wait > budget:
            at[depth] = j + 1
            continue
        n = int(np.floor(here / rate[j] + _TINY))
        rest = here - n * rate[j]
        ends = rest <= _TINY * max(1.0, load)
        if filled:
            total = cost[depth] + (n + 1) * price[j]
            # The worst case takes a look at every level: only for what is cheap enough.
            if not again and not ends and total <= best_cost * (1 + _SAME):
                extra = (n + 1) * rate[j] - here
                worst = _filled_worst(depth, chosen, left, extra, j, here, batch, duration)
                if worst <= budget and (total < best_cost * (1 - _SAME) or worst < best_latency):
                    best_cost, best_latency = min(best_cost, total), worst
                    _write_down(best, depth, chosen, count, j, n + 1, False)
        elif (n == 0 or ends) and not (again and ends):
            total = cost[depth] + (n * price[j] if ends else price[j] * here / rate[j])
            if total < best_cost * (1 - _SAME) or (
                total <= best_cost * (1 + _SAME) and latency < best_latency
            ):
                best_cost, best_latency = min(best_cost, total), latency
                _write_down(best, depth, chosen, count, j, n if ends else 0, not ends)
        if n == 0 or again:
            at[depth] = j + 1
            continue
        # All the machines that it fills; with the load gone, one fewer, and others behind it.
        if ends:
            n -= 1
            rest += rate[j]
            if n == 0:
                at[depth] = j + 1
                continue
        chosen[depth] = j
        count[depth] = n
        left[depth + 1] = rest
        cost[depth + 1] = cost[depth] + n * price[j]
        slowest[depth + 1] = latency
        # A part of the load of one machine may go to the same configuration.
        at[depth + 1] = j + 1 if ends or filled else j
        depth += 1
    return best_cost, best_latency, nodes


def _front_kernel(
    load: float,
    budget: int,
    batch: Ints,
    duration: Ints,
    rate: Floats,
    price: Floats,
    latencies: Ints,
    costs: Floats,
    machines: Ints,
    nodes_max: int,
) -> tuple[int, bool]:
    """Fill in the front, cheapest first; number of points, and whether all are proven."""
    kinds = batch.shape[0]
    most_behind = rate.copy()
    for k in range(kinds - 2, -1, -1):
        most_behind[k] = max(most_behind[k], most_behind[k + 1])
    best = np.zeros(kinds + 1, np.int64)
    points, proven = 0, True
    while points < latencies.shape[0]:
        cost, latency = np.inf, 1 << 50
        for filled in (False, True):
            cost, latency, nodes = _cheapest(
                load,
                budget,
                batch,
                duration,
                rate,
                price,
                most_behind,
                filled,
                cost,
                latency,
                best,
                nodes_max,
            )
            proven = proven and nodes <= nodes_max
        if cost == np.inf:
            break
        latencies[points] = latency
        costs[points] = cost
        machines[points] = best
        points += 1
        budget = latency - 1
    return points, proven


_front_compiled = compiled(_front_kernel)


def module_front(module: ModuleCase, budget_us: int) -> Front:
    """Every undominated (worst case, cost) within the budget; empty where nothing fits."""
    kinds = len(module.candidates)
    latencies = np.empty(FRONT_MAX, np.int64)
    costs = np.empty(FRONT_MAX, np.float64)
    machines = np.empty((FRONT_MAX, kinds + 1), np.int64)
    points, proven = _front_compiled(
        module.rate_rps,
        budget_us,
        module.batch,
        module.duration_us,
        module.rates_rps,
        module.price,
        latencies,
        costs,
        machines,
        NODES_MAX,
    )
    whole = machines[:points][::-1]
    last = whole[:, kinds]
    left = module.rate_rps - whole[:, :kinds] @ module.rates_rps
    return Front(
        latency_us=latencies[:points][::-1].copy(),
        cost=costs[:points][::-1].copy(),
        whole=whole[:, :kinds],
        last=last,
        part=np.where(last >= 0, left / module.rates_rps[last], 0.0),
        proven=proven and points < FRONT_MAX,
    )


def front_schedule(module: ModuleCase, front: Front, point: int) -> Schedule:
    """The machines of one point of the front."""
    entries = []
    for k, candidate in enumerate(module.candidates):
        if front.whole[point, k]:
            entries.append(Entry(candidate=candidate, machines=float(front.whole[point, k])))
        if front.last[point] == k:
            entries.append(Entry(candidate=candidate, machines=float(front.part[point])))
    return schedule_of(entries, module.rate_rps, "remaining")
