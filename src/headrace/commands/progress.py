"""Progress bars of the commands, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.commands.output import notices


@contextmanager
def counting(
    label: str, total: int, *, redraws_per_s: float = 10.0
) -> Iterator[Callable[[int], None]]:
    """A bar while the block runs; call what it yields with how many are done so far.

    Drawing takes milliseconds of the interpreter: whoever measures time draws seldom.
    """
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns,
        console=notices,
        transient=True,
        refresh_per_second=redraws_per_s,
        disable=not notices.is_terminal,
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)
