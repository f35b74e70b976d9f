"""Progress bars of the commands, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.commands.output import notices


@contextmanager
def counting(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar while the block runs; call what it yields with how many are done so far."""
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notices, transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)
