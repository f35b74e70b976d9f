"""What a model costs by itself: parts of its own, at the rents of the linear program.

At one place a model by itself has one part worth having, that with the largest rate. So all ways to
carry d of a model's rate by its own parts are a knapsack of as many kinds as there are places:

    F_m(d) = min over kinds k of  rent_k + F_m(d - rate_k),    F_m(0) = 0

on a grid of CELLS steps (a rate counts as the whole cells below it). `fillings` then names the best
of them exactly: multisets of parts that waste at most so much more than the least.
"""

from dataclasses import dataclass
from dataclasses import replace as with_fields

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.shares.listing import Parts, list_parts
from headrace.planning.shares.master import Prices
from headrace.planning.shares.pricing import PARTS_MAX, Pricing
from headrace.planning.shares.workload import Floats, Ints

CELLS = 1 << 16
"""Of what is wanted of a model. A quarter of that overstates waste by 0.08 devices of 95."""

TOUCHED_MAX = 100_000
"""Steps of one walk over fillings."""

FITS = 1e-10
"""Of what is wanted: rounding."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The parts that M models would have by themselves, K in all."""

    parts: Parts
    """Shape (K,): by model, then by place."""
    first: Ints
    """Shape (M + 1,): into `parts`, of each model."""
    rate: Floats
    """Shape (K,): of what is wanted of its model."""
    rent: Floats
    """Shape (K,)."""
    worth: Floats
    """Shape (M,): by the prices, of all that is wanted of a model."""


@dataclass(frozen=True, slots=True)
class Fillings:
    """Ways to carry what is missing of one model, by its own parts."""

    count: Ints
    """Shape (F, kinds): how many parts of each kind, in the order of `Alone.parts`."""
    waste: Floats
    """Shape (F,): ascending; of the parts, and what they carry beyond what is missing."""


def alone(pricing: Pricing, prices: Prices, wanted: Floats) -> Alone | None:
    """
    Args:
        wanted: shape (M,): multiples of each target, more than 0.

    Returns:
        None where a model has no part by itself, or one that is too small to count with.
    """
    load, places = pricing.load, pricing.master.places
    one = with_fields(load, tenants_max=1)
    listed, _, complete = list_parts(
        pricing.candidates, one, np.full(load.models, np.inf), price=np.zeros(load.models),
        rent=np.zeros_like(prices.rent), slack=np.inf, most=PARTS_MAX,
    )  # fmt: skip
    if not complete:
        return None
    model = listed.models[:, 0]
    rate = listed.rates_rps(load.models)[np.arange(len(model)), model]
    order = np.lexsort((-rate, listed.place, model))
    _, rows = np.unique(model[order] * places + listed.place[order], return_index=True)
    rows = order[rows]
    parts = listed.take(rows).widened(pricing.width)
    model = model[rows]
    share = rate[rows] / (load.target_rps * wanted)[model]
    rent = prices.rent[parts.place, parts.loudness]
    first = np.searchsorted(model, np.arange(load.models + 1))
    if (np.diff(first) == 0).any() or share.min() * CELLS < 1:
        return None
    return Alone(parts, first, share, rent, prices.price * load.target_rps * wanted)


def least_rents(own: Alone, cells: int, *, upwards: bool = False) -> Floats:
    """Shape (M, cells + 1): F_m, of parts that carry so many cells of what is wanted.

    Args:
        upwards: round rates to cells upwards, so that no rent comes out too large.
    """
    rounding = np.ceil if upwards else np.floor
    counted = np.minimum(rounding(own.rate * cells), cells).astype(np.int64)
    table = np.zeros((len(own.worth), cells + 1))
    _cover(own.first, counted, own.rent, table)
    return table


def fillings(
    own: Alone, rents: Floats, m: int, missing: float, *, waste_max: float, most: int
) -> Fillings:
    """The best ways to carry `missing` of what is wanted of model m.

    Args:
        rents: `least_rents` on CELLS cells.
        waste_max: beyond the least that a way wastes.
        most: so many, those that waste least.
    """
    kinds = slice(own.first[m], own.first[m + 1])
    rate, rent = own.rate[kinds], own.rent[kinds]
    waste = np.maximum(0.0, rent - own.worth[m] * rate)
    # Large parts first: a walk over few of them is short.
    order = np.argsort(-rate, kind="stable")
    count = np.zeros((8 * most, len(rate)), np.int64)
    wasted = np.zeros(8 * most)
    missing = max(0.0, missing - FITS)
    needed = rents[m, min(CELLS, int(np.ceil(missing * CELLS)))]
    least = max(0.0, needed - own.worth[m] * missing)
    found = 0
    # Most waste hardly more than the least: the walk is long only where these are too few.
    for reach in (waste_max / 16, waste_max / 4, waste_max):
        found = _fillings(
            rate[order], waste[order], own.worth[m], missing, least + reach, TOUCHED_MAX,
            count, wasted,
        )  # fmt: skip
        if found >= most:
            break
    best = np.argsort(wasted[:found], kind="stable")[:most]
    back = np.argsort(order)
    return Fillings(count[best][:, back], wasted[best])


@compiled
def _cover(first: Ints, cells: Ints, rent: Floats, least_rent: Floats) -> None:
    """Fill the table of F: shape (M, cells + 1)."""
    for m in range(len(first) - 1):
        least_rent[m, 0] = 0.0
        for i in range(1, least_rent.shape[1]):
            best = np.inf
            for k in range(first[m], first[m + 1]):
                best = min(best, rent[k] + least_rent[m, max(0, i - cells[k])])
            least_rent[m, i] = best


@compiled
def _fillings(
    rate: Floats,
    waste: Floats,
    worth: float,
    missing: float,
    waste_max: float,
    touched_max: int,
    out: Ints,
    out_waste: Floats,
) -> int:
    """All ways without a needless part that waste at most so much, as many as there is room for."""
    kinds, found = len(rate), 0
    count = np.full(kinds + 1, -1, np.int64)
    left, wasted = np.zeros(kinds + 1), np.zeros(kinds + 1)
    left[0] = missing
    k = 0
    for _ in range(touched_max):
        count[k] += 1
        n = count[k]
        rest = left[k] - n * rate[k]
        spent = wasted[k] + n * waste[k]
        if spent > waste_max or (n > 0 and rest + rate[k] <= 0.0):
            k -= 1
            if k < 0:
                break
            continue
        if rest <= 0.0:
            spent -= rest * worth
            if spent <= waste_max:
                for j in range(kinds):
                    out[found, j] = count[j] if j <= k else 0
                out_waste[found] = spent
                found += 1
                if found == len(out):
                    break
        elif k + 1 < kinds:
            k += 1
            left[k], wasted[k], count[k] = rest, spent, -1
    return found
