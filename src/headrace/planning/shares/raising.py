"""A bound closer than the linear program's: no plan has fractions of a model's own parts.

By the prices of the linear program, every plan wastes at least

    W = min over multisets S of shared parts   sum_{q in S} waste_q  +  sum_m G_m(d_m(S))
    G_m(d) = F_m(1 - d) - price_m (1 - d)

with F_m of `alone`: what own parts waste that carry what the shared ones leave (`combining` looks
for the S that wastes least). The goal of a plan is the linear program's and its waste, so W moves
the bound. To bound W, the waste of a shared part is divided among its models, waste_q = sum s_qm,
and each is then free to choose shared parts by its own share of their waste:

    L_m(d) = min(G_m(d),  min_q s_qm + L_m(d + rate_qm)),        W >= sum_m L_m(0)

whatever the division, if only no share is below 0 (then nothing beyond d = 1 is of use). A good one
is found by giving: a model that would lose v - L_m(0) by taking q gives a quarter of that to the
other models of q (a quarter, since it may take some such parts at once), model by model, so that
the sum hardly falls and mostly rises.

A plan with a shared part q wastes at least sum_m s_qm + L_m(rate_qm) - L_m(0) beyond the bound,
which also says which parts are promising: plans that waste little have parts that lose little.

All is on a grid of CELLS cells, rounded so that W comes out too small: rates are rounded upwards,
and since G_m counts all of d as paid for, a share may be below 0 by what was added. For every d,
shares are looked at from the least on, until one alone is too much: 40 ms per sweep for 8,000
parts. Source: ours; giving is min-sum diffusion (Werner 2007) on multisets.
"""

from dataclasses import dataclass

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.alone import Alone, alone, least_rents
from headrace.planning.shares.listing import Parts, several
from headrace.planning.shares.master import Goal, Prices
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.workload import Floats, Ints

CELLS = 1 << 14
FINE = 4
"""Cells of own parts in one of these."""

GIVEN = 0.25
"""Of what a model would lose by a part."""

SWEEPS = 24
PATIENCE = 4
"""Sweeps without a rise."""

ROUNDING = 1e-6
"""Of the prices, which are right to about a thousandth of that."""

ORDERING_SWEEPS = 8
"""After which the order of the parts hardly changes."""

STEPS = 4
"""Multiples that `max-min` tries to exclude."""


def raised(
    pricing: Pricing, goal: Goal, prices: Prices, value: float, *, time_limit_s: float
) -> float:
    """A bound on every plan, at least as close as that of the prices.

    Args:
        value: of a plan: no bound beyond is of use.
    """
    limit = Deadline(min(time_limit_s, pricing.deadline.left_s))
    if pricing.levels > 1 or prices.missing:
        return prices.bound
    if not goal.most:
        waste = _least_waste(
            pricing, goal, prices, pricing.load.wanted(1.0), value - prices.bound, limit
        )
        return prices.bound + waste
    bound, step = prices.bound, (prices.bound - value) / 2
    for _ in range(STEPS):
        multiple = bound - step
        if limit.passed or multiple <= max(value, float(pricing.load.floor.max())):
            break
        missing = prices.bound - multiple
        wanted = pricing.load.wanted(multiple)
        if _least_waste(pricing, goal, prices, wanted, missing, limit) >= missing:
            # What carries more carries that as well.
            bound = multiple
        step /= 2
    return bound


def _least_waste(
    pricing: Pricing, goal: Goal, prices: Prices, wanted: Floats, enough: float, limit: Deadline
) -> float:
    """What every plan wastes at least, by these prices; at most `enough`."""
    own = alone(pricing, prices, wanted) if enough > 0 and (wanted > 0).all() else None
    if own is None:
        return 0.0
    # A plan that wastes less has none of the parts left out.
    parts, _, enough = pricing.within(goal, prices, enough)
    if enough <= ROUNDING * prices.scale:
        return 0.0
    division = _Division.of(pricing, prices, wanted, own, parts.take(several(parts)))
    best, rose_at = 0.0, 0
    for sweep in range(SWEEPS + 1):
        waste = division.waste()
        if waste > best:
            best, rose_at = waste, sweep
        if best >= enough or limit.passed or sweep - rose_at >= PATIENCE:
            break
        division.give(backwards=bool(sweep % 2))
    return min(max(0.0, best - ROUNDING * prices.scale), enough)


def promising(
    pricing: Pricing, prices: Prices, wanted: Floats, own: Alone, parts: Parts, *, most: int
) -> Ints:
    """Rows of the shared parts with which a plan loses least, so many."""
    if len(parts.place) <= most:
        return np.arange(len(parts.place))
    division = _Division.of(pricing, prices, wanted, own, parts)
    for sweep in range(ORDERING_SWEEPS):
        division.give(backwards=bool(sweep % 2))
    division.waste()
    return np.sort(np.argsort(division.losses(), kind="stable")[:most])


@dataclass(frozen=True, slots=True)
class _Division:
    """E entries: a shared part and one of its models."""

    first: Ints
    """Shape (M + 1,): entries of each model."""
    part: Ints
    """Shape (E,): row of the part."""
    cells: Ints
    """Shape (E,): what the part carries of the model."""
    others: Ints
    """Shape (E, T - 1): entries of the part's other models, -1 after the last."""
    share: Floats
    """Shape (E,): of the part's waste, less what rounding adds to it."""
    share_min: Floats
    """Shape (E,): with a share of no waste."""
    own_waste: Floats
    """Shape (M, CELLS + 1): G_m."""
    worth: Floats
    """Shape (M,): by the prices, of all that is wanted of a model."""
    least: Floats
    """Shape (M, CELLS + 1): L_m, written."""

    @staticmethod
    def of(
        pricing: Pricing, prices: Prices, wanted: Floats, own: Alone, parts: Parts
    ) -> "_Division":
        models = pricing.load.models
        tenants = (parts.models >= 0).sum(axis=1)
        rate = np.minimum(parts.rates_rps(models) / (pricing.load.target_rps * wanted), 1.0)
        cells = np.ceil(rate * CELLS).astype(np.int64)
        waste = prices.rent[parts.place, parts.loudness] - rate @ own.worth
        part, slot = np.nonzero(parts.models >= 0)
        model = parts.models[part, slot]
        order = np.argsort(model, kind="stable")
        part, slot, model = part[order], slot[order], model[order]
        width = parts.models.shape[1]
        entry = np.full((len(tenants), width), -1, np.int64)
        entry[part, slot] = np.arange(len(part))
        others = np.full((len(part), width - 1), -1, np.int64)
        for column in range(1, width):
            turned = (slot + column) % tenants[part]
            there = column < tenants[part]
            others[there, column - 1] = entry[part[there], turned[there]]
        rents = least_rents(own, CELLS * FINE, upwards=True)[:, ::FINE]
        done = np.arange(CELLS + 1) / CELLS
        share_min = (rate - cells / CELLS)[part, model] * own.worth[model]
        return _Division(
            first=np.searchsorted(model, np.arange(models + 1)),
            part=part,
            cells=cells[part, model],
            others=others,
            share=np.maximum(waste, 0.0)[part] / tenants[part] + share_min,
            share_min=share_min,
            own_waste=np.ascontiguousarray(rents[:, ::-1] - np.outer(own.worth, 1 - done)),
            worth=own.worth,
            least=np.zeros((models, CELLS + 1)),
        )

    def waste(self) -> float:
        """A bound by the shares as they are."""
        for m in range(len(self.worth)):
            self._choose(m)
        return float(self.least[:, 0].sum())

    def give(self, *, backwards: bool) -> None:
        """Every model to the others, one after the other."""
        for m in range(len(self.worth))[:: -1 if backwards else 1]:
            self._choose(m)
            _give(m, self.first, self.cells, self.others, self.share, self.share_min, self.least)

    def losses(self) -> Floats:
        """Shape (Q,): what a plan with the part wastes at least beyond the bound, by `least`."""
        model = np.repeat(np.arange(len(self.worth)), np.diff(self.first))
        then = self.least[model, np.minimum(self.cells, CELLS)]
        lost = self.share + then - self.least[model, 0]
        return np.bincount(self.part, weights=lost).astype(np.float64)

    def _choose(self, m: int) -> None:
        entries = slice(self.first[m], self.first[m + 1])
        order = np.argsort(self.share[entries], kind="stable")
        _choose(
            self.cells[entries][order], self.share[entries][order], self.own_waste[m],
            self.worth[m], self.least[m],
        )  # fmt: skip


@compiled
def _choose(cells: Ints, share: Floats, own_waste: Floats, worth: float, least: Floats) -> None:
    """Fill one L_m, from all that is wanted downwards; ascending shares."""
    all_cells = len(own_waste) - 1
    lowest = 0.0
    for d in range(all_cells, -1, -1):
        best = own_waste[d]
        for e in range(len(share)):
            if share[e] + lowest >= best:
                break
            then = d + cells[e]
            if then <= all_cells:
                best = min(best, share[e] + least[then])
            else:
                best = min(best, share[e] + worth * (then - all_cells) / all_cells)
        least[d] = best
        lowest = min(lowest, best)


@compiled
def _give(
    m: int,
    first: Ints,
    cells: Ints,
    others: Ints,
    share: Floats,
    share_min: Floats,
    least: Floats,
) -> None:
    """A quarter of what m would lose by a part to its other models."""
    for e in range(first[m], first[m + 1]):
        lost = share[e] + least[m, min(cells[e], least.shape[1] - 1)] - least[m, 0]
        given = min(share[e] - share_min[e], GIVEN * lost)
        count = 0
        for other in others[e]:
            if other >= 0:
                count += 1
        if given > 0.0:
            share[e] -= given
            for other in others[e]:
                if other >= 0:
                    share[other] += given / count
