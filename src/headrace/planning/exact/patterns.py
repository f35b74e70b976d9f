"""Patterns: columns with whole slot counts, as many as waste little.

A column gives throughput t with ceil(t / rate) slots per stage; only t = m x rate of one of its
stages is worth naming, since between two such points slots stay and throughput falls. What a
pattern wastes is the price of its slots less the price of what it carries. A plan may waste the
gap of its target in total, so patterns that alone waste more are in no plan.
"""

from dataclasses import dataclass

import numpy as np

from headrace.compilation.loops import compiled, worth_compiling
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.exact.columns import Columns, prefix_codes

EPSILON = 1e-9
"""Relative; m x rate / rate may miss m by less."""

PATTERNS_MAX = 5_000_000

STEPS_PER_PATTERN = 5
"""Of plain Python, in microseconds about."""

COVERS_MAX = 1_000
"""With how many patterns on the same pools one is compared; the rest may stay, needless."""


class TooManyColumnPatternsError(Exception):
    """More than a search could work through."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Of one demand's columns, which are ordered by waste per request. M patterns."""

    first: Ints
    """Shape (C + 1,): where the patterns of each column begin; within one, least waste first."""
    slots: Ints
    """Shape (M, P)."""
    carried_rps: Floats
    """Shape (M,)."""
    waste: Floats
    """Shape (M,)."""


def patterns_within(
    columns: Columns, stage_prices: Floats, request_price: float, most_rps: float, waste_max: float
) -> Patterns:
    """Every pattern that carries less than `most_rps` and wastes at most `waste_max`.

    Args:
        stage_prices: shape (C, P): of one slot of each stage; 0 after the last.

    Raises:
        TooManyColumnPatternsError: there are more than PATTERNS_MAX.
    """
    arguments = (columns.pools, columns.rates_rps, stage_prices, request_price, most_rps, waste_max)
    stages, nowhere = columns.pools.shape[1], np.zeros(0)
    first = np.zeros(len(columns) + 1, np.int64)
    listed = worth_compiling(_list, _steps(columns, most_rps))
    counts = listed(*arguments, first, np.zeros((0, stages), np.int64), nowhere, nowhere)
    first[1:] = np.cumsum(counts)
    if first[-1] > PATTERNS_MAX:
        raise TooManyColumnPatternsError
    slots = np.zeros((first[-1], stages), np.int64)
    carried, waste = np.zeros(first[-1]), np.zeros(first[-1])
    listed(*arguments, first, slots, carried, waste)
    order = np.lexsort((waste, np.repeat(np.arange(len(columns)), counts)))
    return Patterns(first=first, slots=slots[order], carried_rps=carried[order], waste=waste[order])


def _steps(columns: Columns, most_rps: float) -> float:
    """At most so many are looked at, were all affordable."""
    rates = np.where(columns.pools >= 0, columns.rates_rps, np.inf)
    return STEPS_PER_PATTERN * (len(columns) + float((most_rps / rates).sum()))


def needed_patterns(columns: Columns, patterns: Patterns) -> Patterns:
    """Those that no other makes needless.

    A pattern covers another if its pools are the first pools of the other, its slots take no more
    of these, and it carries no less. In a set of pipelines it may stand in for the other: groups
    with room for the longer have room for the shorter, and where the set has the same column
    already, the two are one pipeline with more slots.
    """
    if not len(patterns.waste):
        return patterns
    column = np.repeat(np.arange(len(columns)), np.diff(patterns.first))
    codes = prefix_codes(columns.pools)[column]
    depth = (columns.pools >= 0).sum(axis=1)[column]
    units = patterns.slots * columns.units[column]
    order = np.lexsort((units.sum(axis=1), -patterns.carried_rps, depth))
    kept = _sieve(order, codes, depth, units, patterns.carried_rps, int(codes.max()) + 1)
    rows = np.flatnonzero(kept)
    counts = np.bincount(column[rows], minlength=len(columns))
    return Patterns(
        first=np.concatenate([[0], np.cumsum(counts)]),
        slots=patterns.slots[rows],
        carried_rps=patterns.carried_rps[rows],
        waste=patterns.waste[rows],
    )


@compiled
def _sieve(
    order: Ints, codes: Ints, depth: Ints, units: Ints, carried: Floats, code_count: int
) -> np.ndarray:
    """Shape (M,): whether none before it in `order` covers a pattern."""
    newest = np.full(code_count, -1, np.int64)  # of each code, the pattern kept last
    before = np.full(len(order), -1, np.int64)  # the one kept before it
    kept = np.zeros(len(order), np.bool_)
    for pattern in order:
        covered = False
        for length in range(1, depth[pattern] + 1):
            other = newest[codes[pattern, length - 1]]
            looks = COVERS_MAX
            while other >= 0 and looks > 0 and not covered:
                covered = depth[other] == length and carried[other] >= carried[pattern]
                for stage in range(length):
                    covered = covered and units[other, stage] <= units[pattern, stage]
                other = before[other]
                looks -= 1
            if covered:
                break
        if not covered:
            kept[pattern] = True
            code = codes[pattern, depth[pattern] - 1]
            before[pattern] = newest[code]
            newest[code] = pattern
    return kept


@compiled
def _pattern(
    column: int,
    stage: int,
    multiple: int,
    pools: Ints,
    rates: Floats,
    prices: Floats,
    request_price: float,
    slots: np.ndarray,
) -> float:
    """Write the slots for multiple x rate of `stage`; return the waste, -1 if named already."""
    carried = multiple * rates[column, stage]
    cost = 0.0
    for other in range(pools.shape[1]):
        slots[other] = 0
        if pools[column, other] >= 0:
            exact = carried / rates[column, other]
            slots[other] = int(np.ceil(exact - EPSILON * max(1.0, exact)))
            if other < stage and slots[other] - exact < EPSILON * max(1.0, exact):
                return -1.0  # an earlier stage has its own multiple here
            cost += slots[other] * prices[column, other]
    waste = cost - request_price * carried
    return waste if waste > 0.0 else 0.0


@compiled
def _affordable(
    column: int,
    pools: Ints,
    rates: Floats,
    prices: Floats,
    request_price: float,
    most_rps: float,
    waste_max: float,
) -> float:
    """Throughput beyond which a column wastes more even if its slots were divisible."""
    rate = -request_price
    for stage in range(pools.shape[1]):
        if pools[column, stage] >= 0:
            rate += prices[column, stage] / rates[column, stage]
    # Relative slack of the difference of two prices.
    rate -= EPSILON * request_price
    return most_rps if rate * most_rps <= waste_max else waste_max / rate


@compiled
def _list(
    pools: Ints,
    rates: Floats,
    prices: Floats,
    request_price: float,
    most_rps: float,
    waste_max: float,
    first: Ints,
    slots: np.ndarray,
    carried: np.ndarray,
    wastes: np.ndarray,
) -> np.ndarray:
    """Shape (C,): patterns of each column; written down from `first` on as far as there is room."""
    counts = np.zeros(len(pools), np.int64)
    found = np.zeros(pools.shape[1], np.int64)
    for column in range(len(pools)):
        affordable = _affordable(column, pools, rates, prices, request_price, most_rps, waste_max)
        for stage in range(pools.shape[1]):
            if pools[column, stage] >= 0:
                for multiple in range(1, int(affordable / rates[column, stage]) + 1):
                    waste = _pattern(
                        column, stage, multiple, pools, rates, prices, request_price, found
                    )
                    if 0.0 <= waste <= waste_max:
                        at = first[column] + counts[column]
                        counts[column] += 1
                        if at < len(carried):
                            slots[at] = found
                            carried[at] = multiple * rates[column, stage]
                            wastes[at] = waste
    return counts
