"""How every command speaks: tables for people, JSON for programs, errors that end with a step."""

import errno
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from headrace.domain.base import encode_fraction
from headrace.domain.errors import SystemLimitError


@contextmanager
def standard_output() -> Iterator[None]:
    """What is written in the block goes to standard output.

    Raises:
        SystemLimitError: it cannot be written, since its disk is full, say.
        BrokenPipeError: its reader has gone, as `head` does, of which nothing is to be said.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _write_nowhere()
        raise SystemLimitError(
            f"standard output cannot be written: {error}\n"
            "  try       room where it goes, or another place for it (> FILE)"
        ) from error


@contextmanager
def whoever_reads() -> Iterator[None]:
    """What is written in the block is news on standard output: a reader that has gone, as `head`
    does, is no reason to end."""
    try:
        yield
    except BrokenPipeError:
        _write_nowhere()


def _write_nowhere() -> None:
    """From now on. What standard output did not take would be tried again at the end of the
    process, and complained about."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class Lines(Console):
    """A string is shown as it is: what users name, a file or an address, may look like markup.

    What has styles is a `Text`, or a table, which reads its cells as markup.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def print(self, *objects: Any, markup: bool | None = None, **options: Any) -> None:
        if all(isinstance(each, str) for each in objects):
            markup = False
        with nullcontext() if self.stderr else standard_output():
            super().print(*objects, markup=markup, **options)

    def on_broken_pipe(self) -> None:
        """Rich would end the process; commands do, a server goes on (`whoever_reads`)."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


console = Lines()
"""Results, on standard output."""

notices = Lines(stderr=True)
"""Progress, hints and errors, on standard error, so that `--json` output stays clean."""


def print_json(value: Any) -> None:
    """Write one JSON document, indented, to standard output."""
    print_line(msgspec.json.format(msgspec.json.encode(value, enc_hook=encode_fraction), indent=2))


def print_line(json: bytes) -> None:
    """Write it to standard output as it is."""
    # Flushed here: at exit a full disk would go unnoticed. Without a standard output, to nobody.
    with standard_output():
        typer.echo(json.decode())


@contextmanager
def working(what: str) -> Iterator[None]:
    """Says so on a terminal while the block runs."""
    if not notices.is_terminal:  # nobody would see it
        yield
        return
    with notices.status(what):
        yield


def next_step(command: str) -> None:
    """Tell the user what usually comes next; with `quoted` paths and addresses."""
    labelled("next:  ", command)


def note(sentence: str) -> None:
    """Tell the user what was found on the way."""
    labelled("note:  ", sentence)


def labelled(label: str, text: str, style: str = "dim") -> None:
    """Say it on standard error; `style` is the label's alone."""
    notices.print(Text.assemble((label, style), text), soft_wrap=True)


def quoted(word: Path | str) -> str:
    """As a shell takes it.

    >>> quoted(Path("my plans/plan.json"))
    "'my plans/plan.json'"
    >>> quoted("http://[::1]:8000")
    "'http://[::1]:8000'"
    """
    return shlex.quote(str(word))


def wrote(*paths: Path | str) -> None:
    """Say what was written, by name."""
    notices.print(f"wrote {' and '.join(map(str, paths))}", soft_wrap=True)


def print_error(message: str) -> None:
    labelled("error: ", message, "bold red")
