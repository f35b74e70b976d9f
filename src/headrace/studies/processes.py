"""Calls on several processes of this machine.

Each process has a thread here that hands it one call after another and waits for its outcome; the
calls themselves take none of this process's time. Processes begin with the first call and share
nothing. Closing ends them at once, in the middle of a call.
"""

import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Self

import msgspec

from headrace.children import child_command
from headrace.domain.errors import StudyError
from headrace.studies.calls import Call, Outcome
from headrace.studies.worker import read_frame, write_frame

_Submitted = tuple[Call, "Future[Outcome]"]


class Processes:
    """A context manager: on leaving it, the processes have ended."""

    def __init__(self, count: int) -> None:
        """
        Raises:
            StudyError: fewer than one.
        """
        if count < 1:
            raise StudyError(f"--jobs: {count} is too few; at least 1")
        self.count = count
        self._todo: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._closed = threading.Lock(), False
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()
        for _ in range(self.count):
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, call: Call) -> "Future[Outcome]":
        future: Future[Outcome] = Future()
        self._todo.put((call, future))
        return future

    def _serve(self) -> None:
        """One thread: a process, and another one where that has ended."""
        process: subprocess.Popen[bytes] | None = None
        while (taken := self._todo.get()) is not None:
            call, future = taken
            if self._closed or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            process = process or self._start()
            outcome = None if process is None else _answered(process, call)
            if outcome is not None:
                future.set_result(outcome)
                continue
            code = None if process is None else self._ended(process)
            process = None
            future.set_exception(StudyError(_died(call, code)))
        if process is not None:
            self._ended(process)

    def _start(self) -> "subprocess.Popen[bytes] | None":
        """None: too late."""
        with self._lock:
            if self._closed:
                return None
            # Functions are found by name: where this process finds them, "" being its folder.
            path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
            process = subprocess.Popen(
                child_command("headrace.studies.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
            )
            self._running.add(process)
            return process

    def _ended(self, process: "subprocess.Popen[bytes]") -> int:
        """End it if it has not; its exit code."""
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with self._lock:
            self._running.discard(process)
        return code


def _answered(process: "subprocess.Popen[bytes]", call: Call) -> Outcome | None:
    """None: it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        write_frame(process.stdin, msgspec.msgpack.encode(call))
        frame = read_frame(process.stdout)
    except OSError:
        return None
    return None if frame is None else msgspec.msgpack.decode(frame, type=Outcome)


def _died(call: Call, code: int | None) -> str:
    how = "was ended" if code is None else f"ended with {code}"
    return (
        f"a process of the study {how} while it ran {call.function}\n"
        f"  task      {str(msgspec.msgpack.decode(call.task))[:200]}\n"
        "  try       the same command with --resume FILE, which keeps what was done; fewer --jobs"
        " where memory is short"
    )
