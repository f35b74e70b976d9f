"""A `headrace serve` of one's own: for measuring what only a whole server can tell.

It ends without the time that clients have to go elsewhere: it has no others.
"""

import json
import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from headrace.catalog.scratch import place_for_sockets, scratch_folder
from headrace.children import child_command
from headrace.domain.errors import HeadraceError

PATIENCE_S = 300.0
TAIL_BYTES = 500


class ServerFailedError(HeadraceError):
    """The server did not start."""


@dataclass(frozen=True, slots=True)
class ChildServer:
    """A server that has started, and its workers."""

    url: str
    pid: int

    def processor_us(self, *, workers: bool = False) -> float:
        """User and system time so far, of all threads of the server's own process: gateway and
        dispatcher.

        Args:
            workers: theirs too.
        """
        pids = self._processes() if workers else [str(self.pid)]
        threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e3

    def keep_on(self, cores: Collection[int]) -> None:
        """From now on it runs there, and so do all its workers."""
        for pid in self._processes():
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.sched_setaffinity(int(thread), cores)

    def _processes(self) -> list[str]:
        """Its own first."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        workers = (pid for thread in threads for pid in (thread / "children").read_text().split())
        return [str(self.pid), *workers]


@contextmanager
def child_server(
    plan: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[ChildServer]:
    """Serve `plan` on a free port until the block ends; what it says of itself is not shown.

    Args:
        environment: variables that it gets besides this process's.

    Raises:
        ServerFailedError: it ended before it was ready, with what it said.
        OSError: there is no place for temporary files.
    """
    with scratch_folder("headrace-", place_for_sockets()) as own:
        # Nobody asks this one to migrate, and the usual folder may be none that can be written.
        arguments = (f"--admin-socket={own / 'admin.sock'}", *arguments)
        with _running(plan, arguments, environment or {}) as server:
            yield server


@contextmanager
def _running(
    plan: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[ChildServer]:
    command = child_command("headrace.cli", "serve", str(plan), "--port", "0", "--json")
    process = subprocess.Popen(
        [*command, "--no-rehearsal", "--lame-duck-s", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    tail = Tail(process.stderr)
    try:
        line = process.stdout.readline()
        if not line:
            process.wait(PATIENCE_S)
            raise ServerFailedError(f"a server of {plan} did not start: {tail.text()}")
        yield ChildServer(json.loads(line)["url"], process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        tail.text()


class Tail:
    """The last lines of what a process says, which is read for as long as it says anything: what an
    app prints would fill a pipe, and hold up the server."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._cut = False
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Once the process has ended."""
        self._thread.join(PATIENCE_S)
        kept = self._kept.strip()
        if self._cut:
            kept = kept.partition(b"\n")[2] or kept  # one long line is better than none
        return kept.decode(errors="replace")

    def _read(self) -> None:
        with self._stream:
            while said := os.read(self._stream.fileno(), 1 << 16):
                self._cut |= len(self._kept) + len(said) > TAIL_BYTES
                self._kept = (self._kept + said)[-TAIL_BYTES:]
