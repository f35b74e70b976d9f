"""How many devices it takes at least to hold the weights of some steps, each once."""

from collections.abc import Sequence
from math import ceil

EXACT_MAX = 12
"""Steps whose packing is found exactly; of more, only the sum counts."""


def devices_to_hold(weights: Sequence[int], memory: int) -> int:
    """The fewest devices of this memory, or fewer: a step that is larger counts as if it just
    filled one.

    >>> devices_to_hold([3, 3, 3], 5), devices_to_hold([2, 3, 4, 1], 5), devices_to_hold([], 5)
    (3, 2, 0)
    """
    items = sorted((min(weight, memory) for weight in weights), reverse=True)
    count = ceil(sum(items) / memory) if items else 0
    if len(items) > EXACT_MAX:
        return count
    while not _fit(items, [memory] * count):
        count += 1
    return count


def _fit(items: Sequence[int], left: list[int]) -> bool:
    """Whether these, largest first, fit what is left of each device."""
    if not items:
        return True
    tried = set()
    for device, room in enumerate(left):
        if room >= items[0] and room not in tried:
            tried.add(room)
            left[device] -= items[0]
            if _fit(items[1:], left):
                return True
            left[device] += items[0]
    return False
