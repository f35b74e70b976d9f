"""The threads for work `aside`, and what holds them when nobody waits for it any more.

No thread can be ended from outside. Work that never returns, such as a read without a time limit,
keeps its thread after its request has ended; when all threads are held so, no app's work aside gets
to run, and only another process helps. So it is known of each thread since when it is held in vain:
from the work's start or its request's end, whichever was later.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from headrace.serving.apps.frames import LeftWork

LEFT_US = 1_000_000
"""Work that goes on for so long after its request's end is told of."""
_STACK_LINES = 8
_STACK_CHARACTERS = 4_000
_NAME_CHARACTERS = 200


class Owner(Protocol):
    """The request that work is done for."""

    @property
    def app(self) -> str: ...

    @property
    def ended_at_us(self) -> int | None:
        """None: somebody waits for its answer."""
        ...


@dataclass(frozen=True, slots=True)
class _Work:
    owner: Owner
    what: str
    thread: int
    started_at_us: int

    def left_at_us(self) -> int | None:
        """Since when nobody waits for it; None: somebody does."""
        ended_at_us = self.owner.ended_at_us
        return None if ended_at_us is None else max(ended_at_us, self.started_at_us)


class AsideThreads:
    """Of a process. Work is given on the loop's thread; anybody may ask what is left."""

    def __init__(
        self, number: int, now_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000
    ) -> None:
        self._number = number
        self._now_us = now_us
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="headrace-app")
        self._ids = count()
        self._running: dict[int, _Work] = {}

    async def run(self, owner: Owner, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._do, owner, work, arguments)

    def _do(self, owner: Owner, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """On a thread."""
        number = next(self._ids)
        self._running[number] = _Work(owner, _name_of(work), threading.get_ident(), self._now_us())
        try:
            return work(*arguments)
        except StopIteration as error:
            # As generators do: a future takes none, and who awaits it would wait for ever.
            raise RuntimeError("work aside raised StopIteration") from error
        finally:
            del self._running[number]

    def left(self) -> LeftWork:
        """What goes on though its request has ended."""
        now_us = self._now_us()
        # A copy that no thread can change meanwhile.
        known = [(work.left_at_us(), work) for work in list(self._running.values())]
        since = sorted(
            ((at_us, work) for at_us, work in known if at_us is not None), key=lambda each: each[0]
        )
        long = [work for at_us, work in since if now_us - at_us >= LEFT_US]
        if not long:
            return LeftWork()
        all_us = now_us - since[-1][0] if len(since) >= self._number else 0
        longest = long[0]
        return LeftWork(
            len(long), all_us, longest.owner.app, longest.what, stack_of(longest.thread)
        )

    def stop(self) -> None:
        """Begin nothing more; what runs goes on."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _name_of(work: Callable[..., Any]) -> str:
    name = getattr(work, "__qualname__", None) or type(work).__qualname__
    return str(name)[:_NAME_CHARACTERS]


def stack_of(thread: int) -> str:
    """Where a thread is: its innermost lines; empty: it has ended."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    lines = traceback.format_list(traceback.extract_stack(frame)[-_STACK_LINES:])
    return "".join(lines)[-_STACK_CHARACTERS:]
