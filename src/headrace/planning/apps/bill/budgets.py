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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.apps.bill.case import BillCase, ModuleBill, bill_of
from headrace.planning.apps.bill.slots import CHOICES, cheapest_within
from headrace.planning.apps.boxes import Boxes, Graph
from headrace.planning.apps.order import path_us
from headrace.planning.common.candidates import Ints
from headrace.planning.common.deadline import Deadline

SAME = 1e-6
"""Relative. Prices closer than this are one price."""

EAGER = 24
"""So many boxes at first are also tried with budgets that fit; later every fourth."""

HALVINGS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BillFound:
    """What a search found."""

    modules: tuple[ModuleBill, ...] | None
    """None: nothing below the price that was to be beaten."""
    bill: float
    bound: float
    """No plan of this form is cheaper, if it was looked at all."""
    is_all: bool
    """Whether it was: with more requests in a turn some might be."""


class BillSearch:
    """One case; keeps the best plan so far."""

    def __init__(self, case: BillCase, most: float, tenants_max: int) -> None:
        self.case = case
        self.bill = most
        self.modules: tuple[ModuleBill, ...] | None = None
        self._tenants_max = tenants_max
        self._is_all = True
        self._boxes = Boxes([Graph(app.before, app.budget_us) for app in case.apps])
        tables = case.tables
        self._least = np.array(
            [
                tables.duration_us[tables.first[m] : tables.first[m + 1]].min(initial=1 << 60)
                for m in range(len(case))
            ],
            np.int64,
        )

    def run(self, floor: float, boxes_max: int, limit: Deadline) -> BillFound:
        """Search until proven, cheaper than nothing that `floor` allows, or out of time.

        Args:
            floor: a bound that is known already.
            boxes_max: at most so many.
        """
        box = self._boxes.largest(self._least)
        queue: list[tuple[float, int, Ints, Ints, tuple[ModuleBill, ...]]] = []
        count = 0

        def look(low: Ints, high: Ints) -> None:
            nonlocal count
            count += 1
            found = self._within(high)
            if found is None:
                return
            price, modules = found
            if self._boxes.fits(_worst_us(modules)):
                self._keep(modules)
            else:
                heapq.heappush(queue, (price, -count, low, high, modules))

        if box is not None:
            look(*box)
        bound = self.bill
        while queue:
            bound = queue[0][0]
            if max(bound, floor) >= self.bill * (1 - SAME):
                break
            if count >= boxes_max or limit.passed:
                return self._answer(max(bound, floor))
            _, _, low, high, modules = heapq.heappop(queue)
            if count <= EAGER or count % 4 == 0:
                self._try(low, modules)
            for box in self._boxes.halves(low, high, _worst_us(modules)):
                look(*box)
        return self._answer(self.bill)

    def _answer(self, bound: float) -> BillFound:
        bound = min(bound, self.bill)
        return BillFound(modules=self.modules, bill=self.bill, bound=bound, is_all=self._is_all)

    def _within(self, high: Ints) -> tuple[float, tuple[ModuleBill, ...]] | None:
        choices = np.empty((len(high), CHOICES), np.int64)
        price, is_all = cheapest_within(
            self.case.tables, high, self.bill * (1 - SAME), self._tenants_max, choices
        )
        self._is_all &= is_all
        if price == np.inf:
            return None
        modules = self.case.chosen(choices)
        return bill_of(modules), modules

    def _keep(self, modules: tuple[ModuleBill, ...]) -> None:
        bill = bill_of(modules)
        if bill < self.bill * (1 - SAME):
            self.bill, self.modules = bill, modules

    def _try(self, low: Ints, modules: Sequence[ModuleBill]) -> None:
        """Budgets between `low` and the worst cases of `modules`, as far as paths allow."""
        wanted = np.maximum(_worst_us(modules), low)
        budgets = low.copy()
        for graph, span in self._boxes:
            part = _largest(
                lambda x, graph=graph, span=span: (  # type: ignore[misc]
                    path_us(
                        graph.before, (low[span] + x * (wanted - low)[span]).astype(int).tolist()
                    )
                    <= graph.budget_us
                )
            )
            budgets[span] = (low[span] + part * (wanted - low)[span]).astype(np.int64)
        self._boxes.filled(budgets)
        found = self._within(budgets)
        if found is not None:
            self._keep(found[1])


def _worst_us(modules: Sequence[ModuleBill]) -> Ints:
    return np.array([module.worst_case_us for module in modules], np.int64)


def _largest(holds: Callable[[float], bool]) -> float:
    """About the largest part of 1 for which it holds; 0 is taken to."""
    if holds(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
