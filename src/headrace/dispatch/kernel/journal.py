"""What the kernel tells its driver: entries of whole numbers, in the order they came about.

An entry is its kind, an instant, and three numbers; of some kinds more follow. Python makes an
object of each number that it reads, so that they are few:

    ARRIVED         at, request, model, deadline_at
    DROPPED         at, request, reason, retry_after_us                    and to be refused
    DISPATCHED      at, batch, model, pipeline, first stage, size, hops, row, then
                    `size` requests, then `hops` times: slot, transfer_at, transfer_us, start_at,
                    latency_us
    TRANSFERRED     at, batch, stage, from slot, to slot, started_at
    RAN             at, batch, stage, slot, started_at
    ANSWERED        at, batch, size, then `size` requests                  and to be answered
    OPENED          at, first request, model, deadline_at, items, priority
    PLACED          at, first request, stages, ends_at, then `stages` times: slot
    GIVEN_UP        at, first request, reason, retry_after_us, count       and to be refused, all
    SLOT_LOST, SLOT_GAINED  at, slot, 0, 0
    LOADING         at, load, slot, model, load_us                         to be loaded
    LOADED          at, load, slot, model, started_at
    LOAD_FAILED     at, load, slot, model
    EVICTED         at, slot, model, 0                                     to be evicted
    ENDED           at, batch, 0, 0                                        it has no answer
    START_TRANSFER  at, row, batch, stage, attempt, slot, transfer_us      to be started
    START_STAGE     at, row, batch, stage, attempt, slot                   to be started
    WAKE            at, what, which, 0                                     to be woken then

The kinds up to EVICTED are for the log of events, with the numbers of an event in its order
(of ANSWERED: one event for each of its requests). Where nobody reads that (`world.logged` is 0),
ARRIVED, TRANSFERRED, RAN, OPENED and PLACED are not written, and DISPATCHED has no hops: half of
all numbers are for the log alone.

What an event is about comes first: the report of an arrival begins with ARRIVED, that of a run with
RAN unless it is stale.
"""

from typing import Any

from headrace.compilation.loops import hot
from headrace.dispatch.kernel.layout import State
from headrace.domain.request import DropReason

ARRIVED, DROPPED, DISPATCHED, TRANSFERRED, RAN, ANSWERED = range(6)
OPENED, PLACED, GIVEN_UP, SLOT_LOST, SLOT_GAINED = range(6, 11)
LOADING, LOADED, LOAD_FAILED, EVICTED = range(11, 15)
ENDED, START_TRANSFER, START_STAGE, WAKE = range(15, 19)

WAKE_QUEUE, WAKE_SLOT, WAKE_LINKS = range(3)

REASONS: tuple[DropReason, ...] = (
    "deadline",
    "no-slot",
    "draining",
    "queue-full",
    "failed",
    "cancelled",
    "invalid-input",
)
"""`DropReason`s; the journal has their indices."""
DEADLINE, NO_SLOT, DRAINING, QUEUE_FULL, FAILED, CANCELLED, INVALID_INPUT = range(7)

SHORT = 5
"""Numbers of an entry without more."""


@hot
def length_of(journal: Any, i: int) -> int:
    """Numbers of the entry that begins at `i`."""
    kind = journal[i]
    if kind in (START_STAGE, TRANSFERRED):
        return SHORT + 2
    if kind in (RAN, LOADING, LOADED):
        return SHORT + 1
    if kind == ANSWERED:
        return SHORT - 1 + journal[i + 3]
    if kind == START_TRANSFER:
        return SHORT + 3
    if kind == DISPATCHED:
        return SHORT + 4 + journal[i + 6] + 5 * journal[i + 7]
    if kind == OPENED:
        return SHORT + 2
    if kind == PLACED:
        return SHORT + journal[i + 3]
    if kind == GIVEN_UP:
        return SHORT + 1
    return SHORT


# There is room for all that one event can bring about (`Store.grow`). Were there not, numbers would
# be counted but not written, which whoever reads them refuses.


@hot
def note(s: State, kind: int, at_us: int, a: int, b: int, c: int) -> None:
    """Begin an entry."""
    world, journal = s.world[0], s.journal
    i = world.journal
    world.journal = i + SHORT
    if i + SHORT > len(journal):
        return
    journal[i] = kind
    journal[i + 1] = at_us
    journal[i + 2] = a
    journal[i + 3] = b
    journal[i + 4] = c


@hot
def add(s: State, number: int) -> None:
    """One number more."""
    world = s.world[0]
    i = world.journal
    world.journal = i + 1
    if i < len(s.journal):
        s.journal[i] = number


@hot
def add_two(s: State, a: int, b: int) -> None:
    """Two numbers more."""
    world, journal = s.world[0], s.journal
    i = world.journal
    world.journal = i + 2
    if i + 2 > len(journal):
        return
    journal[i] = a
    journal[i + 1] = b


@hot
def add_four(s: State, a: int, b: int, c: int, d: int) -> None:
    """Four numbers more."""
    world, journal = s.world[0], s.journal
    i = world.journal
    world.journal = i + 4
    if i + 4 > len(journal):
        return
    journal[i] = a
    journal[i + 1] = b
    journal[i + 2] = c
    journal[i + 3] = d
