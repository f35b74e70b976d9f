"""The cheapest machines of one module within a budget: depth-first branch and bound, compiled.

**What is searched** (decisions 0015 and 0065). Candidates stand in the order of throughput / price,
which is the order of dispatch. A *prefix* is whole machines of some candidates in that order, fully
loaded, one level of the tree per candidate. Its children put machines of one more candidate behind.
A leaf is a prefix and what carries the rest behind it, in one of three ways:

EVEN      machines of one candidate, as many as it takes, share what is left evenly
PART      one machine has what is left, and all before it are full (Harpagon, Algorithm 1)
FILLED    dummy load fills the last machine up, so that all are whole (Theorem 2)

**Worst case** (Theorem 1). A machine of candidate k with load w on its configuration and all behind
ends within d_k + b_k / w. So k meets the budget if and only if w reaches

    needed_k = b_k / (budget - d_k),    0 for a batch of one with 2 d_k <= budget

and what w lacks for that has to come as dummy load of the last machine. From level l, with n
machines of k,

    left_{l+1}    = left_l - n rate_k
    cost_{l+1}    = cost_l + n (price_k + charge_k)
    lacking_{l+1} = max(lacking_l, needed_k - left_l)

and a prefix is worth something only while no more is lacking than one machine can carry.

**Slots.** Candidates of one kind (a share of a device type) take slots from one `room`, and a slot
may cost a `charge` beside its price: what it is worth to other modules (`stock.prices`). A part of
a machine pays for its part, and the full charge.

**Even load without limits** needs no search: the first of all candidates has w = load, the most
there is, and none that meets the budget is better per price than the best that does. So that one
carries everything, and the walk ends where it finds it. FILLED can only be cheaper with a first
candidate that needs more than the load, by at most one machine's.

**Bound.** left + lacking cost at least what they would in parts of machines: of the candidates that
may still follow and can be in time, the cheapest per load; with limits, of the kinds, each as far
as its slots carry it. A branch ends where its
cost and this bound exceed the best leaf. Without limits on slots, one machine fewer never makes a
bound cheaper: the first that is too dear ends them all. With limits, slots may go to better use.
A walk that is cut short leaves the bound of one configuration, divisible and with any dummy load:
max(load, needed_k) at the price of k, of all k the least (`_floor`).

**Order.** The most machines of the best candidate first, so that the first leaf is Algorithm 1's.
Of leaves that cost the same (to 1e-12) the fastest is kept, of those the first. Exponential in the
number of candidates at worst; in the study (16 to 27 candidates, 0.01 to 36 machines) some ten to
some thousand nodes of 10 to 20 ns.

Theorem 2 (what is left behind k is less than one machine of k) is not used: its proof takes for
granted that the rest costs about as much per request as before, which need not be so.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled, hot
from headrace.planning.common.candidates import NEVER_US, Floats, Ints

Rows = npt.NDArray[np.void]
"""A table whose rows have named fields."""


def _row(ints: str, floats: str) -> "np.dtype[np.void]":
    fields = [(n, "i8") for n in ints.split()] + [(n, "f8") for n in floats.split()]
    return np.dtype((np.record, fields))


CANDIDATE = _row(
    "batch duration_us kind", "rate_rps price charge needed_rps dummy_max_rps least_per_rps"
)
"""Best throughput / price first; `kind` is of its slot. The walk writes the last three (`_ask`)."""

TAIL = _row("kind", "cost_per_rps rate_rps")
"""Of candidates j and behind: a kind of slot, its least cost per load, most load of one slot."""

LEVEL = _row("next chosen machines", "left_rps cost lacking_rps")
"""What is left behind the prefix above, the candidate to try next, and the one chosen now."""

BEST = _row("latency_us nodes", "cost")
"""The best leaf so far, and the nodes of all walks."""

POINT = _row("latency_us", "cost at_least")
"""A point of a front; no machines as fast cost less than `at_least`."""

EVEN, PART, FILLED = 0, 1, 2

ENDLESS = 1 << 40
"""Slots of a kind that is not limited."""

LEAST_NODES = 1_000
"""Of a walk, however many were walked before: enough for a good leaf."""

_TINY = 1e-9
_SAME = 1e-12


class ModuleTables(NamedTuple):
    """What one module's walks work on. K candidates, Q kinds of slot, K + 1 levels, one best."""

    candidates: Rows
    """Shape (K,), CANDIDATE."""
    tails: Rows
    """Shape (K, Q), TAIL: cheapest kind first, kinds without a candidate last."""
    room: Ints
    """Shape (Q,): slots that are left. A walk ends with as many as it began with."""
    limited: bool
    """Whether there are fewer slots of some kind than `ENDLESS`."""
    levels: Rows
    best: Rows
    machines: Ints
    """Shape (K + 1,), of the best leaf: whole machines, and the candidate that carries what these
    leave, or -1."""


class Question(NamedTuple):
    """What one walk is asked."""

    load_rps: float
    budget_us: int
    last: int
    """EVEN, PART or FILLED."""
    slack: float
    """A leaf is passed over that would save no more than this part of the cost."""
    nodes_max: int


class Effort(NamedTuple):
    """Nodes after which a walk is cut short, of each and of all of a front (but `LEAST_NODES`)."""

    a_walk: int
    in_all: int


@hot
def _collect_us(batch: int, duration_us: int, rate_rps: float) -> int:
    """As `candidates.collect_us`."""
    if rate_rps < 1e-9:
        return NEVER_US
    wait = int(np.ceil(1e6 * batch / rate_rps - 1e-3))
    if batch == 1 and duration_us < wait:
        return duration_us
    return wait


@hot
def _ask(t: ModuleTables, q: Question) -> None:
    """Write down what each candidate needs within the budget, and what can be behind it.

    `_collect_us` rounds up all but a thousandth of a microsecond. All of it is allowed for here: a
    leaf's worst case is looked at anyway.
    """
    most, least = 0.0, np.inf
    for k in range(t.candidates.shape[0] - 1, -1, -1):
        c = t.candidates[k]
        c.needed_rps = _needed_rps(c.batch, c.duration_us, q.budget_us)
        if c.needed_rps >= 0 and q.last == FILLED:
            most = max(most, c.rate_rps)
        c.dummy_max_rps = most
        if c.needed_rps >= 0 and c.needed_rps <= (q.load_rps + most) * (1 + _TINY):
            least = min(least, c.price / c.rate_rps)
        c.least_per_rps = least


@hot
def _needed_rps(batch: int, duration_us: int, budget_us: int) -> float:
    """The rate at which a batch is collected in time; below 0: at none."""
    if duration_us >= budget_us:
        return -1.0
    if batch == 1 and 2 * duration_us <= budget_us:
        return 0.0
    return 1e6 * batch / (budget_us - duration_us + 1e-3 * (1 + _TINY))


@hot
def _floor(t: ModuleTables, load_rps: float, budget_us: int) -> float:
    """What no machines within the budget cost less than, looked at one configuration at a time."""
    least = np.inf
    for k in range(t.candidates.shape[0]):
        c = t.candidates[k]
        needed = _needed_rps(c.batch, c.duration_us, budget_us)
        if needed >= 0:
            least = min(least, max(load_rps, needed) * c.price / c.rate_rps)
    return least * (1 - _TINY)


@hot
def _worst_us(t: ModuleTables, depth: int, j: int, dummy_rps: float) -> int:
    """Worst case of a prefix with machines of j behind it, and dummy load behind all."""
    c = t.candidates[j]
    rate = t.levels[depth].left_rps + dummy_rps
    worst = c.duration_us + _collect_us(c.batch, c.duration_us, rate)
    for above in range(depth):
        level = t.levels[above]
        c = t.candidates[level.chosen]
        collect = _collect_us(c.batch, c.duration_us, level.left_rps + dummy_rps)
        worst = max(worst, c.duration_us + collect)
    return worst


@hot
def _least_cost(t: ModuleTables, q: Question, depth: int, j: int) -> float:
    """What no leaf costs less than that goes on from here with candidate j or behind."""
    level = t.levels[depth]
    cost, carried = level.cost, level.left_rps + level.lacking_rps
    if not t.limited:
        return cost + carried * t.candidates[j].least_per_rps
    tiny = _TINY * max(1.0, q.load_rps)
    for place in range(t.tails.shape[1]):
        tail = t.tails[j, place]
        taken = min(carried, t.room[tail.kind] * tail.rate_rps)
        cost += taken * tail.cost_per_rps
        carried -= taken
        if carried <= tiny:
            return cost
    return np.inf


@hot
def _too_dear(t: ModuleTables, q: Question, cost: float) -> bool:
    return cost == np.inf or cost > t.best[0].cost * (1 + _SAME - q.slack)


@hot
def _keep(t: ModuleTables, depth: int, j: int, whole: int, is_rest: bool) -> None:
    """Write the best leaf down: the prefix, and `whole` machines of j, or j for what is left."""
    count = t.candidates.shape[0]
    for k in range(count):
        t.machines[k] = 0
    t.machines[count] = j if is_rest else -1
    for above in range(depth):
        t.machines[t.levels[above].chosen] += t.levels[above].machines
    t.machines[j] += whole


@hot
def _end_here(t: ModuleTables, q: Question, depth: int, j: int, full: int, ends: bool) -> None:
    """The leaf whose last machines are of candidate j.

    Args:
        full: machines that what is left fills.
        ends: nothing is left behind them.
    """
    c, level, best = t.candidates[j], t.levels[depth], t.best[0]
    again = depth > 0 and t.levels[depth - 1].chosen == j
    unit, here = c.price + c.charge, level.left_rps
    dummy, slots = 0.0, full + (0 if ends else 1)
    if slots > t.room[c.kind]:
        return
    if q.last == FILLED:
        if ends:
            return
        whole, cost = slots, level.cost + slots * unit
        dummy = slots * c.rate_rps - here
    elif ends:
        if again:
            return
        whole, cost = full, level.cost + full * unit
    elif full and q.last == PART:
        return
    else:
        whole, cost = 0, level.cost + (c.price * here / c.rate_rps + c.charge * slots)
    if cost > best.cost * (1 + _SAME):
        return
    latency = _worst_us(t, depth, j, dummy)
    if latency <= q.budget_us and (cost < best.cost * (1 - _SAME) or latency < best.latency_us):
        best.cost, best.latency_us = min(best.cost, cost), latency
        _keep(t, depth, j, whole, q.last != FILLED and not ends)


@hot
def _go_on(t: ModuleTables, q: Question, depth: int, j: int) -> int:
    """Look at the leaf with candidate j, then put all the machines behind that j can fill.

    Returns:
        The level to go on with: the next one, or this one with the candidate after j.
    """
    c, level = t.candidates[j], t.levels[depth]
    here = level.left_rps
    lacking = max(level.lacking_rps, c.needed_rps - here)
    level.next = j + 1
    if c.needed_rps < 0 or t.room[c.kind] == 0 or lacking > c.dummy_max_rps * (1 + _SAME):
        return depth
    n = int(np.floor(here / c.rate_rps + _TINY))
    tiny = _TINY * max(1.0, q.load_rps)
    ends = here - n * c.rate_rps <= tiny
    _end_here(t, q, depth, j, n, ends)
    # With the load gone, one machine fewer, and others behind it.
    n -= ends
    machines = min(n, t.room[c.kind])
    if machines == 0 or (depth and t.levels[depth - 1].chosen == j):
        return depth
    level.chosen, level.machines = j, machines
    t.room[c.kind] -= machines
    below = t.levels[depth + 1]
    rest = here - machines * c.rate_rps
    below.left_rps = rest if rest > tiny else 0.0
    below.cost = level.cost + machines * (c.price + c.charge)
    below.lacking_rps = lacking
    # What all its machines leave may be a part of one more of the same candidate.
    below.next = j if q.last == PART and not ends and machines == n else j + 1
    return depth + 1


@hot
def _one_fewer(t: ModuleTables, q: Question, depth: int, done: bool) -> int:
    """Take back one machine of the choice that led here; of the last one, the choice.

    Returns:
        This level, with less above it; or the one above, with its next candidate.
    """
    if depth == 0:
        return -1
    level, below = t.levels[depth - 1], t.levels[depth]
    k = level.chosen
    c = t.candidates[k]
    level.machines -= 1
    t.room[c.kind] += 1
    if level.machines >= 1 and k + 1 < t.candidates.shape[0] and not done:
        below.left_rps = level.left_rps - level.machines * c.rate_rps
        below.cost = level.cost + level.machines * (c.price + c.charge)
        below.next = k + 1
        if t.limited or not _too_dear(t, q, _least_cost(t, q, depth, k + 1)):
            return depth
    t.room[c.kind] += level.machines
    return depth - 1


@hot
def _walk(t: ModuleTables, q: Question) -> bool:
    """Put the best leaf into `best` and `machines`, if one is better than what stands there.

    Returns:
        Whether none is better; False: cut short after `nodes_max` nodes.
    """
    _ask(t, q)
    start = t.levels[0]
    start.next, start.left_rps, start.cost, start.lacking_rps = 0, q.load_rps, 0.0, 0.0
    depth, nodes = 0, 0
    while depth >= 0:
        nodes += 1
        j = t.levels[depth].next
        done = nodes > q.nodes_max
        if done or j >= t.candidates.shape[0] or _too_dear(t, q, _least_cost(t, q, depth, j)):
            depth = _one_fewer(t, q, depth, done)
        else:
            depth = _go_on(t, q, depth, j)
    t.best[0].nodes += nodes
    return nodes <= q.nodes_max


# -- what Python calls ----------------------------------------------------------------------------


@hot
def _fill_tails(candidates: Rows, tails: Rows) -> None:
    count, kinds = tails.shape
    for j in range(count - 1, -1, -1):
        c, place = candidates[j], 0
        for q in range(kinds):
            if j + 1 < count:
                tails[j, q] = tails[j + 1, q]
            else:
                tails[j, q].kind, tails[j, q].cost_per_rps, tails[j, q].rate_rps = q, 0.0, 0.0
            if tails[j, q].kind == c.kind:
                place = q
        rate, cost = tails[j, place].rate_rps, (c.price + c.charge) / c.rate_rps
        if rate > 0:
            cost = min(cost, tails[j, place].cost_per_rps)
        # Cheapest first; kinds without a candidate carry nothing, and stand last.
        while place > 0:
            before = tails[j, place - 1]
            if before.rate_rps > 0 and before.cost_per_rps <= cost:
                break
            tails[j, place] = tails[j, place - 1]
            place -= 1
        tail = tails[j, place]
        tail.kind, tail.cost_per_rps, tail.rate_rps = c.kind, cost, max(rate, c.rate_rps)


@compiled
def _tables(candidates: Rows, room: Ints, machines: Ints) -> ModuleTables:
    count = candidates.shape[0]
    tails = np.empty((count, room.shape[0]), TAIL)
    _fill_tails(candidates, tails)
    limited = False
    for slots in room:
        limited = limited or slots < ENDLESS
    levels, best = np.empty(count + 1, LEVEL), np.empty(1, BEST)
    return ModuleTables(candidates, tails, room, limited, levels, best, machines)


@hot
def _cheapest(
    t: ModuleTables, load_rps: float, budget_us: int, forms: Ints, slacks: Floats, effort: Effort
) -> tuple[float, bool]:
    """The best leaf of these forms within the budget; what none costs less than, if that is known.

    A walk that takes too long is repeated for a leaf that is only close to the best.
    """
    best = t.best[0]
    best.cost, best.latency_us = np.inf, NEVER_US
    for slack in slacks:
        known = True
        for last in forms:
            nodes_max = min(effort.a_walk, max(LEAST_NODES, effort.in_all - best.nodes))
            known = _walk(t, Question(load_rps, budget_us, last, slack, nodes_max)) and known
        if known:
            return best.cost * (1 - slack), True
    return 0.0, False


@compiled
def find_front(
    candidates: Rows,
    room: Ints,
    points: Rows,
    machines: Ints,
    load_rps: float,
    budget_us: int,
    forms: Ints,
    slacks: Floats,
    effort: Effort,
) -> tuple[int, bool]:
    """A module's front, cheapest first: the cheapest within the budget, then the cheapest that is
    faster than that, until nothing is.

    Args:
        candidates: shape (K,), CANDIDATE.
        room: shape (Q,), slots of each kind.
        points: shape (P + 1,), POINT, out; in the row after the last, what is known of faster ones.
        machines: shape (P, K + 1), out.
        forms: of leaves, two of EVEN, PART and FILLED.
        slacks: where a walk takes too many nodes, a point need only be this close to the least, one
            after the other.

    Returns:
        Number of points, and whether it is known that nothing is faster.
    """
    t = _tables(candidates, room, np.zeros(candidates.shape[0] + 1, np.int64))
    best, found = t.best[0], 0
    best.nodes = 0
    at_least = load_rps * t.tails[0, 0].cost_per_rps
    while found < machines.shape[0]:
        least, known = _cheapest(t, load_rps, budget_us, forms, slacks, effort)
        at_least = max(at_least, least, _floor(t, load_rps, budget_us))
        if best.cost == np.inf:
            points[found].at_least = at_least
            return found, known
        # The bound that it began with may be its cost, but for rounding.
        at_least = min(at_least, best.cost)
        point = points[found]
        point.latency_us, point.cost, point.at_least = best.latency_us, best.cost, at_least
        for k in range(machines.shape[1]):
            machines[found, k] = t.machines[k]
        found += 1
        budget_us = best.latency_us - 1
    # What is faster is not cheaper.
    points[found].at_least = at_least
    return found, False
