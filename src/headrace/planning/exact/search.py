"""The best set of pipelines for every demand, and the proof that there is no better.

The search asks of ever lower targets z: can every demand get its share of the target z within the
stock? What a plan for z may waste in all, the gap, is known from the prices, and so small that
all sets of pipelines that waste no more can be walked through, demand by demand: demands only
meet where their whole vectors of devices must fit the stock. A "no" is a proof, and the nearer z
is to the bound, the sooner it comes. So z descends from the bound until there is a "yes", and then
closes in on the best plan from both sides.

Most good plans have few pipelines, so a target is first asked of sets of at most SHALLOW
pipelines per demand. Their "yes" counts, their "no" proves nothing.

A target z is answered in three steps, each of which may already say "no" (`_answer`):

1. the least that each demand alone wastes for its share of z, w_d. If sum of w_d > gap: no
2. all sets of each demand that waste at most w_d + (gap - sum of w), by `walk`. If some demand has
   none: no
3. one set of each demand such that all together fit the stock, by adding up vectors

One demand may take far more steps than the others together. Its sets are then not looked for:
what matters is whether it fits what the other demands leave, and that is asked of it with
prices of its own (`remainders`).

Invariant: `_bound` is proven, `_objective` is reached by `_best`. The search ends when they are
within PROOF, or when time or room for sets runs out (`GaveUp`); then nothing more is claimed.

Cost: that of the walks; 100 devices of three types, three models: 0.1 to 0.8 s; of four types some
seconds, or no end. Source: ours (decision 0010).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.master import Wanted, smallest_normalised
from headrace.planning.exact.columns import Columns, PoolStock
from headrace.planning.exact.prices import UnitPrices, price, relaxed_bound, targets_at
from headrace.planning.exact.remainders import Remainders, largest
from headrace.planning.exact.sets import (
    PIPELINES_MAX,
    TOLERANCE,
    DemandWalk,
    GaveUp,
    PipelineSet,
    StepBudget,
    Undecided,
)

SHALLOW = 2

LEAST_STEPS = 100_000
"""Of the walk for the least waste of a demand; what was proven until then bounds it."""

ALL_STEPS = 40_000
"""Of the walk for all sets of a demand; then four times as many."""

FIRST_STEP = 1 / 512
"""Of the bound: how far the first target lies below it."""

STEP_GROWTH = 1.4
"""From target to target, until the first "yes". Larger steps overshoot, and a "yes" far below
the best plan takes longest."""

FIRST_BUDGET = 1 / 64
"""Of the gap: what a demand may waste when its least waste is first looked for; then doubled."""

PROOF = 5e-7
"""Relative distance within which the best plan is proven: half of what a plan calls optimal."""


@dataclass(frozen=True, slots=True)
class ExactResult:
    """What the search ends with."""

    chosen: tuple[PipelineSet, ...] | None
    """One entry per demand; None if there is no plan, or none was found in time."""
    objective: float
    """min throughput / weight of `chosen`; 0 without."""
    bound: float
    """Proven; 0 if no plan exists."""


def search_exactly(
    stock: PoolStock,
    wanted: Sequence[Wanted],
    columns: Sequence[Columns],
    deadline: Deadline,
    floor: float = 0.0,
) -> ExactResult:
    """The largest min throughput / weight.

    Args:
        columns: per demand; each non-empty.
        floor: only a plan that is better is looked for.
        deadline: looked at every few milliseconds. Before it, equal problems get equal plans.
    """
    try:
        prices = price(stock, wanted, columns, deadline)
    except OutOfTime:
        return ExactResult(chosen=None, objective=0.0, bound=np.inf)
    if prices is None:
        return ExactResult(chosen=None, objective=0.0, bound=0.0)
    search = TargetSearch(stock, wanted, columns, prices, deadline, floor)
    search.walk_through()
    return search.result


class TargetSearch:
    """The search of one problem: what is known so far, and the next target to ask for."""

    def __init__(
        self,
        stock: PoolStock,
        wanted: Sequence[Wanted],
        columns: Sequence[Columns],
        prices: UnitPrices,
        deadline: Deadline,
        floor: float = 0.0,
    ) -> None:
        self._stock, self._wanted, self._columns = stock, wanted, columns
        self._prices = prices
        self._step_budget = StepBudget(deadline)
        self._demands: list[DemandWalk] = []
        self._remainders: list[Remainders] = []
        self._last: int | None = None
        """The demand whose sets take the most steps, once that showed."""
        self._best: tuple[PipelineSet, ...] | None = None
        self._objective = 0.0
        self._least = floor * (1 + PROOF)
        """The least objective that is worth finding."""
        self._bound = relaxed_bound(prices, wanted)

    @property
    def result(self) -> ExactResult:
        """The best plan and the bound so far."""
        return ExactResult(chosen=self._best, objective=self._objective, bound=self._bound)

    def walk_through(self, steps: int | None = None) -> bool:
        """Ask until nothing is open; False if steps, time or room run out before."""
        self._step_budget.allow(steps)
        try:
            if not self._demands:
                self._demands = [
                    DemandWalk(self._stock, mine, self._prices, float(price), self._step_budget)
                    for mine, price in zip(self._columns, self._prices.request, strict=True)
                ]
                self._remainders = [
                    Remainders(self._stock, mine, self._step_budget) for mine in self._columns
                ]
            self._descend()
            self._close_in()
        except GaveUp:
            return False
        return True

    def _descend(self) -> None:
        """Ask ever farther below the bound until there is a plan, or proven to be none."""
        step, highest = FIRST_STEP, self._bound
        while self._best is None and self._bound > self._least:
            self._ask(max(self._least, highest * (1 - step)))
            step *= STEP_GROWTH

    def _close_in(self) -> None:
        """Ask in turns for the proof, in case the plan is the best already, and for the middle."""
        for_proof = True
        while self._best is not None and self._bound > self._objective * (1 + PROOF):
            better = self._objective * (1 + PROOF)
            middle = (self._objective + self._bound) / 2
            self._ask(better if for_proof else max(better, middle))
            for_proof = not for_proof

    def _ask(self, target: float) -> None:
        """Learn whether some plan reaches `target`.

        Raises:
            GaveUp: out of time or room.
        """
        targets = targets_at(self._wanted, target)
        chosen = self._answer(targets, SHALLOW) or self._answer(targets, PIPELINES_MAX)
        if chosen is None:
            self._bound = min(self._bound, target)
        else:
            self.learn(chosen)

    def learn(self, chosen: tuple[PipelineSet, ...]) -> None:
        """Keep `chosen` if it is better than what was found."""
        throughputs = [
            mine.throughput_rps(columns)
            for mine, columns in zip(chosen, self._columns, strict=True)
        ]
        reached = smallest_normalised(throughputs, self._wanted)
        if self._best is None or reached > self._objective:
            self._best, self._objective = chosen, reached
            self._bound = max(self._bound, reached)

    def _answer(self, targets: Floats, deepest: int) -> tuple[PipelineSet, ...] | None:
        gap = self._prices.gap(targets)
        if gap < -TOLERANCE * self._prices.stock:
            return None
        if len(self._demands) == 1:
            # Nothing to fit together, so any set will do.
            only = self._demands[0].first(float(targets[0]), gap, deepest)
            return None if only is None else (only,)
        least = self._least_wastes(targets, gap, deepest)
        if least is None:
            return None
        slack = gap - sum(least)
        budgets = [waste + slack for waste in least]
        found, last = self._all_but_one(targets, budgets, least, deepest)
        if last is None:
            return _fit_together(found, self._stock.increments)
        return self._fit_last(found, last, float(targets[last]), deepest)

    def _all_but_one(
        self, targets: Floats, budgets: Sequence[float], least: Sequence[float], deepest: int
    ) -> tuple[list[list[PipelineSet]], int | None]:
        """All sets of every demand, or of all but the one that takes the most steps."""
        found: list[list[PipelineSet]] = [[] for _ in self._demands]
        open_, steps = [i for i in range(len(self._demands)) if i != self._last], float(ALL_STEPS)
        while len(open_) > (self._last is None and steps > ALL_STEPS):
            undecided = []
            for i in open_:
                try:
                    found[i] = self._demands[i].all(
                        float(targets[i]), budgets[i], least[i], deepest, steps
                    )
                except Undecided:
                    undecided.append(i)
                    continue
                if not found[i]:
                    return found, None
            open_, steps = undecided, 4 * steps
        if open_:
            self._last = open_[0]
        return found, self._last

    def _fit_last(
        self, found: Sequence[Sequence[PipelineSet]], last: int, target_rps: float, deepest: int
    ) -> tuple[PipelineSet, ...] | None:
        """As `_fit_together`, where it is not known what all sets of `last` are."""
        others = [sets for i, sets in enumerate(found) if i != last]
        taken = np.zeros((1, len(self._stock.increments)), np.int64)
        for sets in others:
            needs = np.array([one.need for one in sets])
            taken = (taken[:, None] + needs).reshape(-1, taken.shape[1])
            taken = np.unique(taken[(taken <= self._stock.increments).all(axis=1)], axis=0)
        if not len(taken):
            return None
        remainders = largest(self._stock.increments - taken)
        fitting = self._remainders[last].first(remainders, target_rps, deepest)
        if fitting is None:
            return None
        chosen = [list(sets) for sets in found]
        chosen[last] = [fitting[1]]
        return _fit_together(chosen, self._stock.increments)

    def _least_wastes(self, targets: Floats, gap: float, deepest: int) -> list[float] | None:
        """Of each demand alone, or less; None if together they exceed the gap.

        Budgets grow for all demands in turns: one that must waste much leaves the others little
        to be searched. One that takes many steps is left where it is.
        """
        least, known = [0.0] * len(self._demands), [False] * len(self._demands)
        budget = FIRST_BUDGET * gap
        while not all(known):
            for i in np.flatnonzero(~np.array(known)):
                most = gap - sum(least) + least[i]
                try:
                    waste = self._demands[i].least_waste(
                        float(targets[i]), min(budget, most), deepest, LEAST_STEPS
                    )
                except Undecided:
                    known[i] = True
                    continue
                if waste is not None:
                    least[i], known[i] = waste, True
                elif budget >= most:
                    return None
                else:
                    least[i] = budget
            budget *= 2
        return least


def _fit_together(
    found: Sequence[Sequence[PipelineSet]], increments: Ints
) -> tuple[PipelineSet, ...] | None:
    """One set of each demand such that all fit the stock; those that take least in all."""
    if not all(found):
        return None
    needs = [np.array([one.need for one in sets]) for sets in found]
    lowest = np.array([need.min(axis=0) for need in needs])
    sums, picks = np.zeros((1, len(increments)), np.int64), np.zeros((1, 0), np.int64)
    for at, need in enumerate(needs):
        room = increments - lowest[at + 1 :].sum(axis=0)
        total = sums[:, None] + need
        before, mine = np.nonzero((total <= room).all(axis=2))
        sums, picks = total[before, mine], np.column_stack([picks[before], mine])
    if not len(sums):
        return None
    best = picks[np.lexsort((*picks.T[::-1], sums.sum(axis=1)))[0]]
    return tuple(sets[int(i)] for sets, i in zip(found, best, strict=True))
