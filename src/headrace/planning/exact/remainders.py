"""Whether one demand can be carried by what the others leave of the stock, for many remainders.

A remainder is a vector of increments of each device type. For it alone the linear relaxation of the
demand has prices u of its own, scaled so that no column's request costs less than 1:

    minimise u x remainder   with   sum over a column's stages of u[type] x units per request >= 1

So u x remainder is a bound on what the remainder carries, and a set of pipelines within it that
carries the target may waste u x remainder - target by these prices: far less than by the prices of
all demands together. Walks grow steeply with that budget, so many small ones are faster than one
large. They take turns: those not decided in some steps get more once all had theirs.

What was learnt of one remainder serves others: prices bound every remainder; no plan within one
means none within any smaller; a plan within one is a plan within any larger.
"""

from dataclasses import replace

import numpy as np

from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.solver import LinearModel
from headrace.planning.exact.columns import Columns, PoolStock
from headrace.planning.exact.prices import UnitPrices
from headrace.planning.exact.sets import (
    TOLERANCE,
    DemandWalk,
    GaveUp,
    PipelineSet,
    StepBudget,
    Undecided,
)

FIRST_STEPS = 20_000
"""Of one walk; those not decided get STEPS_GROWTH times as many, once all had their turn."""

STEPS_GROWTH = 8

PRICING_STEPS = 1_000
"""Steps of a walk that take about as long as the relaxation of one remainder."""


class Remainders:
    """One demand."""

    def __init__(self, stock: PoolStock, columns: Columns, step_budget: StepBudget) -> None:
        self._stock, self._columns, self._step_budget = stock, columns, step_budget
        self._costs = _type_costs(stock, columns)
        self._cheapest = _undominated(self._costs)
        self._prices: list[Floats] = []
        """Each of shape (K,), of units: no column's request costs less than 1."""
        self._refused: list[tuple[Ints, float, int]] = []
        """Granules, target and pipelines: no set of so few within these carries it."""
        self._chosen: list[tuple[PipelineSet, float]] = []
        """Sets found, and their throughput."""

    def first(
        self, remainders: Ints, target_rps: float, deepest: int
    ) -> tuple[int, PipelineSet] | None:
        """A remainder and a set of at most `deepest` pipelines within it; None if there is none.

        Args:
            remainders: shape (n, K), of increments.

        Raises:
            GaveUp: out of time or room.
        """
        for known, carried_rps in self._chosen:
            within = np.flatnonzero((known.need <= remainders).all(axis=1))
            if carried_rps >= target_rps and len(within):
                return int(within[0]), known
        open_, steps = self._possible(remainders, target_rps, deepest), float(FIRST_STEPS)
        while open_:
            undecided = []
            for at, prices in open_:
                try:
                    chosen = self._within(remainders[at], prices, target_rps, deepest, steps)
                except Undecided:
                    undecided.append((at, prices))
                    continue
                if chosen is not None:
                    self._chosen.append((chosen, chosen.throughput_rps(self._columns)))
                    return at, chosen
                self._refused.append((remainders[at], target_rps, deepest))
            open_, steps = undecided, steps * STEPS_GROWTH
        return None

    def _possible(
        self, remainders: Ints, target_rps: float, deepest: int
    ) -> list[tuple[int, Floats]]:
        """Those worth the target by all prices, most worth first, each with its best prices."""
        possible = []
        for at, remainder in enumerate(remainders):
            if self._is_refused(remainder, target_rps, deepest):
                continue
            units = remainder * self._stock.increment
            worth, prices = self._least_worth(units)
            if worth >= target_rps * (1 - TOLERANCE):
                self._prices.append(self._solve(units))
                worth, prices = self._least_worth(units)
            if worth >= target_rps * (1 - TOLERANCE):
                possible.append((worth, at, prices))
        return [(at, prices) for _, at, prices in sorted(possible, key=lambda p: (-p[0], p[1]))]

    def _is_refused(self, remainder: Ints, target_rps: float, deepest: int) -> bool:
        return any(
            deepest <= few and target_rps >= refused_rps and bool((remainder <= increments).all())
            for increments, refused_rps, few in self._refused
        )

    def _least_worth(self, units: Ints) -> tuple[float, Floats]:
        """By the prices known: the throughput that `units` can carry at most."""
        if not self._prices:
            return np.inf, np.zeros(len(units))
        worths = np.array(self._prices) @ units
        least = int(worths.argmin())
        return float(worths[least]), self._prices[least]

    def _solve(self, units: Ints) -> Floats:
        """Shape (K,): prices of the relaxation, so that no column's request costs less than 1.

        Raises:
            GaveUp: out of time, or the relaxation was not solved.
        """
        self._step_budget.spend(PRICING_STEPS)
        costs = self._costs[self._cheapest]
        model = LinearModel(maximise=False)
        prices = model.add_columns(len(units), gain=units.astype(float))
        rows = model.add_rows(len(costs), lower=1.0)
        model.add_entries(rows[:, None], prices[None, :], costs)
        solution = model.solve(time_limit_s=np.inf, relaxed=True)
        if solution.values is None:
            raise GaveUp
        found = np.maximum(0.0, solution.values)
        # Not trusted to the last digit: the bound holds for any prices so scaled.
        least = float((self._costs @ found).min())
        if least <= 0.0:
            raise GaveUp
        return np.asarray(found / least)

    def _within(
        self, remainder: Ints, prices: Floats, target_rps: float, deepest: int, steps: float
    ) -> PipelineSet | None:
        worth = float(prices @ (remainder * self._stock.increment))
        walked = DemandWalk(
            replace(self._stock, increments=remainder),
            self._columns,
            UnitPrices(unit=prices, request=np.ones(1), stock=worth),
            1.0,
            self._step_budget,
        )
        return walked.first(target_rps, worth - target_rps, deepest, steps)


def largest(vectors: Ints) -> Ints:
    """Those that no other one covers, each once; shape (n, K)."""
    unique = np.unique(vectors, axis=0)
    kept = np.empty((0, vectors.shape[1]), np.int64)
    # None is covered by one of a smaller sum.
    for vector in unique[np.argsort(-unique.sum(axis=1), kind="stable")]:
        if not (kept >= vector).all(axis=1).any():
            kept = np.vstack([kept, vector])
    return kept


def _type_costs(stock: PoolStock, columns: Columns) -> Floats:
    """Shape (C, K): units of every device type that one request per second costs."""
    costs = np.zeros((len(columns), len(stock.increments)))
    row, stage = np.nonzero(columns.pools >= 0)
    kinds = stock.pool_type[columns.pools[row, stage]]
    np.add.at(costs, (row, kinds), columns.units_per_rps[row, stage])
    return costs


def _undominated(costs: Floats) -> Ints:
    """Rows that are enough for the relaxation: no other row costs as little of everything."""
    kept: list[int] = []
    for row in np.argsort(costs.sum(axis=1), kind="stable").tolist():
        if not (costs[kept] <= costs[row]).all(axis=1).any():
            kept.append(row)
    return np.array(kept, dtype=np.int64)
