"""Whether copies of models all have room on slots at once, and otherwise how much is there."""

from collections.abc import Iterator, Sequence

EVERY_WAY_MAX = 10
"""Of more copies, only two ways to place them are looked at."""


def all_have_room(models: Sequence[tuple[int, int]], slots: int, slot_bytes: int) -> bool:
    """Few copies: whether slots are enough. More: smaller ones first; or larger ones first, with a
    second one of the largest.

    Args:
        models: of each, bytes of a copy, and copies, which are on as many slots.
    """
    there = sorted(each for each in models if each[0])
    if not there or there[-1][0] > slot_bytes:
        return not there
    if sum(copies for _, copies in there) <= EVERY_WAY_MAX:
        return _slots_needed(there, slot_bytes) <= slots
    return _filled(there, slots, slot_bytes) or _filled(
        [(there[-1][0], 1), *reversed(there)], slots, slot_bytes
    )


def _filled(models: Sequence[tuple[int, int]], slots: int, slot_bytes: int) -> bool:
    """One slot after the other, with one copy of each model that is left and still fits, in their
    order."""
    for _ in range(slots):
        free, left = slot_bytes, []
        for size, copies in models:
            here = 1 if size <= free else 0
            free -= size * here
            if copies > here:
                left.append((size, copies - here))
        models = left
        if not models:
            return True
    return False


def _slots_needed(models: Sequence[tuple[int, int]], slot_bytes: int) -> int:
    """The fewest. Of every set of copies, small sets first: those that the slot of its first copy
    takes, and the fewest for the others."""
    sizes = [size for size, copies in models for _ in range(copies)]
    owners = [model for model, (_, copies) in enumerate(models) for _ in range(copies)]
    everything = range(1 << len(sizes))
    members = [[copy for copy in range(len(sizes)) if some >> copy & 1] for some in everything]
    on_one = [
        sum(sizes[copy] for copy in some) <= slot_bytes
        and len({owners[copy] for copy in some}) == len(some)
        for some in members
    ]
    fewest = [0] * len(everything)
    for some in everything[1:]:
        first = some & -some
        fewest[some] = 1 + min(
            fewest[some ^ first ^ others]
            for others in _parts_of(some ^ first)
            if on_one[first | others]
        )
    return fewest[-1]


def _parts_of(some: int) -> Iterator[int]:
    """Every set of these copies, one bit each."""
    part = some
    while part:
        yield part
        part = (part - 1) & some
    yield 0


def held_bytes(
    rates: Sequence[float], models: Sequence[tuple[int, int]], slots: int, slot_bytes: int
) -> float:
    """What of copies that have no room all at once is on slots: whole ones, and not all of them.

    Args:
        rates: of each model, whose copies have it together.
        models: of each, bytes of a copy, and copies.
    """
    wasted = [slot_bytes % size if size else 0 for size, _ in models]
    by_rates = sum(rate * less for rate, less in zip(rates, wasted, strict=True)) / sum(rates)
    count = sum(copies for _, copies in models)
    mean = sum(less * copies for less, (_, copies) in zip(wasted, models, strict=True)) / count
    whole = sum(size * copies for size, copies in models)
    smallest = min(size for size, _ in models if size)
    return min(slots * (slot_bytes - max(by_rates, mean)), float(whole - smallest))
