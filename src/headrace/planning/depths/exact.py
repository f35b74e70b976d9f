"""For each depth the cut of least T = fill + (K - 1) x pace, with its proof.

The pace is what couples the stages, so it is searched over and the walk does the rest. F(p), the
least fill of cuts whose stages and transfers take at most p, falls as p grows. So of the cuts whose
pace lies in (lo, hi) none has a T below

    F(hi) + (K - 1) x (lo + 1)

An interval whose bound is not below the best T known is done; any other is cut in two by a walk at
its middle, which gives a cut, and so perhaps a better T. Times are whole microseconds: it ends. For
slots of one kind without transfers the first interval is done at once: F is the same everywhere,
and the least pace is best.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.domain.errors import DocumentError
from headrace.planning.common.candidates import Ints
from headrace.planning.common.deadline import Deadline
from headrace.planning.depths.chain import DepthChain
from headrace.planning.depths.walk import NEVER, never_shrinks, walk

STEPS_MAX = 4_000_000_000
"""Of one walk: some seconds."""


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """A chain over so many slots."""

    kinds: tuple[int, ...]
    """Per stage, index into `DepthChain.kinds`."""
    ends: tuple[int, ...]
    """Per stage, its end block."""
    fill_us: int
    pace_us: int

    def value(self, batches: int) -> tuple[int, int]:
        """What is least: T, then the pace."""
        return self.fill_us + (batches - 1) * self.pace_us, self.pace_us


class CutFound(NamedTuple):
    """The best cut of one depth."""

    cut: Cut
    proven: bool
    """Whether no other is better; otherwise time ran out."""


class _Interval(NamedTuple):
    above_us: int
    """Every pace in it is longer,"""
    below_us: int
    """and shorter than this one,"""
    least_fill_us: int
    """so that no fill is less."""


def best_cuts(chain: DepthChain, max_depth: int, deadline: Deadline) -> list[CutFound]:
    """The best cut over one slot, over two, and so on, as far as there are slots and blocks.

    Raises:
        DocumentError: there are too many kinds of slots, blocks and depths to look at all.
    """
    depth_max = min(max_depth, chain.block_count, chain.slot_count)
    walks = _Walks(chain, depth_max)
    loosest = walks.cuts(NEVER - 1)
    least_pace_us = walks.least_pace_us
    found = []
    for depth in range(1, depth_max + 1):
        widest, pace_us = loosest[depth - 1], int(least_pace_us[depth - 1])
        if widest is None:
            break  # No range is profiled that would be needed.
        found.append(_best(walks, depth, widest, pace_us, deadline))
    return found


def _best(walks: "_Walks", depth: int, widest: Cut, pace_us: int, deadline: Deadline) -> CutFound:
    batches = walks.chain.batches(walks.chain.typical)
    quickest = walks.cut(pace_us, depth)
    assert quickest is not None, "a cut of least pace was seen"
    best = min(quickest, widest, key=lambda cut: cut.value(batches))
    open_ = [_Interval(pace_us, widest.pace_us, widest.fill_us)]
    while open_:
        low, high, fill_us = open_.pop()
        bound = (fill_us + (batches - 1) * (low + 1), low + 1)
        if low + 1 >= high or bound >= best.value(batches):
            continue
        if deadline.passed:
            return CutFound(best, proven=False)
        middle = (low + high) // 2
        cut = walks.cut(middle, depth)
        assert cut is not None, "a cut of less pace was seen"
        best = min(best, cut, key=lambda cut: cut.value(batches))
        # Between the cut's own pace and the middle there is none of less fill.
        open_.append(_Interval(middle, high, fill_us))
        open_.append(_Interval(low, cut.pace_us, cut.fill_us))
    return CutFound(best, proven=True)


class _Walks:
    """Walks over one chain, for cuts of up to so many stages."""

    def __init__(self, chain: DepthChain, depth_max: int) -> None:
        self.chain = chain
        self._stage_us = np.ascontiguousarray(chain.p99_us)
        self._grows = never_shrinks(self._stage_us)
        self._sums, self._before = uses(chain.counts, depth_max)
        blocks, kinds = chain.block_count, len(chain.kinds)
        if len(self._before) * kinds * blocks * blocks // 2 > STEPS_MAX:
            raise DocumentError(
                f"depths: {kinds} kinds of slots, {blocks} blocks and depth {depth_max} give too"
                " many cuts to look at\n  try  a smaller --max-depth, or profile fewer blocks"
            )
        shape = (len(self._before), kinds, blocks + 1)
        self._best, self._from_block, self._from_kind = (np.empty(shape, np.int64) for _ in "123")

    def cuts(self, most_us: int) -> list[Cut | None]:
        """Of each depth the cut of least fill whose stages and transfers take at most `most_us`."""
        self._walk(most_us, len(self._before))
        depths = range(1, int(self._sums[-1]) + 1)
        return [self._cut(depth) for depth in depths]

    def cut(self, most_us: int, depth: int) -> Cut | None:
        """Of one depth."""
        self._walk(most_us, int(np.searchsorted(self._sums, depth, side="right")))
        return self._cut(depth)

    @cached_property
    def least_pace_us(self) -> Ints:
        """Shape (depths,)."""
        self._walk(NEVER - 1, len(self._before), pace=True)
        ends = self._best[:, :, -1].min(axis=1)
        depths = range(1, int(self._sums[-1]) + 1)
        return np.array([ends[self._sums == depth].min() for depth in depths])

    def _walk(self, most_us: int, rows: int, *, pace: bool = False) -> None:
        walk(
            self._stage_us,
            self.chain.transfer_us,
            self._before[:rows],
            most_us,
            pace,
            self._grows,
            self._best[:rows],
            self._from_block[:rows],
            self._from_kind[:rows],
        )

    def _cut(self, depth: int) -> Cut | None:
        """The best of this depth in the last walk."""
        rows = np.flatnonzero(self._sums == depth)
        ends = self._best[rows, :, -1]
        row, kind = divmod(int(ends.argmin()), ends.shape[1])
        fill_us, state, at = int(ends[row, kind]), int(rows[row]), self.chain.block_count
        if fill_us >= NEVER:
            return None
        stages: list[tuple[int, int]] = []
        while at:
            stages.append((kind, at))
            first = int(self._from_block[state, kind, at])
            kind_before = int(self._from_kind[state, kind, at])
            state, kind, at = int(self._before[state, kind]), kind_before, first
        return cut_of(self.chain, stages[::-1])


def cut_of(chain: DepthChain, stages: list[tuple[int, int]]) -> Cut:
    """`stages`: kind and end block of each."""
    parts, first = [], 0
    for index, (kind, end) in enumerate(stages):
        if index:
            parts.append(int(chain.transfer_us[stages[index - 1][0], kind, first]))
        parts.append(int(chain.p99_us[kind, first, end]))
        first = end
    kinds, ends = zip(*stages, strict=True)
    return Cut(kinds=kinds, ends=ends, fill_us=sum(parts), pace_us=max(parts))


def uses(counts: tuple[int, ...], depth_max: int) -> tuple[Ints, Ints]:
    """How many slots of each kind, in all ways of at most `depth_max` together.

    Returns:
        Per way, shape (U,), how many together, ascending from 0; and, shape (U, K), the index of
        the way with one slot of kind k less, -1 where it has none.

    >>> sums, before = uses((2, 1), 2)
    >>> sums.tolist(), before.tolist()
    ([0, 1, 1, 2, 2], [[-1, -1], [-1, 0], [0, -1], [1, 2], [2, -1]])
    """
    ways: list[tuple[int, ...]] = [()]
    for count in counts:
        ways = [
            (*way, used) for way in ways for used in range(min(count, depth_max - sum(way)) + 1)
        ]
    ways.sort(key=lambda way: (sum(way), way))
    index = {way: row for row, way in enumerate(ways)}
    before = np.full((len(ways), len(counts)), -1, np.int64)
    for way, row in index.items():
        for k, used in enumerate(way):
            if used:
                before[row, k] = index[(*way[:k], used - 1, *way[k + 1 :])]
    return np.array([sum(way) for way in ways], np.int64), before
