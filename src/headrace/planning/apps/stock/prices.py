"""Prices of scarce devices: what a bound gains when each device is charged for (Lagrange).

With every device of a type charged lambda on top of its price, apps choose alone again. Their
charged costs, less lambda for each device that there is, are at most the cost of any plan within
the stock, whatever lambda >= 0: such a plan is charged for no more devices than there are. The best
lambda is looked for by subgradient steps (Polyak's lengths): up where too many are taken, down
where devices are left over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.apps.stock.choice import Machines
from headrace.planning.apps.stock.devices import DeviceStock
from headrace.planning.common.candidates import Floats

Priced = Callable[[Floats], tuple[Machines, ...]]
"""Prices, shape (D,) -> the machines of every app at these prices."""

PATIENCE = 3
"""Steps without a better bound after which steps are halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """A bound on the cost of every plan within the stock, and the machines that gave it."""

    bound: float
    prices: Floats
    machines: tuple[Machines, ...]


def relaxed_at(prices: Floats, priced: Priced, stock: DeviceStock) -> Relaxed:
    """The bound at given prices."""
    machines = priced(prices)
    bound = sum(one.at_least for one in machines) - float(prices @ stock.counts)
    return Relaxed(bound=bound, prices=prices, machines=machines)


def raise_bound(
    first: Relaxed,
    priced: Priced,
    stock: DeviceStock,
    target: Callable[[], float],
    *,
    steps: int,
    go_on: Callable[[], bool],
) -> Relaxed:
    """The best bound of so many steps from `first`.

    Args:
        target: the cost of the best plan known, which the bound may reach; infinity: none.
    """
    best, here, length, since = first, first, 1.0, 0
    for _ in range(steps):
        slope = _too_many(here.machines, stock)
        slope = np.where((here.prices <= 0) & (slope < 0), 0.0, slope)
        square = float(slope @ slope)
        if square <= 0 or not np.isfinite(here.bound) or not go_on():
            break
        goal = min(target(), best.bound + max(0.1 * abs(best.bound), 1e-9))
        rise = max(goal - here.bound, 0.01 * abs(best.bound))
        prices = np.maximum(0.0, here.prices + length * rise / square * slope)
        here = relaxed_at(prices, priced, stock)
        since += 1
        if here.bound > best.bound:
            best, since = here, 0
        elif since == PATIENCE:
            here, length, since = best, length / 2, 0
    return best


def _too_many(machines: Sequence[Machines], stock: DeviceStock) -> Floats:
    slots = np.sum([one.slots.sum(axis=0) for one in machines], axis=0)
    excess: Floats = slots @ stock.shares - stock.counts
    return excess
