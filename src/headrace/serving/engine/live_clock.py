"""Real time for the dispatcher, with the tie order of simulated time."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from headrace.serving.engine.alarm import keeps_system_time, make_alarm, monotonic_us


class LiveClock:
    """Monotonic time of an asyncio loop; callbacks of one instant run in scheduling order.

    Callbacks wait in our own heap, because asyncio's compares instants only, so its ties run in
    any order. One alarm is set, for the earliest of them: thousands of stale dispatcher timers
    then cost the loop nothing.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._scheduled: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = count()
        self._alarm = make_alarm(loop, self._run_due)
        self._alarm_at_us: int | None = None
        self._running = False
        self._stopped = False
        if keeps_system_time(loop):
            # Not loop.time(): uvloop's is the millisecond at which its current iteration began.
            self.now_us = monotonic_us  # type: ignore[method-assign]

    def now_us(self) -> int:
        # Round, not truncate: the loop may wake a nanosecond early.
        return round(self._loop.time() * 1_000_000)

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None:
        """Run `callback` at `at_us`, or as soon as possible when that is past; never at once."""
        if self._stopped:
            return
        heappush(self._scheduled, (at_us, next(self._sequence), callback))
        # While callbacks run the alarm is set once, after the last of them.
        if not self._running and (self._alarm_at_us is None or at_us < self._alarm_at_us):
            self._set_alarm()

    def stop(self) -> None:
        """Forget all that is scheduled, and take nothing more. Idempotent."""
        self._stopped = True
        self._scheduled.clear()
        self._alarm.close()

    def _set_alarm(self) -> None:
        self._alarm_at_us = self._scheduled[0][0]
        self._alarm.set(self._alarm_at_us)

    def _run_due(self) -> None:
        self._alarm_at_us = None
        self._running = True
        scheduled = self._scheduled
        try:
            # A loop with coarse timers may wake early: then nothing is due, and we wait again.
            while scheduled and scheduled[0][0] <= self.now_us():
                heappop(scheduled)[2]()
        finally:
            self._running = False
            if scheduled:
                self._set_alarm()
