"""How every command speaks: tables for people, JSON for programs, errors that end with a step."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console

from headrace.domain.base import encode_fraction

console = Console(highlight=False)
"""Results, on standard output."""

notices = Console(stderr=True, highlight=False)
"""Progress, hints and errors, on standard error, so that `--json` output stays clean."""


def print_json(value: Any) -> None:
    """Write one JSON document, indented, to standard output."""
    encoded = msgspec.json.format(msgspec.json.encode(value, enc_hook=encode_fraction), indent=2)
    # Flushed here: at exit a full disk would go unnoticed. Without a standard output, to nobody.
    typer.echo(encoded.decode())


@contextmanager
def working(what: str) -> Iterator[None]:
    """Says so on a terminal while the block runs."""
    if not notices.is_terminal:  # nobody would see it
        yield
        return
    with notices.status(what):
        yield


def next_step(command: str) -> None:
    """Tell the user what usually comes next; `quoted` paths in it."""
    _said("next", command)


def note(sentence: str) -> None:
    """Tell the user what was found on the way."""
    _said("note", sentence)


def _said(kind: str, text: str) -> None:
    # What users name may look like markup.
    notices.print(f"[dim]{kind}:[/dim]", end="  ")
    notices.print(text, markup=False, soft_wrap=True)


def quoted(path: Path) -> str:
    """As a shell takes it.

    >>> quoted(Path("my plans/plan.json"))
    "'my plans/plan.json'"
    """
    return shlex.quote(str(path))


def wrote(*paths: Path | str) -> None:
    """Say what was written, by name."""
    notices.print(f"wrote {' and '.join(map(str, paths))}", markup=False, soft_wrap=True)


def print_error(message: str) -> None:
    notices.print("[bold red]error:[/bold red]", end=" ")
    notices.print(message, markup=False, soft_wrap=True)
