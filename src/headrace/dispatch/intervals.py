"""When a slot or a link is promised to whom: the reservation tables of PPipe, section 5.4.

A table holds few entries (what is promised within one SLO), so a linear scan over two plain lists
beats any tree. On slots, lateness is passed on at once (`push_back`); on links, promises may
overlap for a moment when reality runs late, and a scan copes with that.
"""

from bisect import bisect_right

from headrace.dispatch.protocols import Hop


class IntervalTable:
    """Busy intervals [start, end) of one resource, ordered by start, each held by a hop."""

    __slots__ = ("_ends", "_holders", "_starts", "free_from_us")

    def __init__(self) -> None:
        self.free_from_us = 0
        """From here on nothing is promised: a probe from later on needs no scan."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._holders: list[Hop] = []

    def __len__(self) -> int:
        return len(self._starts)

    def earliest(self, at_us: int, length_us: int) -> int:
        """Return the earliest instant from `at_us` on that starts a gap of `length_us`."""
        if self.free_from_us <= at_us:
            return at_us
        start = at_us
        for busy_from, busy_to in zip(self._starts, self._ends, strict=True):
            if busy_to <= start:
                continue
            if busy_from - start >= length_us:
                return start
            start = busy_to
        return start

    def behind(self, place_us: int, at_us: int) -> int:
        """Return the earliest instant from `at_us` on, behind all that starts up to `place_us`.

        What is promised later does not count: it is expected to move (`push_back`).
        """
        last_place_us = max(place_us, at_us)
        ends = [
            busy_to
            for busy_from, busy_to in zip(self._starts, self._ends, strict=True)
            if busy_from <= last_place_us
        ]
        return max(at_us, max(ends, default=0))

    def reserve(self, start_us: int, end_us: int, holder: Hop) -> None:
        """Promise [start_us, end_us) to `holder`, which may overlap what is already late."""
        i = bisect_right(self._starts, start_us)
        self._starts.insert(i, start_us)
        self._ends.insert(i, end_us)
        self._holders.insert(i, holder)
        if end_us > self.free_from_us:
            self.free_from_us = end_us

    def release(self, holder: Hop) -> None:
        """Take back the promise to `holder`; harmless when there is none."""
        for i, other in enumerate(self._holders):
            if other is holder:
                del self._starts[i], self._ends[i], self._holders[i]
                self.free_from_us = max(self._ends, default=0)
                return

    def push_back(self) -> list[Hop]:
        """Move every promise that an earlier one overlaps behind it, and its holder with it.

        Without this, lateness adds up unseen: each batch starts late by all overruns before it,
        while new promises still queue behind the old, too early ends.

        Returns:
            The holders that moved, in their order.
        """
        moved = []
        busy_to = 0
        for i, holder in enumerate(self._holders):
            if self._starts[i] < busy_to:
                holder.start_at_us = self._starts[i] = busy_to
                self._ends[i] = holder.end_at_us
                moved.append(holder)
            busy_to = max(busy_to, self._ends[i])
        self.free_from_us = busy_to
        return moved

    def free_for(self, holder: Hop, start_us: int, end_us: int) -> bool:
        """Whether no promise to anybody else lies in [start_us, end_us)."""
        return not any(
            busy_from < end_us and busy_to > start_us and other is not holder
            for busy_from, busy_to, other in zip(
                self._starts, self._ends, self._holders, strict=True
            )
        )


def earliest_common(a: IntervalTable, b: IntervalTable, at_us: int, length_us: int) -> int:
    """Return the earliest gap that both tables share (`earliestSlot`, PPipe, Algorithm 2)."""
    start = at_us
    while True:
        later = b.earliest(a.earliest(start, length_us), length_us)
        if later == start:
            return start
        start = later
