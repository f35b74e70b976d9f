"""Real time for the dispatcher, with the tie order of simulated time.

Scheduled callbacks wait in a heap of (instant, sequence number), as those of `SimClock` do, and run
in that order; asyncio's own heap compares instants only, so its ties run in any order. One timer of
the loop is set, for the earliest of them: thousands of stale dispatcher timers then cost the loop
nothing.

Invariants, whenever no callback of ours runs:

- the timer is set for the first entry's instant, or earlier, or for none where the heap is empty;
- what is due has run: an instant is never called before its time, and `call_at` never calls from
  inside itself, even for an instant that is past.

Cost: O(log n) per call, one system call per instant that becomes the first. Instants are the
system's monotonic clock where the loop keeps it (`timer.keeps_system_time`), else the loop's own
time: over a virtual-time loop the same code runs at virtual instants, which is what the parity
tests rest on.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from headrace.serving.engine.timer import keeps_system_time, make_timer, monotonic_us


class LiveClock:
    """Monotonic time of an asyncio loop; callbacks of one instant run in scheduling order.

    See the module's docstring.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._scheduled: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = count()
        self._timer = make_timer(loop, self._run_due)
        self._timer_at_us: int | None = None
        self._due_at_us = 0
        """When the timer was to ring, or was set where that was past."""
        self.on_late: Callable[[int, int], None] = lambda lag_us, now_us: None
        """Called as often as the timer rings, with how late it does."""
        self._running = False
        self._stopped = False
        if keeps_system_time(loop):
            # Not loop.time(): uvloop's is the millisecond at which its current iteration began.
            self.now_us = monotonic_us  # type: ignore[method-assign]

    def now_us(self) -> int:
        # Round, not truncate: the loop may wake a nanosecond early.
        return round(self._loop.time() * 1_000_000)

    @property
    def descriptor(self) -> int | None:
        """Readable when a callback is due; None: the loop's own timers are used."""
        return self._timer.descriptor

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None:
        """Run `callback` at `at_us`, or as soon as possible when that is past; never at once."""
        if self._stopped:
            return
        heappush(self._scheduled, (at_us, next(self._sequence), callback))
        # While callbacks run the timer is set once, after the last of them.
        if not self._running and (self._timer_at_us is None or at_us < self._timer_at_us):
            self._set_timer()

    def stop(self) -> None:
        """Forget all that is scheduled, and take nothing more. Idempotent."""
        self._stopped = True
        self._scheduled.clear()
        self._timer.close()

    def _set_timer(self) -> None:
        at_us = self._timer_at_us = self._scheduled[0][0]
        self._due_at_us = max(at_us, self.now_us())
        self._timer.set(at_us)

    def _run_due(self) -> None:
        now_us = self.now_us()
        if self._timer_at_us is not None and now_us >= self._timer_at_us:
            self.on_late(now_us - self._due_at_us, now_us)
        self._timer_at_us = None
        self._running = True
        scheduled = self._scheduled
        try:
            # A loop with coarse timers may wake early: then nothing is due, and we wait again.
            while scheduled and scheduled[0][0] <= self.now_us():
                heappop(scheduled)[2]()
        finally:
            self._running = False
            if scheduled:
                self._set_timer()
