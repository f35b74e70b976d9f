"""Splitting an app's budget over its modules: Harpagon's Algorithm 2 and what it is compared with.

While budgets are split, a module stands for one configuration that carries all of its load: its
latency is the worst case at that load, its cost price x load / throughput. The machines come
later (`scheduling`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Literal

import numpy as np

from headrace.domain.plan import Reading
from headrace.planning.apps.candidates import AppCase, ModuleCase, worst_case_us
from headrace.planning.apps.order import longest_count, path_us, rest_us

Rule = Literal["efficiency", "throughput", "cost"]
"""Which move is made next: most cost saved per time; best throughput / price; most cost saved."""


CostAt = Callable[[ModuleCase, int], float | None]
"""Cost of a module within a budget, as the scheme would schedule it."""


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration as a stand-in for its module."""

    latency_us: int
    cost: float
    per_price: float


@dataclass(frozen=True, slots=True)
class Move:
    """New configurations for the modules of a unit."""

    score: float
    unit: int
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Budget per module, and how many moves led there."""

    budgets_us: tuple[int, ...]
    iterations: int


def module_options(module: ModuleCase, reading: Reading) -> list[Option]:
    """Every candidate as if it carried all of the module's load."""
    options = []
    for candidate in module.candidates:
        n = module.rate_rps / candidate.rate_rps
        whole = n if n < 1 else float(int(n + 1e-9))
        worst_us = worst_case_us(reading, candidate, module.rate_rps, whole)
        options.append(Option(worst_us, n * candidate.price, candidate.per_price))
    return options


def latency_cost(previous: Sequence[Option], new: Sequence[Option]) -> float:
    """Latency-cost efficiency: cost saved per microsecond of budget (Harpagon, III.D).

    Args:
        previous: of one module, or of several that are merged and share a budget.
        new: of the same.
    """
    longer_us = max(o.latency_us for o in new) - max(o.latency_us for o in previous)
    saved = sum(o.cost for o in previous) - sum(o.cost for o in new)
    return saved / longer_us if longer_us > 0 else inf


def merged_units(before: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Modules with the same parents and children together (node merger).

    >>> merged_units([(), (0,), (0,), (1, 2)])
    [(0,), (1, 2), (3,)]
    """
    children = [
        tuple(k for k, waits in enumerate(before) if m in waits) for m in range(len(before))
    ]
    keyed = sorted((tuple(sorted(before[m])), children[m], m) for m in range(len(before)))
    groups = groupby(keyed, key=lambda entry: entry[:2])
    return sorted(tuple(m for *_, m in members) for _, members in groups)


class Splitter:
    """Algorithm 2 on one app: from the least efficient configurations, move by move."""

    def __init__(
        self, case: AppCase, reading: Reading, *, merge: bool, cost_at: CostAt | None = None
    ) -> None:
        self._case = case
        self._cost_at = cost_at
        count = len(case.modules)
        self._options = [module_options(module, reading) for module in case.modules]
        self._units = merged_units(case.before) if merge else [(m,) for m in range(count)]
        self._ladders = [self._ladder(members) for members in self._units]
        self._steps = [self._every_step(members) for members in self._units]

    def start(self) -> list[Option] | None:
        """The smallest batch on the dearest device; where that is too slow, the fastest there is.

        None: even the fastest are too slow.
        """
        chosen = []
        for module, options in zip(self._case.modules, self._options, strict=True):
            ranked = zip(module.candidates, options, strict=True)
            chosen.append(min(ranked, key=lambda pair: (-pair[0].price, pair[0].batch))[1])
        if not self._fits(chosen):
            chosen = [min(o, key=lambda x: (x.latency_us, x.cost)) for o in self._options]
        return chosen if self._fits(chosen) else None

    def run(self, start: Sequence[Option], rule: Rule) -> list[list[Option]]:
        """All states from `start` on; the last one is where no move is left."""
        states = [list(start)]
        while (move := self._best_move(states[-1], rule)) is not None:
            state = list(states[-1])
            for module, option in zip(self._units[move.unit], move.options, strict=True):
                state[module] = option
            states.append(state)
        return states

    def budgets_us(self, state: Sequence[Option]) -> tuple[int, ...]:
        """Merged modules share the budget of their slowest."""
        budgets = [option.latency_us for option in state]
        for unit in self._units:
            most = max(budgets[m] for m in unit)
            for m in unit:
                budgets[m] = most
        return tuple(budgets)

    def _fits(self, state: Sequence[Option]) -> bool:
        return path_us(self._case.before, [o.latency_us for o in state]) <= self._case.budget_us

    def _best_move(self, state: Sequence[Option], rule: Rule) -> Move | None:
        rest = rest_us(self._case.before, [option.latency_us for option in state])
        best: Move | None = None
        for unit, members in enumerate(self._units):
            room_us = self._case.budget_us - rest[members[0]]
            for options in self._offers(rule, unit, state, room_us):
                score = self._score(rule, members, [state[m] for m in members], options)
                if score > (best.score if best else 0.0):
                    best = Move(score, unit, options)
        return best

    def _ladder(self, members: tuple[int, ...]) -> list[tuple[int, tuple[Option, ...]]]:
        """(latency, cheapest options within it), each cheaper than the one before.

        Of a super-module, every member at its cheapest within the same latency. Options that
        others beat in both latency and cost are left out: by the cost of stand-ins alone, no rule
        would choose them.
        """
        return _last_within([_undominated(self._options[m]) for m in members])

    def _every_step(self, members: tuple[int, ...]) -> list[tuple[int, tuple[Option, ...]]]:
        """(latency, slowest options within it), at the latency of every option of every member.

        What cost-direct chooses from. An option that another beats as a stand-in is a budget all
        the same, within which the machines may be the cheapest.
        """
        return _last_within([sorted(self._options[m], key=lambda o: o.latency_us) for m in members])

    def _offers(
        self, rule: Rule, unit: int, state: Sequence[Option], room_us: int
    ) -> Iterator[tuple[Option, ...]]:
        members = self._units[unit]
        if rule == "cost":
            now_us = max(state[m].latency_us for m in members)
            yield from (new for limit, new in self._steps[unit] if now_us < limit <= room_us)
            return
        for latency_us, options in self._ladders[unit]:
            if latency_us > room_us:
                return
            yield tuple(
                new if new.cost < state[m].cost else state[m]
                for m, new in zip(members, options, strict=True)
            )

    def _score(
        self, rule: Rule, members: tuple[int, ...], now: Sequence[Option], new: Sequence[Option]
    ) -> float:
        """How good a move is; at most 0: it saves nothing."""
        if rule == "cost":
            return self._saved_by_machines(members, now, new)
        before = sum(o.cost for o in now)
        saved = before - sum(o.cost for o in new)
        if saved <= 1e-12 * before:
            return 0.0
        if rule == "throughput":
            return max(o.per_price for o, old in zip(new, now, strict=True) if o is not old)
        return latency_cost(now, new)

    def _saved_by_machines(
        self, members: tuple[int, ...], now: Sequence[Option], new: Sequence[Option]
    ) -> float:
        """Cost-direct looks at what is paid in the end: the machines within the unit's budget."""
        if self._cost_at is None:
            return 0.0
        before_us, after_us = (max(o.latency_us for o in options) for options in (now, new))
        saved = 0.0
        for m in members:
            module = self._case.modules[m]
            before, after = self._cost_at(module, before_us), self._cost_at(module, after_us)
            if after is None or before is None:
                return 0.0
            saved += before - after
        return saved if saved > 1e-9 else 0.0


def _last_within(own: Sequence[Sequence[Option]]) -> list[tuple[int, tuple[Option, ...]]]:
    """(latency, every member's last option within it), from where every member has one."""
    first = max(options[0].latency_us for options in own)
    limits = sorted({o.latency_us for options in own for o in options if o.latency_us >= first})
    return [
        (limit, tuple([o for o in options if o.latency_us <= limit][-1] for options in own))
        for limit in limits
    ]


def _undominated(options: Sequence[Option]) -> list[Option]:
    """Fastest first, each slower and cheaper than the one before."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda o: (o.latency_us, o.cost)):
        if not kept or option.cost < kept[-1].cost:
            kept.append(option)
    return kept


def split_evenly(case: AppCase) -> Split:
    """Every module gets the budget over the number of modules on the longest path through it."""
    counts = longest_count(case.before)
    return Split(budgets_us=tuple(case.budget_us // n for n in counts), iterations=0)


def split_by_throughput(case: AppCase, reading: Reading) -> Split | None:
    """Scrooge and InferLine: the move to the best throughput / price that still fits, first."""
    splitter = Splitter(case, reading, merge=False)
    start = splitter.start()
    if start is None:
        return None
    states = splitter.run(start, "throughput")
    return Split(budgets_us=splitter.budgets_us(states[-1]), iterations=len(states) - 1)


def split_by_efficiency(
    case: AppCase, reading: Reading, *, merge: bool, undo_max: int, cost_at: CostAt
) -> list[Split]:
    """Algorithm 2, and with `undo_max` the splits after cost-direct: distinct, to choose from.

    Cost-direct takes the last R moves back and goes on by cost alone; the paper leaves R open, so
    every R up to `undo_max` is offered. Cost is that of the machines, not of the stand-ins: with
    little budget left, what a module is charged for its last machine decides.
    """
    splits: dict[tuple[int, ...], Split] = {}
    for merging in (False, True) if merge else (False,):
        if merging and len(merged_units(case.before)) == len(case.modules):
            continue
        splitter = Splitter(case, reading, merge=merging, cost_at=cost_at)
        start = splitter.start()
        if start is None:
            return []
        states = splitter.run(start, "efficiency")
        ends = [states]
        for undone in range(1, min(undo_max, len(states) - 1) + 1):
            kept = states[: len(states) - undone]
            ends.append(kept[:-1] + splitter.run(kept[-1], "cost"))
        for end in ends:
            budgets = splitter.budgets_us(end[-1])
            splits.setdefault(budgets, Split(budgets_us=budgets, iterations=len(end) - 1))
    return list(splits.values())


def quantised_costs(
    case: AppCase, step_us: int, cost_at: CostAt
) -> list[tuple["np.ndarray", "np.ndarray"]]:
    """Per module, the budgets in whole steps at which it gets cheaper, and its cost there (Nexus).

    Returns:
        Per module (budgets, costs); empty where no budget is enough.
    """
    found = []
    for module in case.modules:
        budgets: list[int] = []
        costs: list[float] = []
        for budget in range(step_us, case.budget_us + 1, step_us):
            cost = cost_at(module, budget)
            if cost is not None and (not costs or cost < costs[-1] * (1 - 1e-12)):
                budgets.append(budget)
                costs.append(cost)
        found.append((np.array(budgets, np.int64), np.array(costs, np.float64)))
    return found
