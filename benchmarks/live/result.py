"""What a measurement has to say: target, measured, verdict; as a table, JSON, and a row to keep."""

import subprocess
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from headrace.domain.base import Record
from headrace.profiling.machine import cpu_name

_SHOWN = {True: "[green]met[/green]", False: "[bold red]MISSED[/bold red]", None: "–"}


class Check(Record, frozen=True, kw_only=True):
    """One line of the table."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None
    """None: stated, not judged."""


class Result(Record, frozen=True, kw_only=True):
    """One measurement."""

    name: str
    what: str
    checks: tuple[Check, ...]
    details: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Every single figure behind the checks, for `--json`."""

    @property
    def met(self) -> bool:
        return all(check.met is not False for check in self.checks)


def table(result: Result) -> Table:
    shown = Table(title=result.what, title_justify="left")
    for heading in ("", "target", "measured", "verdict"):
        shown.add_column(heading)
    for check in result.checks:
        shown.add_row(
            escape(check.what), escape(check.target), escape(check.measured), _SHOWN[check.met]
        )
    return shown


def row(result: Result, options: str, cores: int) -> str:
    """The line for RESULTS.md; only what was judged, the rest is in the JSON."""
    judged = [check for check in result.checks if check.met is not None]
    measured = "; ".join(
        f"{check.what}: {check.measured}{'' if check.met else ' (MISSED)'}" for check in judged
    )
    targets = "; ".join(dict.fromkeys(check.target for check in judged))
    command = f"python -m benchmarks.live.run {result.name}{options}"
    columns = (
        *(time.strftime("%Y-%m-%d"), cpu_name(), str(cores), _commit()),
        *(result.what, f"`{command}`", measured, targets),
    )
    return "| " + " | ".join(column.replace("|", "/") for column in columns) + " |"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
