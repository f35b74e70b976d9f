"""The time that planning may still take. Every solver call and every long loop asks here."""

from time import perf_counter


class OutOfTime(Exception):
    """The time limit passed: nothing is proven of what was under way."""


class Deadline:
    """Wall-clock time that is left."""

    def __init__(self, limit_s: float) -> None:
        self._started_at_s = perf_counter()
        self._limit_s = limit_s

    @property
    def spent_s(self) -> float:
        return perf_counter() - self._started_at_s

    @property
    def left_s(self) -> float:
        return self._limit_s - self.spent_s

    @property
    def passed(self) -> bool:
        return self.left_s <= 0

    def part(self, fraction: float) -> "Deadline":
        """One that passes when this fraction of the time left is spent."""
        return Deadline(fraction * self.left_s)

    def check(self) -> None:
        """
        Raises:
            OutOfTime: no time is left.
        """
        if self.passed:
            raise OutOfTime
