"""A process of ours that another one holds: started, said to be ready, started again, ended.

Used by the agents' actors on their nodes and by the command that holds the gateway. The process
dies with its holder (`launch`).
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from headrace.domain.base import JSON_ERRORS
from headrace.domain.errors import ClusterError
from headrace.on_ray.launch import launched

logger = logging.getLogger(__name__)

AGAIN_AFTER_S, AGAIN_AFTER_MOST_S = 0.2, 2.0
"""Between the end of a process and its next start; twice as long each time that it ends unready."""
SAID_LINES = 30


class HeldProcess:
    """One program, with what it says last; thread-safe."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        again: bool = False,
    ) -> None:
        """Start it. Once it was ready, it is started again whenever it ends, but for exit code 0.

        Args:
            arguments: of `headrace`, with --json.
            env: variables that it gets besides this process's.
            again: it was ready before, held by another.
        """
        self._again = again
        self._arguments, self._env = list(arguments), dict(env)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._changed = threading.Condition(self._lock)
        self._ready: dict[str, Any] | None = None
        self._readied = 0
        """Times."""
        self._ended: int | None = None
        self._said: deque[str] = deque(maxlen=SAID_LINES)
        self._process: subprocess.Popen[str] | None = None
        self.starts = 0
        self._holder = threading.Thread(target=self._hold, daemon=True)
        self._holder.start()

    def ready(self, wait_s: float) -> dict[str, Any]:
        """The line with which it said that it is ready.

        Raises:
            ClusterError: it has ended, or says nothing for so long.
        """
        until_s = time.monotonic() + wait_s
        with self._changed:
            while self._ready is None and self._ended is None:
                if not self._changed.wait(until_s - time.monotonic()):
                    break
            if self._ready is not None:
                return self._ready
            how = "is not ready" if self._ended is None else f"ended with {self._ended}"
        raise ClusterError(
            f"`headrace {self._arguments[0]}` {how}\n  got       {self.last_said()}\n"
            "  try       that command on the machine itself"
        )

    def last_said(self) -> str:
        """What it said last on standard error, in one line."""
        with self._lock:
            return " ".join(line.strip() for line in self._said)[-600:] or "nothing"

    def wait(self) -> int:
        """Until it has ended for good; its exit code."""
        self._holder.join()
        return self._ended if self._ended is not None else 1

    @property
    def running(self) -> bool:
        return self._holder.is_alive()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        with self._lock:
            process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def signal(self, number: int) -> None:
        """Pass a signal on; nothing where no process runs."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    def stop(self, wait_s: float) -> None:
        """Ask it to end, then make it; it is not started again."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
        self._holder.join(wait_s)

    def _hold(self) -> None:
        """The thread that starts it: the kernel kills it when this thread, too, has ended."""
        pause_s, code = AGAIN_AFTER_S, 0
        while (process := self._started()) is not None:
            before = self._readied
            code = self._run(process)
            # What never was ready would end the same way again.
            if self._stopping.is_set() or code == 0 or not (self._again or self._readied):
                break
            logger.warning("`headrace %s` ended with %d: started again", self._arguments[0], code)
            unready = self._readied == before
            pause_s = min(2 * pause_s, AGAIN_AFTER_MOST_S) if unready else AGAIN_AFTER_S
            self._stopping.wait(pause_s)
        with self._changed:
            self._ended = code
            self._changed.notify_all()

    def _started(self) -> subprocess.Popen[str] | None:
        """Its next process, which `stop` then knows of; None: it was told to end before."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._process = subprocess.Popen(
                launched(program(), *self._arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is the holder's
                env={**os.environ, **self._env},
            )
            self.starts += 1
            return self._process

    def _run(self, process: subprocess.Popen[str]) -> int:
        """Until it has ended; its exit code."""
        errors = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        errors.start()
        assert process.stdout is not None
        for line in process.stdout:
            self._heard(line)
        code = process.wait()
        errors.join()
        process.stdout.close()
        return code

    def _heard(self, line: str) -> None:
        try:
            said = msgspec.json.decode(line)
        except JSON_ERRORS:
            said = None
        if isinstance(said, dict) and said.get("ready") is True:
            with self._changed:
                self._ready, self._readied = said, self._readied + 1
                self._changed.notify_all()

    def _listen(self, stream: Any) -> None:
        for line in stream:
            with self._lock:
                self._said.append(line)
            with suppress(OSError):  # a full disk, of which the process is not to wait for us
                sys.stderr.write(line)
                sys.stderr.flush()


def program() -> str:
    """The `headrace` beside this Python."""
    return str(Path(sys.executable).parent / "headrace")
