"""When a batch hangs, though its worker still shows signs of life: by the time it has had a core.

A batch may take GRACE_US + FACTOR x p99 x level. Two things keep a merely slow worker alive:

    level   how many times the profile's p99 its batches have really taken, at least 1: half the way
            up to a slower one, 1/32 of the way down to a faster one. A worker that was killed for
            nothing gets twice the time for its next batches, and again, until they end.
    waited  time in which the worker was ready to run and had no core, which each of its beats says
            (`pulse`), does not count: on a busy machine a batch can take ten times as long for
            minutes, and starting workers anew would only add to what the cores cannot do already.

What waits for a lock or a device, or computes without end, has no such excuse.
"""

GRACE_US = 500_000
FACTOR = 3
MOST_US = 60_000_000
_FALL = 32


class HangLimit:
    """Of one slot, whichever worker serves it."""

    __slots__ = ("_level",)

    def __init__(self) -> None:
        self._level = 1.0

    def us(self, p99_us: int) -> int:
        """How long a batch of that p99 may take."""
        return min(MOST_US, GRACE_US + round(FACTOR * p99_us * self._level))

    def ended(self, took_us: int, p99_us: int) -> None:
        ratio = max(1.0, took_us / max(1, p99_us))
        self._level += (ratio - self._level) / (2 if ratio > self._level else _FALL)

    def killed(self, p99_us: int) -> None:
        """It took too long, and was not waited for any longer."""
        longer_us = 2 * self.us(p99_us)
        self._level = (longer_us - GRACE_US) / (FACTOR * max(1, p99_us))
