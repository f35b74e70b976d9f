"""The soonest start over two links, by relaxations that arrays prove, split by split.

With the split before layer p, layers before it matter only by when they end: A_p, the least X of
one walk over the primary link (`by_layer`), whatever p is. From there the helper copies and
forwards: two links, one behind the other. Either of them alone, as if the other never held it up,
is a chain over one link, and no start is sooner than that chain's:

    copies     layer i takes l_i of the link and is on the device q_i later: forwarding has no queue
    forwards   layer i takes q_i of the link: copies are there in time

Where forwarding is faster than copying, as between devices that have a link of their own, the first
one is mostly a start as it stands; where it is slower the second one, begun when what is loaded has
come. So what each of them loads is timed as it would run, and is a start to beat.

Splits are tried in the order of their limits, and left behind when either chain has no start sooner
than the best known. The walk before the split is cut by limits that know what is behind it: with s
of all weight on the helper's link, which is free from 0 on,

    start >= (1 - s) ((1 - v) X + v L + V_i(v)),     V_p <= H_p(s) / (1 - s) at a split p

with H the limits of what is behind; the s is used that gives the highest limit.

Grouped, every loaded layer is taken to travel with the one before it, which makes starts sooner, so
that limits hold for all transfers; whoever asks makes transfers of what is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.planning.provisioning import by_layer, limits
from headrace.planning.provisioning.by_layer import LARGEST_US, NO_ROOM, NONE, Part, Walked, walked
from headrace.planning.provisioning.limits import FINE, ROUNDING
from headrace.starts import HELPER, HOST, PRIMARY, Chain

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SPLITS = 4
"""At least so many are tried, those with the least limits."""

MOST_SHARE = 0.9
"""Of all weight on the helper's link, while layers of the primary one are walked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The best start found, and what was proven on the way."""

    source: Ints
    """Of each layer."""
    total_us: int
    bound_us: int
    """No start is sooner."""


def prove(chain: Chain, timed: Callable[[Ints], int], room: int) -> Split:
    """The soonest start, or the best found and a limit.

    Args:
        timed: when a start ends that has each layer from there.
        room: most numbers of arrays, about a nanosecond each.
    """
    return _Search(chain, timed, room).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """One of the helper's two, as if the other never held it up."""

    part: Part
    table: Floats
    """`limits.by_layer`."""

    def behind(self, split: int) -> tuple[Part, Floats]:
        return self.part.cut(split, None), self.table[split:]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """The walk over the primary link."""

    walked: Walked
    end_us: Ints
    """When the layers before each split end, shape (n + 1,); `LARGEST_US`: not soon enough."""
    link_us: Ints


class _Search:
    def __init__(self, chain: Chain, timed: Callable[[Ints], int], room: int) -> None:
        self._timed, self._room = timed, room
        self._primary = Part.of(chain)
        copies = Part.of(chain, helped=True)
        forwards = copies._replace(load_us=copies.later_us, later_us=np.zeros_like(copies.later_us))
        never = limits.no_split(chain.count)
        self._links = tuple(
            _Link(part=part, table=limits.by_layer(part, never)) for part in (copies, forwards)
        )
        self._behind = np.maximum(*(link.table for link in self._links))
        # Of the walk before the split, whose choices are still asked for, and of those behind it.
        self._memory = [np.empty(by_layer.FIRST_BYTES, np.uint8) for _ in range(2)]
        self._source = np.full(chain.count, HOST)
        self._total_us = timed(self._source)

    def run(self) -> Split:
        ends = limits.ends_by_layer(self._primary)[:, 0].copy()
        bounds = np.ceil(limits.at_splits(ends, self._behind) - ROUNDING)
        split = int(bounds.argmin())
        bounds[split] = max(bounds[split], self._begin(split))
        least = int(bounds.min())
        if least >= self._total_us:
            return self._proven(least)
        first = self._walk_before(ends)
        if first.walked.total_us == NO_ROOM:
            return self._proven(least)
        bounds = np.ceil(limits.at_splits(first.end_us, self._behind) - ROUNDING)
        open_us = LARGEST_US
        for tried, split in enumerate(np.argsort(bounds, kind="stable").tolist()):
            if bounds[split] >= self._total_us or (tried >= SPLITS and bounds[split] >= open_us):
                break
            open_us = min(open_us, max(int(bounds[split]), self._try(first, split)))
        return self._proven(max(least, open_us))

    def _proven(self, bound_us: int) -> Split:
        total = self._total_us
        return Split(source=self._source, total_us=total, bound_us=min(bound_us, total))

    def _begin(self, split: int) -> int:
        """A start to beat, with this split; and what none with it is below."""
        first, memory = self._primary.cut(0, split), self._memory[0]
        before = by_layer.prove(first, self._room, memory=memory)
        end, source = before.total_us, np.where(before.loaded, PRIMARY, HOST)
        copies, forwards = self._links
        behind = self._prove_behind(copies, split, end, 0)
        reached = behind.bound_us if before.bound_us == end else 0
        if self._offer(source, behind.loaded) == behind.total_us:
            return reached
        free, queued = -1, 0
        while queued > free:
            free = queued
            behind = self._prove_behind(forwards, split, end, free)
            self._offer(source, behind.loaded)
            queued = self._queued_us(split, behind.loaded)
        return reached

    def _prove_behind(self, link: _Link, split: int, end_us: int, free_us: int) -> by_layer.Proof:
        part, table = link.behind(split)
        return by_layer.prove(
            part,
            self._room,
            table=table,
            ready_us=end_us,
            free_us=min(free_us, end_us),
            memory=self._memory[0],
        )

    def _queued_us(self, split: int, loaded: npt.NDArray[np.bool_]) -> int:
        """How much later forwarding ends than if copies took no time."""
        copies = self._links[0].part
        load, sent = copies.load_us[split:][loaded], copies.later_us[split:][loaded]
        return int((np.cumsum(load) - np.cumsum(sent) + sent).max(initial=0))

    def _offer(self, before: Ints, loaded: npt.NDArray[np.bool_]) -> int:
        """When the start ends that loads these behind the split: the best one, maybe."""
        source = np.concatenate([before, np.where(loaded, HELPER, HOST)])
        total = self._timed(source)
        if total < self._total_us:
            self._source, self._total_us = source, total
        return total

    def _walk_before(self, ends: Floats) -> _Before:
        at = limits.best_share(ends, self._behind, MOST_SHARE)
        rest = 1 - at / (FINE - 1)
        table = limits.by_layer(self._primary, self._behind[:, at] / rest)
        found = np.empty((len(table), 2), np.int64)
        limit = (self._total_us - 1) / rest
        result = self._walk(0, self._primary, table, limit=limit, ends=found)
        return _Before(walked=result, end_us=found[:, 0], link_us=found[:, 1])

    def _walk(self, memory: int, part: Part, table: Floats, **asked: Any) -> Walked:
        result = walked(part, table, self._memory[memory], room=self._room, **asked)
        self._memory[memory] = result.taken
        self._room -= result.spent
        return result

    def _try(self, first: _Before, split: int) -> int:
        """What no start with this split is below; the best one may be another then."""
        reached, end = 0, int(first.end_us[split])
        for link in self._links:
            part, table = link.behind(split)
            result = self._walk(1, part, table, ready_us=end, limit=self._total_us - 1)
            if result.total_us == NO_ROOM:
                continue
            if result.total_us == NONE or result.total_us >= self._total_us:
                return self._total_us
            reached = max(reached, int(result.total_us))
            before = first.walked.loaded(self._primary, split, int(first.link_us[split]))
            self._offer(np.where(before, PRIMARY, HOST), result.loaded(part))
            if reached >= self._total_us:
                break
        return reached
