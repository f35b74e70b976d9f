"""The cheapest whole devices among those that a cluster has (decision 0044).

The search of `search` knows prices and no numbers of devices. So types that lack are charged on top
of their prices, until what is found at those prices fits. What the charges of all devices of the
stock come to, taken off, is a bound (Lagrange). Charges first double until something fits and then
are halved between the last two, since the first fit may have jumped over a cheaper one.

Two devices of one type and two of another may both be cheaper at *every* charge than one of each.
So modules that have some of a type that lacks are also barred from it, one after another: best
first, each time the cheapest that is left. That begins at the dearest charges at which devices
lack, which soon lead to something that fits, and once more without charges, at which nothing is
passed over because it leaves devices unused.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.domain.problem import Problem
from headrace.planning.apps.bill.budgets import SAME
from headrace.planning.apps.bill.case import ModuleBill, bill_of, devices_of
from headrace.planning.apps.bill.of_problem import Barred, Charges, bill_case
from headrace.planning.apps.bill.search import least_devices_bill
from headrace.planning.apps.candidates import AppCase
from headrace.planning.common.deadline import Deadline

DOUBLINGS = 16
HALVINGS = 6
BARRED_MAX = 30
"""Searches with something barred, from each of the two beginnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InStock:
    """Devices that the cluster has."""

    modules: tuple[ModuleBill, ...]
    bill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The cheapest at some prices."""

    modules: tuple[ModuleBill, ...]
    charged: float
    """Its price with charges, less those of all devices of the stock."""
    lacking: tuple[str, ...]


class StockSearch:
    """One problem; keeps the cheapest found that fits, and the best bound."""

    def __init__(
        self, problem: Problem, cases: Sequence[AppCase], most: float, limit: Deadline
    ) -> None:
        """
        Args:
            most: what costs more is of no interest.
        """
        self.best: InStock | None = None
        self._problem, self._cases, self._limit = problem, cases, limit
        self._most, self._bound = most * (1 + 2 * SAME), 0.0
        kinds = problem.cluster.device_types
        self._stock = {kind.name: problem.cluster.count(kind.name) for kind in kinds}
        self._prices = {kind.name: kind.price_per_hour or 0.0 for kind in kinds}
        self._runs_on = [
            {candidate.device for candidate in module.candidates}
            for case in cases
            for module in case.modules
        ]

    @property
    def bound(self) -> float:
        """What no plan of the form of decision 0044 stays below; at most the best, or `most`."""
        return min(self._bound, self._most if self.best is None else self.best.bill)

    def run(self, *, first_will_do: bool = False) -> None:
        """
        Args:
            first_will_do: any plan is enough.
        """
        charges = self._charge(halvings=0 if first_will_do else HALVINGS)
        if charges is not None:
            for begin in (charges, {}):
                if not (first_will_do and self.best):
                    self._bar(begin, first_will_do=first_will_do)

    def _charge(self, halvings: int) -> Charges | None:
        """Dear charges at which devices lack; None: it is proven what is the cheapest, or that
        there is nothing, or there is no time left."""
        short: Charges = {}
        charges: Charges = {}
        for _ in range(DOUBLINGS):
            seen = self._look(charges)
            if seen is None:
                return None
            if not seen.lacking and not charges:
                return None
            if not seen.lacking:
                break
            short = charges
            more = {
                name: 2 * short.get(name, 0.0) or self._prices[name] / 8 for name in seen.lacking
            }
            charges = {**short, **more}
        for _ in range(halvings if self.best else 0):
            middle = {name: (short.get(name, 0.0) + charges[name]) / 2 for name in charges}
            seen = self._look(middle)
            if seen is None:
                return None
            if seen.lacking:
                short = middle
            else:
                charges = middle
        return short

    def _bar(self, charges: Charges, *, first_will_do: bool) -> None:
        """Bar modules from types that lack, at these charges."""
        nothing: Barred = frozenset()
        known, searches = {nothing}, 0
        seen = self._look(charges)
        queue = [(0.0, 0, nothing, seen)] if seen is not None else []
        while queue:
            _, _, barred, seen = heapq.heappop(queue)
            for each in _users(seen):
                more = barred | {each}
                if more in known or not self._leaves_some(more, each[0]):
                    continue
                known.add(more)
                searches += 1
                if searches > BARRED_MAX or (first_will_do and self.best):
                    return
                found = self._look(charges, more)
                if found is not None and found.lacking:
                    heapq.heappush(queue, (found.charged, searches, more, found))

    def _leaves_some(self, barred: Barred, module: int) -> bool:
        """Whether there is a type left that the module may have."""
        return any((module, kind) not in barred for kind in self._runs_on[module])

    def _look(self, charges: Charges, barred: Barred = frozenset()) -> _Seen | None:
        """The cheapest at these charges; None: nothing below the best, or no time is left."""
        if self._limit.passed:
            return None
        allowance = sum(charge * self._stock[name] for name, charge in charges.items())
        most = (self._most if self.best is None else self.best.bill) + allowance
        case = bill_case(self._problem, self._cases, charges, barred)
        found = least_devices_bill(case, most, self._limit)
        if not barred:
            self._bound = max(self._bound, found.bound - allowance)
        if found.modules is None:
            return None
        modules = tuple(module.at_prices(self._prices) for module in found.modules)
        used = Counter(devices_of(modules))
        lacking = tuple(name for name, count in used.items() if count > self._stock[name])
        bill = bill_of(modules)
        if not lacking and (self.best is None or bill < self.best.bill):
            self.best = InStock(modules=modules, bill=bill)
        return _Seen(modules=modules, charged=found.bill - allowance, lacking=lacking)


def _users(seen: _Seen) -> Iterator[tuple[int, str]]:
    """Which modules have some of a type that lacks."""
    for number, module in enumerate(seen.modules):
        kinds = {entry.candidate.device for entry in module.entries}
        if module.turn:
            kinds.add(module.turn.batches[0].device)
        yield from ((number, name) for name in seen.lacking if name in kinds)
