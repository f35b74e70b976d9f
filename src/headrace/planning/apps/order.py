"""An app's graph as series and parallel parts, for combining its modules' fronts.

What counts of a graph is who must end before whom, directly or not. Parts between which nothing is
ordered are parallel: their latencies do not add. Parts of which all of one precede all of the
other are in series: they do. What is neither (an N: a, b before c; b before d) stays whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["module", "series", "parallel", "prime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A module, or parts in series (in order), in parallel, or neither."""

    kind: Kind
    modules: tuple[int, ...]
    parts: tuple["Part", ...] = ()


def closure(before: Sequence[Sequence[int]]) -> list[set[int]]:
    """Per module, everything that must end before it; modules stand in topological order.

    >>> closure([(), (0,), (1,)])
    [set(), {0}, {0, 1}]
    """
    all_before: list[set[int]] = []
    for direct in before:
        all_before.append(set(direct).union(*(all_before[i] for i in direct)))
    return all_before


def decompose(before: Sequence[Sequence[int]]) -> Part:
    """The graph as nested parts.

    >>> decompose([(), (0,), (0,)]).kind, decompose([(), (), (0, 1), (1,)]).kind
    ('series', 'prime')
    """
    return _part(list(range(len(before))), closure(before))


def _part(members: list[int], all_before: Sequence[set[int]]) -> Part:
    if len(members) == 1:
        return Part(kind="module", modules=tuple(members))

    def ordered(a: int, b: int) -> bool:
        return a in all_before[b] or b in all_before[a]

    groups = _groups(members, ordered)
    kind: Kind = "parallel"
    if len(groups) == 1:
        kind = "series"
        groups = _groups(members, lambda a, b: not ordered(a, b))
        # Members of two groups are all ordered alike, so one of each tells.
        groups.sort(key=lambda group: len(all_before[group[0]].intersection(members)))
    if len(groups) == 1:
        return Part(kind="prime", modules=tuple(members))
    parts = tuple(_part(group, all_before) for group in groups)
    return Part(kind=kind, modules=tuple(members), parts=parts)


def _groups(members: list[int], linked: Callable[[int, int], bool]) -> list[list[int]]:
    """Connected components, each in the given order."""
    left, groups = list(members), []
    while left:
        group = [left.pop(0)]
        for member in group:
            group += [other for other in left if linked(member, other)]
            left = [other for other in left if other not in group]
        groups.append(sorted(group))
    return groups


def path_us(before: Sequence[Sequence[int]], latency_us: Sequence[int]) -> int:
    """The longest path; 2 modules of 3 and 4 in series make 7.

    >>> path_us([(), (0,)], [3, 4])
    7
    """
    return max(ends_us(before, latency_us))


def ends_us(before: Sequence[Sequence[int]], latency_us: Sequence[int]) -> list[int]:
    """When each module ends at the latest, its predecessors counted."""
    ends: list[int] = []
    for module, direct in enumerate(before):
        ends.append(latency_us[module] + max((ends[i] for i in direct), default=0))
    return ends


def rest_us(before: Sequence[Sequence[int]], latency_us: Sequence[int]) -> list[int]:
    """Per module, the longest path through it, without the module itself."""
    ends = ends_us(before, latency_us)
    after = [0] * len(before)
    for module in range(len(before) - 1, -1, -1):
        for i in before[module]:
            after[i] = max(after[i], after[module] + latency_us[module])
    return [ends[m] - latency_us[m] + after[m] for m in range(len(before))]


def longest_count(before: Sequence[Sequence[int]]) -> list[int]:
    """Per module, how many modules the longest path through it has."""
    ones = [1] * len(before)
    return [rest + 1 for rest in rest_us(before, ones)]
