"""Whether all models have room on slots at once, and otherwise how much of them is there."""

from collections.abc import Mapping, Sequence
from itertools import combinations

EVERY_WAY_MAX = 10
"""Of more models, only two ways to place them are looked at."""


def all_have_room(sizes_bytes: Sequence[int], slots: int, slot_bytes: int) -> bool:
    """Few models: whether slots are enough. More: smaller ones first; or larger ones first, with a
    second one of the largest."""
    sizes = sorted(size for size in sizes_bytes if size)
    if not sizes or sizes[-1] > slot_bytes:
        return not sizes
    if len(sizes) <= EVERY_WAY_MAX:
        return _slots_needed(sizes, slot_bytes) <= slots
    return _filled(sizes, slots, slot_bytes) or _filled(
        [sizes[-1], *reversed(sizes)], slots, slot_bytes
    )


def _filled(sizes: Sequence[int], slots: int, slot_bytes: int) -> bool:
    """One slot after the other, with what still fits of those that are left, in their order."""
    for _ in range(slots):
        free, left = slot_bytes, []
        for size in sizes:
            if size <= free:
                free -= size
            else:
                left.append(size)
        sizes = left
        if not sizes:
            return True
    return False


def _slots_needed(sizes_bytes: Sequence[int], slot_bytes: int) -> int:
    """The fewest. Of every set of models, small sets first: the fewest full slots and the least in
    the one behind them, whichever model came there last."""
    best: dict[frozenset[int], tuple[int, int]] = {frozenset(): (0, slot_bytes)}
    for count in range(1, len(sizes_bytes) + 1):
        for models in map(frozenset, combinations(range(len(sizes_bytes)), count)):
            ways = []
            for last in models:
                slots, taken = best[models - {last}]
                taken += sizes_bytes[last]
                fits = taken <= slot_bytes
                ways.append((slots, taken) if fits else (slots + 1, sizes_bytes[last]))
            best[models] = min(ways)
    return best[frozenset(range(len(sizes_bytes)))][0]


def held_bytes(
    rates: Mapping[str, float], sizes: Mapping[str, int], slots: int, slot_bytes: int
) -> float:
    """What of models that have no room all at once is on slots: whole ones, and not all of them."""
    wasted = {model: slot_bytes % size if size else 0 for model, size in sizes.items()}
    by_rates = sum(rates[model] * wasted[model] for model in sizes) / sum(rates.values())
    per_slot = slot_bytes - max(by_rates, sum(wasted.values()) / len(wasted))
    smallest = min(size for size in sizes.values() if size)
    return min(slots * per_slot, float(sum(sizes.values()) - smallest))
