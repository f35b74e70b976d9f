"""A plan for many devices: most of the relaxed plan's whole devices, then a small program.

Of the linear program's solution, every layout gets KEPT of its whole devices, filled with parts of
which the solution has a whole one. What they carry is no longer missing, so what is left is the
same problem with fewer devices and smaller rates, where parts count only for what is still missing:
small remainders find parts that several models share. The integer program over the parts that
waste least of that problem has few devices, and ends in seconds.
"""

from dataclasses import replace as with_fields
from math import inf

import numpy as np

from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.master import Chosen, Goal, Prices
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.workload import Floats

ROUNDING = 1e-6

KEPT = 0.8
"""Of each layout's whole devices."""

REST_PARTS = 150
"""Of the integer program, beside those that its prices were found with."""

REST_GAP = 1e-3

LEAST_S = 0.5
"""For the integer program, however long its prices took."""


def dived(pricing: Pricing, goal: Goal, prices: Prices, *, time_limit_s: float) -> Chosen | None:
    """A plan of whole devices, if one was found in time."""
    kept = _kept(pricing, prices)
    rest = _without(pricing, kept)
    limit = Deadline(time_limit_s)
    rest_prices = rest.of(goal)
    if rest_prices is None or rest_prices.missing:
        return None
    parts, _, _ = rest.within(goal, rest_prices, inf, most=REST_PARTS)
    found, _, _ = rest.master.whole(
        Parts.joined([rest_prices.pool, parts]),
        goal,
        layouts=np.ones(len(pricing.layouts), np.bool_),
        better_than=None,
        time_limit_s=max(LEAST_S, limit.left_s),
        relative_gap=REST_GAP,
    )
    return None if found is None else _together(kept, found)


def _kept(pricing: Pricing, prices: Prices) -> Chosen:
    """Whole devices of a relaxed plan."""
    filling = _Filling(pricing, prices)
    counts = np.zeros(len(pricing.layouts), np.int64)
    for c in np.flatnonzero(prices.layouts >= 1):
        most = int(KEPT * prices.layouts[c] + ROUNDING)
        while counts[c] < most and filling.device(int(c)):
            counts[c] += 1
    used = np.flatnonzero(filling.chosen)
    return Chosen(prices.pool.take(used), filling.chosen[used], counts)


class _Filling:
    """The parts of a relaxed plan, put into devices one after the other."""

    def __init__(self, pricing: Pricing, prices: Prices) -> None:
        self._layouts, self._pool = pricing.layouts, prices.pool
        self._stock = prices.parts.copy()
        self._worth = self._pool.rates_rps(pricing.load.models) @ prices.price
        self.chosen = np.zeros(len(self._stock), np.int64)

    def device(self, c: int) -> bool:
        """Fill one of this layout, if there is a whole part for every place."""
        layout = self._layouts[c]
        took: list[int] = []
        for place, loud in zip(layout.places, layout.loudness, strict=True):
            part = self._best(place, loud)
            if part is None:
                for each in took:
                    self._stock[each] += 1
                return False
            self._stock[part] -= 1
            took.append(part)
        for each in took:
            self.chosen[each] += 1
        return True

    def _best(self, place: int, loud: int) -> int | None:
        pool, stock = self._pool, self._stock
        fits = np.flatnonzero(
            (pool.place == place) & (pool.loudness <= loud) & (stock >= 1 - ROUNDING)
        )
        if not len(fits):
            return None
        return int(fits[np.lexsort((self._worth[fits], np.round(stock[fits], 6)))[-1]])


def _without(pricing: Pricing, taken: Chosen) -> Pricing:
    """What is left to do, and to do it with."""
    load = pricing.load
    carried: Floats = taken.count @ taken.parts.rates_rps(load.models) / load.target_rps
    spent = np.zeros(len(pricing.offers), np.int64)
    np.add.at(spent, [layout.device for layout in pricing.layouts], taken.layouts)
    offers = tuple(
        with_fields(offer, count=offer.count - int(n))
        for offer, n in zip(pricing.offers, spent, strict=True)
    )
    return Pricing(
        with_fields(load, have=load.have + carried),
        offers,
        pricing.candidates,
        pricing.layouts,
        pricing.levels,
        pricing.deadline,
        pricing.more,
    )


def _together(one: Chosen, other: Chosen) -> Chosen:
    return Chosen(
        Parts.joined([one.parts, other.parts]),
        np.concatenate([one.count, other.count]),
        one.layouts + other.layouts,
    )
