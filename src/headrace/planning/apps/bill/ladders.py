"""Whole machines of each module in front of its turn, compiled: `slots` says what for.

A module's *ladder* is its stacks, (price, least rate that a turn behind must carry), that no other
stack beats in both. Stacks that leave more than one device can carry in turns are left out. Some us
per module; large modules of several device types, whose machines are hundreds, take longer.
"""

from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.apps.bill.tables import Bools, Tables
from headrace.planning.common.candidates import Floats, Ints

RUNGS = 64
"""Rows of a ladder at first. Few modules need more: those with hundreds of machines."""

TINY = 1e-9


class Ladders(NamedTuple):
    """Of N modules, R rows each."""

    counts: Ints
    """Shape (N,): how many rungs there are."""
    rungs: Floats
    """Shape (N, R, 2): price, and the least rate that a turn behind must carry; falling, from the
    module's whole load to 0 (if the price allows)."""
    choices: Ints
    """Shape (N, R, 4): (configuration, machines) twice."""


def ladders_within(tables: Tables, budget_us: Ints, most: float) -> Ladders:
    """Every module's ladder, with as many rows as it takes.

    Args:
        budget_us: shape (N,).
        most: no stack may cost more.
    """
    modules, rows = len(budget_us), RUNGS
    while True:
        ladders = Ladders(
            np.empty(modules, np.int64),
            np.empty((modules, rows, 2), np.float64),
            np.empty((modules, rows, 4), np.int64),
        )
        if all_within(tables, budget_us, most, ladders):
            return ladders
        rows *= 2


@compiled
def all_within(tables: Tables, budget_us: Ints, most: float, ladders: Ladders) -> bool:
    """Write every module's ladder; False: one has more rungs than there are rows."""
    rows = ladders.rungs.shape[1]
    for module in range(len(budget_us)):
        count = stacks_within(
            tables, module, budget_us[module], most, ladders.rungs[module], ladders.choices[module]
        )
        if count > rows:
            return False
        ladders.counts[module] = count
    return True


@compiled
def _insert(
    price: float,
    least: float,
    choice: tuple[int, int, int, int],
    turn_rps: float,
    count: int,
    rungs: Floats,
    choices: Ints,
) -> int:
    """Keep the ladder sorted by price, with `least` falling.

    Args:
        turn_rps: what a turn can carry at most; what leaves more is of no use.

    Returns:
        How many rungs it has; one more than there are rows: it has no room.
    """
    if least > turn_rps or count > len(rungs):
        return count
    at = 0
    while at < count and rungs[at, 0] <= price + TINY:
        if rungs[at, 1] <= least * (1 + TINY) + TINY:
            return count
        at += 1
    # Those that cost as much but need more behind them go as well.
    while at > 0 and rungs[at - 1, 0] >= price - TINY and rungs[at - 1, 1] >= least:
        at -= 1
    beaten = at
    while beaten < count and rungs[beaten, 1] >= least * (1 - TINY) - TINY:
        beaten += 1
    if beaten == at:
        if count == len(rungs):
            return count + 1
        for row in range(count, at, -1):
            rungs[row] = rungs[row - 1]
            choices[row] = choices[row - 1]
        count += 1
    elif beaten > at + 1:
        gone = beaten - at - 1
        for row in range(at + 1, count - gone):
            rungs[row] = rungs[row + gone]
            choices[row] = choices[row + gone]
        count -= gone
    rungs[at, 0], rungs[at, 1] = price, least
    choices[at, 0], choices[at, 1], choices[at, 2], choices[at, 3] = choice
    return count


@compiled
def stacks_within(
    tables: Tables, module: int, budget_us: int, most: float, rungs: Floats, choices: Ints
) -> int:
    """A module's ladder: whole machines that no others beat, cheapest first.

    Args:
        most: no stack may cost more.
        rungs, choices: its rows of `Ladders`, written.

    Returns:
        How many rungs there are; one more than rows: at least so many.
    """
    begin, end = tables.first[module], tables.first[module + 1]
    load = tables.load_rps[module]
    size = end - begin
    needed = np.empty(size, np.float64)
    for i in range(size):
        needed[i] = _needed_rps(
            tables.batch[begin + i],
            tables.duration_us[begin + i],
            tables.rates_rps[begin + i],
            budget_us,
        )
    keep = _undominated(tables, begin, size, needed)
    turn_rps = (1 + TINY) / tables.device_s[module].min()
    # The first rung is that without machines, whatever the load.
    count = _insert(0.0, load, (-1, 0, -1, 0), load, 0, rungs, choices)
    for i in range(size):
        if not keep[i]:
            continue
        rate, price = tables.rates_rps[begin + i], tables.price[begin + i]
        machines = 1
        while machines * price <= most + TINY:
            carried = machines * rate
            least = max(load - carried, needed[i] - carried, 0.0)
            if least <= TINY * load:
                least = 0.0
            choice = (begin + i, machines, -1, 0)
            count = _insert(machines * price, least, choice, turn_rps, count, rungs, choices)
            if least == 0.0:
                break
            for j in range(i + 1, size):
                if keep[j]:
                    count = _second(
                        tables,
                        (begin + i, machines),
                        (begin + j, needed[j]),
                        needed[i],
                        load,
                        most,
                        turn_rps,
                        count,
                        rungs,
                        choices,
                    )
            machines += 1
    return count


@compiled
def _needed_rps(batch: int, duration_us: int, rate_rps: float, budget_us: int) -> float:
    """The load that this machine and all behind it must have to collect in time; 0: its own will
    do; infinite: it is too slow."""
    if duration_us >= budget_us:
        return np.inf
    if batch == 1 and 2 * duration_us <= budget_us:
        return 0.0
    needed = 1e6 * batch / (budget_us - duration_us + 5e-4)
    return 0.0 if needed <= rate_rps else needed


@compiled
def _undominated(tables: Tables, begin: int, size: int, needed: Floats) -> Bools:
    """Of machines that cost the same, those that others beat in throughput and need are left
    out."""
    keep = np.ones(size, np.bool_)
    for i in range(size):
        if needed[i] == np.inf:
            keep[i] = False
            continue
        for j in range(size):
            if j == i or needed[j] > needed[i] or tables.price[begin + j] > tables.price[begin + i]:
                continue
            if tables.kind[begin + j] != tables.kind[begin + i]:
                continue
            rate, own = tables.rates_rps[begin + j], tables.rates_rps[begin + i]
            if rate > own or (rate == own and (needed[j] < needed[i] or j < i)):
                keep[i] = False
                break
    return keep


@compiled
def _second(
    tables: Tables,
    ahead: tuple[int, int],
    behind: tuple[int, float],
    needed: float,
    load: float,
    most: float,
    turn_rps: float,
    count: int,
    rungs: Floats,
    choices: Ints,
) -> int:
    """Stacks with machines of a second configuration behind those of the first."""
    (i, machines), (j, needed_behind) = ahead, behind
    carried, spent = machines * tables.rates_rps[i], machines * tables.price[i]
    second = 1
    while spent + second * tables.price[j] <= most + TINY:
        own = second * tables.rates_rps[j]
        least = max(load - carried - own, needed - carried - own, needed_behind - own, 0.0)
        if least <= TINY * load:
            least = 0.0
        price = spent + second * tables.price[j]
        choice = (i, machines, j, second)
        count = _insert(price, least, choice, turn_rps, count, rungs, choices)
        if least == 0.0:
            break
        second += 1
    return count
