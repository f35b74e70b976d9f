"""Weights that are copied to a worker's device while it works off other frames, and who says so.

A load of such a stage is asked for and returns; a thread waits for its copies and sends the answer.
There is one thread, since copies arrive in the order in which they were asked for. A load that
fails is said at once, and what it took is given back by the worker's own thread, before its next
frame.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headrace.executors.base import StreamingExecutor
from headrace.serving.workers.frames import AnyFrame, Failed, Load, Loaded


class _Expected(NamedTuple):
    stage: StreamingExecutor
    load: Load
    asked_at_us: int


class Arrivals:
    """Of one worker; the thread is started with the first."""

    def __init__(
        self, send: Callable[[AnyFrame], None], failed: Callable[[Load, Exception], Failed | None]
    ) -> None:
        """
        Args:
            send: the answer; called on the thread.
            failed: what to answer where a load has failed, also on the thread; None: nothing, since
                the worker is to be ended.
        """
        self._send, self._say_failed = send, failed
        self._expected: queue.SimpleQueue[_Expected | None] = queue.SimpleQueue()
        self._under_way: set[int] = set()
        self._answered = threading.Condition()
        self._failed: deque[int] = deque()
        self._thread: threading.Thread | None = None

    def expect(self, stage: StreamingExecutor, load: Load, asked_at_us: int) -> None:
        """Answer a load when its weights are there."""
        with self._answered:
            self._under_way.add(load.stage)
        self._expected.put(_Expected(stage, load, asked_at_us))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="arrivals", daemon=True)
            self._thread.start()

    def failed(self) -> list[int]:
        """Stages whose loads have failed since it was asked last."""
        return [self._failed.popleft() for _ in range(len(self._failed))]

    def settle(self, stage: int) -> None:
        """Return when a load of the stage, if one was asked for, is answered."""
        with self._answered:
            self._answered.wait_for(lambda: stage not in self._under_way)

    def end(self) -> None:
        """Answer what was asked for, and no more."""
        self._expected.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (expected := self._expected.get()) is not None:
            # A gateway that is gone cannot be told anything; the worker's own thread sees it.
            with contextlib.suppress(OSError):
                answer = self._awaited(expected)
                if answer is not None:
                    self._send(answer)
            with self._answered:
                self._under_way.discard(expected.load.stage)
                self._answered.notify_all()

    def _awaited(self, expected: _Expected) -> AnyFrame | None:
        load = expected.load
        try:
            expected.stage.wait_loaded()
        except Exception as error:  # reported; the gateway decides what it means
            self._failed.append(load.stage)
            return self._say_failed(load, error)
        now_us = time.monotonic_ns() // 1000
        return Loaded(load.stage, now_us - expected.asked_at_us, load.slot, now_us)
