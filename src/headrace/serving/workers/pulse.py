"""Signs of life: a worker says every BEAT_S that it runs, whatever its batch is doing.

They come from a thread of their own, since a batch may be in native code for seconds; a process
that is stopped, or lost to the system, sends none. So silence means that a worker is of no use,
long before its batch could be judged by its time: after SILENCE_S it is given up. A batch that
takes too long in a worker that beats is another matter (`hangs`), for which each beat says how long
its worker has waited for a core.

A worker that has had no core is silent too. It is not given up: another one would have to load on
that same core. So silence is counted as `activity` says, look by look.

Silence is measured by a loop that may itself have been away: when a look comes late, what the
worker has sent meanwhile may still be unread, so the count begins anew.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable

from headrace.serving.workers.activity import Activity, CountedTime
from headrace.serving.workers.frames import Beat, encode

logger = logging.getLogger(__name__)

BEAT_S = 0.1
SILENCE_S = 0.7
"""Seven beats; with LOOK_S, a stopped worker is noticed within 0.9 s."""
LOOK_S = 0.125
SAY_EVERY_S = 60.0
"""That a worker is silent, and waited for."""
NO_CORE = "it has had no core for most of that time; the machine has more to compute than it can"


def beat_for_ever(channel: socket.socket) -> Callable[[bytes], None]:
    """Start sending signs of life; returns what else is to be sent with, so that frames do not
    mix."""
    sending = threading.Lock()

    def run() -> None:
        while True:
            time.sleep(BEAT_S)
            beat = encode(Beat(waited_for_core_us()))
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

    threading.Thread(target=run, name="pulse", daemon=True).start()
    return send


def waited_for_core_us(schedstat: str = "/proc/self/schedstat") -> int:
    """How long this process's main thread was ready to run and had no core; 0: not known."""
    try:
        with open(schedstat, "rb") as file:
            return int(file.read().split()[1]) // 1_000
    except (OSError, IndexError, ValueError):
        return 0


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
