"""The live clock keeps simulated time's order on a loop that wakes early, late or in bulk."""

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast

import pytest
import uvloop

from headrace.commands import event_loop
from headrace.serving.engine import timer
from headrace.serving.engine.live_clock import LiveClock

HANG_S = 300.0
"""Far more than anything here takes; only a hang reaches it."""


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class LooseLoop:
    """A loop whose timers wake `early_s` too early; time is virtual."""

    def __init__(self, early_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.armed = 0
        self._early_s = early_s
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = count()

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, (), cast(Any, self))
        heappush(self._timers, (when, next(self._sequence), handle))
        self.armed += 1
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def run(self) -> None:
        while self._timers:
            when, _, handle = heappop(self._timers)
            if handle.cancelled():
                continue
            # Never so early that time stands still.
            self.now_s = max(self.now_s + 1e-7, when - self._early_s)
            handle._run()


def clock_on(loop: LooseLoop) -> LiveClock:
    return LiveClock(cast(asyncio.AbstractEventLoop, loop))


def test_ties_run_in_scheduling_order_and_instants_in_order_of_time() -> None:
    loop = LooseLoop()
    clock = clock_on(loop)
    ran: list[tuple[str, int]] = []

    def note(name: str) -> None:
        ran.append((name, clock.now_us()))

    for name, after_us in (("c", 30), ("a", 10), ("b1", 20), ("b2", 20), ("b3", 20)):
        clock.call_at(100_000_000 + after_us, partial(note, name))
    loop.run()
    assert ran == [
        ("a", 100_000_010),
        ("b1", 100_000_020),
        ("b2", 100_000_020),
        ("b3", 100_000_020),
        ("c", 100_000_030),
    ]


def test_a_callback_never_runs_before_its_instant_even_when_the_loop_wakes_early() -> None:
    loop = LooseLoop(early_s=0.0004)
    clock = clock_on(loop)
    ran_at_us: list[int] = []
    clock.call_at(100_001_000, lambda: ran_at_us.append(clock.now_us()))
    loop.run()
    assert len(ran_at_us) == 1
    assert ran_at_us[0] >= 100_001_000


def test_what_a_callback_schedules_for_now_runs_after_what_was_scheduled_before() -> None:
    loop = LooseLoop()
    clock = clock_on(loop)
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        clock.call_at(clock.now_us(), lambda: ran.append("third"))

    clock.call_at(100_000_010, first)
    clock.call_at(100_000_010, lambda: ran.append("second"))
    loop.run()
    assert ran == ["first", "second", "third"]


def test_a_past_instant_runs_as_soon_as_possible_but_not_at_once() -> None:
    loop = LooseLoop()
    clock = clock_on(loop)
    ran: list[str] = []
    clock.call_at(1, lambda: ran.append("past"))
    assert ran == []
    loop.run()
    assert ran == ["past"]


def test_a_thousand_timers_arm_the_loop_once_per_instant_not_once_per_timer() -> None:
    loop = LooseLoop()
    clock = clock_on(loop)
    for i in range(1_000):
        clock.call_at(100_000_000 + 10 + i % 10, lambda: None)
    loop.run()
    assert loop.armed <= 11


def test_a_failing_callback_does_not_silence_the_clock() -> None:
    loop = LooseLoop()
    clock = clock_on(loop)
    ran: list[str] = []

    def fail() -> None:
        raise RuntimeError("ours")

    clock.call_at(100_000_010, fail)
    clock.call_at(100_000_020, lambda: ran.append("after"))
    with pytest.raises(RuntimeError, match="ours"):
        loop.run()
    loop.run()
    assert ran == ["after"]


def test_a_stopped_clock_runs_nothing_more() -> None:
    loop = LooseLoop()
    clock = clock_on(loop)
    clock.call_at(100_000_010, lambda: pytest.fail("ran after stop"))
    clock.stop()
    clock.call_at(100_000_020, lambda: pytest.fail("ran after stop"))
    loop.run()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run, event_loop.run])
def test_on_real_loops_time_is_the_monotonic_clock_to_the_microsecond(
    run: Callable[[Any], None],
) -> None:
    late: list[int] = []

    async def note_lateness() -> None:
        loop = asyncio.get_running_loop()
        clock = LiveClock(loop)
        assert clock.now_us is timer.monotonic_us, "the loop's may be of a millisecond ago"
        assert clock.descriptor is not None or sys.platform != "linux"
        before_us, now_us, after_us = monotonic_us(), clock.now_us(), monotonic_us()
        # Either clock may have been rounded.
        assert before_us - 1 <= now_us <= after_us + 1
        done: asyncio.Future[None] = loop.create_future()

        def note(at_us: int) -> None:
            late.append(clock.now_us() - at_us)

        begin_us = clock.now_us()
        for i in range(1, 21):
            clock.call_at(begin_us + 700 * i, partial(note, begin_us + 700 * i))
        clock.call_at(begin_us + 700 * 21, lambda: done.set_result(None))
        await asyncio.wait_for(done, HANG_S)
        clock.stop()
        clock.stop()

    run(note_lateness())
    assert len(late) == 20
    assert min(late) >= 0
