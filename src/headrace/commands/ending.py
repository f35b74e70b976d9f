"""An orderly end of commands that start processes or keep files only while they run.

A signal ends a command by an exception: SystemExit here, KeyboardInterrupt by Python's own handler.
It is raised wherever the command happens to be. In a function that C calls (LLVM tells numba of
machine code so) or in a `__del__`, Python prints an exception and drops it; the command would go on
with whatever that function had not done. So what is dropped there is raised again outside.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM, or SIGHUP of a terminal that goes, ends the block as an exception does: processes
    are ended and temporary files removed. The exit code is then 128 and the first one's number.

    Not for commands that have neither: Python would wait for a solver or a compiled loop first.
    """
    # Not what is ignored, under nohup say.
    numbers = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]
    ended: SystemExit | None = None

    def end(number: int) -> None:
        nonlocal ended
        ended = ended or SystemExit(128 + number)
        # `timeout` and others tell a process twice, and the second time must not cut short what the
        # first one led to. Where somebody has dropped that, it must be heard.
        if not _is_handled(ended):
            raise ended

    def on_signal(number: int, _frame: object) -> None:
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            end(number)
        else:
            # By itself: what is raised while a connection reads ends only that one (uvloop).
            loop.call_soon_threadsafe(end, number)

    for each in numbers:
        signal.signal(each, on_signal)
    try:
        yield
    finally:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)


def _is_handled(error: BaseException) -> bool:
    """Whether this thread is in an `except`, `finally` or `__exit__` that the error led to."""
    handled = sys.exception()
    while handled is not None and handled is not error:
        handled = handled.__context__
    return handled is error


@contextmanager
def dropped_ends_raised_again() -> Iterator[None]:
    """SystemExit and KeyboardInterrupt end the block even where Python drops exceptions."""
    before = sys.unraisablehook

    def on_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        error = dropped.exc_value
        if not isinstance(error, SystemExit | KeyboardInterrupt):
            before(dropped)
            return

        def raise_again(frame: FrameType, event: str, _argument: object) -> None:
            # When a call has ended: what is raised before one may leave a lock taken that the call
            # would have given back. Not when `on_dropped` ends: that is still inside.
            if event in ("return", "c_return") and frame.f_code is not on_dropped.__code__:
                raise error  # whereupon Python takes this function away

        sys.setprofile(raise_again)

    sys.unraisablehook = on_dropped
    try:
        yield
    finally:
        sys.unraisablehook = before
