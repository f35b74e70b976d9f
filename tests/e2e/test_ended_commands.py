"""Commands that are ended while processes of theirs run: no server, no worker, no file stays."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from helpers.lengthy import with_lengthy
from helpers.live_server import PATIENCE_S, alive, family, write_plan
from helpers.onnx_models import chain_model, saved
from helpers.served import served_add_one
from helpers.waiting import wait_until

pytestmark = pytest.mark.e2e

SOME_EVENTS_BYTES = 4096
"""More than the first line of a log."""


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program, with a folder for temporary files of its own; nothing survives the test."""
    (folder / "tmp").mkdir()
    own = {"TMPDIR": str(folder / "tmp"), "HEADRACE_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("headrace")), *arguments],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **own, "XDG_CONFIG_HOME": str(folder)},
        cwd=folder,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Its exit code; all that it has started has ended."""
    started = family(process.pid)
    process.send_signal(number)
    code = process.wait(PATIENCE_S)
    wait_until(lambda: not alive(started), "a process outlives the command that started it")
    return code


@pytest.mark.parametrize(
    ("number", "code"),
    with_lengthy([(signal.SIGTERM, 143), (signal.SIGKILL, -9)], lengthy=[(signal.SIGTERM, 143)]),
)
def test_a_rehearsal_leaves_no_server(tmp_path: Path, number: signal.Signals, code: int) -> None:
    plan = write_plan(served_add_one(tmp_path, slots=2), tmp_path)
    arguments = ["rehearse", str(plan), "--duration-s", "60", "--load-factor", "0.002"]
    with running(tmp_path, *arguments) as process:
        # Before it is ready, a server notices by itself that nobody reads what it says.
        wait_until(lambda: logged_bytes(tmp_path) > SOME_EVENTS_BYTES, "nothing is served")
        assert len(family(process.pid)) == 4, "itself, a server and its workers"

        assert ended(process, number) == code

    if number == signal.SIGTERM:
        assert [path.name for path in tmp_path.iterdir() if "rehearsal" in path.name] == []


def logged_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*rehearsal*") if path.is_file())


def test_a_profile_leaves_no_process_and_no_files(tmp_path: Path) -> None:
    saved(chain_model(layers=4), tmp_path / "m.onnx")
    arguments = ["m.onnx", "--layers", "--max-batch", "1", "--budget-s", "60", "-o", "m.json"]
    with running(tmp_path, "profile", *arguments) as process:
        # Not any file: `tempfile` tries the place with one, and an end just then leaves it.
        wait_until(lambda: any((tmp_path / "tmp").glob("*/")), "layers are not measured")

        assert ended(process, signal.SIGTERM) == 143

    assert list((tmp_path / "tmp").iterdir()) == []
