"""Virtual time, compiled: arrivals, transfers and runs around the dispatcher's kernel.

The same events in the same order as `SimClock` and `SimDriver` bring about, two orders of magnitude
faster. Scheduled events lie in a binary heap, ordered by instant, then by when they were scheduled.

Everything is compiled into `run`: handing the session's arrays over to another function costs more
than most of these do.
"""

from math import exp
from typing import Any, NamedTuple

import numpy as np

from headrace.dispatch.kernel.compile import entry, inlined, source_stamp
from headrace.dispatch.kernel.handle import ARRIVE, AWAKE, RAN, TRANSFERRED, tell
from headrace.dispatch.kernel.journal import (
    ANSWERED,
    DROPPED,
    ENDED,
    START_STAGE,
    START_TRANSFER,
    WAKE,
)
from headrace.dispatch.kernel.journal import RAN as HAS_RUN
from headrace.dispatch.kernel.layout import JOURNAL_WIDTH, State, state_at
from headrace.dispatch.kernel.pointers import Ints, define_table

RUNNING, DONE, ROWS_FULL, LOG_FULL, HEAP_FULL, NO_NORMALS, PAUSED, JOURNAL_FULL = range(8)
"""Why `run` returned: all is over, or something must grow (or report progress) first."""

EVENT = np.dtype([(name, "i8") for name in ("kind", "a", "b", "c", "d", "e", "f")])
"""As `handle` takes it; of a row that is free, `kind` is the next free one."""

SCHEDULED = np.dtype([(name, "i8") for name in ("at_us", "sequence", "event")])

PROGRESS = np.dtype(
    [
        (name, "i8")
        for name in (
            "next_arrival",
            "arrival_sequence",
            "pause_at",
            "sequence",
            "scheduled",
            "free_event",
            "normals_used",
            "logged",
        )
    ]
)


class Session(NamedTuple):
    """What a session reads and what it leaves. N requests, S slots, C scheduled events at most."""

    progress: Any
    """(1,) of PROGRESS."""
    arrived_at_us: Ints
    """(N,), not decreasing."""
    model: Ints
    """(N,)"""
    deadline_at_us: Ints
    """(N,)"""
    priority: Ints
    """(N,)"""
    sigma: Any
    """(stages x size_max,): of the logarithm of an execution time; empty: always the median."""
    normals: Any
    """Standard normal, one per execution."""
    ended_at_us: Ints
    """(N,): when the request was answered; -1: not."""
    reason: Ints
    """(N,): why it was dropped, index into `journal.REASONS`; -1: it was not."""
    busy_us: Ints
    """(S,): how long each slot has run."""
    heap: Any
    """(C,) of SCHEDULED."""
    events: Any
    """(C,) of EVENT."""
    log: Ints
    """(rows x JOURNAL_WIDTH,): the journal so far, if anybody wants it; else empty."""


session_at = define_table(
    "Session",
    Session._fields,
    {
        "progress": PROGRESS,
        "sigma": np.dtype("f8"),
        "normals": np.dtype("f8"),
        "heap": SCHEDULED,
        "events": EVENT,
    },
)
"""(addresses of a session) -> the session in compiled code."""


def _compiled(stamp: str) -> Any:
    @entry
    def run(state_addresses: Ints, session_addresses: Ints) -> int:
        if not stamp:
            return RUNNING
        s, session = state_at(state_addresses), session_at(session_addresses)
        progress = session.progress[0]
        log_margin = len(s.journal) // JOURNAL_WIDTH if len(session.log) else 0
        heap_margin = 4 * (len(s.slots) + len(s.nodes) + len(s.models)) + 16
        while True:
            if progress.next_arrival >= progress.pause_at:
                return PAUSED
            if progress.scheduled == 0 and progress.next_arrival == len(session.model):
                return DONE
            if s.world[0].requests + 1 >= len(s.requests):
                return ROWS_FULL
            if log_margin and len(session.log) // JOURNAL_WIDTH - progress.logged < log_margin:
                return LOG_FULL
            if len(session.heap) - progress.scheduled < heap_margin:
                return HEAP_FULL
            if len(session.sigma) and len(session.normals) - progress.normals_used < heap_margin:
                return NO_NORMALS
            written = _next_event(state_addresses, session)
            if written * JOURNAL_WIDTH > len(s.journal):
                return JOURNAL_FULL
            _carry_out(s, session, written)

    return run


@inlined
def _next_event(state_addresses: Ints, session: Session) -> int:
    """Let the earliest event happen; how many rows the journal has then."""
    progress, heap = session.progress[0], session.heap
    i = progress.next_arrival
    if i < len(session.model):
        at_us = session.arrived_at_us[i]
        first = progress.scheduled == 0 or at_us < heap[0].at_us
        if first or (at_us == heap[0].at_us and progress.arrival_sequence < heap[0].sequence):
            progress.next_arrival += 1
            progress.arrival_sequence = progress.sequence
            progress.sequence += 1
            return tell(state_addresses, ARRIVE, at_us, i, session.model[i], at_us,
                        session.deadline_at_us[i], session.priority[i], 0)  # fmt: skip
    at_us, row = heap[0].at_us, heap[0].event
    _pop(session)
    event = session.events[row]
    kind, a, b, c, d, e, f = event.kind, event.a, event.b, event.c, event.d, event.e, event.f
    event.kind = progress.free_event
    progress.free_event = row
    return tell(state_addresses, kind, at_us, a, b, c, d, e, f)


@inlined
def _carry_out(s: State, session: Session, written: int) -> None:
    """Do what the journal orders, and note what became of requests."""
    progress, journal = session.progress[0], s.journal
    for i in range(written):
        row = i * JOURNAL_WIDTH
        kind, at_us, a, b = journal[row], journal[row + 1], journal[row + 2], journal[row + 3]
        c, d = journal[row + 4], journal[row + 5]
        if kind == START_STAGE:
            table, size = journal[row + 8], journal[row + 7]
            ends_at = at_us + _duration(s, session, table * s.world[0].size_max + size - 1)
            _schedule(session, ends_at, RAN, a, b, c, d, at_us, ends_at)
        elif kind == ANSWERED:
            session.ended_at_us[a] = at_us
        elif kind == HAS_RUN:
            session.busy_us[c] += at_us - d
        elif kind == START_TRANSFER:
            ends_at = at_us + journal[row + 7]
            _schedule(session, ends_at, TRANSFERRED, a, b, c, d, at_us, 0)
        elif kind == WAKE:
            _schedule(session, at_us, AWAKE, a, b, 0, 0, 0, 0)
        elif kind == DROPPED:
            session.reason[a] = b
    if len(session.log):
        for i in range(written):
            kind = s.journal[i * JOURNAL_WIDTH]
            if kind not in (START_STAGE, START_TRANSFER, WAKE, ENDED):
                for column in range(JOURNAL_WIDTH):
                    to = progress.logged * JOURNAL_WIDTH + column
                    session.log[to] = s.journal[i * JOURNAL_WIDTH + column]
                progress.logged += 1


@inlined
def _duration(s: State, session: Session, entry_of: int) -> int:
    """Log-normal with the profile's median and 99th percentile, at least 1 us; or the median."""
    p50_us = s.p50_us[entry_of]
    if len(session.sigma) == 0:
        return p50_us
    progress = session.progress[0]
    normal = session.normals[progress.normals_used]
    progress.normals_used += 1
    return max(1, round(p50_us * exp(session.sigma[entry_of] * normal)))


@inlined
def _schedule(
    session: Session, at_us: int, kind: int, a: int, b: int, c: int, d: int, e: int, f: int
) -> None:
    progress, heap = session.progress[0], session.heap
    row = progress.free_event
    event = session.events[row]
    progress.free_event = event.kind
    event.kind, event.a, event.b, event.c, event.d, event.e, event.f = kind, a, b, c, d, e, f
    sequence = progress.sequence
    progress.sequence += 1
    place = progress.scheduled
    progress.scheduled += 1
    while place > 0:
        parent = (place - 1) >> 1
        if _comes_before(heap[parent], at_us, sequence):
            break
        _move(heap, parent, place)
        place = parent
    mine = heap[place]
    mine.at_us, mine.sequence, mine.event = at_us, sequence, row


@inlined
def _pop(session: Session) -> None:
    """Take the first event off the heap."""
    progress, heap = session.progress[0], session.heap
    progress.scheduled -= 1
    last = progress.scheduled
    at_us, sequence, row = heap[last].at_us, heap[last].sequence, heap[last].event
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        # Which child comes first is anybody's guess: a sum costs less than a wrong one.
        left, right = heap[child], heap[child + 1]
        same = left.at_us == right.at_us
        before = (right.at_us < left.at_us) | (same & (right.sequence < left.sequence))
        child += before & (child + 1 < last)
        if not _comes_before(heap[child], at_us, sequence):
            break
        _move(heap, child, place)
        place = child
    mine = heap[place]
    mine.at_us, mine.sequence, mine.event = at_us, sequence, row


@inlined
def _comes_before(one: Any, at_us: int, sequence: int) -> bool:
    return one.at_us < at_us or (one.at_us == at_us and one.sequence < sequence)


@inlined
def _move(heap: Any, from_place: int, to_place: int) -> None:
    source, target = heap[from_place], heap[to_place]
    target.at_us, target.sequence, target.event = source.at_us, source.sequence, source.event


def _stamp() -> str:
    """Of this file and the kernel."""
    from hashlib import sha256
    from pathlib import Path

    return sha256(source_stamp().encode() + Path(__file__).read_bytes()).hexdigest()


run = _compiled(_stamp())
