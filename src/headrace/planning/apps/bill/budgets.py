"""The cheapest whole devices over all ways to split the apps' budgets: best-first search.

A node is a box: every module's budget lies between `low` and `high`. With every module at its
`high`, whatever the apps' own budgets say, the price (`slots.cheapest_within`) is a bound of the
box, since larger budgets never cost more. If the worst cases of what is found fit the apps'
budgets, it is the box's answer. Otherwise some module on a path that is too long takes more than
its `low`: let a be its worst case. Either its budget is below a, or at least a; then what the
others on its paths may have shrinks. Both boxes are smaller, worst cases are among finitely many,
and so the search ends.

Boxes are looked at cheapest bound first, and at some of them budgets that do fit are tried as well:
those between `low` and what was found, as far as paths allow. Such a price is a plan's.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.apps.bill.case import BillCase, ModuleBill, bill_of
from headrace.planning.apps.bill.slots import CHOICES, cheapest_within
from headrace.planning.apps.order import path_us, rest_us
from headrace.planning.common.candidates import Ints

SAME = 1e-6
"""Relative. Prices closer than this are one price."""

EAGER = 24
"""So many boxes at first are also tried with budgets that fit; later every fourth."""

HALVINGS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest:
    """What a search found."""

    modules: tuple[ModuleBill, ...] | None
    """None: nothing below the price that was to be beaten."""
    bill: float
    bound: float
    """No plan of this form is cheaper."""
    boxes: int


class BudgetSearch:
    """One case; keeps the best plan so far."""

    def __init__(self, case: BillCase, most: float, tenants_max: int) -> None:
        self.case = case
        self.bill = most
        self.modules: tuple[ModuleBill, ...] | None = None
        self._tenants_max = tenants_max
        self._spans = [
            slice(first, first + len(app.modules))
            for first, app in zip(case.first, case.apps, strict=True)
        ]
        tables = case.tables
        self._least = np.array(
            [
                tables.duration_us[tables.first[m] : tables.first[m + 1]].min(initial=1 << 60)
                for m in range(len(case))
            ],
            np.int64,
        )

    def run(self, floor: float, boxes_max: int, ends_at: float) -> Cheapest:
        """Search until proven, cheaper than nothing that `floor` allows, or out of time.

        Args:
            floor: a bound that is known already.
            boxes_max: at most so many.
            ends_at: of `time.perf_counter`.
        """
        low = self._least
        high = self._tightened(low, np.full(len(low), 1 << 60, np.int64))
        queue: list[tuple[float, int, Ints, Ints, tuple[ModuleBill, ...]]] = []
        count = 0

        def look(low: Ints, high: Ints) -> None:
            nonlocal count
            count += 1
            found = self._within(high)
            if found is None:
                return
            price, modules = found
            if self._fits(modules):
                self._keep(modules)
            else:
                heapq.heappush(queue, (price, -count, low, high, modules))

        if high is not None:
            look(low, high)
        bound = self.bill
        while queue:
            bound = queue[0][0]
            if max(bound, floor) >= self.bill * (1 - SAME):
                break
            if count >= boxes_max or time.perf_counter() > ends_at:
                return self._answer(max(bound, floor), count)
            _, _, low, high, modules = heapq.heappop(queue)
            if count <= EAGER or count % 4 == 0:
                self._try(low, modules)
            for box in self._halves(low, high, modules):
                look(*box)
        return self._answer(self.bill, count)

    def _answer(self, bound: float, count: int) -> Cheapest:
        return Cheapest(
            modules=self.modules, bill=self.bill, bound=min(bound, self.bill), boxes=count
        )

    def _within(self, high: Ints) -> tuple[float, tuple[ModuleBill, ...]] | None:
        choices = np.empty((len(high), CHOICES), np.int64)
        price = cheapest_within(
            self.case.tables, high, self.bill * (1 - SAME), self._tenants_max, choices
        )
        if price == np.inf:
            return None
        modules = self.case.chosen(choices)
        return bill_of(modules), modules

    def _fits(self, modules: Sequence[ModuleBill]) -> bool:
        return all(
            path_us(app.before, [m.worst_case_us for m in modules[span]]) <= app.budget_us
            for app, span in zip(self.case.apps, self._spans, strict=True)
        )

    def _keep(self, modules: tuple[ModuleBill, ...]) -> None:
        bill = bill_of(modules)
        if bill < self.bill * (1 - SAME):
            self.bill, self.modules = bill, modules

    def _try(self, low: Ints, modules: Sequence[ModuleBill]) -> None:
        """Budgets between `low` and the worst cases of `modules`, as far as paths allow."""
        wanted = np.array([m.worst_case_us for m in modules], np.int64)
        self.try_at(low, np.maximum(wanted, low))

    def try_at(self, low: Ints, wanted: Ints) -> None:
        """The same for budgets that somebody else wants."""
        budgets = low.copy()
        for app, span in zip(self.case.apps, self._spans, strict=True):
            part = _largest(
                lambda x, app=app, span=span: (  # type: ignore[misc]
                    path_us(app.before, (low[span] + x * (wanted - low)[span]).astype(int).tolist())
                    <= app.budget_us
                )
            )
            budgets[span] = (low[span] + part * (wanted - low)[span]).astype(np.int64)
            for module in range(span.start, span.stop):
                rest = rest_us(app.before, budgets[span].tolist())
                budgets[module] = max(budgets[module], app.budget_us - rest[module - span.start])
        found = self._within(budgets)
        if found is not None:
            self._keep(found[1])

    def _halves(
        self, low: Ints, high: Ints, modules: Sequence[ModuleBill]
    ) -> list[tuple[Ints, Ints]]:
        module = self._widest(low, modules)
        at_us = modules[module].worst_case_us
        below, above = high.copy(), low.copy()
        below[module], above[module] = at_us - 1, at_us
        boxes = []
        for some_low, some_high in ((low, below), (above, high)):
            tight = self._tightened(some_low, some_high)
            if tight is not None:
                boxes.append((some_low, tight))
        return boxes

    def _widest(self, low: Ints, modules: Sequence[ModuleBill]) -> int:
        """On a path that is too long, the module that takes most more than its least."""
        widest, most = -1, 0
        for app, span in zip(self.case.apps, self._spans, strict=True):
            worst = [m.worst_case_us for m in modules[span]]
            rest = rest_us(app.before, worst)
            for i, us in enumerate(worst):
                more = us - int(low[span.start + i])
                if us + rest[i] > app.budget_us and more > most:
                    widest, most = span.start + i, more
        assert widest >= 0, "a path that is too long has a module above its least"
        return widest

    def _tightened(self, low: Ints, high: Ints) -> Ints | None:
        """What the others' least leaves of every budget; None: nothing."""
        tight = high.copy()
        for app, span in zip(self.case.apps, self._spans, strict=True):
            rest = rest_us(app.before, low[span].tolist())
            tight[span] = np.minimum(tight[span], app.budget_us - np.array(rest, np.int64))
        return None if (tight < low).any() else tight

    def low(self) -> Ints:
        """The least that any budget may be."""
        return self._least.copy()


def _largest(holds: Callable[[float], bool]) -> float:
    """About the largest part of 1 for which it holds; 0 is taken to."""
    if holds(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
