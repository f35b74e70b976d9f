"""The artifact's rule on any number of devices: walks, and bound and repair where they take long.

`search` asks by walks (`planning.exact`) for a bounded number of steps. What is open then, and all
of it above UNITS_MAX, is bounded and repaired, whatever the size:

bound    a small integer program: how many devices each demand takes of each pool is whole, what
         its columns carry is not. It forgets only that slots are whole, so its distance from the
         best plan vanishes as clusters grow.
repair   its columns, few as they are, get whole slots by a second program.

A lower bound leaves walks fewer targets to ask for, and a plan leaves smaller gaps: they go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.master import Wanted, smallest_normalised
from headrace.planning.common.solver import RELATIVE_GAP, LinearModel, LinearSolution
from headrace.planning.exact.columns import Columns, PoolStock, undominated_columns
from headrace.planning.exact.prices import UnitPrices, price, request_costs
from headrace.planning.exact.search import ExactResult, TargetSearch
from headrace.planning.exact.sets import PipelineSet

UNITS_MAX = 24_000
"""Of the stock, up to which sets are walked through: 2,000 devices in quarters and thirds."""

FIRST_STEPS = 2_000_000
"""Of all walks together, before bound and repair."""

LARGE_GAP = 1e-5
"""Of larger stocks; a tenth of it may take ten times as long."""

REPAIR_NODES = 200
"""Of each program of bound and repair, where walks go on after it."""

BOUND_PART = 0.5
"""Of the time left, for the bound; the repair gets the rest."""

COMPANIONS = (0, 8, 20)
"""Of each demand: columns that the repair may use beside those of the bound, the cheapest ones.
More are tried where fewer leave a gap."""

REPAIR_PARTS = (0.5, 0.15, 0.15)
"""Of the time left, for each try: walks need some of it after them."""

REPAIRED = 10.0
"""Times the relative gap: a plan this near the bound is not repaired further."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What bounding and repairing gives."""

    chosen: tuple[PipelineSet, ...] | None
    """One entry per demand; None if no plan was found."""
    objective: float
    """min throughput / weight; 0 without a plan."""
    bound: float
    """Proven; infinite if not even that was found."""


class _ToldSearch(TargetSearch):
    def learn_bound(self, bound: float) -> None:
        """No plan is better than `bound`, as something else proved."""
        self._bound = min(self._bound, bound)


def search(
    stock: PoolStock, wanted: Sequence[Wanted], columns: Sequence[Columns], deadline: Deadline
) -> ExactResult:
    """The largest min throughput / weight, next to the bound where it cannot be proven.

    Args:
        columns: per demand; each non-empty.
    """
    try:
        prices = price(stock, wanted, columns, deadline)
    except OutOfTime:
        return ExactResult(chosen=None, objective=0.0, bound=np.inf)
    if prices is None:
        return ExactResult(chosen=None, objective=0.0, bound=0.0)
    asking = _ToldSearch(stock, wanted, columns, prices, deadline)
    walkable = stock.increments.sum() * stock.increment <= UNITS_MAX
    if walkable and asking.walk_through(FIRST_STEPS):
        return asking.result
    repaired = bound_and_repair(
        stock,
        wanted,
        columns,
        deadline,
        relative_gap=RELATIVE_GAP if walkable else LARGE_GAP,
        prices=prices,
        nodes=REPAIR_NODES if walkable else None,
        # With a plan at hand, one that is no nearer the bound is of little use.
        bound_below=np.inf if asking.result.chosen is None else asking.result.bound,
    )
    asking.learn_bound(repaired.bound)
    if repaired.chosen is not None:
        asking.learn(repaired.chosen)
    if walkable:
        asking.walk_through()
    return asking.result


def bound_and_repair(
    stock: PoolStock,
    wanted: Sequence[Wanted],
    columns: Sequence[Columns],
    deadline: Deadline,
    *,
    relative_gap: float = RELATIVE_GAP,
    prices: UnitPrices | None = None,
    nodes: int | None = None,
    bound_below: float = np.inf,
) -> Repaired:
    """
    Args:
        columns: per demand; each non-empty.
        relative_gap: at which each of the programs ends.
        nodes: of each program's tree, after which it ends with what it has.
        bound_below: where the bound is no lower than this, no plan is looked for.
        prices: of the relaxation; without, the repair uses no other columns than the bound.
    """
    bound, active = _bound(stock, wanted, columns, deadline, relative_gap, nodes, bound_below)
    best = Repaired(chosen=None, objective=0.0, bound=bound)
    if active is None:
        return best
    for companions, part in zip(COMPANIONS, REPAIR_PARTS, strict=True):
        rows = _with_companions(stock, columns, active, prices, companions)
        chosen = _repair(stock, wanted, columns, rows, part * deadline.left_s, relative_gap, nodes)
        if chosen is not None:
            throughputs = [
                mine.throughput_rps(every) for mine, every in zip(chosen, columns, strict=True)
            ]
            objective = smallest_normalised(throughputs, wanted)
            if objective > best.objective:
                best = Repaired(chosen=chosen, objective=objective, bound=max(bound, objective))
        near = best.objective >= best.bound * (1 - REPAIRED * relative_gap)
        if near or prices is None or deadline.passed:
            break
    return best


def _bound(
    stock: PoolStock,
    wanted: Sequence[Wanted],
    columns: Sequence[Columns],
    deadline: Deadline,
    relative_gap: float,
    nodes: int | None,
    bound_below: float,
) -> tuple[float, list[Ints] | None]:
    """The bound, and per demand the rows of the columns behind it; None where none are wanted."""
    enough = [cheapest_columns(mine) for mine in columns]
    cheapest = [mine.take(rows) for mine, rows in zip(columns, enough, strict=True)]
    program = _Program(stock, wanted, cheapest)

    def solve() -> LinearSolution:
        return program.model.solve(
            time_limit_s=BOUND_PART * deadline.left_s, relative_gap=relative_gap, node_limit=nodes
        )

    bounded = solve()
    if bounded.status == "infeasible":
        return 0.0, None
    bound = np.inf if bounded.bound is None else bounded.bound
    if bounded.values is None or bound >= bound_below:
        return bound, None
    active = program.active(bounded.values)
    if not all(_fit_groups(stock, c, rows) for c, rows in zip(cheapest, active, strict=True)):
        program.limit_groups()
        bounded = solve()
        bound = bound if bounded.bound is None else min(bound, bounded.bound)
        if bounded.values is not None:
            active = program.active(bounded.values)
    return bound, [rows[used] for rows, used in zip(enough, active, strict=True)]


def cheapest_columns(columns: Columns) -> Ints:
    """Rows of columns that are enough where slots are divisible: only units per request count."""
    return undominated_columns(columns, np.minimum(columns.units, 1))


def _with_companions(
    stock: PoolStock,
    columns: Sequence[Columns],
    active: Sequence[Ints],
    prices: UnitPrices | None,
    count: int,
) -> list[Ints]:
    """Per demand, rows: `active` and the `count` columns whose requests are cheapest."""
    if prices is None or not count:
        return list(active)
    return [
        np.union1d(rows, np.argsort(request_costs(stock, mine, prices.unit), kind="stable")[:count])
        for mine, rows in zip(columns, active, strict=True)
    ]


def _repair(
    stock: PoolStock,
    wanted: Sequence[Wanted],
    columns: Sequence[Columns],
    rows: Sequence[Ints],
    time_limit_s: float,
    relative_gap: float,
    nodes: int | None,
) -> tuple[PipelineSet, ...] | None:
    """Whole slots for the columns of `rows`; None if none were found in time."""
    few = [mine.take(of_mine) for mine, of_mine in zip(columns, rows, strict=True)]
    if not all(map(len, few)):
        return None
    repairing = _Program(stock, wanted, few, whole_slots=True)
    repairing.limit_groups()
    repaired = repairing.model.solve(
        time_limit_s=max(time_limit_s, 0.1), relative_gap=relative_gap, node_limit=nodes
    )
    if repaired.values is None:
        return None
    return tuple(
        _chosen(stock, mine, of_mine, repaired.values[slots])
        for mine, of_mine, slots in zip(few, rows, repairing.slots, strict=True)
    )


def _fit_groups(stock: PoolStock, columns: Columns, rows: Ints) -> bool:
    groups = columns.groups[rows]
    used = np.bincount(groups[groups >= 0], minlength=len(stock.room))
    return bool((used <= stock.room).all())


class _Program:
    """max z; per demand: sum of carried >= weight z, its rate; stages within their slots, slots
    within their pools' increments, increments within the stock; groups within their room."""

    def __init__(
        self,
        stock: PoolStock,
        wanted: Sequence[Wanted],
        columns: Sequence[Columns],
        *,
        whole_slots: bool = False,
    ) -> None:
        self.model = LinearModel(maximise=True)
        self.slots: list[Ints] = []
        """Per demand, shape (C, P): columns of the model; only with whole slots."""
        self._stock, self._columns = stock, columns
        self._carried: list[Ints] = []
        self._smallest = self.model.add_columns(1, gain=1.0)
        self._there = self.model.add_rows(
            len(stock.increments), upper=stock.increments.astype(float)
        )
        for want, mine in zip(wanted, columns, strict=True):
            self._add_demand(want, mine)
            if whole_slots:
                self._add_whole_slots(mine)
            else:
                self._add_divisible_slots(mine)

    def active(self, values: Floats) -> list[Ints]:
        """Per demand, rows of the columns that carry anything."""
        return [np.flatnonzero(values[carried] > 1e-9) for carried in self._carried]

    def limit_groups(self) -> None:
        """No more columns of a group than it has room for."""
        for carried, columns in zip(self._carried, self._columns, strict=True):
            room = self.model.add_rows(len(self._stock.room), upper=self._stock.room.astype(float))
            used = self.model.add_columns(len(columns), upper=1.0, integer=True)
            only_used = self.model.add_rows(len(columns), upper=0.0)
            self.model.add_entries(only_used, carried, 1.0)
            self.model.add_entries(only_used, used, -_most_rps(self._stock, columns))
            member, place = np.nonzero(columns.groups >= 0)
            self.model.add_entries(room[columns.groups[member, place]], used[member], 1.0)

    def _add_demand(self, want: Wanted, columns: Columns) -> None:
        model, stock = self.model, self._stock
        carried = model.add_columns(len(columns))
        self._carried.append(carried)
        share, rate = model.add_rows(1, lower=0.0), model.add_rows(1, lower=want.least_rps)
        model.add_entries(share, carried, 1.0)
        model.add_entries(share, self._smallest, -want.weight)
        model.add_entries(rate, carried, 1.0)
        # Where nothing is rounded up, whole increments are the slots' affair.
        taken = model.add_columns(len(stock.pool_type), integer=stock.increment > 1)
        self._pools = model.add_rows(len(stock.pool_type), upper=0.0)
        model.add_entries(self._pools, taken, -float(stock.increment))
        model.add_entries(self._there[stock.pool_type], taken, 1.0)

    def _add_divisible_slots(self, columns: Columns) -> None:
        row, stage = np.nonzero(columns.pools >= 0)
        pools = self._pools[columns.pools[row, stage]]
        self.model.add_entries(pools, self._carried[-1][row], columns.units_per_rps[row, stage])

    def _add_whole_slots(self, columns: Columns) -> None:
        model, stock = self.model, self._stock
        slots = np.zeros(columns.pools.shape, dtype=np.int64)
        row, stage = np.nonzero(columns.pools >= 0)
        pools, units = columns.pools[row, stage], columns.units[row, stage]
        most = (stock.units[stock.pool_type[pools]] // units).astype(float)
        slots[row, stage] = model.add_columns(len(row), upper=most, integer=True)
        self.slots.append(slots)
        model.add_entries(self._pools[pools], slots[row, stage], units)
        enough = model.add_rows(len(row), upper=0.0)
        model.add_entries(enough, self._carried[-1][row], 1.0)
        model.add_entries(enough, slots[row, stage], -columns.rates_rps[row, stage])


def _most_rps(stock: PoolStock, columns: Columns) -> Floats:
    """Shape (C,): what each column carries with the whole stock."""
    with np.errstate(divide="ignore"):
        slots = stock.units[stock.pool_type[columns.pools]] / columns.units
    carried = np.where(columns.pools >= 0, slots * columns.rates_rps, np.inf)
    most: Floats = carried.min(axis=1)
    return most


def _chosen(stock: PoolStock, columns: Columns, rows: Ints, slots: Floats) -> PipelineSet:
    """Pipelines with their slots, none more than the slowest stage needs."""
    counts = np.where(columns.pools >= 0, np.rint(slots), 0).astype(np.int64)
    taken = np.flatnonzero((np.where(columns.pools >= 0, counts, 1) > 0).all(axis=1))
    mine, counts = columns.take(taken), counts[taken]
    used = mine.pools >= 0
    rates = np.where(used, mine.rates_rps, 1.0)
    carried = np.where(used, counts * rates, np.inf).min(axis=1, keepdims=True)
    counts = np.where(used, np.ceil(carried / rates - 1e-9), 0).astype(np.int64)
    units = np.zeros(len(stock.pool_type), dtype=np.int64)
    np.add.at(units, mine.pools[used], (counts * mine.units)[used])
    need = np.zeros(len(stock.increments), dtype=np.int64)
    np.add.at(need, stock.pool_type, -(-units // stock.increment))
    return PipelineSet(columns=rows[taken], slots=counts, need=need)
