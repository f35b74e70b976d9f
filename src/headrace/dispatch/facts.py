"""From the kernel's journal to the events of the log."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

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


def facts_of(rows: Iterable[Row]) -> Iterator[AnyEvent]:
    """All facts of whole journal entries, orders left out."""
    rows = iter(rows)
    for row in rows:
        make = FACT_OF.get(row[0])
        if make is not None:
            yield make(row, rows)


# One function per kind, so that a row costs a look-up and not a row of comparisons: each batch has
# half a dozen facts. Each is given the entry's first row and those that follow it.


def arrived(row: Row, _: Iterator[Row]) -> Arrived:
    return Arrived(row[1], row[2], row[3], row[4])


def dropped(row: Row, _: Iterator[Row]) -> Dropped:
    return Dropped(row[1], row[2], journal.REASONS[row[3]], row[4])


def dispatched(row: Row, following: Iterator[Row]) -> Dispatched:
    """Takes the rows of its members and of its path off `following`."""
    _, at_us, _, batch, model, pipeline, first_stage, members, hops, _ = row
    requests = tuple([member[2] for member in islice(following, members)])
    path = tuple(
        [
            Reservation(slot, transfer_at_us, transfer_us, start_at_us, latency_us)
            for _, _, slot, transfer_at_us, transfer_us, start_at_us, latency_us, _, _, _ in islice(
                following, hops
            )
        ]
    )
    return Dispatched(at_us, batch, model, pipeline, first_stage, requests, path)


def transferred(row: Row, _: Iterator[Row]) -> Transferred:
    return Transferred(row[1], row[2], row[3], row[4], row[5], row[6])


def ran(row: Row, _: Iterator[Row]) -> Ran:
    return Ran(row[1], row[2], row[3], row[4], row[5])


def answered(row: Row, _: Iterator[Row]) -> Answered:
    return Answered(row[1], row[2], row[3])


def slot_lost(row: Row, _: Iterator[Row]) -> SlotLost:
    return SlotLost(row[1], row[2])


def slot_gained(row: Row, _: Iterator[Row]) -> SlotGained:
    return SlotGained(row[1], row[2])


FACT_OF: dict[int, Callable[[Row, Iterator[Row]], AnyEvent]] = {
    journal.ARRIVED: arrived,
    journal.DROPPED: dropped,
    journal.DISPATCHED: dispatched,
    journal.TRANSFERRED: transferred,
    journal.RAN: ran,
    journal.ANSWERED: answered,
    journal.SLOT_LOST: slot_lost,
    journal.SLOT_GAINED: slot_gained,
}
"""Kind of a row -> its event. The other kinds are orders, or belong to a fact."""
