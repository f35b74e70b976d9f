"""One timer of an asyncio loop, as exact as the system allows."""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

_TIMER_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE = 1
_EXPIRATIONS_BYTES = 8


class Timer(Protocol):
    """Calls back once per `set`, at or after its instant; setting it again replaces it."""

    descriptor: int | None
    """Readable when it is due; None: it has none."""

    def set(self, at_us: int) -> None: ...

    def close(self) -> None: ...


class LoopTimer:
    """The loop's own timer: right for loops whose time is not the system's."""

    descriptor: int | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_us: int) -> None:
        self.close()
        self._handle = self._loop.call_at(at_us / 1_000_000, self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class KernelTimer:
    """A Linux timer descriptor, tens of microseconds late at most.

    The loops' own timers count milliseconds: asyncio calls up to 1 ms late, uvloop up to 0.5 ms
    early as well, after which it would spin until the time has come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Raises OSError where the system has no such timers."""
        self.descriptor: int | None = _create()
        self._loop = loop
        self._callback = callback
        loop.add_reader(self.descriptor, self._expired)

    def set(self, at_us: int) -> None:
        if self.descriptor is not None:
            # Zero would disarm it; any past instant is due at once.
            _set(self.descriptor, max(1, at_us * 1_000))

    def close(self) -> None:
        if self.descriptor is not None:
            self._loop.remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None

    def _expired(self) -> None:
        if self.descriptor is None:
            return
        try:
            os.read(self.descriptor, _EXPIRATIONS_BYTES)
        except BlockingIOError:
            return  # set anew between the wake-up and this
        self._callback()


def make_timer(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Timer:
    """Return the most exact timer that keeps this loop's time."""
    if keeps_system_time(loop) and sys.platform == "linux":
        try:
            return KernelTimer(loop, callback)
        except (OSError, AttributeError):
            pass  # a sandbox or an unusual libc: the loop's timers will do
    return LoopTimer(loop, callback)


def keeps_system_time(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop's time is the system's monotonic clock: uvloop's or asyncio's own, which a
    loop with a virtual time replaces. A loop may be any subclass of theirs."""
    owner = next(kind for kind in type(loop).__mro__ if "time" in vars(kind))
    return owner.__module__.partition(".")[0] in ("uvloop", "asyncio")


def monotonic_us() -> int:
    """The clock that real loops and all workers share."""
    return time.monotonic_ns() // 1_000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_LIBC = ctypes.CDLL(None, use_errno=True)


def _create() -> int:
    # `os.timerfd_create` comes with Python 3.13.
    descriptor = int(_LIBC.timerfd_create(time.CLOCK_MONOTONIC, _TIMER_FLAGS))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return descriptor


def _set(descriptor: int, at_ns: int) -> None:
    seconds, nanoseconds = divmod(at_ns, 1_000_000_000)
    setting = _TimerSetting(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
    if _LIBC.timerfd_settime(descriptor, _ABSOLUTE, ctypes.byref(setting), None) < 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")
