"""What no plan of whole devices stays below, however often its modules share them.

A device's second is spent on batches. A batch of b requests of a module takes d of it, so a request
takes at least d / b; and where the module's load is small, more. Within a budget L, whoever takes
turns has one batch in every L - d at the latest, whole machines collect b requests within L - d,
and a batch of one needs 2 d or the like; so the devices spend on a module, per second, at least

    use(L) = min over configurations of  max(rate, b / (L - d)) x seconds per request   [devices]

(b / (L - d) is left out for a batch of one with 2 d <= L). Who follows others on a slot (decision
0044) may have as long a cycle as what its paths' other modules, each at its shortest, leave beside
d: on types of which one device can carry all of it and of those it waits for. Seconds per request:
the smaller of d / b and 1 / throughput, since shared slots go by the former and whole machines by
the latter. Between two points of L the curve is replaced by its value at the larger one, which is a
bound too.

With a weight per device type in place of seconds the minimum is the least *weighted* use; and
modules of an app split its budget as `combine` does. For weights v, that least sum V(v) of all apps
bounds the devices: sum of v_k n_k >= V(v), a *cut*. The cheapest whole numbers n_k that satisfy all
cuts are the bound.

Which weights. First the prices, by which the cut is the load in proportion, and with some types at
0, by which it says how many of the others it takes at least. Then, as long as that changes
something, those that the cheapest numbers so far offend most: V is the least of v x u over all uses
u, so that over the uses seen so far the worst weights are a small linear program (Kelley). It ends
where a mixture of uses fits into the numbers: no cut can exclude them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf

import numpy as np

from headrace.planning.apps.bill.case import BillCase
from headrace.planning.apps.bill.tables import Bools
from headrace.planning.apps.exact.combine import CostCurve, least_cost
from headrace.planning.apps.order import decompose, rest_us
from headrace.planning.common.candidates import NEVER_US, Floats, Ints
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.solver import LinearModel

GRID = 24
"""Points per configuration between which its curve is a step."""

TYPES_MAX = 6
"""With more device types, only single types and all together are weighted at first."""

CUTS_MAX = 40
"""Beyond the first."""

NODES_MAX = 200_000
"""Of the searches for whole numbers; past it the bound is the load in proportion."""

MASTER_S = 1.0
"""For the weights of one cut; it takes a millisecond."""

BOUND_S, BOUND_PART = 1.0, 0.25
"""For all cuts at least, and of the time left."""

TINY = 1e-9
SAME = 1e-7
"""Relative: by how much a cut must be offended."""


def least_bill(case: BillCase, limit_s: float = inf) -> float:
    """A price that no plan's whole devices stay below; infinite: no plan meets the SLOs.

    Args:
        limit_s: time left for planning. After a quarter of it, or `BOUND_S`, it ends with what the
            cuts so far say, one at least.
    """
    limit = Deadline(max(BOUND_S, BOUND_PART * limit_s))
    uses = [_uses(case, app) for app in range(len(case.apps))]
    prices = case.tables.device_price
    cuts = _Cuts(prices)
    for mask in _masks(len(prices)):
        if not cuts.add(prices * mask, _least_use(case, uses, prices * mask, limit)):
            return np.inf
        if limit.passed:
            break
    counts = cuts.cheapest()
    for _ in range(CUTS_MAX):
        if counts is None or limit.passed:
            break
        weights = cuts.offended_most(counts)
        if weights is None:
            break
        use = _least_use(case, uses, weights, limit)
        cuts.add(weights, use)
        assert use is not None, "at other weights the modules had uses"
        if float(weights @ (use - counts)) > SAME * float(weights @ counts):
            counts = cuts.cheapest()
    return cuts.bound


@dataclass(frozen=True, slots=True)
class _Uses:
    """One module's use by budget: least seconds of each device type per second."""

    starts: Ints
    """Shape (E,): from which budget on."""
    seconds: Floats
    """Shape (E, K), falling; infinite: that type is too slow."""

    def weighted(self, weights: Floats) -> tuple[CostCurve, Ints]:
        """The least weighted use by budget, and per point of it the row here."""
        cost = _times(self.seconds, weights).min(axis=1)
        falls = np.ones(len(cost), np.bool_)
        falls[1:] = cost[1:] < np.minimum.accumulate(cost)[:-1] - TINY
        rows = np.flatnonzero(falls & np.isfinite(cost))
        return CostCurve(self.starts[rows], cost[rows]), rows


def _times(seconds: Floats, weights: Floats) -> Floats:
    """Infinite where the seconds are, at weight 0 as well."""
    every = np.full(seconds.shape, np.inf)
    np.multiply(seconds, weights, out=every, where=np.isfinite(seconds))
    return every


class _Cuts:
    """Rows v x n >= V(v) over numbers of devices, and the uses that they were made of."""

    def __init__(self, prices: Floats) -> None:
        self.bound = 0.0
        """The least price that satisfies all cuts, as of the last `cheapest`."""
        self._prices = prices
        self._weights: list[Floats] = []
        self._uses: list[Floats] = []
        self._nodes = 0

    def add(self, weights: Floats, use: Floats | None) -> bool:
        """False: there is no use at all."""
        if use is not None:
            self._weights.append(weights)
            self._uses.append(use)
        return use is not None

    def cheapest(self) -> Ints | None:
        """The cheapest whole numbers; None: there are too many to try."""
        order = np.argsort(-self._prices, kind="stable")
        price = self._prices[order]
        weights = np.array(self._weights)[:, order]
        need = np.array([v @ use for v, use in zip(self._weights, self._uses, strict=True)])
        rounding = TINY * np.maximum(need, 1.0)
        best, found = np.inf, np.zeros(len(price), np.int64)
        counts = np.zeros(len(price), np.int64)

        def walk(kind: int, left: Floats, spent: float) -> None:
            nonlocal best
            self._nodes += 1
            # What the first cut (all types, weighted by price) still lacks has to be paid.
            if self._nodes > NODES_MAX or spent + max(left[0], 0.0) >= best - TINY:
                return
            column, lacks = weights[:, kind], left > rounding
            helped = column > 0
            most = max(0, int(np.ceil((left[helped] / column[helped] - TINY).max(initial=0.0))))
            if kind == len(price) - 1:
                if not (lacks & ~helped).any() and spent + most * price[kind] < best - TINY:
                    best = spent + most * price[kind]
                    counts[kind] = most
                    found[order] = counts
                return
            for count in range(most, -1, -1):
                counts[kind] = count
                walk(kind + 1, left - count * column, spent + count * price[kind])

        walk(0, need, 0.0)
        if self._nodes > NODES_MAX or best == np.inf:
            self.bound = max(self.bound, float(need[0]))
            return None
        self.bound = max(self.bound, float(best))
        return found

    def offended_most(self, counts: Ints) -> Floats | None:
        """Weights, at most the prices, of the cut that these numbers may offend most; None: some
        mixture of the uses fits into them."""
        model = LinearModel(maximise=True)
        (by,) = model.add_columns(1, gain=1.0)
        parts = model.add_columns(len(counts), upper=1.0)
        rows = model.add_rows(len(self._uses), upper=0.0)
        lacking = self._prices * (np.array(self._uses) - counts)
        model.add_entries(rows, by, 1.0)
        model.add_entries(rows[:, None], parts[None, :], -lacking)
        solved = model.solve(time_limit_s=MASTER_S)
        if solved.status != "optimal" or solved.values is None or solved.objective is None:
            return None
        weights = self._prices * np.clip(solved.values[parts], 0.0, 1.0)
        offended = solved.objective > SAME * max(float(weights @ counts), self._prices.min())
        return weights if offended else None


def _masks(kinds: int) -> list[Floats]:
    """Which types have a weight: all first, then every other set of them."""
    if kinds <= TYPES_MAX:
        some = [np.array(mask, float) for mask in product((1.0, 0.0), repeat=kinds)]
        return [mask for mask in some if mask.any()]
    return [np.ones(kinds), *np.eye(kinds)]


def _least_use(
    case: BillCase, uses: Sequence[Sequence[_Uses]], weights: Floats, limit: Deadline
) -> Floats | None:
    """Devices of each type, shape (K,), that all apps use at the least weighted sum, or of a
    weighted sum that none stays below where the limit ends it; None: an app has no time."""
    total = np.zeros(len(weights))
    for app, own in zip(case.apps, uses, strict=True):
        curves, rows = zip(*(module.weighted(weights) for module in own), strict=True)
        chosen = least_cost(decompose(app.before), curves, app.before, app.budget_us, limit)
        if chosen is None:
            return None
        for module, of_curve, point in zip(own, rows, chosen.at_least, strict=True):
            seconds = module.seconds[of_curve[point]]
            kind = int(_times(seconds, weights).argmin())
            total[kind] += seconds[kind]
    return total


def _uses(case: BillCase, number: int) -> list[_Uses]:
    """Of every module of an app."""
    app, first, tables = case.apps[number], case.first[number], case.tables
    starts = [int(row) for row in tables.first[first : first + len(app.modules) + 1]]
    rows = [slice(start, end) for start, end in pairwise(starts)]
    shortest = [int(tables.duration_us[own].min(initial=NEVER_US)) for own in rows]
    rest = rest_us(app.before, shortest)
    return [
        _module_uses(case, first + m, own, app.budget_us, app.budget_us - rest[m])
        for m, own in enumerate(rows)
    ]


def _module_uses(case: BillCase, module: int, own: slice, budget_us: int, most_us: int) -> _Uses:
    """
    Args:
        own: its rows of the tables.
        most_us: what the other modules of its paths, each at its shortest, leave.
    """
    tables = case.tables
    if own.start == own.stop:
        return _Uses(np.empty(0, np.int64), np.empty((0, len(case.kinds))))
    batch, duration, kind = tables.batch[own], tables.duration_us[own], tables.kind[own]
    rate = float(tables.load_rps[module])
    per_request = np.minimum(duration / (1e6 * batch), 1 / tables.rates_rps[own])
    ends = _grid(batch, duration, rate, budget_us)
    if not len(ends):
        return _Uses(np.empty(0, np.int64), np.empty((0, len(case.kinds))))
    room = ends[:, None] - duration[None, :]
    # Who follows others on a slot waits for a turn as long as the first of them.
    turn = np.where(_may_follow(case, module)[kind], most_us - duration, room)
    in_turn = 1e6 * batch / np.maximum(turn, 1e-3)
    in_turn = np.where((batch == 1) & (room >= duration), 0.0, in_turn)
    seconds = np.where(room > 0, np.maximum(rate, in_turn) * per_request, np.inf)
    by_kind = np.full((len(ends), len(case.kinds)), np.inf)
    for k in range(len(case.kinds)):
        by_kind[:, k] = seconds[:, kind == k].min(axis=1, initial=np.inf)
    # What holds up to a point holds from just behind the one before.
    starts = np.concatenate([[int(duration.min()) + 1], ends[:-1] + 1])
    return _Uses(starts, by_kind)


def _may_follow(case: BillCase, module: int) -> Bools:
    """Shape (K,): whether a device of a type carries all of a module and of those it waits for."""
    tables = case.tables
    before = np.flatnonzero(tables.waits_for[module]).tolist()
    together = [module, *before]
    busy = (tables.load_rps[together, None] * tables.device_s[together]).sum(axis=0)
    fits: Bools = (busy <= 1 + SAME) & bool(before)
    return fits


def _grid(batch: Ints, duration: Ints, rate: float, budget_us: int) -> Ints:
    """Ends of steps: where a configuration stops getting cheaper, and points on the way there."""
    flat = duration + np.ceil(1e6 * batch / rate).astype(np.int64)
    flat = np.where(batch == 1, np.minimum(flat, 2 * duration), flat)
    parts = np.geomspace(0.01, 1.0, GRID)
    points = duration[:, None] + np.ceil((flat - duration)[:, None] * parts).astype(np.int64)
    least = int(duration.min())
    every = np.unique(np.concatenate([points.ravel(), flat, [budget_us]]))
    return every[(every > least) & (every <= budget_us)]
