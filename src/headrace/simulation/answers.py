"""How long answers are on their way back to clients, as a log tells.

The answers of a batch leave together, and a client reads them one after the other, on a core that
it shares with worker and gateway: longest for a full batch, and when somebody else has had the core
meanwhile, of which the batch's own time tells as well. So the answers of a simulated batch are on
their way as long as those of the batch of as many were that the log has next, whose run it most
likely took too (`simulation.measured`).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

LEAST_BATCHES = 30
"""Of a size; of fewer, those of any size speak for it."""
ANY = 0
"""Size."""


class Answers:
    """What clients saw of a log's batches."""

    def __init__(self, batches: Iterable[tuple[int, Sequence[int]]]) -> None:
        """
        Args:
            batches: when each was answered, and when clients had its answers; at least one.
        """
        taken: defaultdict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for at_us, seen_at_us in batches:
            waits_us = sorted(seen_us - at_us for seen_us in seen_at_us)
            for size in (len(waits_us), ANY):
                taken[size].append((at_us, waits_us))
        self._of_size = {
            size: sorted(each)
            for size, each in taken.items()
            if size == ANY or len(each) >= LEAST_BATCHES
        }

    def waits_us(self, at_us: int, size: int) -> list[int]:
        """Of the answers of a batch of `size` requests that is answered at that instant of the
        log, shortest first."""
        batches = self._of_size.get(size) or self._of_size[ANY]
        after = bisect_left(batches, at_us, key=lambda batch: batch[0])
        _, waits_us = batches[min(after, len(batches) - 1)]
        return [waits_us[min(k, len(waits_us) - 1)] for k in range(size)]
