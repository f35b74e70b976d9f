"""What loads of one model have come to since the server began, whatever plan it has served."""

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
    moved_bytes: int = 0
    """By the plan, of those that are done."""
    host_layers: int = 0
    """By the plan, executed from host memory in the first `batches` of the model."""
    batches: int = 0

    def note_done(self, took_us: int, moved_bytes: int = 0) -> None:
        self.done += 1
        self.moved_bytes += moved_bytes
        self.took_sum_us += took_us
        self.took_counts[bisect_left(LOAD_BOUNDS_US, took_us)] += 1

    def note_batches(self, batches: int, host_layers: int) -> None:
        """
        Args:
            batches: of the model since the server began.
            host_layers: that each since the last call has executed from host memory.
        """
        self.host_layers += host_layers * (batches - self.batches)
        self.batches = batches
