"""From the kernel's journal to the events of the log."""

from collections.abc import Iterator

from headrace.dispatch.kernel import journal
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Dispatched,
    Dropped,
    Ran,
    Reservation,
    SlotGained,
    SlotLost,
    Transferred,
)

Row = list[int]


def facts_of(rows: list[Row]) -> Iterator[AnyEvent]:
    """All facts of whole journal entries, orders left out."""
    i = 0
    while i < len(rows):
        if rows[i][0] in journal.FACTS:
            yield fact_of(rows, i)
        i += rows_of(rows[i])


def rows_of(row: Row) -> int:
    """How many rows the entry has that begins with this one."""
    return 1 + row[7] + row[8] if row[0] == journal.DISPATCHED else 1


def fact_of(rows: list[Row], i: int) -> AnyEvent:
    """The fact that begins at row `i`."""
    kind, at_us, a, b, c, d, e, f, _, _ = rows[i]
    if kind == journal.RAN:
        return Ran(at_us, a, b, c, d)
    if kind == journal.ARRIVED:
        return Arrived(at_us, a, b, c)
    if kind == journal.ANSWERED:
        return Answered(at_us, a, b)
    if kind == journal.DISPATCHED:
        members, path = rows[i + 1 : i + 1 + f], rows[i + 1 + f : i + rows_of(rows[i])]
        requests = tuple(member[2] for member in members)
        return Dispatched(
            at_us, b, c, d, e, requests, tuple(Reservation(*hop[2:7]) for hop in path)
        )
    if kind == journal.TRANSFERRED:
        return Transferred(at_us, a, b, c, d, e)
    if kind == journal.DROPPED:
        return Dropped(at_us, a, journal.REASONS[b], c)
    if kind == journal.SLOT_LOST:
        return SlotLost(at_us, a)
    assert kind == journal.SLOT_GAINED, kind
    return SlotGained(at_us, a)
