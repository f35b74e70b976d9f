"""A server's log on standard error, whose reader holds nobody up.

    log records, prints ──write──▶ lines waiting, at most 1 MiB ──thread──▶ standard error

A pipe whose reader stalls, a log shipper or `less`, takes 64 KiB and then keeps whoever writes
waiting, and so does a terminal after Ctrl-S. A server has deadlines: it writes on, into memory, and
one thread waits. What does not fit any more is left out, and the log says so when it goes on.
"""

import atexit
import io
import logging
import os
import select
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Plain lines, never wrapped: a server's log is read by grep."""
BEHIND_BYTES = 1 << 20
"""How far the reader may be behind before lines are left out."""
LAST_WORDS_S = 1.0
"""How long the end of the process waits for the reader."""
_STANDARD_ERROR = 2


def log_to_stderr() -> "Unhurried":
    """Log there from now on, this process being a server. Prints there do not wait either.

    Returns:
        What is to be drained before an end by `os._exit`.
    """
    unhurried = Unhurried(_STANDARD_ERROR)
    sys.stderr = io.TextIOWrapper(
        unhurried,
        # Nothing stands there where the process was started without one.
        encoding=getattr(sys.stderr, "encoding", None),
        errors="replace",
        line_buffering=True,
    )
    atexit.register(unhurried.drain)
    atexit.register(sys.stderr.flush)  # before it
    logging.basicConfig(level=logging.INFO, format=FORMAT, stream=sys.stderr)
    return unhurried


class Unhurried(io.RawIOBase):
    """Bytes for a descriptor, taken at once and written by a thread. Any thread may write."""

    def __init__(self, descriptor: int, behind_bytes: int = BEHIND_BYTES) -> None:
        self._descriptor = descriptor
        self._behind_bytes = behind_bytes
        self._waiting = deque[bytes]()
        self._waiting_bytes = 0
        self._left_out_bytes = 0
        self._changed = threading.Condition()
        self._is_forked = False
        threading.Thread(target=self._write_all, name="log", daemon=True).start()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """In a child, which has not the thread, nor may it know that it must wait for one."""
        self._is_forked = True

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: "ReadableBuffer", /) -> int:
        """Never waits, but in a forked child, and never fails: there is nobody to tell."""
        text = bytes(data)
        if self._is_forked:
            _write_out(self._descriptor, text)
            return len(text)
        with self._changed:
            if self._waiting_bytes + len(text) > self._behind_bytes:
                self._left_out_bytes += len(text)
                return len(text)
            if self._left_out_bytes:
                self._push(_left_out(self._left_out_bytes))
                self._left_out_bytes = 0
            self._push(text)
            self._changed.notify_all()
        return len(text)

    def drain(self, limit_s: float = LAST_WORDS_S) -> bool:
        """Returns when all is written, True, or after so long."""
        if self._is_forked:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, limit_s)

    def _push(self, text: bytes) -> None:
        self._waiting.append(text)
        self._waiting_bytes += len(text)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                text = self._waiting[0]
            _write_out(self._descriptor, text)
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(text)
                self._changed.notify_all()


def _left_out(count: int) -> bytes:
    return f"... {count} bytes of this log are left out: its reader was behind\n".encode()


def _write_out(descriptor: int, text: bytes) -> None:
    """Waits as long as it takes. What a full disk, or a reader that has gone, does not take is
    lost."""
    rest = memoryview(text)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            # Whoever has it open as well has said so, for all.
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT)
            ready.poll()
        except OSError:
            return
