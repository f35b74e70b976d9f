"""The least price over all ways to divide the chains' budgets among their steps.

A node is a box: every step's budget lies between `low` and `high`. With every step at its `high`
the least price of shared devices is a bound of the box, since larger budgets never cost more. If
the waits of what is found fit all chains, it is the box's answer. Otherwise some step on a path
that is too long waits longer than its `low`: let a be its wait. Either its budget is below a, or
at least a; then what the others on its paths may have shrinks.

Boxes are looked at cheapest bound first. At some of them budgets that do fit are tried too: a part
of the way from `low` to the waits that were found.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from headrace.planning.apps.boxes import Boxes, Graph
from headrace.planning.apps.order import path_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_assembly import ChosenDevice, placed_slots
from headrace.planning.shares.planner import searched, workload
from headrace.planning.shares.workload import Ints
from headrace.planning.together.steps import Costs, Step, StepChain

SAME = 1e-6
"""Relative. Prices closer than this are one price."""

BOXES_MAX = 600

BOX_S = 4.0
"""At most, for one box."""

FIRST_PART = 0.5
"""Of the time left, for the first box where that is more."""

EAGER = 8
"""So many boxes at first are also tried with budgets that fit; later every fourth."""

PARTS_TRIED = (1.0, 0.75, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetsFound:
    """What a search ended with."""

    devices: list[ChosenDevice] | None
    """None: nothing below the price that was to be beaten."""
    price: float
    """Of `devices`; infinite without any."""
    bound: float
    """No plan of these chains is cheaper. Infinite: there is none."""


NOTHING = BudgetsFound(devices=None, price=inf, bound=inf)


class BudgetSearch:
    """One set of chains; keeps the best plan so far."""

    def __init__(self, costs: Costs, chains: Sequence[StepChain], deadline: Deadline) -> None:
        self._boxes = Boxes([Graph(chain.before, chain.budget_us) for chain in chains])
        self.steps: tuple[Step, ...] = tuple(step for chain in chains for step in chain.steps)
        self.problem = costs.problem_of(self.steps)
        self._costs, self._deadline = costs, deadline
        self._documents = {each.device: each for each in self.problem.interference}
        self._low = np.array([costs.least_us(step) for step in self.steps], np.int64)
        self._devices: list[ChosenDevice] | None = None
        self._price = inf
        self._unsettled = inf
        """The least bound of boxes whose answer is not known."""
        self._asked = 0
        self._queue: list[tuple[float, int, Ints, Ints, Ints]] = []

    @property
    def widest(self) -> Ints | None:
        """Budgets of which none can be larger; None: no path has time for its steps."""
        box = self._boxes.largest(self._low)
        return None if box is None else box[1]

    def run(self, most: float = inf, *, first: bool = False) -> BudgetsFound:
        """Search until proven, out of time, or nothing is left below the price `most`.

        Args:
            first: any plan will do, whatever it costs.
        """
        self._price = most
        high = self.widest
        if high is not None:
            self._look(self._low, high, 0.0)
        while self._queue and self._queue[0][0] < self._price * (1 - SAME):
            if self._deadline.passed or self._asked >= BOXES_MAX:
                break
            if first and self._devices is not None:
                break
            bound, _, low, high, waits = heapq.heappop(self._queue)
            if self._asked <= EAGER or self._asked % 4 == 0:
                self._try(low, waits)
            for box in self._boxes.halves(low, high, waits):
                self._look(*box, bound)
        left = min(self._queue[0][0] if self._queue else inf, self._unsettled)
        found = self._devices is not None
        return BudgetsFound(
            devices=self._devices,
            price=self._price if found else inf,
            bound=min(left, self._price),
        )

    def _look(self, low: Ints, high: Ints, bound: float) -> None:
        answer = self._within(high)
        if answer is None:
            return
        price, least, devices = answer
        bound = max(bound, least)
        if bound >= self._price * (1 - SAME):
            return
        if devices is None:
            self._unsettled = min(self._unsettled, bound)
            return
        waits = self._waits(devices)
        if self._boxes.fits(waits):
            self._keep(price, devices)
            if bound < price * (1 - SAME):
                self._unsettled = min(self._unsettled, bound)
        else:
            heapq.heappush(self._queue, (bound, -self._asked, low, high, waits))

    def _within(self, high: Ints) -> tuple[float, float, list[ChosenDevice] | None] | None:
        """Price, bound and devices at these budgets; None: there is no plan."""
        self._asked += 1
        times = self._costs.times(self.steps, high.tolist())
        load = workload(self.problem, times)
        left_s = self._deadline.left_s
        # Without an answer to the first there is no other to ask.
        most_s = BOX_S if self._asked > 1 else max(BOX_S, FIRST_PART * left_s)
        deadline = Deadline(min(most_s, max(0.05, left_s)))
        found, devices, _ = searched(self.problem, load, times, self._costs.prices, deadline)
        if found.chosen is None and found.proven:
            return None
        bound = 0.0 if found.bound is None else found.bound
        return (inf if found.value is None else found.value), bound, devices

    def _waits(self, devices: Sequence[ChosenDevice]) -> Ints:
        """Per step the longest D + latency of its parts."""
        index = {step.key: i for i, step in enumerate(self.steps)}
        times = self._costs.times(self.steps, self._low.tolist())
        of_type = dict(zip(self._costs.devices, times, strict=True))
        waits = np.zeros(len(self.steps), np.int64)
        for slot, classes in zip(
            *placed_slots(self.problem, devices, self._documents), strict=True
        ):
            for one in classes:
                at = index[one.model]
                tenant = of_type[one.device].models[at]
                latency_us = tenant.slowed_us(one.share, one.batch_size, one.slowdown)
                waits[at] = max(waits[at], (slot.duty_us or 0) + latency_us)
        return waits

    def _keep(self, price: float, devices: list[ChosenDevice]) -> None:
        if price < self._price * (1 - SAME):
            self._price, self._devices = price, devices

    def _try(self, low: Ints, waits: Ints) -> None:
        """Budgets from `low` towards `waits`, as far as paths allow; what is left over goes to
        each step in turn."""
        wanted, budgets = np.maximum(waits, low), low.copy()
        for graph, span in self._boxes:
            for part in PARTS_TRIED:
                own = (low[span] + part * (wanted - low)[span]).astype(np.int64)
                if path_us(graph.before, own.tolist()) <= graph.budget_us:
                    break
            budgets[span] = own
        self._boxes.filled(budgets)
        answer = self._within(budgets)
        if answer is not None and answer[2] is not None:
            self._keep(answer[0], answer[2])
