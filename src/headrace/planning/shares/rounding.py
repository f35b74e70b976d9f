"""A plan for many devices: shared parts from annealing, own parts and devices from a program.

With the shared parts given, what is left of every model has some tens of good fillings by its own
parts (`alone.fillings`). One is chosen of each so that the places they take make whole devices:

    columns   l_mf  filling f of model m, 0 or 1      x_c   devices of each layout
    rows      of each model: sum of l = 1
              of each place: parts in fillings and shared  <=  places of the layouts
    goal      least sum of price x; of `max-min`, whose multiple is given, least rent of the places
              that are beyond the devices that there are: 0 where the multiple can be carried

Every column is whole in itself, so this relaxation is tight and a program of some 1,000 columns
ends in tenths of a second, where the one over parts has no end. It is repeated with other shared
parts; `max-min` halves the distance between what was and what was not carried.
"""

from collections.abc import Iterator
from itertools import count as counted
from itertools import pairwise
from math import inf

import numpy as np

from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.alone import CELLS, Alone, Fillings, alone, fillings, least_rents
from headrace.planning.shares.combining import Shareable, combined, shareable
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.master import Chosen, Goal, Prices
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.workload import Floats, Ints

MOVES = (300_000, 1_000_000)
"""Of the first annealing, and of those that follow."""

FILLINGS = 60
"""Of each model."""

WASTE_MAX = 0.1
"""Of a filling, in devices, beyond the least."""

REACH_MAX = 8.0
"""Times both, where no trial found a plan yet."""

PROGRAM_S = 3.0

FIRST_STEP = 0.01
"""Of the bound: how far below it `max-min` asks first."""


def rounded(
    pricing: Pricing,
    goal: Goal,
    prices: Prices,
    best: Chosen | None,
    bound: float,
    *,
    near: float,
    time_limit_s: float,
) -> Chosen | None:
    """The same plan or a better one.

    Args:
        bound: of any plan.
        near: distance from the bound, as a part of it, at which to stop.
    """
    limit = Deadline(min(time_limit_s, pricing.deadline.left_s))
    if limit.passed or pricing.levels > 1 or not prices.layouts.sum():
        return best
    tries = _multiples if goal.most else _prices
    for found in tries(pricing, goal, prices, best, bound, limit):
        best = found
        value = pricing.master.multiple(best) if goal.most else pricing.master.price(best)
        if abs(bound - value) <= near * bound:
            break
    return best


def _prices(
    pricing: Pricing,
    goal: Goal,
    prices: Prices,
    best: Chosen | None,
    bound: float,
    limit: Deadline,
) -> Iterator[Chosen]:
    """Plans, each cheaper than the one before."""
    wanted = pricing.load.wanted(1.0)
    trial = Trial.of(pricing, goal, prices, wanted)
    if trial is None:
        return
    value = inf if best is None else pricing.master.price(best)
    reach, some = 1.0, False
    for seed in counted():
        if limit.passed:
            return
        found = trial.once(seed, value * (1 - 1e-7), limit, reach=reach)
        if found is not None and pricing.master.suffices(found, 1.0):
            value, some = pricing.master.price(found), True
            yield found
        elif not some and reach < REACH_MAX:
            # Too few devices for the fillings that waste least.
            reach = min(REACH_MAX, 2 * reach)
            continue
        if not trial.varies:
            return


def _multiples(
    pricing: Pricing,
    goal: Goal,
    prices: Prices,
    best: Chosen | None,
    bound: float,
    limit: Deadline,
) -> Iterator[Chosen]:
    """Plans, each of which carries more than the one before."""
    value = 0.0 if best is None else pricing.master.multiple(best)
    step = FIRST_STEP
    refused = 0.0
    for seed in counted():
        multiple = bound * (1 - step)
        if limit.passed or multiple <= 0:
            return
        trial = Trial.of(pricing, goal, prices, pricing.load.wanted(multiple))
        if trial is None:
            return
        found = trial.once(seed, inf, limit) if multiple > value else None
        if found is not None and pricing.master.suffices(found, multiple):
            value = pricing.master.multiple(found)
            yield found
        else:
            refused = max(refused, step)
        reached = 1 - value / bound
        if refused >= reached:
            # What was refused once may be carried with other shared parts.
            refused = reached / 2
        step = (refused + reached) / 2 if value > 0 else 2 * step


class Trial:
    """All that can be said before the shared parts are chosen."""

    def __init__(
        self,
        pricing: Pricing,
        goal: Goal,
        prices: Prices,
        device: float,
        own: Alone,
        shared: Shareable,
    ) -> None:
        self._rents = least_rents(own, CELLS)
        self._pricing, self._goal, self._prices, self._device = pricing, goal, prices, device
        self._own, self._shared = own, shared

    @staticmethod
    def of(pricing: Pricing, goal: Goal, prices: Prices, wanted: Floats) -> "Trial | None":
        """None where some model needs nothing, or has no part by itself."""
        if (wanted <= 0).any():
            return None
        device = prices.bound / float(prices.layouts.sum())
        own = alone(pricing, prices, wanted)
        if own is None:
            return None
        shared = shareable(pricing, goal, prices, wanted, own, device)
        return Trial(pricing, goal, prices, device, own, shared)

    @property
    def varies(self) -> bool:
        """Whether there is anything to share, so that another seed may find more."""
        return len(self._shared.rent) > 0

    def once(
        self, seed: int, price_max: float, limit: Deadline, *, reach: float = 1.0
    ) -> Chosen | None:
        """A plan with the shared parts that this seed leads to, no dearer than that.

        Args:
            reach: what fillings may waste, as a multiple of WASTE_MAX.
        """
        moves = MOVES[min(seed, len(MOVES) - 1)]
        rows = combined(self._shared, self._rents, device=self._device, moves=moves, seed=seed)
        missing = 1.0 - self._shared.rate[rows].sum(axis=0)
        most = reach * WASTE_MAX * self._device
        ways = [
            fillings(
                self._own, self._rents, m, float(part), waste_max=most, most=round(reach * FILLINGS)
            )
            for m, part in enumerate(missing)
        ]
        if any(not len(way.waste) for way in ways):
            return None
        return self._chosen(rows, ways, price_max, min(PROGRAM_S, limit.left_s))

    def _chosen(
        self, rows: Ints, ways: list[Fillings], price_max: float, time_limit_s: float
    ) -> Chosen | None:
        """Of each model one way, and layouts with places for all parts."""
        master, own, shared = self._pricing.master, self._own, self._shared
        kinds = [slice(a, b) for a, b in pairwise(own.first)]
        uses = []
        for way, kind in zip(ways, kinds, strict=True):
            use = np.zeros((len(way.waste), master.places))
            use[:, own.parts.place[kind]] = way.count
            uses.append(use)
        found = master.filled(
            uses,
            taken=np.bincount(shared.parts.place[rows], minlength=master.places),
            rent=self._prices.rent[:, 1] / self._device if self._goal.most else None,
            price_max=price_max,
            time_limit_s=time_limit_s,
        )
        if found is None:
            return None
        which, layouts = found
        own_count = np.concatenate([way.count[f] for way, f in zip(ways, which, strict=True)])
        used = np.flatnonzero(own_count)
        several, number = np.unique(rows, return_counts=True)
        parts = Parts.joined([own.parts.take(used), shared.parts.take(several)])
        return Chosen(parts, np.concatenate([own_count[used], number]), layouts)
