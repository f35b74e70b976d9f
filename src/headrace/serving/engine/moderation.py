"""Fewer wake-ups for a gateway that has no core of its own.

Where workers compute on every core, each request that arrives interrupts a batch: the worker loses
its core and what its caches held, and the gateway begins with cold ones. But while every slot is
busy nothing that arrives can start. So from then on the gateway sleeps until

    a worker says something      most of all that its batch has ended
    a timer is due               of the dispatcher's
    MOST_MS are over              for whatever is no inference, and for what comes in parts

and then reads all that has come meanwhile in one go, in the order of arrival and before the report
that woke it, as network cards moderate their interrupts. Nothing is decided later than it could
have been: arrivals carry the kernel's instants (`front.arrivals`), and a slot that is idle, lost or
waits for a transfer keeps the gateway awake. Only refusals come up to MOST_MS later.

Cost: a turn of the loop and a system call per sleep. Two models of 1.4 and 6.4 ms on one core, 325
requests/s: see `benchmarks/RESULTS.md` for what it gains.
"""

import select
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence

MOST_MS = 10


class Moderation:
    """Of one plan's slots. `stir` is called whenever something has happened on the loop."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        all_busy: Callable[[], bool],
        descriptors: Callable[[], Sequence[int | None]],
    ) -> None:
        """
        Args:
            all_busy: whether every slot runs a batch, and nothing is on its way between slots.
            descriptors: readable when a worker has said something or a timer is due, now; None:
                one cannot be waited for.
        """
        self._loop = loop
        self._all_busy = all_busy
        self._descriptors = descriptors
        self._stirred = False
        self._looking = False
        self._stopped = False

    def stir(self) -> None:
        """An inference came, or a batch was started."""
        self._stirred = True
        if not self._looking and not self._stopped and self._all_busy():
            self._looking = True
            self._loop.call_soon(self._look)

    def stop(self) -> None:
        """Sleep no more. Idempotent."""
        self._stopped = True

    def _look(self) -> None:
        """Sleep where nothing came in the turn of the loop that has just passed."""
        if self._stopped or not self._all_busy():
            self._looking = False
            return
        if not self._stirred and not self._sleep():
            self._looking = False
            return
        # What woke it, or came meanwhile, is read in the turn that follows.
        self._stirred = not self._stirred
        self._loop.call_soon(self._look)

    def _sleep(self) -> bool:
        """False: it must not."""
        awaited = select.poll()
        for descriptor in self._descriptors():
            if descriptor is None:
                return False
            awaited.register(descriptor, select.POLLIN)
        awaited.poll(MOST_MS)
        return True
