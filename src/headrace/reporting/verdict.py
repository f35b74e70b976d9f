"""What verification found, as tables."""

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from headrace.reporting.readable import ReadableTable
from headrace.verify import CHECKS, Violation

VIOLATIONS_SHOWN = 50
"""Of a badly broken plan; all of them are in the JSON."""


def verdict_table(found: Mapping[str, int]) -> Table:
    """One row per check: what it promises, and whether that holds."""
    table = ReadableTable("check", "promise", "", title="verification", title_justify="left")
    for check, promise in CHECKS.items():
        count = found.get(check, 0)
        verdict = f"[bold red]{count} broken[/bold red]" if count else "[green]ok[/green]"
        table.add_row(check, promise, verdict)
    return table


def violations_table(violations: Sequence[Violation]) -> Table:
    headings = ("check", "where", "what", "needed", "available")
    table = ReadableTable(*headings, title="violations", title_justify="left")
    for violation in violations[:VIOLATIONS_SHOWN]:
        table.add_row(*(escape(getattr(violation, heading)) for heading in headings))
    hidden = len(violations) - VIOLATIONS_SHOWN
    if hidden > 0:
        table.caption = f"and {hidden} more; see --json"
    return table
