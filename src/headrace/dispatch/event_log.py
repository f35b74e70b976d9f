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
    Evicted,
    Loaded,
    LoadFailed,
    Loading,
    Opened,
    Placed,
    Ran,
    Reservation,
    SlotGained,
    SlotLost,
    Transferred,
)

Numbers = tuple[int, ...]
"""Whole entries of the journal, one after the other."""


# Numbers are taken one by one: a slice that is unpacked costs twice as much as all the rest.


def arrived(n: Numbers, at: int) -> Arrived:
    return Arrived(n[at + 1], n[at + 2], n[at + 3], n[at + 4])


def transferred(n: Numbers, at: int) -> Transferred:
    return Transferred(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5], n[at + 6])


def ran(n: Numbers, at: int) -> Ran:
    return Ran(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5])


def answered(n: Numbers, at: int) -> Iterator[Answered]:
    for request in n[at + 4 : at + 4 + n[at + 3]]:
        yield Answered(n[at + 1], request, n[at + 2])


def dropped(n: Numbers, at: int) -> Dropped:
    return Dropped(n[at + 1], n[at + 2], journal.REASONS[n[at + 3]], n[at + 4])


def opened(n: Numbers, at: int) -> Opened:
    return Opened(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5], n[at + 6])


def items_arrived(n: Numbers, at: int) -> Iterator[Arrived]:
    for item in range(n[at + 2], n[at + 2] + n[at + 5]):
        yield Arrived(n[at + 1], item, n[at + 3], n[at + 4])


def placed(n: Numbers, at: int) -> Placed:
    return Placed(n[at + 1], n[at + 2], n[at + 4], n[at + 5 : at + 5 + n[at + 3]])


def given_up(n: Numbers, at: int) -> Iterator[Dropped]:
    for item in range(n[at + 2], n[at + 2] + n[at + 5]):
        yield Dropped(n[at + 1], item, journal.REASONS[n[at + 3]], n[at + 4])


def slot_lost(n: Numbers, at: int) -> SlotLost:
    return SlotLost(n[at + 1], n[at + 2])


def slot_gained(n: Numbers, at: int) -> SlotGained:
    return SlotGained(n[at + 1], n[at + 2])


def loading(n: Numbers, at: int) -> Loading:
    return Loading(n[at + 1], n[at + 2], n[at + 3], n[at + 4])


def loaded(n: Numbers, at: int) -> Loaded:
    return Loaded(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5])


def load_failed(n: Numbers, at: int) -> LoadFailed:
    return LoadFailed(n[at + 1], n[at + 2], n[at + 3], n[at + 4])


def evicted(n: Numbers, at: int) -> Evicted:
    return Evicted(n[at + 1], n[at + 2], n[at + 3])


def dispatched(n: Numbers, at: int) -> Dispatched:
    first = at + 9 + n[at + 6]
    path: tuple[Reservation, ...] = ()
    # Two or three: growing a tuple costs less than making one of a list.
    for i in range(first, first + 5 * n[at + 7], 5):
        path += (Reservation(n[i], n[i + 1], n[i + 2], n[i + 3], n[i + 4]),)
    requests = n[at + 9 : first]
    return Dispatched(n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5], requests, path)


def dispatched_length(n: Numbers, at: int) -> int:
    return 9 + n[at + 6] + 5 * n[at + 7]


MAKE: dict[int, Callable[[Numbers, int], AnyEvent]] = {
    journal.ARRIVED: arrived,
    journal.DROPPED: dropped,
    journal.TRANSFERRED: transferred,
    journal.RAN: ran,
    journal.SLOT_LOST: slot_lost,
    journal.SLOT_GAINED: slot_gained,
    journal.LOADING: loading,
    journal.LOADED: loaded,
    journal.LOAD_FAILED: load_failed,
    journal.EVICTED: evicted,
}
"""Kind of an entry -> its event, given the numbers and where the entry begins. DISPATCHED and
ANSWERED, which are longer the more requests there are, have functions of their own."""

LENGTHS = {
    **dict.fromkeys(MAKE, journal.SHORT),
    journal.TRANSFERRED: journal.SHORT + 2,
    **dict.fromkeys((journal.RAN, journal.LOADING, journal.LOADED), journal.SHORT + 1),
}
"""Numbers of such an entry."""


def events_of(numbers: Numbers) -> Iterator[AnyEvent]:
    """The events of entries that are for the log."""
    at, end = 0, len(numbers)
    while at < end:
        kind = numbers[at]
        if kind == journal.ANSWERED:
            yield from answered(numbers, at)
            at += 4 + numbers[at + 3]
        elif kind == journal.DISPATCHED:
            yield dispatched(numbers, at)
            at += dispatched_length(numbers, at)
        elif kind == journal.OPENED:
            yield opened(numbers, at)
            yield from items_arrived(numbers, at)
            at += journal.SHORT + 2
        elif kind == journal.PLACED:
            yield placed(numbers, at)
            at += journal.SHORT + numbers[at + 3]
        elif kind == journal.GIVEN_UP:
            yield from given_up(numbers, at)
            at += journal.SHORT + 1
        else:
            yield MAKE[kind](numbers, at)
            at += LENGTHS[kind]
