"""When a batch hangs, though its worker still shows signs of life: by the time it has had a core.

A batch may take GRACE_US + FACTOR x p99 x level. Two things keep a merely slow worker alive:

    level   how many times the profile's p99 its batches have really taken, at least 1: half the way
            up to a slower one, 1/32 of the way down to a faster one. A worker that was killed for
            nothing gets twice the time for its next batches, and again, until they end.
    waited  time in which the worker was ready to run and had no core, which each of its beats says
            (`pulse`), does not count: on a busy machine a batch can take ten times as long for
            minutes, and starting workers anew would only add to what the cores cannot do already.

What waits for a lock or a device, or computes without end, has no such excuse.

A batch is judged by the time that its worker has it. For a worker on another machine its agent
tells that (`Pong.runs`): what the order, its tensors and the answer take on a slow network is not
the worker's, nor is a network that stands still for a moment.

A hang is seen by one timer per slot (`BatchWatch`), set for the first batch and moved on only when
it rings, so that a batch costs no timer: at most the hang is seen one batch's limit late.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.serving.workers.beats import BEAT_S
from headrace.serving.workers.pulse import LOOK_S

logger = logging.getLogger(__name__)

GRACE_US = 500_000
FACTOR = 3
MOST_US = 60_000_000
_FALL = 32
_LEAST_S = 0.001
"""Of a timer: what is due sooner, uvloop calls at once, by a handle that has no `when`."""


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


class Judged(Protocol):
    """A worker, as its batches are judged."""

    waited_us: int
    """For a core, since it started, as its last beat says."""
    beat_at_s: float
    """When that came."""

    @property
    def is_loading(self) -> bool: ...

    def busy_us(self, slot: int) -> int | None:
        """For how long it is known to have had what that slot runs; None: since it was sent."""
        ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _RunningBatch:
    worker: Judged
    began_at_s: float
    waited_us: int
    """Of its worker, by then."""
    p99_us: int


class BatchWatch:
    """Of one slot: kills its worker when a batch hangs."""

    def __init__(self, slot: int, name: str) -> None:
        self._slot = slot
        self._name = name
        self._limit = HangLimit()
        self._running: _RunningBatch | None = None
        self._timer: asyncio.TimerHandle | None = None

    def began(self, worker: Judged, p99_us: int) -> None:
        """A batch was sent."""
        loop = asyncio.get_running_loop()
        self._running = _RunningBatch(worker, loop.time(), worker.waited_us, p99_us)
        if self._timer is None:
            self._timer = loop.call_later(self._limit.us(p99_us) / 1e6, self._check)

    def waited_for_a_stage(self) -> None:
        """What was sent begins only now."""
        if self._running is not None:
            now_s, waited_us = asyncio.get_running_loop().time(), self._running.worker.waited_us
            self._running = replace(self._running, began_at_s=now_s, waited_us=waited_us)

    def ended(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._limit.ended(self._took_us(running), running.p99_us)

    def lost(self) -> None:
        """The worker is gone."""
        self._running = None

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _took_us(self, running: _RunningBatch) -> int:
        """So far, without the time in which its worker waited for a core."""
        took_us = running.worker.busy_us(self._slot)
        if took_us is None:
            took_us = round((asyncio.get_running_loop().time() - running.began_at_s) * 1e6)
        return max(0, took_us - (running.worker.waited_us - running.waited_us))

    def _check(self) -> None:
        """Kill a worker that is far beyond the time that its batch was given."""
        rang, self._timer = self._timer, None
        running = self._running
        if running is None:
            return
        loop = asyncio.get_running_loop()
        left_s = (self._limit.us(running.p99_us) - self._took_us(running)) / 1e6
        if rang is not None and loop.time() - rang.when() > LOOK_S:
            # The server itself was away: what the worker has sent meanwhile is still unread.
            left_s = max(left_s, LOOK_S)
        if running.worker.is_loading or loop.time() - running.worker.beat_at_s > 2 * BEAT_S:
            # How long it has waited for a core is not known; what its silence means is the watch's.
            left_s = max(left_s, LOOK_S)
        if left_s > 0:
            self._timer = loop.call_later(max(left_s, _LEAST_S), self._check)
            return
        logger.error("slot %s: its batch hangs; killing the worker", self._name)
        self._limit.killed(running.p99_us)
        self._running = None
        running.worker.kill()
