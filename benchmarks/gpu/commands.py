"""Commands and servers of `headrace`, as the parts of `check` use them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

CACHE = "HEADRACE_CACHE"


def cache(folder: Path) -> str:
    """Where what is compiled and cut is kept: for all parts of `check` together, or in the folder
    of one that is run by itself."""
    return os.environ.get(CACHE) or str(folder)


def headrace(folder: Path, *arguments: str) -> str:
    """A command's output.

    Raises:
        RuntimeError: it failed, with the end of what it said.
    """
    program = "from headrace.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), CACHE: cache(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise RuntimeError(f"headrace {arguments[0]} ended with {done.returncode}: {said[-150:]}")
    return done.stdout


@contextmanager
def server(folder: Path, *arguments: str) -> Iterator[str]:
    """The address of a server of the folder's `plan.json`."""
    from headrace.load.child_server import child_server

    os.environ[CACHE] = cache(folder)
    with child_server(folder / "plan.json", "--no-auth", *arguments) as started:
        yield started.url


def is_ready(url: str) -> bool:
    """Every model has a worker that has loaded."""
    try:
        with urlopen(f"{url}/v2/health/ready") as answer:
            return bool(answer.status == 200)
    except HTTPError:
        return False


def workers() -> list[int]:
    """Process numbers of the workers of servers that this process started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        parents = [int(b) for a, b in pairwise(words) if a == b"--parent"]
        if b"headrace.serving.workers.worker" in words and _is_ours(parents):
            found.append(int(entry.name))
    return found


def _is_ours(parents: list[int]) -> bool:
    for parent in parents:
        fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
        if int(fields[1]) == os.getpid():
            return True
    return False


def attainment(report: str) -> float:
    """Of all models together, in what `simulate` and `load` print with --json."""
    return float(json.loads(report)["total"]["slo_attainment"])
