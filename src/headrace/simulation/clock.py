"""Virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class SimClock:
    """Virtual time that jumps to the next callback; ties run in scheduling order."""

    def __init__(self) -> None:
        self._now_us = 0
        self._scheduled: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = count()

    def now_us(self) -> int:
        return self._now_us

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None:
        """Run `callback` at `at_us`.

        Raises:
            ValueError: that instant has passed.
        """
        if at_us < self._now_us:
            raise ValueError(f"cannot schedule at {at_us} us: it is already {self._now_us} us")
        heappush(self._scheduled, (at_us, next(self._sequence), callback))

    def run(self) -> None:
        """Run until nothing is scheduled."""
        scheduled = self._scheduled
        while scheduled:
            self._now_us, _, callback = heappop(scheduled)
            callback()
