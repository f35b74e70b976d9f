"""A `headrace serve` of one's own: for measuring what only a whole server can tell.

It ends without the time that clients have to go elsewhere: it has no others.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.domain.errors import HeadraceError

PATIENCE_S = 300.0
_PROGRAM = "from headrace.cli import main; main()"


class ServerFailedError(HeadraceError):
    """The server did not start."""


@dataclass(frozen=True, slots=True)
class ChildServer:
    """`processor_us` is of the server's own process: gateway and dispatcher, without workers."""

    url: str
    pid: int

    def processor_us(self) -> float:
        """User and system time of all its threads so far."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3

    def keep_on(self, cores: Collection[int]) -> None:
        """From now on it runs there, and so do all its workers."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        workers = [pid for task in tasks for pid in (task / "children").read_text().split()]
        for pid in (str(self.pid), *workers):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.sched_setaffinity(int(thread), cores)


@contextmanager
def child_server(
    plan: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[ChildServer]:
    """Serve `plan` on a free port until the block ends; what it says of itself is not shown.

    Args:
        environment: variables that it gets besides this process's.

    Raises:
        ServerFailedError: it ended before it was ready, with what it said.
    """
    command = [sys.executable, "-c", _PROGRAM, "serve", str(plan), "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--no-rehearsal", "--lame-duck-s", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, said = process.communicate(timeout=PATIENCE_S)
            raise ServerFailedError(f"a server of {plan} did not start: {said.strip()[-500:]}")
        yield ChildServer(json.loads(line)["url"], process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
