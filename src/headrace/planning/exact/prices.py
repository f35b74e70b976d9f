"""UnitPrices of devices and requests, and the distance from the bound that they give every target.

For any prices of units (>= 0), let the price of a demand's request be what its cheapest column
costs per request. Then a plan that gives every demand d its X_d within the stock obeys

    price of the stock - sum over d of request price x X_d
        = sum of everything that the plan wastes                 all terms >= 0

(slots not fully used, units rounded up, devices idle, requests beyond X_d). The left side, the
`gap`, is what a plan for the target may waste in total; where it is negative there is no plan.
UnitPrices of the linear relaxation make it smallest; none are trusted: the identity holds for any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.common.candidates import Floats
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.master import Wanted
from headrace.planning.common.solver import LinearModel
from headrace.planning.exact.columns import Columns, PoolStock

ROUNDING = 1e-12
"""Of the price of the whole stock: by how much a gap may be off."""


@dataclass(frozen=True, slots=True)
class UnitPrices:
    """In units of the objective."""

    unit: Floats
    """Shape (K,): of one unit of each device type."""
    request: Floats
    """Shape (demands,): of one request per second."""
    stock: float
    """Of everything there is."""

    def gap(self, targets_rps: Floats) -> float:
        """What a plan that carries `targets_rps` may waste."""
        return float(self.stock - self.request @ targets_rps)


def targets_at(wanted: Sequence[Wanted], smallest: float) -> Floats:
    """Shape (demands,): what each demand must get for min throughput / weight = `smallest`."""
    return np.array([max(want.weight * smallest, want.least_rps) for want in wanted])


def price(
    stock: PoolStock, wanted: Sequence[Wanted], columns: Sequence[Columns], deadline: Deadline
) -> UnitPrices | None:
    """UnitPrices of the linear relaxation; None if not even that is feasible.

    Raises:
        OutOfTime: not solved in time.
    """
    model = LinearModel(maximise=True)
    smallest = model.add_columns(1, gain=1.0)
    rates = model.add_rows(len(wanted), lower=np.array([want.least_rps for want in wanted]))
    shares = model.add_rows(len(wanted), lower=0.0)
    model.add_entries(shares, smallest, -np.array([want.weight for want in wanted]))
    devices = model.add_rows(len(stock.increments), upper=stock.units.astype(float))
    for demand, mine in enumerate(columns):
        carried = model.add_columns(len(mine))
        model.add_entries(rates[demand], carried, 1.0)
        model.add_entries(shares[demand], carried, 1.0)
        row, stage = np.nonzero(mine.pools >= 0)
        kind = stock.pool_type[mine.pools[row, stage]]
        model.add_entries(devices[kind], carried[row], mine.units_per_rps[row, stage])
    duals = _duals(model, deadline)
    if duals is None:
        return None
    unit = np.abs(duals[devices])
    return UnitPrices(
        unit=unit,
        request=np.array([request_costs(stock, mine, unit).min() for mine in columns]),
        stock=float(unit @ stock.units),
    )


@dataclass(frozen=True, slots=True)
class CostPrices:
    """In units of cost: what every plan that carries the rates must cost at least.

    As above, with the cost of a plan in place of a target: whatever the unit prices (>= their
    cost), a plan of cost C wastes at most C - bound in all.
    """

    unit: Floats
    """Shape (K,): its cost, and what its scarcity adds."""
    request: Floats
    """Shape (demands,)."""
    bound: float


def price_rates(
    stock: PoolStock,
    wanted: Sequence[Wanted],
    columns: Sequence[Columns],
    unit_costs: Floats,
    deadline: Deadline,
) -> CostPrices | None:
    """UnitPrices of the cheapest way to carry every rate; None if not even divisible slots do.

    Raises:
        OutOfTime: not solved in time.
    """
    least = np.array([want.least_rps for want in wanted])
    model = LinearModel(maximise=False)
    rates = model.add_rows(len(wanted), lower=least)
    devices = model.add_rows(len(stock.increments), upper=stock.units.astype(float))
    for demand, mine in enumerate(columns):
        carried = model.add_columns(len(mine), gain=request_costs(stock, mine, unit_costs))
        model.add_entries(rates[demand], carried, 1.0)
        row, stage = np.nonzero(mine.pools >= 0)
        kind = stock.pool_type[mine.pools[row, stage]]
        model.add_entries(devices[kind], carried[row], mine.units_per_rps[row, stage])
    duals = _duals(model, deadline)
    if duals is None:
        return None
    scarcity = np.abs(duals[devices])
    unit = unit_costs + scarcity
    request = np.array([request_costs(stock, mine, unit).min() for mine in columns])
    return CostPrices(
        unit=unit, request=request, bound=float(request @ least - scarcity @ stock.units)
    )


def _duals(model: LinearModel, deadline: Deadline) -> Floats | None:
    """Shape (rows,); None where the model is infeasible."""
    solution = model.solve(time_limit_s=deadline.left_s, relaxed=True)
    if solution.status == "limit":
        raise OutOfTime
    return solution.prices


def request_costs(stock: PoolStock, columns: Columns, unit_prices: Floats) -> Floats:
    """Shape (C,): price of the units that one request per second of each column costs."""
    prices = unit_prices[stock.pool_type[columns.pools]]
    costs: Floats = (prices * columns.units_per_rps).sum(axis=1)
    return costs


def relaxed_bound(prices: UnitPrices, wanted: Sequence[Wanted]) -> float:
    """The largest objective that the prices do not exclude.

    Behind it the gap is negative. Before it the gap may be 0, from an objective of 0 on, where what
    demands must get at least takes all of the only device type that has a price.
    """
    no_gap = -ROUNDING * prices.stock
    low, high = 0.0, 1.0
    while prices.gap(targets_at(wanted, high)) >= no_gap:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if prices.gap(targets_at(wanted, middle)) >= no_gap:
            low = middle
        else:
            high = middle
    return high
