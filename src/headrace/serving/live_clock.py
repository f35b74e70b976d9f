"""Real time for the dispatcher, with the tie order of simulated time."""

import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class LiveClock:
    """Monotonic time of an asyncio loop; callbacks of one instant run in scheduling order.

    Callbacks wait in our own heap, because asyncio's compares instants only, so its ties run in
    any order. One loop timer is armed, for the earliest of them: thousands of stale dispatcher
    timers then cost the loop nothing.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._scheduled: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = count()
        self._armed: TimerHandle | None = None
        self._armed_at_us = 0
        self._running = False
        # uvloop's time() is the millisecond at which its current iteration began; the clock
        # behind it is the same one that asyncio's loops and the workers read.
        if type(loop).__module__.partition(".")[0] == "uvloop":
            self.now_us = _monotonic_us  # type: ignore[method-assign]

    def now_us(self) -> int:
        # Round, not truncate: the loop may wake a nanosecond early.
        return round(self._loop.time() * 1_000_000)

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None:
        """Run `callback` at `at_us`, or as soon as possible when that is past; never at once."""
        heappush(self._scheduled, (at_us, next(self._sequence), callback))
        # While callbacks run the timer is re-armed once, after the last of them.
        if not self._running and (self._armed is None or at_us < self._armed_at_us):
            self._arm()

    def stop(self) -> None:
        """Forget all that is scheduled. Idempotent."""
        self._scheduled.clear()
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed_at_us = self._scheduled[0][0]
        self._armed = self._loop.call_at(self._armed_at_us / 1_000_000, self._run_due)

    def _run_due(self) -> None:
        self._armed = None
        self._running = True
        scheduled = self._scheduled
        try:
            # A loop with coarse timers may wake early: then nothing is due, and we arm again.
            while scheduled and scheduled[0][0] <= self.now_us():
                heappop(scheduled)[2]()
        finally:
            self._running = False
            if scheduled:
                self._arm()


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000
