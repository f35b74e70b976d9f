"""The sets of pipelines that give one demand its target: any one, the leanest, or all that matter.

A front of `walk`: it makes the tables that a walk reads and starts it anew for each target. Tables
are made for the largest target and budget so far and serve all smaller ones, since the patterns
that they hold depend on nothing else.

A set *covers* another if it takes no more of any device type. Only sets that nothing covers are
given, one of each vector; `remainders` and `search` need no others, for whatever fits with a
covered set fits with the one that covers it.

Cost: memory of a few bytes for each vector of increments (CELLS_MAX), time that of the walk.
"""

from dataclasses import dataclass

import numpy as np

from headrace.planning.common.candidates import Ints
from headrace.planning.common.deadline import Deadline
from headrace.planning.exact.columns import Columns, PoolStock
from headrace.planning.exact.patterns import (
    TooManyColumnPatternsError,
    needed_patterns,
    patterns_within,
)
from headrace.planning.exact.prices import UnitPrices
from headrace.planning.exact.walk import (
    ALL,
    COUNT,
    ENDED,
    FIRST,
    LEANEST,
    PAUSED,
    WalkState,
    WalkTables,
    refresh,
    walk,
)

STEPS = 20_000
"""Between two looks at the clock: some milliseconds."""

PIPELINES_MAX = 24
"""Of one demand; a search that would need more ends without a proof."""

SETS_MAX = 4_000
"""Of one walk; likewise."""

CELLS_MAX = 4_000_000
"""Vectors of increments; likewise. Tables of one byte each are kept of them."""

TOLERANCE = 1e-9
"""Of the price of the whole stock: by how much a sum of wastes may be off."""


class GaveUp(Exception):
    """Time or room ran out: nothing is proven."""


class Undecided(Exception):
    """A walk took all the steps that it was given: nothing is proven by it."""


class StepBudget:
    """Steps and time that walks may still take."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._left: float = np.inf

    def allow(self, steps: int | None) -> None:
        """From now on; None: as many as time allows."""
        self._left = np.inf if steps is None else steps

    def spend(self, steps: int) -> None:
        """
        Raises:
            GaveUp: steps or time have run out.
        """
        self._left -= steps
        if self._left < 0 or self._deadline.passed:
            raise GaveUp


@dataclass(frozen=True, slots=True)
class PipelineSet:
    """Columns of one demand with their slots: a set of pipelines."""

    columns: Ints
    """Shape (pipelines,): rows of the demand's `Columns`."""
    slots: Ints
    """Shape (pipelines, P)."""
    need: Ints
    """Shape (K,): increments of each device type."""

    def throughput_rps(self, columns: Columns) -> float:
        """Of the slowest stage of each pipeline, summed."""
        used = columns.pools[self.columns] >= 0
        rates = np.where(used, columns.rates_rps[self.columns], 1.0)
        pools = np.where(used, self.slots * rates, np.inf)
        return float(pools.min(axis=1).sum())


class DemandWalk:
    """One demand, ready to be searched for any target."""

    def __init__(
        self,
        stock: PoolStock,
        columns: Columns,
        prices: UnitPrices,
        request_price: float,
        step_budget: StepBudget,
    ) -> None:
        """
        Raises:
            GaveUp: there are more than CELLS_MAX vectors of increments.
        """
        widths = stock.increments + 1
        if np.prod(widths.astype(float)) > CELLS_MAX:
            raise GaveUp
        self._stock, self._columns, self._step_budget = stock, columns, step_budget
        self._request_price = request_price
        self._stage_prices = prices.unit[stock.pool_type[self._columns.pools]]
        self._stage_prices *= self._columns.units
        self._tolerance = TOLERANCE * prices.stock
        self._tables: WalkTables | None = None
        self._patterns_rps, self._patterns_waste = -1.0, -1.0
        self._strides = np.append(np.cumprod(widths[:0:-1])[::-1], 1).astype(np.int64)
        vectors = np.indices(tuple(widths)).reshape(len(widths), -1)
        self._cell_price = (prices.unit * stock.increment) @ vectors
        self._state = _new_state(stock, vectors.shape[1], columns.pools.shape[1])

    def first(
        self, target_rps: float, budget: float, deepest: int, steps: float = np.inf
    ) -> PipelineSet | None:
        """Any set within the budget, of at most `deepest` pipelines; None if there is none.

        Raises:
            GaveUp: out of time or room.
            Undecided: out of `steps`.
        """
        state = self._walk(target_rps, budget, 0.0, FIRST, deepest, steps)
        return self._chosen(state, 0) if state.cursor[COUNT] else None

    def least_waste(
        self, target_rps: float, budget: float, deepest: int, steps: float = np.inf
    ) -> float | None:
        """Of any set of at most `deepest` pipelines; None if all waste more than `budget`.

        Raises:
            GaveUp: out of time or room.
            Undecided: out of `steps`.
        """
        state = self._walk(target_rps, budget, 0.0, LEANEST, deepest, steps)
        count = state.cursor[COUNT]
        if not count:
            return None
        price = self._cell_price[state.found[count - 1] @ self._strides]
        return max(0.0, float(price - self._request_price * target_rps))

    def all(
        self,
        target_rps: float,
        budget: float,
        least_waste: float,
        deepest: int,
        steps: float = np.inf,
    ) -> list[PipelineSet]:
        """Every set within the budget that takes no more than it must.

        Args:
            least_waste: no set wastes less, as `least_waste` found.

        Raises:
            GaveUp: out of time or room.
            Undecided: out of `steps`.
        """
        state = self._walk(target_rps, budget, least_waste, ALL, deepest, steps)
        needs = state.found[: state.cursor[COUNT]]
        return [self._chosen(state, at) for at in range(len(needs)) if not _covered(needs, at)]

    def _chosen(self, state: WalkState, at: int) -> PipelineSet:
        depth = int((state.found_columns[at] >= 0).sum())
        return PipelineSet(
            columns=state.found_columns[at, :depth].copy(),
            slots=state.found_slots[at, :depth].copy(),
            need=state.found[at].copy(),
        )

    def _walk(
        self,
        target_rps: float,
        budget: float,
        least_waste: float,
        wants: int,
        deepest: int,
        steps: float,
    ) -> WalkState:
        tolerance = self._tolerance
        tables = self._tables_for(target_rps, budget + tolerance)
        state = self._restarted(target_rps, budget + tolerance)
        floor = least_waste - tolerance
        refresh(tables, state, floor)
        status = PAUSED
        while status == PAUSED:
            status = walk(tables, state, STEPS, floor, wants, tolerance, deepest)
            if status == PAUSED:
                self._step_budget.spend(STEPS)
                steps -= STEPS
                if steps <= 0:
                    raise Undecided
        if status != ENDED:
            raise GaveUp
        return state

    def _tables_for(self, target_rps: float, budget: float) -> WalkTables:
        if self._tables is None or target_rps > self._patterns_rps or budget > self._patterns_waste:
            self._patterns_rps = max(self._patterns_rps, target_rps)
            self._patterns_waste = max(self._patterns_waste, budget)
            self._tables = self._new_tables()
        return self._tables

    def _new_tables(self) -> WalkTables:
        """For all targets and budgets so far."""
        columns = self._columns
        # With this much, every column has a pattern that carries the target alone.
        most_rps = self._patterns_rps + float(columns.rates_rps.min(axis=1).max())
        try:
            patterns = patterns_within(
                columns, self._stage_prices, self._request_price, most_rps, self._patterns_waste
            )
        except TooManyColumnPatternsError as error:
            raise GaveUp from error
        patterns = needed_patterns(columns, patterns)
        column = np.repeat(np.arange(len(columns)), np.diff(patterns.first))
        least = np.full(len(columns), np.inf)
        np.minimum.at(least, column, patterns.waste / patterns.carried_rps)
        order = np.lexsort((patterns.waste, column, least[column]))
        column, slots, carried_rps = (
            column[order],
            patterns.slots[order],
            patterns.carried_rps[order],
        )
        next_first = np.append(np.flatnonzero(np.diff(column)) + 1, len(column))
        next_first = np.repeat(next_first, np.diff(next_first, prepend=0))
        by_carried = np.argsort(carried_rps, kind="stable")
        rate = least[column]
        return WalkTables(
            column=column,
            pools=columns.pools[column],
            slots=slots,
            units=slots * columns.units[column],
            groups=columns.groups[column],
            carried_rps=carried_rps,
            waste=patterns.waste[order],
            waste_rate=rate,
            next_first=next_first,
            next_rate=np.append(rate, np.inf)[next_first],
            by_carried=by_carried,
            sorted_rps=carried_rps[by_carried],
            pool_type=self._stock.pool_type,
            increment=self._stock.increment,
            most=self._stock.increments,
            strides=self._strides,
            room=self._stock.room,
            request_price=self._request_price,
        )

    def _restarted(self, target_rps: float, budget: float) -> WalkState:
        """The arrays of the last walk, which is over: to make them anew takes longer than most."""
        state = self._state
        state.cursor[:] = 0
        state.budget[0] = budget
        state.first[0], state.pattern[0], state.rest_rps[0] = 0, -1, target_rps
        state.group_use[:] = 0
        np.subtract(self._cell_price, self._request_price * target_rps, out=state.cell_waste)
        state.covered[:] = False
        return state


def _new_state(stock: PoolStock, cells: int, stages: int) -> WalkState:
    depth, kinds = PIPELINES_MAX, len(stock.increments)
    return WalkState(
        cursor=np.zeros(3, np.int64),
        budget=np.zeros(1),
        first=np.zeros(depth, np.int64),
        pattern=np.zeros(depth, np.int64),
        rest_rps=np.zeros(depth),
        waste=np.zeros(depth),
        used=np.zeros((depth + 1, len(stock.pool_type)), np.int64),
        need=np.zeros((depth + 1, kinds), np.int64),
        group_use=np.zeros(len(stock.room), np.int64),
        cell_waste=np.zeros(cells),
        covered=np.zeros(cells, np.bool_),
        open=np.zeros(cells, np.bool_),
        alive=np.zeros(cells, np.bool_),
        found=np.zeros((SETS_MAX, kinds), np.int64),
        found_columns=np.zeros((SETS_MAX, depth), np.int64),
        found_slots=np.zeros((SETS_MAX, depth, stages), np.int64),
    )


def _covered(needs: Ints, at: int) -> bool:
    """Whether an set found later takes no more of anything; an earlier one cannot."""
    return bool((needs[at + 1 :] <= needs[at]).all(axis=1).any())
