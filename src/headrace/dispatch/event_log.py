"""From the kernel's journal to the events of the log.

Each batch has half a dozen events, and each of them is made in a fraction of a microsecond: one
function per kind takes an entry's numbers from a list and says where the next entry begins.
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

MakeEvent = Callable[[Numbers, int], tuple[AnyEvent, int]]
"""(numbers, where an entry begins) -> (its event, where the next entry begins)"""


def events_of(numbers: Numbers) -> Iterator[AnyEvent]:
    """The events of entries that are for the log."""
    at = 0
    while at < len(numbers):
        event, at = MAKE_EVENT[numbers[at]](numbers, at)
        yield event


def arrived(numbers: Numbers, at: int) -> tuple[Arrived, int]:
    return Arrived(*numbers[at + 1 : at + 5]), at + 5


def dropped(numbers: Numbers, at: int) -> tuple[Dropped, int]:
    _, at_us, request, reason, retry_after_us = numbers[at : at + 5]
    return Dropped(at_us, request, journal.REASONS[reason], retry_after_us), at + 5


def dispatched(numbers: Numbers, at: int) -> tuple[Dispatched, int]:
    _, at_us, batch, model, pipeline, first_stage, size, hops, _ = numbers[at : at + 9]
    first = at + 9 + size
    after = first + 5 * hops
    path = tuple([Reservation(*numbers[i : i + 5]) for i in range(first, after, 5)])
    requests = tuple(numbers[at + 9 : first])
    return Dispatched(at_us, batch, model, pipeline, first_stage, requests, path), after


def transferred(numbers: Numbers, at: int) -> tuple[Transferred, int]:
    return Transferred(*numbers[at + 1 : at + 7]), at + 7


def ran(numbers: Numbers, at: int) -> tuple[Ran, int]:
    return Ran(*numbers[at + 1 : at + 6]), at + 6


def answered(numbers: Numbers, at: int) -> tuple[Answered, int]:
    return Answered(*numbers[at + 1 : at + 4]), at + 5


def slot_lost(numbers: Numbers, at: int) -> tuple[SlotLost, int]:
    return SlotLost(*numbers[at + 1 : at + 3]), at + 5


def slot_gained(numbers: Numbers, at: int) -> tuple[SlotGained, int]:
    return SlotGained(*numbers[at + 1 : at + 3]), at + 5


MAKE_EVENT: dict[int, MakeEvent] = {
    journal.ARRIVED: arrived,
    journal.DROPPED: dropped,
    journal.DISPATCHED: dispatched,
    journal.TRANSFERRED: transferred,
    journal.RAN: ran,
    journal.ANSWERED: answered,
    journal.SLOT_LOST: slot_lost,
    journal.SLOT_GAINED: slot_gained,
}
"""Kind of an entry -> its event. The other kinds are orders."""
