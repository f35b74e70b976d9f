"""Which parts models share, where parts of their own carry the rest: found by annealing.

For many devices nearly all parts have one model. What shared parts are for is remainders: a model
that needs 6.3 parts of its own wastes seven tenths of one, unless another model takes turns on it.
By the prices of the linear program the waste of a plan, beyond its bound, is

    sum over shared parts q of waste_q  +  sum over models m of  F_m(1 - d_m) - price_m (1 - d_m)

where d_m is what the shared parts carry of model m, and F_m the least rent of own parts for the
rest (`alone`), so that a plan is a handful of shared parts, of the few hundred with which a plan
loses least (`raising.promising`). A move adds one, takes one out, or puts
another in its place, and costs a few look-ups: millions a second. That whole devices have the
places for it is left to `rounding`.
"""

from dataclasses import dataclass

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.shares.alone import CELLS, Alone
from headrace.planning.shares.listing import Parts, several
from headrace.planning.shares.master import Goal, Prices
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.raising import promising
from headrace.planning.shares.workload import Floats, Ints

WASTE_MAX = 0.3
"""Of a shared part, in devices of average rent: no more remainder is worth that much."""

LISTED_MAX = 8_000
"""Parts of which those are taken. More take seconds to tell apart."""

HOT, COLD = 0.15, 0.004
"""Temperatures at the beginning and at the end, in devices."""

PARTS = 300
"""Among which to choose. The best choices known of 5,700 and 8,200 lie within the best 150 to 300,
and among these a million moves find what a hundred million do not find among all."""

PER_MODEL = 3
"""Most shared parts at once."""


@dataclass(frozen=True, slots=True)
class Shareable:
    """Q parts with several models each."""

    parts: Parts
    rate: Floats
    """Shape (Q, M): of what is wanted of each model."""
    rent: Floats
    """Shape (Q,)."""
    of_model: tuple[Ints, Ints]
    """First entry of each model, shape (M + 1,), and the parts that serve it."""


def shareable(
    pricing: Pricing, goal: Goal, prices: Prices, wanted: Floats, own: Alone, device: float
) -> Shareable:
    """The parts that several models share and that plans which waste little may have.

    Args:
        wanted: shape (M,): multiples of each target.
        device: rent of one on average.
    """
    load = pricing.load
    parts, _, _ = pricing.within(goal, prices, WASTE_MAX * device, most=LISTED_MAX)
    parts = parts.take(several(parts))
    parts = parts.take(promising(pricing, prices, wanted, own, parts, most=PARTS))
    rate = np.minimum(parts.rates_rps(load.models) / (load.target_rps * wanted), 1.0)
    serving = [np.flatnonzero(rate[:, m] > 0) for m in range(load.models)]
    first = np.concatenate([[0], np.cumsum([len(some) for some in serving])])
    rent = prices.rent[parts.place, parts.loudness]
    return Shareable(parts, rate, rent, (first, np.concatenate(serving)))


def combined(shared: Shareable, rents: Floats, *, device: float, moves: int, seed: int) -> Ints:
    """Rows of shared parts, one as often as it is used, that leave little waste with own parts.

    Args:
        rents: `least_rents` of own parts, on CELLS cells.
    """
    models = len(rents)
    if not len(shared.rent):
        return np.zeros(0, np.int64)
    tenants = shared.parts.models
    rows = np.arange(len(tenants))[:, None]
    padded = np.hstack([shared.rate, np.zeros((len(tenants), 1))])
    cells = np.floor(padded[rows, tenants] * CELLS).astype(np.int64)
    chosen = np.full(PER_MODEL * models, -1, np.int64)
    _anneal(
        tenants, cells, shared.rent, *shared.of_model, rents, moves,
        HOT * device, COLD * device, seed, chosen,
    )  # fmt: skip
    return chosen[chosen >= 0]


@compiled
def _anneal(
    tenants: Ints,
    cells: Ints,
    rent: Floats,
    first: Ints,
    serving: Ints,
    least_rent: Floats,
    moves: int,
    hot: float,
    cold: float,
    seed: int,
    best: Ints,
) -> float:
    """
    Args:
        tenants: shape (Q, T): models, -1 after the last.
        cells: shape (Q, T): what the part carries of each.
        best: written: rows, -1 after the last.

    Returns:
        Rent of the best, with own parts.
    """
    models, most, width = len(least_rent), len(best), tenants.shape[1]
    missing = np.full(models, least_rent.shape[1] - 1, np.int64)
    more = np.zeros(models, np.int64)
    chosen = np.full(most, -1, np.int64)
    count = 0
    cost = 0.0
    for m in range(models):
        cost += least_rent[m, missing[m]]
    least = cost
    # Park and Miller's generator: the same numbers compiled and not.
    state = 1 + seed
    cooling = (cold / hot) ** (1.0 / moves)
    temperature = hot
    for _ in range(moves):
        temperature *= cooling
        state = state * 48271 % 2147483647
        kind = state % 4
        state = state * 48271 % 2147483647
        at = state % count if count else -1
        state = state * 48271 % 2147483647
        into, out = -1, -1
        if count == 0 or (kind == 0 and count < most):
            into = state % len(rent)
        else:
            out = chosen[at]
            if kind == 2:
                into = state % len(rent)
            elif kind == 3:
                m = tenants[out, state % width]
                if m < 0:
                    m = tenants[out, 0]
                state = state * 48271 % 2147483647
                into = serving[first[m] + state % (first[m + 1] - first[m])]
        change = 0.0
        if out >= 0:
            change -= rent[out]
            for t in range(width):
                if tenants[out, t] >= 0:
                    more[tenants[out, t]] += cells[out, t]
        if into >= 0:
            change += rent[into]
            for t in range(width):
                if tenants[into, t] >= 0:
                    more[tenants[into, t]] -= cells[into, t]
        for q in (out, into):
            if q >= 0:
                for t in range(width):
                    m = tenants[q, t]
                    if m >= 0 and more[m] != 0:
                        change -= least_rent[m, max(0, missing[m])]
                        missing[m] += more[m]
                        change += least_rent[m, max(0, missing[m])]
                        more[m] = 0
        state = state * 48271 % 2147483647
        if change <= 0.0 or state / 2147483647.0 < np.exp(-change / temperature):
            cost += change
            if out < 0:
                chosen[count] = into
                count += 1
            elif into >= 0:
                chosen[at] = into
            else:
                count -= 1
                chosen[at] = chosen[count]
            if cost < least - 1e-9:
                least = cost
                for k in range(most):
                    best[k] = chosen[k] if k < count else -1
        else:
            if out >= 0:
                for t in range(width):
                    if tenants[out, t] >= 0:
                        missing[tenants[out, t]] -= cells[out, t]
            if into >= 0:
                for t in range(width):
                    if tenants[into, t] >= 0:
                        missing[tenants[into, t]] += cells[into, t]
    return least
