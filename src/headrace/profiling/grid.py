"""At which batch sizes a model must be measured, and what it takes at the others.

Latency over batch size is nearly a line, with a bend or a step where a cache is full or a kernel
changes. So the smallest and the largest size are measured, and the middle of them: if the line
between the two is right there within the tolerance, it is believed there. Otherwise both halves
are looked at in the same way. A gap of two sizes has no middle and is measured.

Of B sizes a line needs 3; at worst all B are measured. What is between measured sizes lies on the
line for p50; p99 is a tolerance above it, since a line within the tolerance at its middle says as
much of the rest.
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
    (1, 32, 64)
    >>> sizes_to_measure(lambda size: 10 if size <= 8 else 20, 16, 0.01)
    (1, 4, 8, 9, 10, 11, 12, 14, 16)
    """
    if tolerance <= 0:
        return tuple(range(1, largest + 1))
    known = {size: took(size) for size in {1, largest}}
    gaps = [(1, largest)]
    while gaps:
        low, high = gaps.pop()
        middle = (low + high) // 2
        if middle == low:
            continue
        known[middle] = took(middle)
        part = (middle - low) / (high - low)
        line = known[low] + part * (known[high] - known[low])
        if abs(line - known[middle]) > tolerance * known[middle]:
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
