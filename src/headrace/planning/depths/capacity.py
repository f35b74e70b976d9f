"""Requests per second that all slots carry together, whatever depth each request is given.

A request of a model's typical number of items holds every slot of its depth from its first batch
to its last, fill + (K - 1) x pace by medians, and its gateway time on one of them where they have
the same cores. With x[m, d] requests of model m per second at depth d,

    sum over m, d of x[m, d] x held[m, d, kind]  <=  slots of the kind x their utilisation

a linear program. What is waited for is not in it: it is what a plan can carry, not what it answers
in time. The bound is on every malleable plan, however it cuts and whatever mix of depths it has: at
any prices of the kinds' time no request costs less than its batches times the cheapest way through
the blocks. The prices that are tried are the program's, equal ones, and each model's speeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from headrace.cost import cost_model, shares_gateway_cores
from headrace.domain.base import LEAST_RATE_RPS
from headrace.domain.problem import Demand, PlanOptions, Problem
from headrace.planning.common.candidates import Floats, SlotKind
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.solver import LinearModel
from headrace.planning.depths.exact import Cut, uses
from headrace.planning.depths.table import DepthTable
from headrace.planning.depths.walk import NEVER, walk

LIMIT_S = 60.0
TINY_RPS = LEAST_RATE_RPS
"""A weight of what nothing is asked of."""

PRECISION = 1 << 20
"""Prices become whole numbers of so many parts of the highest, rounded down."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What the linear program says."""

    rates_rps: tuple[float, ...]
    """Of each demand."""
    value: float
    """Of the objective."""
    prices: Floats
    """Shape (kinds,): of a second of a slot's time."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All models of a problem on all slots."""

    problem: Problem
    kinds: dict[SlotKind, int]
    tables: Sequence[DepthTable]
    """Of each demand."""

    def carried(self) -> Carried | None:
        """The best rates; None: those that are asked for are too many."""
        held = [self._held(demand, table) for demand, table in self._models()]
        return _most(self.problem.demands, held, self._slots(), self._sums)

    def multiple(self, deadline: Deadline) -> tuple[float, float]:
        """Of the rates that are asked for, how many times they are carried; and a bound on that."""
        asked = tuple(
            replace(demand, weight=max(demand.rate_rps or 0.0, TINY_RPS), rate_rps=None)
            for demand in self.problem.demands
        )
        alike = Capacity(
            replace(self.problem, demands=asked, options=PlanOptions()), self.kinds, self.tables
        )
        carried = alike.carried()
        assert carried is not None, "nothing is asked for"
        return carried.value, alike.bound(carried, deadline)

    def bound(self, carried: Carried, deadline: Deadline) -> float:
        """No malleable plan has a better objective.

        Args:
            deadline: once it has passed, the first prices that prove something are the last tried.
        """
        tried = [carried.prices, np.ones(len(self.kinds))]
        for table in self.tables:
            whole_us = dict(zip(table.chain.kinds, table.chain.p50_us[:, 0, -1], strict=True))
            tried.append(np.array([1 / whole_us.get(kind, NEVER) for kind in self.kinds]))
        least = np.inf
        for prices in tried:
            if least < np.inf and deadline.passed:
                break
            least = min(least, self._bound_at(prices))
        return max(carried.value, least)

    def _bound_at(self, prices: Floats) -> float:
        """The bound at these prices, shape (kinds,); infinite where they prove nothing."""
        if not prices.max() > 0:
            return np.inf
        prices = prices / prices.max()
        least = [self._cheapest(demand, table, prices) for demand, table in self._models()]
        if min(least) <= 0:
            return np.inf
        slots = np.array([float(prices @ self._slots())])
        ways = [np.array([[cost]]) for cost in least]
        found = _most(self.problem.demands, ways, slots, self._sums)
        return np.inf if found is None else found.value

    @property
    def _sums(self) -> bool:
        return self.problem.options.objective == "throughput"

    def _models(self) -> list[tuple[Demand, DepthTable]]:
        return list(zip(self.problem.demands, self.tables, strict=True))

    def _slots(self) -> Floats:
        """Shape (kinds,): seconds of every second."""
        types = [self.problem.cluster.device_type(kind.device) for kind in self.kinds]
        counts = np.array(list(self.kinds.values()), float)
        usable: Floats = counts * np.array([kind.max_utilisation for kind in types])
        return usable

    def _held(self, demand: Demand, table: DepthTable) -> Floats:
        """Shape (depths, kinds): seconds of slots that a request holds."""
        held = np.zeros((len(table.cuts), len(self.kinds)))
        index = {kind: k for k, kind in enumerate(self.kinds)}
        batches = table.chain.batches(table.chain.typical)
        for row, cut in zip(held, table.cuts, strict=True):
            took_us = median_us(table, cut, batches)
            for kind in cut.kinds:
                row[index[table.chain.kinds[kind]]] += took_us
            first = table.chain.kinds[cut.kinds[0]]
            row[index[first]] += self._gateway_us(demand, first)
        return held / 1e6

    def _gateway_us(self, demand: Demand, kind: SlotKind) -> int:
        if not shares_gateway_cores(self.problem.cluster, kind.device):
            return 0
        return cost_model(self.problem.profiles).gateway_on_slot_us(demand.model)

    def _cheapest(self, demand: Demand, table: DepthTable, prices: Floats) -> float:
        """Seconds, at these prices, below which no request's slots are held."""
        chain = table.chain
        index = {kind: k for k, kind in enumerate(self.kinds)}
        mine = [index[kind] for kind in chain.kinds]
        parts = np.floor(prices[mine] * PRECISION).astype(np.int64)
        impossible = chain.p50_us >= NEVER
        # Rounded down: never more than it costs.
        priced = np.where(impossible, NEVER, chain.p50_us * parts[:, None, None] // PRECISION)
        sums, before = uses(chain.counts, table.depth_max)
        shape = (len(before), len(chain.kinds), chain.block_count + 1)
        best, *rest = (np.empty(shape, np.int64) for _ in "123")
        free = np.zeros_like(chain.transfer_us)
        walk(priced, free, before, NEVER - 1, False, False, best, *rest)
        gateway_us = min(
            price * self._gateway_us(demand, kind)
            for price, kind in zip(prices[mine], chain.kinds, strict=True)
        )
        least_us = int(best[sums > 0, :, -1].min())
        return float(chain.batches(chain.typical) * least_us + gateway_us) / 1e6


def median_us(table: DepthTable, cut: Cut, batches: int) -> float:
    """As the request takes, by medians."""
    chain, first = table.chain, 0
    parts: list[float] = []
    for index, (kind, end) in enumerate(zip(cut.kinds, cut.ends, strict=True)):
        if index:
            parts.append(float(chain.transfer_us[cut.kinds[index - 1], kind, first]))
        parts.append(float(chain.p50_us[kind, first, end]))
        first = end
    return sum(parts) + (batches - 1) * max(parts)


def _most(
    demands: Sequence[Demand], held: Sequence[Floats], slots: Floats, sums: bool
) -> Carried | None:
    """The best rates, all of which are at least those asked for; None: there are none.

    Args:
        held: per demand, shape (ways, kinds): seconds that a request holds of each kind.
        slots: shape (kinds,): seconds of every second that there are.
        sums: the sum of all rates is best, rather than the least rate / weight.
    """
    program = LinearModel(maximise=True)
    least = program.add_columns(1, gain=0.0 if sums else 1.0, upper=0.0 if sums else np.inf)
    limits = program.add_rows(len(slots), upper=slots)
    ways = []
    for demand, seconds in zip(demands, held, strict=True):
        columns = program.add_columns(len(seconds), gain=1.0 if sums else 0.0)
        program.add_entries(limits[None, :], columns[:, None], seconds)
        row = program.add_rows(1, lower=0.0)
        program.add_entries(row, columns, 1.0)
        program.add_entries(row, least, -demand.weight)
        program.add_entries(program.add_rows(1, lower=demand.rate_rps or 0.0), columns, 1.0)
        ways.append(columns)
    found = program.solve(time_limit_s=LIMIT_S)
    if found.values is None or found.prices is None or found.objective is None:
        return None
    rates = [float(found.values[columns].sum()) for columns in ways]
    return Carried(tuple(rates), found.objective, np.abs(found.prices[limits]))
