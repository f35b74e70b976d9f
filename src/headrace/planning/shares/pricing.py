"""Prices of the linear program over all parts, which is never written down whole.

It grows by the parts that waste less than nothing by the prices so far (`listing` looks among all),
until there is none: then its prices are those of all parts, and its goal bounds every plan.
"""

from collections.abc import Sequence

import numpy as np

from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.listing import Candidates, Parts, countable, list_parts, undominated
from headrace.planning.shares.master import Goal, Master, Prices
from headrace.planning.shares.workload import DeviceOffer, Floats, Layout, Workload

PARTS_MAX = 400_000
"""Parts listed at once; about 40 MB."""

KEPT_MAX = 20_000
"""Undominated parts that a question is asked of, at most."""

LEAST_GAP = 1e-9
"""Of the goal. Parts that waste no more are alike: where they are too many, any of them will do."""

NARROWER = 4
"""Times smaller gaps, until there are not too many parts."""

COARSE_PARTS = 100_000
"""Of a search that is to end."""

STEPS = (1.1, 1.25, 1.5, 2.0, 4.0)
"""From one batch size to the next, at least."""

PER_ROUND = 12
"""New parts of each place per round; of many models, a quarter of their number."""


class Pricing:
    """One workload on one set of devices."""

    def __init__(
        self,
        load: Workload,
        offers: Sequence[DeviceOffer],
        candidates: Candidates,
        layouts: Sequence[Layout],
        levels: int,
        deadline: Deadline,
        more: Parts | None = None,
    ) -> None:
        """
        Args:
            more: parts with more tenants than those of `load` that are all looked at.
        """
        self.load, self.offers, self.layouts, self.levels = load, offers, layouts, levels
        self.deadline = deadline
        self.master = Master(load, offers, layouts, len(candidates.first), levels)
        self.candidates = candidates
        self.more = Parts.none(load.tenants_max) if more is None else more
        self._more_rps = self.more.rates_rps(load.models)
        self.width = int(self.more.models.shape[1])
        """Most tenants of a part."""
        self._pool = Parts.none(self.width)

    def coarser(self, deadline: Deadline) -> "Pricing | None":
        """The same with fewer batch sizes, so that all parts can be looked at often. A plan of it
        is a plan; None: there are no more parts than that."""
        some = self.candidates
        if countable(some, self.load, COARSE_PARTS):
            return None
        for step in STEPS:
            some = self.candidates.thinned(step)
            if countable(some, self.load, COARSE_PARTS):
                break
        return Pricing(self.load, self.offers, some, self.layouts, self.levels, deadline, self.more)

    def of(self, goal: Goal) -> Prices | None:
        """None where time ran out, or no part carries anything of some model."""
        cap_rps = self.master.cap_rps(goal)
        if not len(self._pool.place):
            # A first guess: every model's rate is worth the same.
            free = np.zeros((self.master.places, self.master.levels + 1))
            self._add(self._listed(1 / self.load.target_rps, free, np.inf, cap_rps, best=True))
        while not self.deadline.passed:
            prices = self.master.relaxed(self._pool, goal, time_limit_s=self.deadline.left_s)
            if prices is None:
                return None
            slack = -1e-9 * prices.scale
            new = self._listed(prices.price, prices.rent, slack, cap_rps, best=True)
            if not len(new[0].place):
                return prices
            self._add(new)
        return None

    def within(
        self, goal: Goal, prices: Prices, gap: float, *, most: int = KEPT_MAX
    ) -> tuple[Parts, Floats, float]:
        """The undominated parts that waste at most `gap`.

        Args:
            most: only so many, those that waste least.

        Returns:
            The parts, what each wastes, and up to which waste none is left out that could be of
            use: `gap`, or less where there are too many.
        """
        cap_rps = self.master.cap_rps(goal)
        parts, waste, listed = self._listed(prices.price, prices.rent, gap, cap_rps)
        least_gap = LEAST_GAP * prices.scale
        while not listed and gap > least_gap and not self.deadline.passed:
            # Too many to hold: of those that waste little, none must be missing.
            gap = min(gap, NARROWER * prices.scale) / NARROWER
            parts, waste, listed = self._listed(prices.price, prices.rent, gap, cap_rps)
        rates = np.minimum(parts.rates_rps(self.load.models), cap_rps)
        rows, up_to = undominated(parts, rates, waste, most=most)
        return parts.take(rows), waste[rows], min(gap, up_to) if listed else 0.0

    def _listed(
        self, price: Floats, rent: Floats, slack: float, cap_rps: Floats, *, best: bool = False
    ) -> tuple[Parts, Floats, bool]:
        parts, waste, complete = list_parts(
            self.candidates,
            self.load,
            cap_rps,
            price=price,
            rent=rent,
            slack=slack,
            most=PARTS_MAX,
            best_only=best,
        )
        worth = np.minimum(self._more_rps, cap_rps) @ price
        more_waste = rent[self.more.place, self.more.loudness] - worth
        rows = np.flatnonzero(more_waste <= slack)
        if not len(rows):
            return parts.widened(self.width), waste, complete
        parts = Parts.joined([parts.widened(self.width), self.more.take(rows)])
        return parts, np.concatenate([waste, more_waste[rows]]), complete

    def _add(self, listed: tuple[Parts, Floats, bool]) -> None:
        """The parts of each place that waste least join the pool."""
        parts, waste, _ = listed
        order = np.lexsort((waste, parts.place))
        place = parts.place[order]
        start = np.searchsorted(place, place)
        few = order[np.arange(len(order)) - start < max(PER_ROUND, self.load.models // 4)]
        self._pool = Parts.joined([self._pool, parts.take(few)])
