"""From the kernel's journal to the events of the log.

Each batch has half a dozen events, so each of them must be made in a fraction of a microsecond. An
entry holds the numbers of an event in its order.
"""

from collections.abc import Callable, Iterator

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

Numbers = list[int]
"""Whole entries of the journal, one after the other."""


# Numbers are taken one by one: a slice that is unpacked costs twice as much as all the rest.


def arrived(n: Numbers, at: int) -> Arrived:
    return Arrived(n[at + 1], n[at + 2], n[at + 3], n[at + 4])


def transferred(n: Numbers, at: int) -> Transferred:
    return Transferred(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5], n[at + 6])


def ran(n: Numbers, at: int) -> Ran:
    return Ran(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5])


def answered(n: Numbers, at: int) -> Answered:
    return Answered(n[at + 1], n[at + 2], n[at + 3])


def dropped(n: Numbers, at: int) -> Dropped:
    return Dropped(n[at + 1], n[at + 2], journal.REASONS[n[at + 3]], n[at + 4])


def slot_lost(n: Numbers, at: int) -> SlotLost:
    return SlotLost(n[at + 1], n[at + 2])


def slot_gained(n: Numbers, at: int) -> SlotGained:
    return SlotGained(n[at + 1], n[at + 2])


def dispatched(n: Numbers, at: int) -> Dispatched:
    first = at + 9 + n[at + 6]
    path = [
        Reservation(n[i], n[i + 1], n[i + 2], n[i + 3], n[i + 4])
        for i in range(first, first + 5 * n[at + 7], 5)
    ]
    requests = tuple(n[at + 9 : first])
    return Dispatched(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5], requests, tuple(path))


MAKE: dict[int, Callable[[Numbers, int], AnyEvent]] = {
    journal.ARRIVED: arrived,
    journal.DROPPED: dropped,
    journal.DISPATCHED: dispatched,
    journal.TRANSFERRED: transferred,
    journal.RAN: ran,
    journal.ANSWERED: answered,
    journal.SLOT_LOST: slot_lost,
    journal.SLOT_GAINED: slot_gained,
}
"""Kind of an entry -> its event, given the numbers and where the entry begins."""

LENGTHS = {
    **dict.fromkeys(MAKE, journal.SHORT),
    journal.TRANSFERRED: journal.SHORT + 2,
    journal.RAN: journal.SHORT + 1,
}
"""Numbers of an entry; of one of DISPATCHED, `dispatched_length`."""


def dispatched_length(numbers: Numbers, at: int) -> int:
    return 9 + numbers[at + 6] + 5 * numbers[at + 7]


def events_of(numbers: Numbers) -> Iterator[AnyEvent]:
    """The events of entries that are for the log."""
    at, end = 0, len(numbers)
    while at < end:
        kind = numbers[at]
        yield MAKE[kind](numbers, at)
        at += dispatched_length(numbers, at) if kind == journal.DISPATCHED else LENGTHS[kind]
