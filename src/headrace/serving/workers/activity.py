"""Whether a process that says nothing is hung, or has had no core to say it on.

A process that the system has not let run is silent, and so is one that is stopped or waits for a
lock that nobody gives back. The system tells them apart: threads of the first are runnable (state
R, running or waiting for a core) and get little processor time; threads of the others wait for
something else (S, D, T). A third kind computes without end, and keeps the interpreter's lock: it is
runnable as well, and gets as much processor time as there is.

So a process is judged by the time in which it had a core or wanted none (`CountedTime`):

    from one look to the next, what counts is   what its threads ran   if one of them is runnable,
                                                all of the time        if none is
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
"""Fields of /proc/PID/task/TID/stat, counted from behind the command's name (proc(5))."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What the system says of a process."""

    runnable: bool
    """One of its threads runs, or would if it had a core."""
    ran_us: int
    """For how long its threads have run; in steps of the system's clock ticks, mostly 10 ms."""


def activity_of(process_id: int) -> Activity | None:
    """None: the system does not say, or there is no such process."""
    tick_us = 1_000_000 // os.sysconf("SC_CLK_TCK")
    runnable, ticks = False, 0
    try:
        threads = os.listdir(f"/proc/{process_id}/task")
        for thread in threads:
            text = Path(f"/proc/{process_id}/task/{thread}/stat").read_text()
            fields = text.rpartition(")")[2].split()
            runnable = runnable or fields[_STATE] == "R"
            ticks += int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    except (OSError, IndexError, ValueError):
        return None
    return Activity(runnable, ticks * tick_us)


class CountedTime:
    """Of one process, the time in which it had a core or wanted none."""

    def __init__(self, activity: Callable[[], Activity | None], now_s: float) -> None:
        """
        Args:
            activity: what it does now. None: not known, so that all of the time counts.
            now_s: when counting begins.
        """
        self._activity = activity
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """Begin anew; costs nothing."""
        self.since_s = now_s
        """When counting began."""
        self.counted_s = 0.0
        """Up to the last look."""
        self._looked_at_s = now_s
        self._before: Activity | None = None

    def look(self, now_s: float, most_s: float = inf) -> None:
        """Count what has passed since the last look; all of it at the first one, since nothing
        says what was before.

        Args:
            most_s: that may have passed, unless whoever looks was away himself.
        """
        passed_s, self._looked_at_s = min(most_s, now_s - self._looked_at_s), now_s
        before, self._before = self._before, self._activity()
        if before is not None and self._before is not None and self._before.runnable:
            passed_s = min(passed_s, max(0, self._before.ran_us - before.ran_us) / 1e6)
        self.counted_s += passed_s
