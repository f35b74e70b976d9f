"""Says how the apps' process does, from a thread that goes on while the loop is held up.

Ten times a second it asks the loop for a sign and measures how late it comes. A function that
computes without `await` holds up all apps; the thread sees which line does. So it does of work
`aside` that goes on though its request has ended.
"""

import asyncio
import contextlib
import socket
import threading
import time

from headrace.serving.apps.frames import Beat, encode_beat
from headrace.serving.apps.runner import TASK
from headrace.serving.apps.threads import AsideThreads, stack_of

BEAT_S = 0.1
HELD_US = 250_000
"""A loop that is later than that is held up."""


class Watchdog:
    """Of the loop of the thread that makes it, and of the threads beside it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: AsideThreads, channel: socket.socket
    ) -> None:
        """`channel`: keeps packets apart."""
        self._loop = loop
        self._threads = threads
        self._channel = channel
        self._thread = threading.get_ident()
        self._asked_at_s = 0.0
        self._answered_at_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the loop is closed; the gateway is gone
            while True:
                if self._answered_at_s >= self._asked_at_s:
                    self._asked_at_s = time.monotonic()
                    self._loop.call_soon_threadsafe(self._answer)
                time.sleep(BEAT_S)
                with contextlib.suppress(BlockingIOError):  # nobody reads: the next one will do
                    self._channel.send(encode_beat(self._beat()), socket.MSG_DONTWAIT)

    def _answer(self) -> None:
        self._answered_at_s = time.monotonic()

    def _beat(self) -> Beat:
        answered = self._answered_at_s >= self._asked_at_s
        until_s = self._answered_at_s if answered else time.monotonic()
        lag_us = round((until_s - self._asked_at_s) * 1e6)
        held = not answered and lag_us > HELD_US
        return Beat(
            cpu_us=time.process_time_ns() // 1000,
            lag_us=lag_us,
            held=held,
            app=running_app(self._loop) if held else "",
            stack=stack_of(self._thread) if held else "",
            left=self._threads.left(),
        )


def running_app(loop: asyncio.AbstractEventLoop) -> str | None:
    """Whose function the loop runs, as `Beat.app` says it: tasks that a function starts have names
    of their own."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    name = task.get_name()
    return name.removeprefix(TASK) if name.startswith(TASK) else ""
