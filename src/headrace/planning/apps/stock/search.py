"""The cheapest machines of all apps that fit the cluster's stock, proven by branch and bound.

A node limits the slots of every module and kind from above (`high`) and may say that a module takes
at least so many (`low`), which leaves the other modules less. Apps share nothing else, so each is
solved alone within its limits; the sum of their least costs is a bound of the node. Prices of
scarce devices give another one (`prices`). Where the machines of a node fit, packed onto
devices as they will be placed, the node is done: nothing in it is cheaper. Where they do not, some
module takes more slots of a type that lacks than it must, and the node is split there: at most v
slots of this kind, or at least v + 1. Both parts are smaller, so this ends, and every machine
count of the plans of decision 0015 lies in one of them.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.domain.plan import OPTIMAL_GAP
from headrace.planning.apps.candidates import AppCase
from headrace.planning.apps.stock.choice import AppChoice, Machines, cheapest_of_all
from headrace.planning.apps.stock.devices import DeviceStock
from headrace.planning.apps.stock.prices import Relaxed, raise_bound, relaxed_at
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline

SAME = 1e-9
"""Relative distance of a bound from the best cost at which a node is done."""


STEPS = 20
"""Of prices, at the root. The other nodes keep the root's: what is known at these prices is used
again, and a better bound from steps of their own took longer than the nodes that it saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """What the search ended with."""

    machines: tuple[Machines, ...] | None
    """Per app; None: none were found that fit."""
    cost: float
    """Infinite where none were found."""
    bound: float
    """No plan of the form of decision 0015 that fits costs less; infinite: there is none."""
    nodes: int

    @property
    def proven(self) -> bool:
        return self.bound >= self.cost * (1 - OPTIMAL_GAP)


@dataclass(order=True, slots=True)
class _Node:
    bound: float
    serial: int
    low: Ints = field(compare=False)
    high: Ints = field(compare=False)
    machines: tuple[Machines, ...] = field(compare=False)
    """The cheapest within the limits, without prices; they do not fit."""
    lacking: Ints = field(compare=False)
    relaxed: Relaxed = field(compare=False)


def cheapest_within(
    cases: Sequence[AppCase],
    stock: DeviceStock,
    *,
    limit: Deadline,
    at_least: float = 0.0,
    first_will_do: bool = False,
) -> Within:
    """Search until proven, or until no time is left.

    Args:
        at_least: what is known to be no more than the least cost.
        first_will_do: only whether anything fits is asked.
    """
    return _SlotSearch(cases, stock, limit, first_will_do).run(at_least)


class _SlotSearch:
    def __init__(
        self, cases: Sequence[AppCase], stock: DeviceStock, limit: Deadline, first_will_do: bool
    ) -> None:
        self._apps = [AppChoice(case, stock, limit) for case in cases]
        self._modules = sum(len(case.modules) for case in cases)
        self._stock = stock
        self._limit = limit
        self._first_will_do = first_will_do
        self._best: tuple[Machines, ...] | None = None
        # A plan within the stock pays at most for every device there is.
        self._cost = stock.price_per_hour * (1 + 1000 * SAME)
        self._unproven = np.inf
        """The least bound of a node that was left although something cheaper may be in it."""
        self._serial = 0
        self._open: list[_Node] = []

    def run(self, at_least: float) -> Within:
        nothing = np.zeros((self._modules, len(self._stock.kinds)), np.int64)
        node = self._node(nothing, self._stock.limits(nothing), at_least)
        while node is not None and self._goes_on():
            parts = [part for part in self._split(node) if part is not None]
            for part in parts:
                heapq.heappush(self._open, part)
            node = self._next(parts)
        waiting = [one.bound for one in self._open] + ([node.bound] if node else [])
        found = self._cost if self._best is not None else np.inf
        bound = min([found, self._unproven, *(b for b in waiting if not self._too_dear(b))])
        return Within(machines=self._best, cost=found, bound=bound, nodes=self._serial)

    def _next(self, parts: list[_Node]) -> _Node | None:
        """The node with the least bound; down from the last one until something fits."""
        if self._best is None and parts:
            node = min(parts)
            self._open.remove(node)
            heapq.heapify(self._open)
            return node
        while self._open:
            node = heapq.heappop(self._open)
            if not self._too_dear(node.bound):
                return node
        return None

    def _goes_on(self) -> bool:
        enough = self._first_will_do and self._best is not None
        return not enough and not self._limit.passed

    def _too_dear(self, bound: float) -> bool:
        return bound >= self._cost * (1 - SAME)

    def _node(
        self, low: Ints, high: Ints, inherited: float, parent: _Node | None = None
    ) -> _Node | None:
        """None: nothing in it is better than the best, or its best is."""
        self._serial += 1
        machines = self._cheapest(high, np.zeros(len(self._stock.devices)))
        cost = sum(one.cost for one in machines)
        bound = max(inherited, sum(one.at_least for one in machines))
        if self._too_dear(bound):
            return None
        lacking = self._lacking(machines)
        if not np.isfinite(cost) or not len(lacking):
            self._offer(machines)
            if bound < cost * (1 - SAME):
                self._unproven = min(self._unproven, bound)
            return None
        relaxed = self._relax(high, parent)
        bound = max(bound, relaxed.bound)
        if self._too_dear(bound):
            return None
        return _Node(
            bound=bound,
            serial=self._serial,
            low=low,
            high=high,
            machines=machines,
            lacking=lacking,
            relaxed=relaxed,
        )

    def _cheapest(self, high: Ints, prices: Floats) -> tuple[Machines, ...]:
        return cheapest_of_all(self._apps, high, prices)

    def _relax(self, high: Ints, parent: _Node | None) -> Relaxed:
        def priced(prices: Floats) -> tuple[Machines, ...]:
            machines = self._cheapest(high, prices)
            if not len(self._lacking(machines)):
                self._offer(machines)
            return machines

        if parent:
            return relaxed_at(parent.relaxed.prices, priced, self._stock)
        return raise_bound(
            relaxed_at(np.zeros(len(self._stock.devices)), priced, self._stock),
            priced,
            self._stock,
            lambda: self._cost if self._best is not None else np.inf,
            steps=STEPS,
            go_on=self._goes_on,
        )

    def _offer(self, machines: tuple[Machines, ...]) -> None:
        """Keep machines that fit, if they are the cheapest so far."""
        cost = sum(one.cost for one in machines)
        if cost < self._cost:
            self._best, self._cost = machines, cost

    def _lacking(self, machines: Sequence[Machines]) -> Ints:
        """Indices of the device types of which there are too few."""
        needed = self._stock.needed(np.concatenate([one.slots for one in machines]))
        return np.flatnonzero(needed > self._stock.counts)

    def _split(self, node: _Node) -> list[_Node | None]:
        if self._too_dear(node.bound):
            return []
        module, kind, most = self._where(node)
        fewer = node.high.copy()
        fewer[module, kind] = most
        low = node.low.copy()
        low[module, kind] = most + 1
        more = np.minimum(node.high, self._stock.limits(low))
        parts = [self._node(node.low, fewer, node.bound, node)]
        if (low <= more).all() and (self._stock.needed(low) <= self._stock.counts).all():
            parts.append(self._node(low, more, node.bound, node))
        return parts

    def _where(self, node: _Node) -> tuple[int, int, int]:
        """(module, kind of slot, most slots in one part): where prices would change most.

        Slots that all lie at their `low` fit, or the node would not be: so one lies above.
        """
        slots = np.concatenate([one.slots for one in node.machines])
        priced = np.concatenate([one.slots for one in node.relaxed.machines])
        most = np.clip(priced, node.low, slots - 1)
        size = np.array([float(share) for _, share in self._stock.kinds])
        gain = np.where(slots > node.low, (slots - most) * size, 0.0)
        gain[:, [d not in node.lacking for d, _ in self._stock.kinds]] = 0.0
        module, kind = np.unravel_index(int(np.argmax(gain)), gain.shape)
        assert gain[module, kind] > 0, "a type that lacks is taken beyond what must be"
        return int(module), int(kind), int(most[module, kind])
