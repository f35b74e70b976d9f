"""Stages that a worker makes ready while it serves, and when one of them takes too long.

A worker opens a model on its one thread, and most libraries keep the interpreter's lock meanwhile:
it gives no sign of life. So while something is loading the watch for such signs (`pulse`) rests,
and what is counted instead is the time in which the worker had a core (`activity`), up to a limit
that only a hang reaches.
"""

import asyncio
from collections.abc import Callable

from headrace.serving.workers.activity import Activity, CountedTime
from headrace.serving.workers.frames import AnyFrame, Failed, Load, Loaded

LOOK_S = 1.0


def is_of_a_load(frame: AnyFrame) -> bool:
    """Whether a failure is one of a load.

    >>> is_of_a_load(Failed(-1, 0, 3, "no such file")), is_of_a_load(Failed(0, 0, 3, "idx=99"))
    (True, False)
    """
    return isinstance(frame, Failed) and frame.batch < 0


class LoadsUnderWay:
    """Of one worker that is up."""

    def __init__(
        self,
        activity: Callable[[], Activity | None],
        limit_s: float,
        on_endless: Callable[[str], None],
    ) -> None:
        """
        Args:
            activity: what the worker does now.
            limit_s: that one load may take, not counting time without a core.
            on_endless: called once with the name of a stage that takes longer.
        """
        self._activity, self._limit_s, self._on_endless = activity, limit_s, on_endless
        self._names: dict[tuple[int, int], str] = {}
        """By slot and stage, in the order in which they were asked for."""
        self._time: CountedTime | None = None
        self._look: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._names)

    def begin(self, load: Load) -> None:
        self._names[load.slot, load.stage] = load.name
        if len(self._names) == 1:
            self._restart()

    def end(self, frame: AnyFrame) -> bool:
        """One was answered; True: it was the last one under way."""
        assert isinstance(frame, Loaded | Failed)
        known = self._names.pop((frame.slot, frame.stage), None) is not None
        if self._names:
            self._restart()
            return False
        self.clear()
        return known

    def clear(self) -> None:
        """The worker is gone, or nothing is expected of it. Idempotent."""
        self._names.clear()
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _restart(self) -> None:
        """The next one begins: they are made ready one after the other."""
        loop = asyncio.get_running_loop()
        self._time = CountedTime(self._activity, loop.time())
        self._time.look(loop.time())
        if self._look is None:
            self._look = loop.call_later(LOOK_S, self._check)

    def _check(self) -> None:
        assert self._time is not None, "a look follows a beginning"
        loop = asyncio.get_running_loop()
        # Where the server itself was away, what it was sent meanwhile may still be unread.
        self._time.look(loop.time(), most_s=2 * LOOK_S)
        if self._time.counted_s > self._limit_s:
            self._look = None
            self._on_endless(next(iter(self._names.values())))
            return
        self._look = loop.call_later(LOOK_S, self._check)
