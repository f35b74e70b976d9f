"""A control daemon of the multi-process service that is only a file: what it is told, it notes."""

import os
import sys
from pathlib import Path

import pytest

from headrace.executors.mps import DAEMON

_SOURCE = """#!{python} -S
import os
import pathlib
import sys

pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
refusal = {refusal!r}


def clients():
    found = 0
    for entry in pathlib.Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\\0")
        except OSError:
            continue
        percent = any(v.startswith(b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=") for v in variables)
        found += percent and f"CUDA_MPS_PIPE_DIRECTORY={{pipes}}".encode() in variables
    return found


def note(what):
    with open({calls!r}, "a") as out:
        print(what, file=out)


if sys.argv[1:] == ["-d"]:
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    note(f"start {{pipes}} devices {{devices}}")
    if refusal:
        sys.exit(refusal)
    (pipes / "control").touch()
else:
    note(f"{{sys.stdin.read().strip()}} {{pipes}} beside {{clients()}} clients")
    (pipes / "control").unlink(missing_ok=True)
"""


class FakeMps:
    """Put it first on PATH with `environment`, or `install` it into a test's own."""

    def __init__(self, folder: Path, refusal: str = "") -> None:
        """`refusal`: what it says instead of starting."""
        self._calls = folder / "mps-calls"
        self._programs = folder / "mps-programs"
        self._programs.mkdir()
        program = self._programs / DAEMON
        text = _SOURCE.format(python=sys.executable, refusal=refusal, calls=str(self._calls))
        program.write_text(text)
        program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}"}

    @property
    def calls(self) -> list[str]:
        """What it was told so far."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", self.environment["PATH"])
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            monkeypatch.delenv(name, raising=False)


def without_mps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on PATH, and no daemon runs."""
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
