"""What no plan of whole devices stays below, however its devices are shared.

A device's second is spent on batches. A batch of b requests of a module takes d of it, so a request
takes at least d / b; and where the module's load is small, more. Within a budget L, whoever takes
turns has one batch in every L - d at the latest, whole machines collect b requests within L - d,
and a batch of one needs 2 d or the like; so the devices spend on a module, per second, at least

    use(L) = min over configurations of  max(rate, b / (L - d)) x seconds per request   [devices]

(b / (L - d) is left out for a batch of one with 2 d <= L; and of a module that may follow others
on a slot, the cycle may be as long as what the app's whole budget leaves beside d). With a weight
per device type in place of seconds the minimum is the least *weighted* use; and modules of an app
split its budget as `combine` does. For weights v, that least sum V(v) of all apps bounds the
devices: sum of v_k n_k >= V(v). The cheapest whole numbers n_k that satisfy this for several v are
the bound: with the prices as weights it is the load in proportion; with some types at weight 0 it
says how many of the others it takes at least. Between two points of L the curve is replaced by its
value at the larger one, which is a bound too.

Seconds per request: the smaller of d / b and 1 / throughput, since shared slots go by the former
and whole machines by the latter."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from headrace.planning.apps.bill.case import BillCase
from headrace.planning.apps.exact.combine import CostCurve, least_cost
from headrace.planning.apps.order import decompose
from headrace.planning.common.candidates import Floats, Ints

GRID = 24
"""Points per configuration between which its curve is a step."""

TYPES_MAX = 6
"""With more device types, only single types and all together are weighted."""

NODES_MAX = 200_000
"""Of the search for whole numbers; past it the bound is the load in proportion."""

TINY = 1e-9


def least_bill(case: BillCase) -> float:
    """A price that no plan's whole devices stay below; infinite: no plan meets the SLOs."""
    prices = _prices(case)
    cuts = []
    for mask in _masks(len(prices)):
        weights = prices * mask
        least = _least_use(case, weights)
        if least == np.inf:
            return np.inf
        cuts.append((weights, least))
    return _cheapest_counts(prices, cuts)


def _prices(case: BillCase) -> Floats:
    prices = np.zeros(len(case.kinds))
    prices[case.tables.kind] = case.tables.price
    return prices


def _masks(kinds: int) -> list[Floats]:
    """Which types have a weight: all first, then every other set of them."""
    if kinds <= TYPES_MAX:
        some = [np.array(mask, float) for mask in product((1.0, 0.0), repeat=kinds)]
        return [mask for mask in some if mask.any()]
    return [np.ones(kinds), *np.eye(kinds)]


def _least_use(case: BillCase, weights: Floats) -> float:
    """The least weighted use of all apps: V."""
    total = 0.0
    for first, app in zip(case.first, case.apps, strict=True):
        curves = [_curve(case, first + m, app.budget_us, weights) for m in range(len(app.modules))]
        chosen = least_cost(decompose(app.before), curves, app.before, app.budget_us)
        if chosen is None:
            return np.inf
        total += float(sum(curve.cost[i] for curve, i in zip(curves, chosen, strict=True)))
    return total


def _curve(case: BillCase, module: int, budget_us: int, weights: Floats) -> CostCurve:
    tables = case.tables
    own = slice(int(tables.first[module]), int(tables.first[module + 1]))
    batch, duration = tables.batch[own], tables.duration_us[own]
    rate = float(tables.load_rps[module])
    kind = tables.kind[own]
    per_request = weights[kind] * np.minimum(duration / (1e6 * batch), 1 / tables.rates_rps[own])
    ends = _grid(batch, duration, rate, budget_us)
    if not len(ends):
        return CostCurve(np.empty(0, np.int64), np.empty(0))
    room = ends[:, None] - duration[None, :]
    # Who follows others on a slot waits for a turn as long as the first of them.
    turn = room if not tables.waits_for[module].any() else budget_us - duration[None, :]
    in_turn = 1e6 * batch / np.maximum(turn, 1e-3)
    in_turn = np.where((batch == 1) & (room >= duration), 0.0, in_turn)
    cost = np.where(room > 0, np.maximum(rate, in_turn) * per_request, np.inf).min(axis=1)
    # What holds up to a point holds from just behind the one before.
    starts = np.concatenate([[int(duration.min()) + 1], ends[:-1] + 1])
    falls = np.concatenate([[True], cost[1:] < np.minimum.accumulate(cost)[:-1] - TINY])
    return CostCurve(starts[falls], cost[falls])


def _grid(batch: Ints, duration: Ints, rate: float, budget_us: int) -> Ints:
    """Ends of steps: where a configuration stops getting cheaper, and points on the way there."""
    flat = duration + np.ceil(1e6 * batch / rate).astype(np.int64)
    flat = np.where(batch == 1, np.minimum(flat, 2 * duration), flat)
    parts = np.geomspace(0.01, 1.0, GRID)
    points = duration[:, None] + np.ceil((flat - duration)[:, None] * parts).astype(np.int64)
    least = int(duration.min())
    every = np.unique(np.concatenate([points.ravel(), flat, [budget_us]]))
    return every[(every > least) & (every <= budget_us)]


def _cheapest_counts(prices: Floats, cuts: Sequence[tuple[Floats, float]]) -> float:
    """The least price of whole numbers of devices that satisfy every cut, depth first."""
    order = np.argsort(-prices)
    price = prices[order]
    weights = np.array([cut[order] for cut, _ in cuts])
    need = np.array([least for _, least in cuts])
    best, nodes = np.inf, 0

    def walk(kind: int, left: Floats, spent: float) -> None:
        nonlocal best, nodes
        nodes += 1
        # What the first cut (all types, weighted by price) still lacks has to be paid.
        if nodes > NODES_MAX or spent + max(left[0], 0.0) >= best - TINY:
            return
        if (left <= TINY * np.maximum(need, 1.0)).all():
            best = spent
            return
        if kind == len(price):
            return
        column = weights[:, kind]
        helped = column > 0
        most = max(0, int(np.ceil((left[helped] / column[helped] - TINY).max(initial=0.0))))
        for count in range(most, -1, -1):
            walk(kind + 1, left - count * column, spent + count * price[kind])

    walk(0, need.copy(), 0.0)
    return float(need[0]) if nodes > NODES_MAX or best == np.inf else best
