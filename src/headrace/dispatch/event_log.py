"""From the kernel's journal to the events of the log.

Each batch has half a dozen events, so each of them is made in a fraction of a microsecond: most
entries hold the numbers of an event in its order, and are turned into one by its class.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


class Plain(NamedTuple):
    """How an entry becomes an event: its numbers from the second up to `end` are the event's."""

    event: Callable[..., AnyEvent]
    end: int
    length: int
    """Of the entry; what is behind `end` fills it up."""


PLAIN: dict[int, Plain] = {
    journal.ARRIVED: Plain(Arrived, 5, 5),
    journal.TRANSFERRED: Plain(Transferred, 7, 7),
    journal.RAN: Plain(Ran, 6, 6),
    journal.ANSWERED: Plain(Answered, 4, 5),
    journal.SLOT_LOST: Plain(SlotLost, 3, 5),
    journal.SLOT_GAINED: Plain(SlotGained, 3, 5),
}
"""By kind of entry; `dropped` and `dispatched` make the two other events."""


def dropped(numbers: Numbers, at: int) -> tuple[Dropped, int]:
    """The event, and where the next entry begins."""
    _, at_us, request, reason, retry_after_us = numbers[at : at + 5]
    return Dropped(at_us, request, journal.REASONS[reason], retry_after_us), at + 5


def dispatched(numbers: Numbers, at: int) -> tuple[Dispatched, int]:
    """The event, and where the next entry begins."""
    _, at_us, batch, model, pipeline, first_stage, size, hops, _ = numbers[at : at + 9]
    first = at + 9 + size
    after = first + 5 * hops
    path = tuple([Reservation(*numbers[i : i + 5]) for i in range(first, after, 5)])
    requests = tuple(numbers[at + 9 : first])
    return Dispatched(at_us, batch, model, pipeline, first_stage, requests, path), after


def events_of(numbers: Numbers) -> Iterator[AnyEvent]:
    """The events of entries that are for the log."""
    at, end = 0, len(numbers)
    while at < end:
        kind = numbers[at]
        event: Any
        if kind == journal.DISPATCHED:
            event, at = dispatched(numbers, at)
        elif kind == journal.DROPPED:
            event, at = dropped(numbers, at)
        else:
            plain = PLAIN[kind]
            event = plain.event(*numbers[at + 1 : at + plain.end])
            at += plain.length
        yield event
