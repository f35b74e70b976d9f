"""The cheapest whole devices that carry N modules within given budgets, compiled.

**What is searched** (decision 0044). A module has a *stack* of whole machines, of at most two
configurations, and at most one *tenant*, which is a turn on a slot that it shares with tenants of
other modules. Dummy load is free, for a device that is used is paid for in full; so every machine
is taken as fully loaded.

stack    configuration i (n_i machines of throughput t_i) stands before j in the order of throughput
         / price, and the tenant of c requests/s behind both. By Theorem 1 of Harpagon
             w_j = n_j t_j + c,   w_i = n_i t_i + w_j,   d + b / w <= budget for each of the two.
         So a stack is good from some c on:
             c >= max(rate - n_i t_i - n_j t_j, needed_i - n_i t_i - n_j t_j, needed_j - n_j t_j, 0)
         with needed = b / (budget - d), 0 for a batch of one with 2 d <= budget. `ladders` lists
         those (price, c) that no other stack beats in both: the module's *ladder*.
slot     its tenants take turns, one round in every duty cycle D. The shortest cycle, D = sum of
         turns, is the best for latencies and for rates alike. Behind a rung that asks for c
         requests/s a turn has ceil(c D) requests, in one or several batches (`least_turns`), each
         of which ends within D + d, so that batches with d > budget - D are out. Neither gets
         better with D; the least fixed point is therefore the shortest cycle (`_shortest_cycle`).
         Who follows all that it waits for on the same slot waits for the turns between them only.
groups   at most one turn per module: who shares with whom is a partition of the modules. For every
         set of them all rungs are tried, dearest last, less those that ask for more than a device
         or cost more than the best; the partition is a sum over subsets.

Equal prices: the shorter cycle. Exponential in modules, which are few: some 10 us for three, some
100 us for four with four device types of eight batch sizes each.
"""

import numpy as np

from headrace.compilation.loops import compiled, hot
from headrace.planning.apps.bill.ladders import TINY, Ladders, ladders_within
from headrace.planning.apps.bill.tables import Bools, Tables
from headrace.planning.common.candidates import NEVER_US, Floats, Ints

TURN = 5
"""Columns of a turn: the rung in front of it (-1: there is no turn), device type, duty cycle (us),
requests, and how many of the shortest batch sizes they are run in."""

CHOICES = 4 + TURN + 1
"""Columns of what is chosen per module: first configuration and its machines (-1, 0: none), second
and its machines, its turn and its group."""

CUT_US = -1
"""There may be a duty cycle, in which some turn has more requests than are looked at."""

CYCLE_WEIGHT = 1e-12
"""Part of a slot's price added per tenant and microsecond of its duty cycle, so that of equals the
shorter is taken."""


@compiled
def least_turns(batch: Ints, turn_us: Ints, longest: Ints) -> None:
    """What it takes at least to run so many requests in one duty cycle, in one or several batches.

    Args:
        batch: shape (J,), shortest first.
        turn_us: shape (J,).
        longest: shape (J + 1, Q + 1), written: [j, q], q requests in batches of the first j sizes.
    """
    longest[0, :] = NEVER_US
    longest[:, 0] = 0
    for j in range(len(batch)):
        for q in range(1, longest.shape[1]):
            more = turn_us[j] + longest[j + 1, max(0, q - batch[j])]
            longest[j + 1, q] = min(longest[j, q], more)


@compiled
def _cheapest_slot(
    tables: Tables,
    members: Ints,
    budget_us: Ints,
    rungs: Floats,
    counts: Ints,
    most: float,
    best: Ints,
) -> tuple[float, float]:
    """The cheapest slot that all `members` share, with the stacks in front of its tenants.

    Args:
        most: what it must stay below to be of interest.
        best: shape (N, TURN), written for each member.

    Returns:
        Its price and that of the stacks, and a little for a long cycle; infinite: none. And a price
        below that and `most` at which there may be one whose turns have more requests than are
        looked at; infinite: there is none.
    """
    size = len(members)
    found, is_found, cut = most, False, np.inf
    at = np.empty(size, np.int64)
    price = np.zeros(size + 1)
    device_s = np.empty(size)
    busy = np.zeros(size + 1)
    cheapest = tables.device_price.min()
    for x in range(size):
        device_s[x] = tables.device_s[members[x]].min()
    x = 0
    at[0] = -1
    while x >= 0:
        at[x] += 1
        module = members[x]
        if at[x] >= counts[module]:
            x -= 1
            continue
        price[x + 1] = price[x] + rungs[module, at[x], 0]
        if price[x + 1] + cheapest >= found:
            x -= 1
            continue
        least = rungs[module, at[x], 1]
        busy[x + 1] = busy[x] + least * device_s[x]
        if least == 0.0 or busy[x + 1] > 1 + TINY:
            continue
        if x + 1 < size:
            x += 1
            at[x] = -1
            continue
        own, own_cut = _cheapest_device(
            tables, members, at, budget_us, rungs, found - price[size], best
        )
        cut = min(cut, price[size] + own_cut)
        if price[size] + own < found:
            found, is_found = price[size] + own, True
    return found if is_found else np.inf, cut if cut < found else np.inf


@compiled
def _cheapest_device(
    tables: Tables,
    members: Ints,
    at: Ints,
    budget_us: Ints,
    rungs: Floats,
    most: float,
    best: Ints,
) -> tuple[float, float]:
    """The cheapest device on which all members have their turns; infinite: `most` or more.

    Args:
        at: shape (members,), the rungs in front of them.

    Returns:
        Its price, and that of the cheapest of which `CUT_US` is all that is known.
    """
    size = len(members)
    found, cut = np.inf, np.inf
    need = np.empty(size)
    requests, sizes = np.empty(size, np.int64), np.empty(size, np.int64)
    for x in range(size):
        need[x] = rungs[members[x], at[x], 1]
    for kind in range(len(tables.memory_bytes)):
        if tables.device_price[kind] >= min(found, most):
            continue
        cycle_us = _shortest_cycle(tables, members, kind, need, at == 0, budget_us, requests, sizes)
        if cycle_us == CUT_US:
            cut = min(cut, tables.device_price[kind])
            continue
        price = tables.device_price[kind] * (1 + CYCLE_WEIGHT * cycle_us * size)
        if cycle_us < NEVER_US and price < min(found, most):
            found = price
            for y in range(size):
                turn = best[members[y]]
                turn[0], turn[1], turn[2] = at[y], kind, cycle_us
                turn[3], turn[4] = requests[y], sizes[y]
    return found, cut


@hot
def _is_held(tables: Tables, members: Ints, x: int) -> bool:
    """Whether one of the members before x is of its model: a slot holds the weights once."""
    held = False
    for y in range(x):
        held |= tables.models[members[y]] == tables.models[members[x]]
    return held


@compiled
def _shortest_cycle(
    tables: Tables,
    members: Ints,
    kind: int,
    need: Floats,
    whole: Bools,
    budget_us: Ints,
    requests: Ints,
    sizes: Ints,
) -> int:
    """The shortest duty cycle in which every member has its turn, in time.

    A longer cycle asks for more requests in each turn, and rules out longer batches; so the turns
    never get shorter, and repeating from the shortest cycle up ends at the shortest that holds.

    Args:
        need: shape (members,), requests per second.
        whole: whether that is all that the module gets; it may then follow others at once.
        requests, sizes: shape (members,), written: of each turn its requests, and how many of the
            shortest batch sizes it may be made of.

    Returns:
        Microseconds; `NEVER_US`: there is none; `CUT_US`: none without more requests in a turn.
    """
    size = len(members)
    weights, busy = 0, 0.0
    for x in range(size):
        if not _is_held(tables, members, x):
            weights += tables.weights_bytes[members[x]]
        busy += need[x] * tables.device_s[members[x], kind]
    if weights > tables.memory_bytes[kind] or not busy <= 1 + TINY:
        return NEVER_US
    ends = np.zeros(size + 1, np.int64)
    follows = np.zeros(size, np.bool_)
    for x in range(size):
        follows[x] = _follows(tables, members, whole, x)
    cycle_us = 1
    while True:
        for x in range(size):
            module = members[x]
            count = max(1, int(np.ceil(need[x] * cycle_us / 1e6 - 1e-6)))
            room_us = budget_us[module] - (0 if follows[x] else cycle_us)
            allowed = np.searchsorted(tables.durations_us[module, kind], room_us, side="right")
            if allowed == 0:
                return NEVER_US
            if count >= tables.turns.shape[3]:
                return CUT_US
            turn_us = tables.turns[module, kind, allowed, count]
            if turn_us >= NEVER_US:
                return NEVER_US
            requests[x], sizes[x] = count, allowed
            ends[x + 1] = ends[x] + turn_us + tables.gap_us[module]
            if follows[x]:
                latest = 0
                for y in range(x):
                    if tables.waits_for[module, members[y]]:
                        latest = max(latest, ends[y + 1])
                if ends[x + 1] - latest > budget_us[module]:
                    return NEVER_US
        if ends[size] <= cycle_us:
            return cycle_us
        cycle_us = ends[size]


@compiled
def _follows(tables: Tables, members: Ints, whole: Bools, x: int) -> bool:
    """Whether all that a member waits for have their turns before it, all of them here."""
    if not whole[x]:
        return False
    every, inside = 0, 0
    for i in range(len(tables.load_rps)):
        every += tables.waits_for[members[x], i]
    for y in range(x):
        inside += whole[y] and tables.waits_for[members[x], members[y]]
    return every > 0 and inside == every


def cheapest_within(
    tables: Tables, budget_us: Ints, most: float, tenants_max: int, chosen: Ints
) -> tuple[float, bool]:
    """The least price of whole devices with every module within its budget.

    Args:
        budget_us: shape (N,).
        most: the price must stay below it.
        tenants_max: of a slot.
        chosen: shape (N, CHOICES), written.

    Returns:
        The price, to within `CYCLE_WEIGHT`; infinite where there is nothing below `most`. And
        whether all was looked at, which it is not where turns of more requests might be cheaper.
    """
    ladders = ladders_within(tables, budget_us, most)
    return cheapest_behind(tables, ladders, budget_us, most, tenants_max, chosen)


@compiled
def cheapest_behind(
    tables: Tables, ladders: Ladders, budget_us: Ints, most: float, tenants_max: int, chosen: Ints
) -> tuple[float, bool]:
    """`cheapest_within`, the ladders known."""
    counts, rungs, choices = ladders
    modules, is_all = len(tables.load_rps), True
    sets = 1 << modules
    slot = np.full(sets, np.inf)
    tenants = np.full((sets, modules, TURN), -1, np.int64)
    for members in range(1, sets):
        listed = np.array([m for m in range(modules) if members >> m & 1])
        if len(listed) == 1:
            last = counts[listed[0]] - 1
            if last >= 0 and rungs[listed[0], last, 1] == 0.0:
                slot[members] = rungs[listed[0], last, 0]
        elif len(listed) <= tenants_max:
            apart = 0.0
            for m in listed:
                apart += slot[1 << m]
            slot[members], cut = _cheapest_slot(
                tables, listed, budget_us, rungs, counts, min(apart, most), tenants[members]
            )
            is_all = is_all and cut == np.inf
    best = np.full(sets, np.inf)
    taken = np.zeros(sets, np.int64)
    best[0] = 0.0
    for members in range(1, sets):
        lowest = members & -members
        inner = members
        while inner:
            if inner & lowest and slot[inner] + best[members ^ inner] < best[members]:
                best[members] = slot[inner] + best[members ^ inner]
                taken[members] = inner
            inner = (inner - 1) & members
    if not best[sets - 1] < most:
        return np.inf, is_all
    members = sets - 1
    while members:
        inner = taken[members]
        for module in range(modules):
            if inner >> module & 1:
                turn = tenants[inner, module]
                rung = turn[0] if turn[0] >= 0 else counts[module] - 1
                chosen[module, :4] = choices[module, rung]
                chosen[module, 4 : 4 + TURN] = turn
                chosen[module, -1] = inner
        members ^= inner
    return best[sets - 1], is_all
