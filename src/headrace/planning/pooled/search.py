"""The columns engine: relax, list what a good plan can be made of, choose, and widen until proven.

For every objective, any shares, memory and number of device types. From the prices of the linear
relaxation (`relaxation`), a plan that is off its bound by d is made of allotments, pipelines with
slot counts, that each waste at most d (`allotments`). So the search goes in rounds:

1. list all allotments up to a distance; the first is a guess, or how far a plan at hand is off
2. let HiGHS choose among them (`selection`)
3. a plan that is no farther off than what was listed is the best. Otherwise list as far as the plan
   is off and choose once more

Invariant: `_bound` is proven, either by the relaxation or by a round: a plan is made of what was
listed, or is off by more. On large clusters little wastes more than the first distance and listing
takes minutes, so the search begins with `rounding` there, and ends with it above
ALLOTTED_DEVICES_MAX.

Cost: seconds to the time limit for 100 devices; the integer programs of step 2 take nearly all of
it. Source: PPipe's equations 16 to 27 (appendix A.2) by columns, decision 0008.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.domain.plan import OPTIMAL_GAP, Stopped
from headrace.planning.common.allotments import Allotments, allotments_within
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.master import Counting, Goal, is_maximised, smallest_normalised
from headrace.planning.pooled.relaxation import Relaxation, relax
from headrace.planning.pooled.rounding import COMPANIONS, round_relaxation
from headrace.planning.pooled.selection import (
    ChosenAllotments,
    Excluded,
    Selection,
    as_packed,
    identity_of,
    select,
    select_tidiest,
)
from headrace.planning.pooled.weighed import weighed

FIRST_DISTANCE = 1e-5
"""Of the bound: where the first round begins; of large clusters little wastes less."""

LISTED_FIRST = 300
"""Allotments of the first round, about: enough for a good plan, few enough for a fast one."""

LISTED_LEAST = 40
"""Of each demand, in the first round."""

LISTED_GROWTH = 4
"""Times as many in each further round: a better plan in between leaves less to list."""

LISTED_MAX = 6_000
"""Allotments of any round; beyond, the search ends with the bound that it has."""

EXCLUSIONS_MAX = 30
"""Plans refused because weights cannot be packed, before the search ends with what it has."""

FIRM_PART = 0.5
"""Of the time left, for a plan that surely packs, where not all weights are told apart."""

ROUNDED_DEVICES = 200
"""More than these: the search begins from a bounded and repaired plan."""

ALLOTTED_DEVICES_MAX = 1_000
"""More than these: it ends there. Listing allotments alone would take minutes."""


@dataclass(frozen=True, slots=True)
class PooledResult:
    """What the search ends with."""

    stopped: Stopped
    chosen: ChosenAllotments | None
    objective: float | None
    bound: float | None
    """Proven; None if there is no plan."""


class DoesNotPack(Exception):
    """What was chosen takes more devices than counted, because of its weights."""

    def __init__(self, known: PooledResult) -> None:
        super().__init__()
        self.known = known


INFEASIBLE = PooledResult(stopped="infeasible", chosen=None, objective=None, bound=None)


def search(
    asked: Counting, deadline: Deadline, start: ChosenAllotments | None = None
) -> PooledResult:
    """The best counts for feasible pipelines.

    Args:
        start: a plan to improve on; what is not better than it need not be looked at.
    """
    try:
        return _search(asked, deadline, start)
    except DoesNotPack as refused:
        return _better(asked.goal, refused.known, _search_by_weight(asked, deadline))


def _search_by_weight(asked: Counting, deadline: Deadline) -> PooledResult:
    """With kinds of slots told apart by weight; first so that whatever is chosen packs."""
    by_weight = weighed(asked)
    assert by_weight is not None, "without memory that is short, every choice packs"
    start = None
    if by_weight.firmer is not None:
        firm = _search(by_weight.firmer, deadline.part(FIRM_PART), by_weight=True).chosen
        start = None if firm is None else by_weight.softened(firm)
    found = _search(by_weight.asked, deadline, start, by_weight=True)
    chosen = None if found.chosen is None else by_weight.undivided(found.chosen)
    return replace(found, chosen=chosen)


def _better(goal: Goal, known: PooledResult, found: PooledResult) -> PooledResult:
    """What was found, unless that is no better than what was known; and the better bound."""
    sign = 1.0 if is_maximised(goal) else -1.0
    bounds = [result.bound for result in (known, found) if result.bound is not None]
    bound = min(bounds, key=lambda value: sign * value) if bounds else None
    if known.objective is None:
        return replace(found, bound=bound)
    if found.objective is not None and sign * (found.objective - known.objective) > 0:
        return replace(found, bound=bound)
    return replace(found, chosen=known.chosen, objective=known.objective, bound=bound)


def _search(
    asked: Counting,
    deadline: Deadline,
    start: ChosenAllotments | None = None,
    *,
    by_weight: bool = False,
) -> PooledResult:
    """
    Args:
        by_weight: whether kinds are told apart by weight.

    Raises:
        DoesNotPack: what was chosen does not, and kinds are not told apart.
    """
    try:
        relaxation = relax(asked, time_limit_s=deadline.left_s)
    except OutOfTime:
        return PooledResult(stopped="time-limit", chosen=None, objective=None, bound=None)
    if relaxation is None:
        return INFEASIBLE
    searching = ColumnSearch(asked, deadline, relaxation, by_weight=by_weight)
    devices = asked.hardware.owned.sum()
    if start is not None:
        searching.learn(start)
    elif devices > ROUNDED_DEVICES:
        searching.round()
    if devices > ALLOTTED_DEVICES_MAX and searching.found:
        return searching.as_it_stands()
    return searching.run()


def search_beside_bound(
    asked: Counting, deadline: Deadline, companions: int = COMPANIONS
) -> PooledResult | None:
    """Bound and repair alone; None if that gives no plan.

    Args:
        companions: pipelines of each demand beside those of the bound.
    """
    try:
        relaxation = relax(asked, time_limit_s=deadline.left_s)
    except OutOfTime:
        return None
    if relaxation is None:
        return INFEASIBLE
    searching = ColumnSearch(asked, deadline, relaxation)
    searching.round(companions)
    return searching.as_it_stands() if searching.found else None


def _enough(listed: Sequence[Allotments]) -> bool:
    """Whether a first round has some choice, for every demand."""
    return sum(map(len, listed)) >= LISTED_FIRST // 4 and min(map(len, listed)) >= LISTED_LEAST


def _leanest(allotments: Allotments, count: int) -> Allotments:
    """Those of least waste, then fewest slots."""
    order = np.lexsort((allotments.slots.sum(axis=1), allotments.waste))
    return allotments.take(order[:count])


class ColumnSearch:
    def __init__(
        self,
        asked: Counting,
        deadline: Deadline,
        relaxation: Relaxation,
        *,
        by_weight: bool = False,
    ) -> None:
        self._asked, self._deadline, self._relaxation = asked, deadline, relaxation
        self._by_weight = by_weight
        self._hardware, self._columns, self._goal = asked.hardware, asked.columns, asked.goal
        self._sign = 1.0 if is_maximised(asked.goal) else -1.0
        self._bound = relaxation.bound
        self._best: ChosenAllotments | None = None
        self._objective = -np.inf * self._sign
        self._excluded: list[Excluded] = []
        self._listed_most = LISTED_FIRST

    @property
    def found(self) -> bool:
        return self._best is not None

    def learn(self, chosen: ChosenAllotments) -> None:
        """Keep `chosen` if it is better than what was found."""
        objective = self._worth(chosen)
        if self._best is None or self._sign * (objective - self._objective) > 0:
            self._best, self._objective = chosen, objective

    def round(self, companions: int = COMPANIONS) -> None:
        """Bound and repair."""
        chosen = round_relaxation(self._asked, self._relaxation, self._deadline, companions)
        if chosen is not None:
            self.learn(chosen)

    def as_it_stands(self) -> PooledResult:
        """The best plan so far."""
        early: Stopped = "time-limit" if self._deadline.passed else "heuristic"
        return PooledResult(
            stopped="optimal" if self._gap() <= OPTIMAL_GAP else early,
            chosen=self._best,
            objective=self._objective,
            bound=self._bound,
        )

    def run(self) -> PooledResult:
        try:
            return self._run()
        except OutOfTime:
            return self._stop("time-limit", [])

    def _run(self) -> PooledResult:
        # A plan off by more than `everything` is worse than the worst plan there is.
        everything = self._everything()
        distance = min(everything, FIRST_DISTANCE * abs(self._relaxation.bound) + 1e-9)
        if self._best is not None:
            if self._gap() <= OPTIMAL_GAP:
                return self._stop("optimal", [])
            distance = min(distance, self._off() + self._tolerance())
        reached = -1.0
        while True:
            listed, reach = self._list(distance, everything, first=reached < 0)
            if reach <= reached:
                return self._stop("time-limit" if self._deadline.passed else "heuristic", listed)
            reached = reach
            selection = self._select_packable(listed)
            if selection is None:
                return self._stop("time-limit" if self._deadline.passed else "heuristic", [])
            self._learn(selection, reach, complete=reach >= everything)
            if self._best is not None and self._gap() <= OPTIMAL_GAP:
                return self._stop("optimal", listed)
            if self._deadline.passed:
                return self._stop("time-limit", listed)
            if reach >= everything:
                # Only an unfinished selection leaves a gap when everything was listed.
                return INFEASIBLE if self._best is None else self._stop("time-limit", listed)
            if self._best is None:
                distance = min(everything, 4 * reach)
            else:
                distance = min(everything, self._off() * (1 + 1e-9) + self._tolerance())

    def _everything(self) -> float:
        hardware, bound = self._hardware, self._relaxation.bound
        if is_maximised(self._goal):
            return abs(bound)
        assert hardware.prices is not None
        return float(hardware.prices @ hardware.counts)

    def _off(self) -> float:
        """How far the best plan is off the relaxation: no part of a better one wastes more."""
        return abs(self._relaxation.bound - self._objective)

    def _tolerance(self) -> float:
        return 1e-9 * max(1.0, abs(self._relaxation.bound))

    def _list(
        self, distance: float, everything: float, *, first: bool
    ) -> tuple[list[Allotments], float]:
        """All allotments up to some waste, and that waste: `distance`, or less if they are many.

        In the first round the distance is a guess: widened where it finds few.
        """
        most = self._listed_most
        self._listed_most = min(LISTED_MAX, LISTED_GROWTH * most)
        listed = self._within(distance + self._tolerance())
        while first and distance < everything and not _enough(listed):
            distance = min(everything, distance * 4)
            listed = self._within(distance + self._tolerance())
        wastes = np.sort(np.concatenate([allotments.waste for allotments in listed]))
        if len(wastes) <= most:
            return listed, distance
        # Every demand keeps at least its least wasteful one: a plan needs some of each.
        cap = max(float(wastes[most]), *(float(a.waste.min(initial=0.0)) for a in listed))
        kept = [a.take(a.waste <= cap) for a in listed]
        if sum(map(len, kept)) <= 2 * most:
            return kept, cap
        # Many waste exactly `cap`, as where devices are free: only what lies below is complete.
        some = max(1, most // len(listed))
        return [_leanest(a, some) for a in kept], float(np.nextafter(cap, -np.inf))

    def _within(self, waste_max: float) -> list[Allotments]:
        prices = self._relaxation.prices
        return [
            allotments_within(
                pipelines,
                self._hardware,
                prices.slot,
                float(request),
                waste_max,
                deadline=self._deadline,
            )
            for pipelines, request in zip(self._columns, prices.request, strict=True)
        ]

    def _select_packable(self, listed: list[Allotments]) -> Selection | None:
        """The best selection that can be placed; None after too many that cannot.

        Raises:
            DoesNotPack: the first that cannot, if kinds are not told apart by weight.
        """
        while True:
            selection = select(
                self._asked,
                listed,
                time_limit_s=self._deadline.left_s,
                start=self._best,
                excluded=self._excluded,
            )
            if selection.chosen is None or self._packable(selection.chosen):
                return selection
            if not self._by_weight:
                raise DoesNotPack(self._stop("time-limit", []))
            if len(self._excluded) > EXCLUSIONS_MAX or self._deadline.passed:
                return None

    def _packable(self, chosen: ChosenAllotments) -> bool:
        """Whether it takes the devices that it says; else it, and all with more slots, is excluded.

        What takes more, and as many as there are at most, is known at what it costs.
        """
        packed = as_packed(self._asked, chosen)
        if packed is chosen:
            return True
        if packed is not None:
            self.learn(packed)
        self._excluded.append(identity_of(chosen))
        return False

    def _learn(self, selection: Selection, reach: float, *, complete: bool) -> None:
        if selection.chosen is not None:
            self.learn(selection.chosen)
        # A plan is either made of what was listed, or wastes more than `reach`.
        listed = selection.bound
        if selection.status == "infeasible":
            listed = -np.inf * self._sign
        elif listed is None:
            return
        beyond = self._relaxation.bound - self._sign * reach
        limits = [listed] if complete else [listed, beyond]
        loosest = max(limits, key=lambda value: self._sign * value)
        if np.isfinite(loosest):
            self._bound = min(self._bound, loosest, key=lambda value: self._sign * value)
        # What was excluded is beyond the bound of the others, but not beyond its own cost.
        if self._best is not None and self._sign * (self._objective - self._bound) > 0:
            self._bound = self._objective

    def _worth(self, chosen: ChosenAllotments) -> float:
        """The objective, recomputed from the counts."""
        hardware, throughputs = self._hardware, chosen.throughputs()
        if self._goal == "throughput":
            return sum(throughputs)
        if self._goal == "max-min":
            return smallest_normalised(throughputs, self._asked.wanted)
        cut = np.bincount(
            hardware.pattern_device, weights=chosen.cut, minlength=len(hardware.devices)
        )
        assert hardware.prices is not None
        return float(cut @ hardware.prices)

    def _gap(self) -> float:
        return abs(self._bound - self._objective) / max(abs(self._objective), 1e-12)

    def _stop(self, stopped: Stopped, listed: list[Allotments]) -> PooledResult:
        if self._best is None:
            return PooledResult(stopped=stopped, chosen=None, objective=None, bound=self._bound)
        best = self._best
        left_s = min(self._deadline.left_s, max(1.0, 0.5 * self._deadline.spent_s))
        if left_s > 0 and listed:
            # An equally good plan is as far off the bound, so no part of it wastes more.
            off = self._off() + 2 * self._tolerance()
            listed = [allotments.take(allotments.waste <= off) for allotments in listed]
            tidy = select_tidiest(
                self._asked, listed, best, time_limit_s=left_s, excluded=self._excluded
            )
            worse = self._sign * (self._objective - self._worth(tidy))
            if worse <= self._tolerance() and self._packable(tidy):
                best = tidy
        return PooledResult(
            stopped=stopped, chosen=best, objective=self._worth(best), bound=self._bound
        )
