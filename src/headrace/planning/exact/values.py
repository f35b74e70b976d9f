"""The most throughput of one demand for every amount of devices: its value function.

Where nothing is rounded up and any number of pipelines is allowed, what a set of pipelines takes is
simply the sum of what its patterns take. Then the best set for every vector of units follows from
the best for smaller ones (an unbounded knapsack of two dimensions):

    value[v] = max over patterns p of carried[p] + value[v - use[p]],    best[v] = max value[u <= v]

Vectors are visited in increasing (lexicographic) order. Each is extended by all *generators* so
far: patterns that carry more than any sum of others with the same use. The larger one first, any
sum of generators is reached. Left out is what cannot matter:

- values whose waste, price x v - request price x value[v], exceeds the gap of the target
- vectors that carry no more than a smaller one, and those that carry enough

What is left is little: of 23,000 vectors for 25 devices in twelfths and 75 whole ones, some dozen
to some hundred have a value. So a row is read from the first column on that a pattern or an
extension has reached, and one that none has reached is its predecessor's copy.

Units of each device type are counted in steps: what all slots on it are multiples of. Cost:
O(vectors x generators) at most. Memory: 24 bytes per vector. Source: ours (decision 0010).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headrace.compilation.loops import compiled, worth_compiling
from headrace.planning.common.candidates import Floats, Ints, Rows
from headrace.planning.exact.columns import Columns, PoolStock
from headrace.planning.exact.patterns import Patterns

GENERATORS_MAX = 20_000
"""A search that would need more ends without a proof."""


class _ValueTable(NamedTuple):
    """Two device types; a cluster of one has none of the second."""

    value: Floats
    """Shape (N0 + 1, N1 + 1): of exactly these units; -1 where nothing is known."""
    best: Floats
    """Same shape: of at most these units."""
    by: Ints
    """Same shape: the pattern taken last; -1 for none."""
    generators: Ints
    """Shape (GENERATORS_MAX,): patterns, least waste first."""
    used: Ints
    """Shape (1,): generators so far."""
    reached: Ints
    """Shape (N0 + 1,): first column of each row that an extension has reached; N1 + 1 for none."""


@dataclass(frozen=True, slots=True)
class BestPatterns(Rows):
    """The patterns of one demand, each the best of its use, in lexicographic order of use."""

    column: Ints
    """Shape (M,)."""
    slots: Ints
    """Shape (M, P)."""
    carried_rps: Floats
    """Shape (M,)."""
    waste: Floats
    """Shape (M,)."""
    use: Ints
    """Shape (M, 2): steps of each device type."""


def unit_steps(stock: PoolStock, columns: Sequence[Columns], per_device: int) -> Ints:
    """Shape (2,): units of either device type that all slots, and whole devices, are multiples of.

    A type that is never cut needs no twelfths: vectors are twelve times fewer.
    """
    steps = np.full(2, per_device)
    for mine in columns:
        used = mine.pools >= 0
        kinds, units = stock.pool_type[mine.pools[used]], mine.units[used]
        for kind in (0, 1):
            steps[kind] = np.gcd.reduce(units[kinds == kind], initial=steps[kind])
    return steps


def best_patterns(
    columns: Columns, patterns: Patterns, units: Ints, unit_steps: Ints
) -> BestPatterns:
    """
    Args:
        columns: in the order that `patterns` counts.
        units: shape (2,): steps of each type there are.
        unit_steps: shape (2,), in units.
    """
    column = np.repeat(np.arange(len(columns)), np.diff(patterns.first))
    taken = patterns.slots * columns.units[column]
    pools = columns.pools[column]
    use = np.stack([np.where(pools == kind, taken, 0).sum(axis=1) for kind in (0, 1)], axis=1)
    use //= unit_steps
    fits = np.flatnonzero((use <= units).all(axis=1))
    order = fits[np.lexsort((column[fits], -patterns.carried_rps[fits], *use[fits].T[::-1]))]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(use[order], axis=0) != 0).any(axis=1)
    every = BestPatterns(column, patterns.slots, patterns.carried_rps, patterns.waste, use)
    return every.take(order[new])


class ValueFunction:
    """The value function of one demand, filled row by row."""

    def __init__(
        self, patterns: BestPatterns, units: Ints, *, gap: float, enough_rps: float
    ) -> None:
        """
        Args:
            gap: what a plan may waste.
            enough_rps: throughput beyond which more is of no use.
        """
        shape = (int(units[0]) + 1, int(units[1]) + 1)
        self._patterns, self._gap, self._enough_rps = patterns, gap, enough_rps
        self._state = _ValueTable(
            value=np.full(shape, -1.0),
            best=np.zeros(shape),
            by=np.full(shape, -1, dtype=np.int64),
            generators=np.zeros(GENERATORS_MAX, np.int64),
            used=np.zeros(1, np.int64),
            reached=np.full(shape[0], shape[1], np.int64),
        )
        self._state.value[0, 0] = 0.0
        first = np.searchsorted(patterns.use[:, 0], np.arange(shape[0] + 1))
        self._first = first.tolist()
        self._columns_of_patterns = patterns.use[:, 1].tolist()
        self._fill: Any = worth_compiling(_fill, shape[0] * shape[1])
        arrays: tuple[Any, ...] = (patterns.use, patterns.carried_rps, patterns.waste)
        state: Any = self._state
        if self._fill is not _fill:
            views: Any = memoryview  # which plain Python reads twice as fast
            arrays = tuple(views(np.ascontiguousarray(array)) for array in arrays)
            state = _ValueTable(*map(views, self._state))
        self._tables, self._views = arrays, state

    @property
    def rows(self) -> int:
        return len(self._state.value)

    @property
    def columns(self) -> int:
        """Amounts of the second type, from 0."""
        return int(self._state.value.shape[1])

    @property
    def best(self) -> Floats:
        """Shape (N0 + 1, N1 + 1): most throughput of at most these units."""
        return self._state.best

    def fill(self, row: int, step_prices: Floats, request_price: float) -> bool:
        """All vectors with `row` units of the first type; after the rows before it.

        False if there are more than GENERATORS_MAX generators.
        """
        first, end, start = self._first[row], self._first[row + 1], 0
        if row > 0:
            start = int(self._views.reached[row])
            if first < end:
                start = min(start, self._columns_of_patterns[first])
            self._state.best[row, :start] = self._state.best[row - 1, :start]
            if start == self.columns:
                return True
        full: bool = self._fill(
            row,
            start,
            first,
            end,
            *self._tables,
            float(step_prices[0]),
            float(step_prices[1]),
            request_price,
            self._gap,
            self._enough_rps,
            self._views,
        )
        return not full

    def set_at(self, row: int, column: int) -> dict[int, Ints]:
        """The set of pipelines behind `best` there: column -> slots per stage."""
        state, patterns = self._state, self._patterns
        carries = state.value[: row + 1, : column + 1] == state.best[row, column]
        at = tuple(int(i) for i in np.argwhere(carries)[0])
        found: dict[int, Ints] = {}
        while any(at):
            pattern = int(state.by[at])
            mine = int(patterns.column[pattern])
            found[mine] = found.get(mine, 0) + patterns.slots[pattern]
            at = (at[0] - int(patterns.use[pattern, 0]), at[1] - int(patterns.use[pattern, 1]))
        return found


@compiled
def _fill(
    row: int,
    start: int,
    first: int,
    end: int,
    use: Ints,
    carried: Floats,
    wastes: Floats,
    price_0: float,
    price_1: float,
    request_price: float,
    gap: float,
    enough: float,
    state: _ValueTable,
) -> bool:
    rows, columns = state.value.shape
    pattern = first
    for column in range(start, columns):
        smaller = 0.0
        if row > 0:
            smaller = state.best[row - 1, column]
        if column > 0:
            smaller = max(smaller, state.best[row, column - 1])
        if pattern < end and use[pattern, 1] == column:
            if carried[pattern] > max(smaller, state.value[row, column]) * (1 + 1e-12):
                state.value[row, column] = carried[pattern]
                state.by[row, column] = pattern
                if state.used[0] == len(state.generators):
                    return True
                _insert(state, wastes, pattern)
            pattern += 1
        value = state.value[row, column]
        state.best[row, column] = max(smaller, value)
        # What a smaller vector carries too, it also extends to.
        if value < 0.0 or (value <= smaller and row + column > 0) or value >= enough:
            continue
        left = gap - (price_0 * row + price_1 * column - request_price * value)
        for place in range(state.used[0]):
            generator = state.generators[place]
            if wastes[generator] > left:
                break
            to_row, to_column = row + use[generator, 0], column + use[generator, 1]
            if to_row < rows and to_column < columns:
                more = value + carried[generator]
                if more > state.value[to_row, to_column]:
                    state.value[to_row, to_column] = more
                    state.by[to_row, to_column] = generator
                    state.reached[to_row] = min(state.reached[to_row], to_column)
    return False


@compiled
def _insert(state: _ValueTable, wastes: Floats, pattern: int) -> None:
    """Into the generators, in order of waste."""
    place = state.used[0]
    while place > 0 and wastes[state.generators[place - 1]] > wastes[pattern]:
        state.generators[place] = state.generators[place - 1]
        place -= 1
    state.generators[place] = pattern
    state.used[0] += 1
