"""An orderly end of commands that start processes or keep files only while they run."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM, or SIGHUP of a terminal that goes, ends the block as an exception does: processes
    are ended and temporary files removed. The exit code is then 128 and the signal's number.

    Not for commands that have neither: Python would wait for a solver or a compiled loop first.
    """
    # Not what is ignored, under nohup say.
    numbers = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]

    def end(number: int, _frame: object) -> None:
        # `timeout` and others tell a process twice, and the second time must not cut this short.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            sys.exit(128 + number)
        # By itself: what is raised while a connection reads ends only that connection (uvloop).
        loop.call_soon_threadsafe(sys.exit, 128 + number)

    for each in numbers:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
