"""Exact search for the least cost at given rates: one or two device types, any number of models.

The value functions (`values`) know nothing of what is optimised, only how much a plan may waste:
here what its cost exceeds the relaxation's bound by (`prices.CostPrices`). For a cost limit,

1. value functions are filled for all plans that cost no more, and no units beyond what the limit
   buys of either type
2. the staircases at the demanded rates are joined; point (n, S[n]) costs
   ceil(n / units) x cost_0 + ceil(S[n] / units) x cost_1: whole devices are paid for
3. the cheapest point, if within the limit, is the best plan there is. Otherwise the next pass looks
   as far as the cheapest point found, or STEP_GROWTH times as far above the bound

The first limit is the least cost above the bound that some number of whole devices has. Cost: as
`free`, mostly one pass. The paper has no such objective.
"""

from collections.abc import Sequence

import numpy as np

from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.master import Wanted
from headrace.planning.exact.columns import Columns, PoolStock
from headrace.planning.exact.free import OutOfReach, chosen_of, fill_values, within_reach
from headrace.planning.exact.prices import CostPrices, price_rates
from headrace.planning.exact.search import ExactResult
from headrace.planning.exact.sets import TOLERANCE
from headrace.planning.exact.staircases import TOO_MANY_UNITS, joined, split, staircase
from headrace.planning.exact.values import ValueFunction, unit_steps

FIRST_STEP = 1 / 1024
STEP_GROWTH = 3.0
"""Of the bound: how far the first pass reaches above it, and how much farther each next one."""


def search_least_cost(
    stock: PoolStock,
    wanted: Sequence[Wanted],
    columns: Sequence[Columns],
    units_per_device: int,
    device_costs: Floats,
    deadline: Deadline,
) -> ExactResult:
    """The cheapest whole devices that carry every `least_rps`; of equals the fewest.

    Args:
        device_costs: shape (K,), of one device of each type.

    Returns:
        `objective` and `bound` are costs.

    Raises:
        OutOfReach, OutOfTime: more than two device types, too many vectors of units within the
            cost, or no time left.
    """
    unit_costs = device_costs / units_per_device
    prices = price_rates(stock, wanted, columns, unit_costs, deadline)
    if prices is None:
        return ExactResult(chosen=None, objective=0.0, bound=0.0)
    search = _CostSearch(stock, wanted, columns, prices, units_per_device, device_costs, deadline)
    return search.run()


class _CostSearch:
    def __init__(
        self,
        stock: PoolStock,
        wanted: Sequence[Wanted],
        columns: Sequence[Columns],
        prices: CostPrices,
        units_per_device: int,
        device_costs: Floats,
        deadline: Deadline,
    ) -> None:
        self._stock, self._wanted, self._columns = stock, wanted, columns
        self._prices, self._deadline = prices, deadline
        self._steps = unit_steps(stock, columns, units_per_device)
        self._per_device = units_per_device // self._steps
        # A cluster of one device type has none of a second.
        self._devices = np.append(stock.increments // units_per_device, 0)[:2]
        self._costs = np.append(device_costs, 0.0)[:2]
        self._unit_prices = np.append(prices.unit, 0.0)[:2]
        self._tolerance = TOLERANCE * max(float(self._costs @ self._devices), prices.bound)

    def run(self) -> ExactResult:
        everything = float(self._costs @ self._devices)
        step = max(FIRST_STEP * self._prices.bound, self._tolerance)
        limit = min(everything, self._cost_from(self._prices.bound))
        while True:
            values = self._values(limit)
            stairs = [
                staircase(mine.best, want.least_rps)
                for mine, want in zip(values, self._wanted, strict=True)
            ]
            sums = joined(stairs)
            row, cost = self._cheapest(sums[-1], values[0].columns)
            if cost <= limit + self._tolerance:
                rows = split(sums, stairs, row)
                chosen = tuple(
                    chosen_of(self._stock, mine, value.set_at(at, int(stair[at])))
                    for mine, value, stair, at in zip(
                        self._columns, values, stairs, rows, strict=True
                    )
                )
                return ExactResult(chosen=chosen, objective=cost, bound=cost)
            if limit >= everything:
                return ExactResult(chosen=None, objective=0.0, bound=0.0)
            # What was found, though dearer, is a plan: no need to look beyond.
            limit = min(everything, cost, self._cost_from(self._prices.bound + step))
            step *= STEP_GROWTH

    def _cost_from(self, least: float) -> float:
        """The smallest cost of whole devices that is at least `least`."""
        first = np.arange(self._devices[0] + 1)
        rest = np.maximum(0.0, least - self._tolerance - self._costs[0] * first)
        if self._costs[1] == 0.0:
            second = np.zeros(len(first))
            possible = rest <= 0
        else:
            second = np.ceil(rest / self._costs[1])
            possible = second <= self._devices[1]
        costs = self._costs[0] * first + self._costs[1] * second
        return float(costs[possible].min(initial=np.inf))

    def _values(self, limit: float) -> list[ValueFunction]:
        """Of every demand, for all plans that cost at most `limit`."""
        units = self._affordable(limit)
        if not within_reach(self._stock, units):
            raise OutOfReach
        gap = limit - self._prices.bound + self._tolerance
        return [
            fill_values(
                self._stock,
                mine,
                self._unit_prices,
                float(request_price),
                units,
                self._steps,
                gap=gap,
                enough_rps=want.least_rps,
                deadline=self._deadline,
            )
            for mine, want, request_price in zip(
                self._columns, self._wanted, self._prices.request, strict=True
            )
        ]

    def _affordable(self, limit: float) -> Ints:
        """Shape (2,): steps of whole devices of either type alone within the stock and `limit`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.floor((limit + self._tolerance) / self._costs)
        most = np.where(self._costs > 0, np.minimum(most, self._devices), self._devices)
        units: Ints = (most * self._per_device).astype(np.int64)
        return units

    def _cheapest(self, total: Ints, columns: int) -> tuple[int, float]:
        """The row of the joined staircase that costs least, and its cost; infinite if none fits."""
        rows = np.arange(len(total))
        first, second = -(-rows // self._per_device[0]), -(-total // self._per_device[1])
        fits = (total < TOO_MANY_UNITS) & (total < columns)
        costs = np.where(fits, self._costs[0] * first + self._costs[1] * second, np.inf)
        cheapest = costs <= costs.min() + self._tolerance
        units = rows * self._steps[0] + total * self._steps[1]
        ranked = np.lexsort((units, first + second, ~cheapest))
        return int(ranked[0]), float(costs[ranked[0]])
