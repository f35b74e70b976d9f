"""A worker's signs of life, for `pulse` to watch.

They come from a thread of their own, since a batch may be in native code for seconds.
"""

import socket
import threading
import time
from collections.abc import Callable

from headrace.domain.errors import ProcessLimitError
from headrace.serving.workers.frames import Beat, encode

BEAT_S = 0.1


def beat_for_ever(channel: socket.socket) -> Callable[[bytes], None]:
    """Start sending signs of life; returns what else is to be sent with, so that frames do not
    mix.

    Raises:
        ProcessLimitError: their thread cannot be started.
    """
    sending = threading.Lock()
    waits = CoreWaits()

    def run() -> None:
        while True:
            time.sleep(BEAT_S)
            beat = encode(Beat(waits.look_us()))
            try:
                with sending:
                    channel.send(beat, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue  # nobody reads: the next one will do
            except OSError:
                return  # the gateway is gone

    def send(data: bytes) -> None:
        with sending:
            channel.sendall(data)

    try:
        threading.Thread(target=run, name="pulse", daemon=True).start()
    except RuntimeError as error:
        raise ProcessLimitError("a worker's thread") from error
    return send


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


class CoreWaits:
    """How long a process's main thread was ready to run and had no core.

    The kernel counts a wait when it is over. One that still lasts is seen from look to look: the
    thread is ready (state R) and has not run since.
    """

    def __init__(
        self, process: str = "/proc/self", now_us: Callable[[], int] = _monotonic_us
    ) -> None:
        self._process = process
        self._now_us = now_us
        self._ready_after: tuple[int, int] | None = None
        """How long it had run, and how often, when it was seen to be ready; None: it was not."""
        self._seen_at_us = 0

    def look_us(self) -> int:
        """All waits so far; 0: not known."""
        try:
            with open(f"{self._process}/schedstat", "rb") as file:
                ran_ns, waited_ns, times = map(int, file.read().split())
            with open(f"{self._process}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
        except (OSError, ValueError):
            return 0
        now_us = self._now_us()
        if not times:
            return 0  # it runs, so the kernel does not count
        ready_after = (ran_ns, times) if state == b"R" else None
        if ready_after is None or ready_after != self._ready_after:
            self._ready_after, self._seen_at_us = ready_after, now_us
        return waited_ns // 1_000 + now_us - self._seen_at_us
