"""Who holds up the loop of the apps' process, and its threads, by what its watchdog says: logged
and counted."""

import logging

from headrace.serving.apps.frames import Beat

logger = logging.getLogger("headrace.apps")


class HeldLog:
    """Says once that all apps are held up, and once for how long they were; and once that work
    aside goes on after its request, until none does."""

    def __init__(self) -> None:
        self.held_us = 0
        """By functions, in all, so far; never falls."""
        self._now: Beat | None = None
        self.left_threads = 0
        """Held by work whose requests have ended."""

    def begin(self) -> None:
        """Another process: it is not held up."""
        self._now = None
        self.left_threads = 0

    def note(self, beat: Beat) -> None:
        if beat.left.threads and not self.left_threads:
            logger.warning(
                "%s keeps a thread for work `aside`, %s, after its request has ended: give such"
                " work a time limit\n%s",
                *(_name(beat.left.app), beat.left.what, beat.left.stack.rstrip()),
            )
        self.left_threads = beat.left.threads
        if beat.held:
            if self._now is None:
                logger.warning("%s\n%s", _holds(beat), beat.stack.rstrip())
            self._count(beat.lag_us, beat.app)
            self._now = beat
        elif self._now is not None:
            held_us = max(beat.lag_us, self._now.lag_us)
            logger.warning("%s for %d ms", _held(self._now.app), held_us // 1000)
            self._count(held_us, self._now.app)
            self._now = None

    def _count(self, lag_us: int, app: str | None) -> None:
        """What is new since the last sign; not where no function ran."""
        if app is not None:
            self.held_us += max(0, lag_us - (self._now.lag_us if self._now else 0))


def _holds(beat: Beat) -> str:
    lag_ms = beat.lag_us // 1000
    if beat.app is None:
        return f"the loop of the apps' process has not got to run for {lag_ms} ms"
    return f"{_name(beat.app)} holds up all apps for {lag_ms} ms: compute `aside`, or `await`"


def _held(app: str | None) -> str:
    if app is None:
        return "the loop of the apps' process did not get to run"
    return f"{_name(app)} held up all apps"


def _name(app: str) -> str:
    return f"app {app!r}" if app else "an app"
