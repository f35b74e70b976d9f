"""What loads of one model have come to, since the server began."""

from bisect import bisect_left
from dataclasses import dataclass, field

LOAD_BOUNDS_US = tuple(round(base * 10**power) for power in range(2, 7) for base in (1, 2, 5))
"""100 us to 5 s, three steps a decade."""


@dataclass(slots=True, kw_only=True)
class LoadCounts:
    """Fields are added to directly."""

    begun: int = 0
    """Each because of a request that found the model cold."""
    done: int = 0
    failed: int = 0
    """Those whose slot was lost meanwhile too."""
    evictions: int = 0
    took_sum_us: int = 0
    took_counts: list[int] = field(default_factory=lambda: [0] * (len(LOAD_BOUNDS_US) + 1))

    def note_done(self, took_us: int) -> None:
        self.done += 1
        self.took_sum_us += took_us
        self.took_counts[bisect_left(LOAD_BOUNDS_US, took_us)] += 1
