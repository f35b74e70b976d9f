"""Runs commands as a user would type them, and shows them first."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from examples.patience import TOO_BUSY, InferenceError, TooBusyError
from rich.console import Console

from headrace.domain.errors import HeadraceError

console = Console(highlight=False, soft_wrap=True)

_PROGRAM = Path(sys.executable).with_name("headrace")
_URL_MARK = "listening on "


class StepFailedError(Exception):
    """A command of the demo did not do what it should."""


def exit_code(name: str, story: Callable[[], str]) -> int:
    """Tell the story and say how it ended.

    Args:
        story: returns what was wrong; empty: nothing.

    Returns:
        0: all was right; 1: something was not; 75: this machine is too busy to tell.
    """
    try:
        wrong = story()
    except TooBusyError as error:
        say = f"{name}: this machine is too busy; try again when it has less to do ({error})"
        console.print(say, style="bold red", markup=False)
        return TOO_BUSY
    except (StepFailedError, InferenceError, HeadraceError) as error:
        wrong = str(error)
    if wrong:
        console.print(f"{name}: {wrong}", style="bold red", markup=False)
    return 1 if wrong else 0


def explain(text: str) -> None:
    """Say what comes next, and why."""
    console.print(f"\n[bold cyan]{text}[/bold cyan]")


def show(command: str) -> None:
    console.print(f"[bold]$ {command}[/bold]")


def headrace(folder: Path, *arguments: str, into: str | None = None) -> None:
    """Run one command in `folder`.

    Args:
        into: file for its standard output, as the shell's `>`.

    Raises:
        StepFailedError: it did not exit with 0.
    """
    line = shlex.join(["headrace", *arguments])
    show(line if into is None else f"{line} > {into}")
    if into is None:
        done = subprocess.run([_PROGRAM, *arguments], cwd=folder, check=False)
    else:
        with (folder / into).open("wb") as file:
            done = subprocess.run([_PROGRAM, *arguments], cwd=folder, stdout=file, check=False)
    if done.returncode != 0:
        raise StepFailedError(f"`{line}` ended with exit code {done.returncode}")


class Server:
    """`headrace serve` in the background; on leaving it must stop cleanly."""

    def __init__(self, folder: Path, *arguments: str, patience_s: float = 300.0) -> None:
        self._folder = folder
        # The demos rehearse step by step, for all to see.
        self._arguments = ("serve", "--no-rehearsal", *arguments)
        self._patience_s = patience_s
        self._listening = threading.Event()
        self.url = ""

    @property
    def pid(self) -> int:
        """Of the server; its workers are its children."""
        return self._process.pid

    def __enter__(self) -> "Server":
        show(shlex.join(["headrace", *self._arguments]) + " &")
        self._process = subprocess.Popen(
            [_PROGRAM, *self._arguments],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._listening.wait(self._patience_s)
        if not self.url:
            self._process.kill()
            raise StepFailedError("the server did not become ready")
        return self

    def _read(self) -> None:
        """Pass the server's output on, and pick its address from it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            console.print(line.rstrip(), markup=False)
            if _URL_MARK in line:
                self.url = line.partition(_URL_MARK)[2].strip()
                self._listening.set()
        # The output ends with the process: do not let anyone wait for a dead server.
        self._listening.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        explain("Stop the server: what it accepted it answers first.")
        show(f"kill -TERM {self._process.pid}")
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(self._patience_s)
        console.print(f"the server ended with exit code {code}")
        if code != 0 and error is None:
            raise StepFailedError(f"the server ended with exit code {code} on SIGTERM")
