"""Exact search where slots need only fit: the largest min throughput / weight, by value functions.

For one or two device types whose slots always pack, and any number of pipelines (the objective of
PPipe's appendix A.2). As in `search`, targets descend from the bound of the relaxation. Here one
pass answers all targets down to some distance at once:

1. value functions of every demand (`values`), filled as far as the gap of the lowest target allows
2. the highest target whose joined staircase (`staircases`) fits the stock, by bisection
3. if there is one above the lowest target, it is the best of all: every plan for it wastes less
   than was filled. Otherwise there is none above, and the next pass reaches STEP_GROWTH as far

Of plans that reach it the one with the fewest devices is taken. Cost: that of the value functions,
a tenth of a second for three models on 100 devices; CELLS_MAX bounds them.
"""

from collections.abc import Sequence

import numpy as np

from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.master import Wanted, smallest_normalised
from headrace.planning.exact.columns import Columns, PoolStock
from headrace.planning.exact.patterns import TooManyColumnPatternsError, patterns_within
from headrace.planning.exact.prices import UnitPrices, price, relaxed_bound, targets_at
from headrace.planning.exact.search import ExactResult
from headrace.planning.exact.sets import TOLERANCE, PipelineSet
from headrace.planning.exact.staircases import TOO_MANY_UNITS, joined, split, staircase
from headrace.planning.exact.values import ValueFunction, best_patterns, unit_steps

CELLS_MAX = 1_500_000
"""Vectors of units; with more, the tables take seconds to fill."""

FIRST_STEP = 1 / 1024
STEP_GROWTH = 3.0
"""Of the bound: how far the first pass reaches below it, and how much farther each next one."""

RESOLUTION = 1e-8
"""Relative; the objectives of two plans that differ by less are the same."""


class OutOfReach(Exception):
    """The problem is too large for value functions, or time ran out: nothing is proven."""


def within_reach(stock: PoolStock, units: Ints) -> bool:
    """One or two device types, and not too many vectors of at most `units`, shape (2,)."""
    few = float(np.prod(units.astype(float) + 1)) <= CELLS_MAX
    return few and stock.increment == 1 and len(stock.increments) <= 2


def fill_values(
    stock: PoolStock,
    columns: Columns,
    unit_prices: Floats,
    request_price: float,
    units: Ints,
    steps: Ints,
    *,
    gap: float,
    enough_rps: float,
    deadline: Deadline,
) -> ValueFunction:
    """The value function of one demand: all sets within `units` that waste at most `gap`.

    Args:
        unit_prices: shape (2,); a cluster of one device type has none of a second.
        units: shape (2,), in steps.
        steps: shape (2,), as `unit_steps` gives them.
        enough_rps: throughput beyond which more is of no use.

    Raises:
        OutOfReach: too many patterns, or no time left.
    """
    stage_prices = unit_prices[stock.pool_type[columns.pools]] * columns.units
    # Some pattern of every column carries at least `enough_rps`, and no more than this.
    most_rps = enough_rps + float(columns.rates_rps.min(axis=1).max())
    try:
        patterns = patterns_within(columns, stage_prices, request_price, most_rps, gap)
    except TooManyColumnPatternsError as error:
        raise OutOfReach from error
    values = ValueFunction(
        best_patterns(columns, patterns, units, steps), units, gap=gap, enough_rps=enough_rps
    )
    step_prices = unit_prices * steps
    for row in range(values.rows):
        if deadline.passed or not values.fill(row, step_prices, request_price):
            raise OutOfReach
    return values


def chosen_of(stock: PoolStock, columns: Columns, found: dict[int, Ints]) -> PipelineSet:
    """What `ValueFunction.set_at` gives, as a set."""
    rows = np.array(sorted(found), dtype=np.int64)
    slots = np.array([found[int(row)] for row in rows], dtype=np.int64)
    taken, pools = slots * columns.units[rows], columns.pools[rows]
    kinds = range(len(stock.increments))
    need = np.array([taken[pools == kind].sum() for kind in kinds], dtype=np.int64)
    return PipelineSet(columns=rows, slots=slots, need=need)


def search_freely(
    stock: PoolStock,
    wanted: Sequence[Wanted],
    columns: Sequence[Columns],
    units_per_device: int,
    deadline: Deadline,
) -> ExactResult:
    """The largest min throughput / weight; of equals the plan with the fewest devices.

    Raises:
        OutOfReach, OutOfTime: also where `within_reach` does not hold.
    """
    if len(stock.increments) > 2:
        raise OutOfReach
    steps = unit_steps(stock, columns, units_per_device)
    # A cluster of one device type has none of a second.
    if not within_reach(stock, np.append(stock.units, 0)[:2] // steps):
        raise OutOfReach
    prices = price(stock, wanted, columns, deadline)
    if prices is None:
        return ExactResult(chosen=None, objective=0.0, bound=0.0)
    return _FreeSearch(stock, wanted, columns, prices, steps, units_per_device, deadline).run()


class _FreeSearch:
    def __init__(
        self,
        stock: PoolStock,
        wanted: Sequence[Wanted],
        columns: Sequence[Columns],
        prices: UnitPrices,
        steps: Ints,
        units_per_device: int,
        deadline: Deadline,
    ) -> None:
        self._stock, self._wanted, self._columns = stock, wanted, columns
        self._prices, self._deadline = prices, deadline
        self._steps, self._per_device = steps, units_per_device // steps
        self._units = np.append(stock.units, 0)[:2] // steps
        self._unit_prices = np.append(prices.unit, 0.0)[:2]
        self._highest = relaxed_bound(prices, wanted)

    def run(self) -> ExactResult:
        step = FIRST_STEP
        while True:
            lowest = max(0.0, self._highest * (1 - step))
            values = self._values(lowest)
            found = self._best_target(values, lowest)
            if found is not None:
                target, bound = found
                chosen = self._plan(values, target)
                throughputs = [
                    mine.throughput_rps(columns)
                    for mine, columns in zip(chosen, self._columns, strict=True)
                ]
                objective = smallest_normalised(throughputs, self._wanted)
                return ExactResult(chosen=chosen, objective=objective, bound=max(bound, objective))
            if lowest == 0.0:
                return ExactResult(chosen=None, objective=0.0, bound=0.0)
            step *= STEP_GROWTH

    def _values(self, lowest: float) -> list[ValueFunction]:
        """Of every demand, for all targets from `lowest`."""
        gap = self._prices.gap(targets_at(self._wanted, lowest)) + TOLERANCE * self._prices.stock
        enough = targets_at(self._wanted, self._highest) * (1 + 1e-9)
        return [
            fill_values(
                self._stock,
                columns,
                self._unit_prices,
                float(request_price),
                self._units,
                self._steps,
                gap=gap,
                enough_rps=float(enough_rps),
                deadline=self._deadline,
            )
            for columns, request_price, enough_rps in zip(
                self._columns, self._prices.request, enough, strict=True
            )
        ]

    def _best_target(
        self, values: Sequence[ValueFunction], lowest: float
    ) -> tuple[float, float] | None:
        """The highest target that fits, and one a hair above that does not; None below `lowest`."""
        low, high = lowest, self._highest
        if not self._fits(values, low):
            return None
        while high - low > RESOLUTION * high:
            if self._deadline.passed:
                raise OutOfReach
            middle = (low + high) / 2
            if self._fits(values, middle):
                low = middle
            else:
                high = middle
        return low, high

    def _fits(self, values: Sequence[ValueFunction], target: float) -> bool:
        return bool(joined(self._stairs(values, target))[-1][-1] <= self._units[1])

    def _stairs(self, values: Sequence[ValueFunction], target: float) -> list[Ints]:
        targets = targets_at(self._wanted, target)
        return [staircase(v.best, float(rps)) for v, rps in zip(values, targets, strict=True)]

    def _plan(self, values: Sequence[ValueFunction], target: float) -> tuple[PipelineSet, ...]:
        stairs = self._stairs(values, target)
        sums = joined(stairs)
        rows = split(sums, stairs, self._fewest_devices(sums[-1]))
        return tuple(
            chosen_of(self._stock, columns, value.set_at(row, int(stair[row])))
            for columns, value, stair, row in zip(self._columns, values, stairs, rows, strict=True)
        )

    def _fewest_devices(self, total: Ints) -> int:
        """The row of the joined staircase with the fewest devices, then the fewest units."""
        rows = np.arange(len(total))
        devices = -(-rows // self._per_device[0]) - (-total // self._per_device[1])
        devices[total > self._units[1]] = TOO_MANY_UNITS
        units = rows * self._steps[0] + total * self._steps[1]
        return int(np.lexsort((units, devices))[0])
