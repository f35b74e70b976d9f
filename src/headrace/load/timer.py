"""Wakes an event loop at an instant, to within tens of microseconds where the system allows."""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0
_TFD_TIMER_ABSTIME = 1


def monotonic_us() -> int:
    """Microseconds on the clock that event loops and, on Linux, all processes share."""
    return time.monotonic_ns() // 1000


class Alarm:
    """Calls back once, at or after the last instant that was set.

    Event loops round timers up to whole milliseconds, which would add half a millisecond to
    every latency measured; a kernel timer (timerfd) does not, and needs no spinning. Where there
    is none, the loop's own timer serves, and the reported lateness tells.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._fallback: asyncio.TimerHandle | None = None
        self._fd = _open_timer()
        if self._fd is not None:
            loop.add_reader(self._fd, self._on_expired)

    def at(self, at_us: int) -> None:
        """Replace whatever was set before; an instant in the past rings at once."""
        if self._fd is not None:
            # All zero would disarm the timer: the clock's first microsecond is long past.
            seconds, micros = divmod(max(1, at_us), 1_000_000)
            setting = (ctypes.c_long * 4)(0, 0, seconds, micros * 1000)
            _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, setting, None)
            return
        if self._fallback is not None:
            self._fallback.cancel()
        delay_s = max(0, at_us - monotonic_us()) / 1e6
        self._fallback = self._loop.call_later(delay_s, self._callback)

    def close(self) -> None:
        if self._fallback is not None:
            self._fallback.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _on_expired(self) -> None:
        assert self._fd is not None
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew between the wake-up and this call
        self._callback()


def _open_timer() -> int | None:
    if sys.platform != "linux":
        return None
    fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
    return fd if fd >= 0 else None


if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
