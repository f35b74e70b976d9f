"""Whether signs of life come: a worker says every BEAT_S that it runs, whatever its batch does.

A process that is stopped, or lost to the system, sends none (`beats`). So silence means that a
worker is of no use, long before its batch could be judged by its time: after SILENCE_S it is given
up. A batch that takes too long in a worker that beats is another matter (`hangs`), for which each
beat says how long its worker has waited for a core.

A worker that has had no core is silent too. It is not given up: another one would have to load on
that same core. So silence is counted as `activity` says, look by look.

Silence is measured by a loop that may itself have been away: when a look comes late, what the
worker has sent meanwhile may still be unread, so the count begins anew.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.serving.workers.activity import Activity, CountedTime

logger = logging.getLogger(__name__)

SILENCE_S = 0.7
"""Seven beats; with LOOK_S, a stopped worker is noticed within 0.9 s."""
LOOK_S = 0.125
SAY_EVERY_S = 60.0
"""That a worker is silent, and waited for."""
NO_CORE = "it has had no core for most of that time; the machine has more to compute than it can"


class Watch:
    """Calls once when a worker that could have said something has said nothing for SILENCE_S."""

    def __init__(
        self,
        what: str,
        activity: Callable[[], Activity | None],
        on_silent: Callable[[], None],
        excuse: Callable[[], str] = lambda: NO_CORE,
    ) -> None:
        """
        Args:
            what: the worker, for messages.
            activity: of its process now; asked while it is silent. None: not known, so that all of
                its silence counts.
            excuse: why its silence does not count, for messages.
        """
        self._what = what
        self._excuse = excuse
        self._on_silent = on_silent
        self._silence = CountedTime(activity, 0.0)
        self._said_at_s = -SAY_EVERY_S
        self._look: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on it must be heard of."""
        self.stop()
        self.seen()
        self._look = asyncio.get_running_loop().call_later(LOOK_S, self._check)

    def seen(self) -> None:
        """It has sent something."""
        self._silence.restart(asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Nothing is expected of it any more. Idempotent."""
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _check(self) -> None:
        assert self._look is not None, "a watch that was stopped does not look"
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - self._look.when() > LOOK_S:
            self.seen()
        elif now_s - self._silence.since_s > LOOK_S:
            self._silence.look(now_s)
            if self._silence.counted_s > SILENCE_S:
                self._look = None
                self._on_silent()
                return
            self._say(now_s)
        # Not `call_at`: for an instant that is past by now, uvloop gives no timer.
        self._look = loop.call_later(LOOK_S, self._check)

    def _say(self, now_s: float) -> None:
        """That it would have been given up, had it had a core."""
        silent_s = now_s - self._silence.since_s
        if silent_s > SILENCE_S and now_s - self._said_at_s > SAY_EVERY_S:
            self._said_at_s = now_s
            logger.warning(
                "%s: nothing heard of its worker for %.1f s, and it is waited for: %s",
                self._what,
                silent_s,
                self._excuse(),
            )
