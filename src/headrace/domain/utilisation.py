"""What a model takes of the caches and memory of a device, by batch size."""

import math
from bisect import bisect_left
from fractions import Fraction

from headrace.domain.base import Record
from headrace.domain.errors import ProfileError


class Utilisation(Record, frozen=True, kw_only=True):
    """What a model takes of a device's caches and memory, alone on one part of the device.

    The features that interference is a function of (gpu-lets, section 4.4): parts of the bandwidth
    of the whole device's second-level cache and memory, in [0, 1].
    """

    device: str
    share: Fraction
    batch_sizes: tuple[int, ...]
    """Profiled ones, ascending."""
    l2: tuple[float, ...]
    """One per batch size."""
    dram: tuple[float, ...]
    """One per batch size."""
    beside: tuple[float, ...] = ()
    """How many times longer a batch takes beside a neighbour that uses neither cache nor memory, as
    `headrace interfere` measured it, one per batch size; empty: never measured beside another."""

    def __post_init__(self) -> None:
        where = f"utilisation on {self.share} of a {self.device!r}"
        sizes = self.batch_sizes
        if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
            raise ProfileError(f"{where}: batch sizes must be positive and ascend, got {sizes}")
        if not len(sizes) == len(self.l2) == len(self.dram):
            raise ProfileError(f"{where}: not one l2 and one dram per batch size")
        if not all(0 <= part <= 1 for part in (*self.l2, *self.dram)):
            raise ProfileError(f"{where}: every l2 and dram must lie in [0, 1]")
        if self.beside and len(self.beside) != len(sizes):
            raise ProfileError(f"{where}: not one `beside` per batch size")
        if not all(0 < times < math.inf for times in self.beside):
            raise ProfileError(f"{where}: every `beside` must be a number above 0")

    def at(self, batch_size: int) -> tuple[float, float]:
        """(l2, dram), on the straight line between profiled sizes; beyond them the nearest.

        >>> used = Utilisation(device="gpu", share=Fraction(1), batch_sizes=(1, 3),
        ...                    l2=(0.1, 0.3), dram=(0.5, 0.5))
        >>> used.at(2), used.at(9)
        ((0.2, 0.5), (0.3, 0.5))
        """
        return self._on_line(self.l2, batch_size), self._on_line(self.dram, batch_size)

    def beside_at(self, batch_size: int) -> float | None:
        """`beside` at this batch size, as `at`; None where it was not measured."""
        return self._on_line(self.beside, batch_size) if self.beside else None

    def _on_line(self, row: tuple[float, ...], batch_size: int) -> float:
        sizes = self.batch_sizes
        above = bisect_left(sizes, batch_size)
        if above == len(sizes):
            return row[-1]
        if above == 0 or sizes[above] == batch_size:
            return row[above]
        below = above - 1
        part = (batch_size - sizes[below]) / (sizes[above] - sizes[below])
        return row[below] + part * (row[above] - row[below])
