"""Boxes of latency budgets: what the searches over splits of budgets branch on.

In a box every module's budget lies between `low` and `high`. Both searches (`apps.bill.budgets`,
`together.budgets`) take what is best with every module at its `high` as a bound; here is what they
share: which budgets the paths leave, and how a box is split by a plan with a path that is too long.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headrace.planning.apps.order import path_us, rest_us
from headrace.planning.common.candidates import NEVER_US, Ints

Box = tuple[Ints, Ints]
"""Low and high, shape (modules,)."""


class Graph(NamedTuple):
    """What has one budget for its longest path: an app, a chain."""

    before: Sequence[Sequence[int]]
    """Per module whom it waits for, in topological order."""
    budget_us: int


class Boxes:
    """Budgets of the modules of several graphs, one graph after the other.

    >>> boxes = Boxes([Graph(before=[(), (0,)], budget_us=100)])
    >>> low, high = boxes.largest(np.array([10, 20]))
    >>> high.tolist()
    [80, 90]
    >>> [[low.tolist(), high.tolist()] for low, high in boxes.halves(low, high, np.array([60, 50]))]
    [[[10, 20], [59, 90]], [[60, 20], [80, 40]]]
    """

    def __init__(self, graphs: Sequence[Graph]) -> None:
        ends = np.cumsum([len(graph.before) for graph in graphs]).tolist()
        starts = [0, *ends[:-1]]
        self._graphs = [
            (graph, slice(start, end))
            for graph, start, end in zip(graphs, starts, ends, strict=True)
        ]

    def __iter__(self) -> Iterator[tuple[Graph, slice]]:
        """Every graph with the places of its modules."""
        return iter(self._graphs)

    def fits(self, waits: Ints) -> bool:
        """Whether no path is longer than its budget."""
        return all(
            path_us(graph.before, waits[span].tolist()) <= graph.budget_us
            for graph, span in self._graphs
        )

    def largest(self, low: Ints) -> Box | None:
        """The box from `low` on; None: a path has no time."""
        return self.tightened(low, np.full(len(low), NEVER_US, np.int64))

    def tightened(self, low: Ints, high: Ints) -> Box | None:
        """The box without what the others' `low` leaves no time for; None: nothing is left."""
        tight = high.copy()
        for graph, span in self._graphs:
            rest = np.array(rest_us(graph.before, low[span].tolist()), np.int64)
            tight[span] = np.minimum(tight[span], graph.budget_us - rest)
        return None if (tight < low).any() else (low, tight)

    def filled(self, budgets: Ints) -> None:
        """Give every module in turn what its paths leave over, in place."""
        for graph, span in self._graphs:
            for module in range(span.start, span.stop):
                rest = rest_us(graph.before, budgets[span].tolist())
                budgets[module] = max(budgets[module], graph.budget_us - rest[module - span.start])

    def halves(self, low: Ints, high: Ints, waits: Ints) -> list[Box]:
        """The box less the plan that was found: a module's budget below its wait, or not.

        Args:
            waits: of a plan with a path that is too long.
        """
        module = self._widest(low, waits)
        below, above = high.copy(), low.copy()
        below[module], above[module] = waits[module] - 1, waits[module]
        boxes = [self.tightened(low, below), self.tightened(above, high)]
        return [box for box in boxes if box is not None]

    def _widest(self, low: Ints, waits: Ints) -> int:
        """On a path that is too long, the module that takes most more than its least."""
        widest, most = -1, 0
        for graph, span in self._graphs:
            worst = waits[span].tolist()
            rest = rest_us(graph.before, worst)
            for i, us in enumerate(worst):
                more = us - int(low[span.start + i])
                if us + rest[i] > graph.budget_us and more > most:
                    widest, most = span.start + i, more
        assert widest >= 0, "a path that is too long has a module above its least"
        return widest
