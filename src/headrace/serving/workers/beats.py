"""A worker's signs of life, for `pulse` to watch.

They come from a thread of their own, since a batch may be in native code for seconds.
"""

import socket
import threading
import time
from collections.abc import Callable

from headrace.serving.workers.frames import Beat, encode

BEAT_S = 0.1


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
