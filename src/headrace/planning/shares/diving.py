"""A plan for many devices: most of the relaxed plan's whole devices, then a small program.

Of the linear program's solution, every layout gets KEPT of its whole devices, filled with parts of
which the solution has a whole one. What they carry is no longer missing, so what is left is the
same problem with fewer devices and smaller rates, where parts count only for what is still missing:
small remainders find parts that several models share. The integer program over the parts that
waste least of that problem has few devices, and ends in seconds.
"""

from dataclasses import replace as with_fields
from itertools import cycle
from math import inf

import numpy as np

from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.master import Chosen, Goal, Prices
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.workload import Floats, Ints

ROUNDING = 1e-6

KEPT = 0.8
"""Of each layout's whole devices."""

REST_PARTS = 150
"""Of the integer program, beside those that its prices were found with."""

REST_GAP = 1e-3


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
        Parts.joined([rest.pool(), parts]),
        goal,
        layouts=np.ones(len(pricing.layouts), np.bool_),
        better_than=None,
        time_limit_s=limit.left_s,
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
    return Chosen(pricing.pool().take(used), filling.chosen[used], counts)


class _Filling:
    """The parts of a relaxed plan, put into devices one after the other."""

    def __init__(self, pricing: Pricing, prices: Prices) -> None:
        self._layouts, self._pool = pricing.layouts, pricing.pool()
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
    )


def _together(one: Chosen, other: Chosen) -> Chosen:
    return Chosen(
        Parts.joined([one.parts, other.parts]),
        np.concatenate([one.count, other.count]),
        one.layouts + other.layouts,
    )


FREED = 0.15
"""Of the devices of a plan, how many are planned again at once."""

FREED_MODELS = 0.4
"""The same of its models: with all parts that these have to themselves."""

AGAIN_S = 0.8


def improved(
    pricing: Pricing,
    goal: Goal,
    best: Chosen,
    bound: float,
    *,
    near: float,
    time_limit_s: float,
) -> Chosen:
    """The same plan or a better one: some of its devices are planned again, beside the others.

    Args:
        bound: of any plan.
        near: distance from the bound, as a part of it, at which to stop.
    """
    limit, rng = Deadline(time_limit_s), np.random.default_rng(0)
    master = pricing.master
    # Fewer models mix more freely; but to save a whole device it takes the slack of all of them.
    ways = cycle((_devices_freed, _models_freed) if goal.most else (_devices_freed,))
    while not limit.passed:
        value = master.multiple(best) if goal.most else master.price(best)
        if abs(bound - value) <= near * bound:
            break
        kept = next(ways)(pricing, best, rng)
        rest = _without(pricing, kept)
        prices = rest.of(goal)
        if prices is None or prices.missing:
            continue
        target = value * (1 + 1e-4) if goal.most else value * (1 - 1e-4) - master.price(kept)
        if prices.bound < target if goal.most else prices.bound > target:
            continue
        parts, _, _ = rest.within(goal, prices, inf, most=REST_PARTS)
        found, _, _ = rest.master.whole(
            Parts.joined([rest.pool(), parts]),
            goal,
            layouts=np.ones(len(pricing.layouts), np.bool_),
            better_than=target,
            time_limit_s=min(AGAIN_S, limit.left_s),
            relative_gap=REST_GAP,
        )
        if found is not None:
            again = _together(kept, found)
            if master.suffices(again, value * (1 + 1e-5) if goal.most else 1.0):
                best = again
    return best


def _devices_freed(pricing: Pricing, best: Chosen, rng: np.random.Generator) -> Chosen:
    """What is left of a plan without a part of its devices, chosen at random with their parts."""
    freed = rng.binomial(best.layouts, FREED)
    count = best.count.copy()
    slots, filled = _slots(pricing, best), _filled(best, pricing.master.places)
    for c in np.flatnonzero(freed).tolist():
        for place in pricing.layouts[c].places:
            there = np.flatnonzero((best.parts.place == place) & (best.count > 0))
            # Slots of a place may be empty: these are freed as often as filled ones.
            taken = min(1.0, filled[place] / max(1, slots[place]))
            for _ in range(int(rng.binomial(freed[c], taken))):
                left = there[count[there] > 0]
                if len(left):
                    count[rng.choice(left)] -= 1
    return _fitting(pricing, _with_counts(best, count, best.layouts - freed))


def _models_freed(pricing: Pricing, best: Chosen, rng: np.random.Generator) -> Chosen:
    """What is left of a plan without the devices that some models have to themselves.

    Which part is in which device is not said: as many devices go as the parts of these models, and
    slots that are empty, can fill.
    """
    models = pricing.load.models
    some = rng.random(models + 1) < FREED_MODELS
    some[-1] = True
    # A tenant of -1, which is none, is the last of them.
    theirs = some[best.parts.models].all(axis=1)
    places = pricing.master.places
    empty = _slots(pricing, best) - _filled(best, places)
    own = np.bincount(
        best.parts.place[theirs], weights=best.count[theirs], minlength=places
    ).astype(np.int64)
    layouts, left = best.layouts.copy(), own + empty
    for c in rng.permutation(len(layouts)).tolist():
        needs = np.bincount(pricing.layouts[c].places, minlength=places)
        used = needs > 0
        most = min(int(layouts[c]), int((left[used] // needs[used]).min()))
        layouts[c] -= most
        left -= most * needs
    count = best.count.copy()
    gone = np.maximum(0, own - left)
    for q in rng.permutation(np.flatnonzero(theirs)).tolist():
        number = min(int(count[q]), int(gone[best.parts.place[q]]))
        count[q] -= number
        gone[best.parts.place[q]] -= number
    return _fitting(pricing, _with_counts(best, count, layouts))


def _slots(pricing: Pricing, chosen: Chosen) -> Ints:
    """Shape (P,): slots of each place that its layouts have."""
    slots = np.zeros(pricing.master.places, np.int64)
    for c in np.flatnonzero(chosen.layouts).tolist():
        for place in pricing.layouts[c].places:
            slots[place] += chosen.layouts[c]
    return slots


def _filled(chosen: Chosen, places: int) -> Ints:
    """Shape (P,): those that have a part."""
    filled = np.zeros(places, np.int64)
    np.add.at(filled, chosen.parts.place, chosen.count)
    return filled


def _with_counts(chosen: Chosen, count: Ints, layouts: Ints) -> Chosen:
    used = np.flatnonzero(count)
    return Chosen(chosen.parts.take(used), count[used], layouts)


def _fitting(pricing: Pricing, chosen: Chosen) -> Chosen:
    """Without the parts for which the layouts have no place."""
    slots = _slots(pricing, chosen)
    count = chosen.count.copy()
    for part, place in enumerate(chosen.parts.place):
        count[part] = min(count[part], slots[place])
        slots[place] -= count[part]
    return _with_counts(chosen, count, chosen.layouts)
