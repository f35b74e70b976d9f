"""At which batch sizes a model must be measured, and what it takes at the others.

Latency over batch size is nearly a line, with a bend or a step where a cache is full or a kernel
changes. So the smallest and the largest size are measured, the middle of them, and the middles of
both halves: if the line between the two ends is right at these three within the tolerance, it is
believed between them too. Otherwise both halves are looked at in the same way. One point alone is
not enough: a curve that bends down and up again crosses its line in the middle (PP-OCR's
orientation classifier does, up to batch 32, and is 20 % below it at a quarter).

Of B sizes a line needs 5; at worst all B are measured. What is between measured sizes lies on the
line for p50; p99 is a tolerance above it, since a line within the tolerance where it was looked at
says as much of the rest.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np


def sizes_to_measure(
    took: Callable[[int], float], largest: int, tolerance: float
) -> tuple[int, ...]:
    """Batch sizes from 1 to `largest`, ascending, between which latency is a line.

    Args:
        took: what a batch of a size takes, in any unit; asked once of each size.
        tolerance: relative; 0 measures every size.

    >>> sizes_to_measure(lambda size: 3 + 2 * size, 64, 0.01)
    (1, 16, 32, 48, 64)
    >>> sizes_to_measure(lambda size: 10 if size <= 8 else 20, 16, 0.01)
    (1, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16)
    """
    if tolerance <= 0:
        return tuple(range(1, largest + 1))
    known: dict[int, float] = {}

    def at(size: int) -> float:
        if size not in known:
            known[size] = took(size)
        return known[size]

    def misses(size: int, low: int, high: int) -> bool:
        line = at(low) + (size - low) / (high - low) * (at(high) - at(low))
        return abs(line - at(size)) > tolerance * at(size)

    at(largest)
    at(1)
    gaps = [(1, largest)]
    while gaps:
        low, high = gaps.pop()
        middle = (low + high) // 2
        looked_at = {middle, (low + middle) // 2, (middle + high) // 2} - {low, high}
        if sum(misses(size, low, high) for size in sorted(looked_at)):  # of all: each is measured
            gaps += [(low, middle), (middle, high)]
    return tuple(sorted(known))


def filled(
    sizes: Sequence[int], values_us: Sequence[int], largest: int, above: float = 0.0
) -> tuple[int, ...]:
    """Latencies at every batch size from 1 to `largest`.

    Args:
        sizes: measured ones, ascending, with 1 and `largest` among them.
        values_us: one per measured size.
        above: how much those between measured sizes lie above the line, relative; not above both
            of their neighbours, since a larger batch takes longer.

    >>> filled((1, 3, 4), (10, 30, 35), 4), filled((1, 3), (10, 30), 3, above=0.1)
    ((10, 20, 30, 35), (10, 22, 30))
    """
    known = dict(zip(sizes, values_us, strict=True))
    found = []
    for size in range(1, largest + 1):
        if size not in known:
            at = bisect_left(sizes, size)
            line = float(np.interp(size, sizes, values_us))
            most = max(line, *values_us[at - 1 : at + 1])
            found.append(round(min(most, line * (1 + above))))
        else:
            found.append(known[size])
    return tuple(found)
