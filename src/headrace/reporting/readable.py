"""Tables that are never cut: whatever the width of the terminal or the log, every word is there.

Three ways to show a table, the first that fits is taken:

    as it is      every column as wide as its longest cell
    folded        cells wrap between words; a column is at least as wide as its longest word, and
                  what is left of the width goes to the columns in proportion to what they lack
    line by line  a paragraph per row: heading and cell, heading and cell, without empty ones
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

_UNBOUNDED = 100_000
INDENT = 2
"""Of all but the first line of a row's paragraph."""


class _Needs(NamedTuple):
    """Of one column, in characters."""

    least: int
    """Its longest word."""
    most: int
    """Its longest line."""


def figures(heading: str) -> Column:
    """A column of numbers with their units."""
    return Column(heading, justify="right")


class ReadableTable(Table):
    """A `rich` table that folds, or is told line by line, where it would be cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=_UNBOUNDED)
        for column in self.columns:
            column.width, column.no_wrap, column.overflow = None, False, "fold"
        needs = [_needs(console, wide, column, figures=True) for column in self.columns]
        most = sum(need.most for need in needs)
        left = options.max_width - Measurement.get(console, wide, self).maximum + most
        if sum(need.least for need in needs) > left:
            needs = [_needs(console, wide, column, figures=False) for column in self.columns]
        if sum(need.least for need in needs) > left:
            yield from self._told(console, options.max_width)
            return
        if most > left:
            for column, width in zip(self.columns, _shared(needs, left), strict=True):
                column.width = width
        yield from super().__rich_console__(console, options)

    def _told(self, console: Console, width: int) -> Iterator[Text | Padding]:
        if self.title:
            yield _text(console, self.title)
        headings = [_text(console, column.header).plain for column in self.columns]
        columns = [[_text(console, cell) for cell in column.cells] for column in self.columns]
        for row in zip(*columns, strict=True):
            told = Text(", ").join(
                Text.assemble(f"{' '.join(heading.split())} " if heading else "", cell)
                for heading, cell in zip(headings, row, strict=True)
                if cell.plain.strip()
            )
            told.overflow = "fold"
            lines = told.wrap(console, max(1, width - INDENT))
            yield lines[0]
            yield from (Padding(line, (0, 0, 0, INDENT)) for line in lines[1:])
        if self.caption:
            yield _text(console, self.caption)


def _needs(console: Console, options: ConsoleOptions, column: Column, *, figures: bool) -> _Needs:
    """`figures`: what stands on the right is a number with its unit, which stays on one line."""

    def measured(cell: object) -> Measurement:
        return Measurement.get(console, options, _text(console, cell))

    header, cells = measured(column.header), [measured(cell) for cell in column.cells]
    whole = figures and column.justify == "right"
    return _Needs(
        max(1, header.minimum, *(cell.maximum if whole else cell.minimum for cell in cells)),
        max(1, header.maximum, *(cell.maximum for cell in cells)),
    )


def _text(console: Console, cell: object) -> Text:
    """A cell of ours is text with markup."""
    text = cell if isinstance(cell, Text) else console.render_str(str(cell))
    text.overflow = "fold"
    return text


def _shared(needs: Sequence[_Needs], width: int) -> list[int]:
    """Widths between least and most that fill `width`.

    >>> _shared([_Needs(4, 4), _Needs(5, 25), _Needs(5, 45)], 26)
    [4, 9, 13]
    """
    lacks = [need.most - need.least for need in needs]
    spare = width - sum(need.least for need in needs)
    shared = [
        need.least + spare * lack // max(1, sum(lacks))
        for need, lack in zip(needs, lacks, strict=True)
    ]
    widest = max(range(len(needs)), key=lambda i: lacks[i])
    shared[widest] += width - sum(shared)
    return shared
