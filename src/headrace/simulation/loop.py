"""Virtual time, compiled: arrivals, transfers and runs around the dispatcher's kernel.

The same events in the same order as `SimClock` and `SimDriver` bring about, two orders of magnitude
faster. One total order: by instant, then by when an event was scheduled (its sequence number).

    scheduled events   a binary heap of (instant, sequence, row of `events`); O(log n) each
    arrivals           not in the heap, since they are in order already: the next one has the
                       sequence number of the instant at which `SimClock` would have scheduled it,
                       which is when the one before it arrived

So the next event is the lesser of two. It is handled by the kernel; then the journal is carried
out: orders become scheduled events, and what became of requests is noted. Nothing is allocated:
`run` returns before it could run out of room (its reason says of what) and is called again with
more.

Everything is compiled into `run`: handing the session's arrays over to another function costs more
than most of these do.
"""

from functools import cache
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.compilation.loops import entry, hot, ready, source_key
from headrace.compilation.tables import NUMBER, Ints, TableKind, Where, table_at
from headrace.dispatch.kernel.contract import PolicyModule
from headrace.dispatch.kernel.handle import (
    ARRIVE,
    AWAKE,
    LOADED,
    OPEN,
    RAN,
    TRANSFERRED,
    handle,
    kernel_of,
)
from headrace.dispatch.kernel.journal import (
    ANSWERED,
    DROPPED,
    EVICTED,
    GIVEN_UP,
    START_STAGE,
    START_TRANSFER,
    WAKE,
    length_of,
)
from headrace.dispatch.kernel.journal import LOADING as IS_LOADING
from headrace.dispatch.kernel.journal import RAN as HAS_RUN
from headrace.dispatch.kernel.layout import State, ints

DONE, ROWS_FULL, LOG_FULL, HEAP_FULL, NO_NORMALS, PAUSED, JOURNAL_FULL = range(7)
"""Why `run` returned: all is over, or something must grow (or report progress) first."""

EVENT = ints("kind", "a", "b", "c", "d", "e", "f")
"""As `handle` takes it; of a row that is free, `kind` is the next free one."""

SCHEDULED = ints("at_us", "sequence", "event")

PROGRESS = ints(
    *("next_arrival", "arrival_sequence", "pause_at", "sequence", "scheduled", "free_event"),
    *("normals_used", "logged", "slower_from", "delay_us"),
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
    items: Ints
    """(N,): of a request that begins here, how many of these it is; empty: one each."""
    sigma: Any
    """(stages x size_max,): of the logarithm of an execution time; empty: always the median."""
    load_sigma: Any
    """(models,): the same of a load; empty: always the median."""
    normals: Any
    """Standard normal, one per execution and per load."""
    slower_stages: Any
    """(stages,): as many times longer batches take, from `slower_from` on; `delay_us` on top."""
    slower_slots: Any
    """(S,): and as many times on these slots; empty: as profiled."""
    own_terms: Any
    """(stages x size_max x terms,): of slowdowns (`beside`); empty: nothing slows anything."""
    other_terms: Any
    """The same of what runs beside; times `own_terms` and summed they are a slowdown."""
    alone_us: Ints
    """(stages x size_max,): medians with nothing beside; with `own_terms`."""
    server_us: Ints
    """(stages,): of a batch, on top."""
    first_near: Ints
    """(S + 1,): where each slot's neighbours begin in `near`."""
    near: Ints
    """Slots."""
    ended_at_us: Ints
    """(N,): when the request was answered; -1: not."""
    reason: Ints
    """(N,): why it was dropped, index into `journal.REASONS`; -1: it was not."""
    busy_us: Ints
    """(S,): how long each slot has run."""
    loaded_at_us: Ints
    """(S,): when the last load of each slot ends."""
    heap: Any
    """(C,) of SCHEDULED."""
    events: Any
    """(C,) of EVENT."""
    log: Ints
    """Entries of the journal that are for the log, if anybody wants them; else empty."""


DTYPES = {
    **dict.fromkeys(Session._fields, NUMBER),
    "progress": PROGRESS,
    "sigma": np.dtype("f8"),
    "load_sigma": np.dtype("f8"),
    "normals": np.dtype("f8"),
    "slower_stages": np.dtype("f8"),
    "slower_slots": np.dtype("f8"),
    "own_terms": np.dtype("f8"),
    "other_terms": np.dtype("f8"),
    "heap": SCHEDULED,
    "events": EVENT,
}


class Loop:
    """The loop, compiled around the kernel of one policy."""

    def __init__(self, policy: PolicyModule) -> None:
        kernel = kernel_of(policy)
        key = source_key([Path(__file__)], kernel.key)
        self.state_kind = kernel.kind
        self.session_kind = TableKind(key, DTYPES)
        self.run = ready(_entry(kernel.key, key), arguments=2)
        """(where the state is, where the session is) -> why it returned"""


@cache
def loop_of(policy: PolicyModule) -> Loop:
    """Once per process; compiled once per version and machine."""
    return Loop(policy)


def _entry(state_key: int, session_key: int) -> Any:
    @entry
    def run(state_at: Where, session_at: Where) -> int:
        s, session = table_at(state_at, state_key), table_at(session_at, session_key)
        progress = session.progress[0]
        log_margin = len(s.journal) if len(session.log) else 0
        heap_margin = 4 * (len(s.slots) + len(s.nodes) + len(s.models)) + 16
        while True:
            if progress.next_arrival >= progress.pause_at:
                return PAUSED
            if progress.scheduled == 0 and progress.next_arrival == len(session.model):
                return DONE
            if s.world[0].requests + s.world[0].margin >= len(s.requests):
                return ROWS_FULL
            if log_margin and len(session.log) - progress.logged < log_margin:
                return LOG_FULL
            if len(session.heap) - progress.scheduled < heap_margin:
                return HEAP_FULL
            if len(session.sigma) and len(session.normals) - progress.normals_used < heap_margin:
                return NO_NORMALS
            s.world[0].journal = 0
            _next_event(s, session)
            written = s.world[0].journal
            if written > len(s.journal):
                return JOURNAL_FULL
            _carry_out(s, session, written)

    return run


@hot
def _next_event(s: State, session: Session) -> None:
    """Let the earliest event happen."""
    progress, heap = session.progress[0], session.heap
    i = progress.next_arrival
    if i < len(session.model):
        at_us = session.arrived_at_us[i]
        first = progress.scheduled == 0 or at_us < heap[0].at_us
        if first or (at_us == heap[0].at_us and progress.arrival_sequence < heap[0].sequence):
            kind, count = ARRIVE, 0
            if len(session.items):
                kind, count = OPEN, session.items[i]
            progress.next_arrival += max(1, count)
            progress.arrival_sequence = progress.sequence
            progress.sequence += 1
            handle(s, kind, at_us, i, session.model[i], at_us,
                   session.deadline_at_us[i], session.priority[i], count)  # fmt: skip
            return
    at_us, row = heap[0].at_us, heap[0].event
    _pop(session)
    event = session.events[row]
    kind, a, b, c, d, e, f = event.kind, event.a, event.b, event.c, event.d, event.e, event.f
    event.kind = progress.free_event
    progress.free_event = row
    handle(s, kind, at_us, a, b, c, d, e, f)


@hot
def _carry_out(s: State, session: Session, written: int) -> None:
    """Do what the journal orders, and note what became of requests."""
    progress, journal = session.progress[0], s.journal
    logs = len(session.log) > 0
    i = 0
    while i < written:
        kind, at_us = journal[i], journal[i + 1]
        a, b, c = journal[i + 2], journal[i + 3], journal[i + 4]
        length = length_of(journal, i)
        if kind == START_STAGE:
            ends_at = _stage_ends_at(s, session, at_us, a, c, journal[i + 6])
            _schedule(session, ends_at, RAN, a, b, c, journal[i + 5], at_us, ends_at)
        elif kind == ANSWERED:
            for place in range(i + 4, i + 4 + b):
                session.ended_at_us[journal[place]] = at_us
        elif kind == HAS_RUN:
            session.busy_us[c] += at_us - journal[i + 5]
        elif kind == START_TRANSFER:
            ends_at = at_us + journal[i + 7]
            _schedule(session, ends_at, TRANSFERRED, a, b, c, journal[i + 5], at_us, 0)
        elif kind == IS_LOADING:
            took_us = journal[i + 5]
            if len(session.load_sigma):
                took_us = _drawn_us(session, session.load_sigma[c], took_us)
            session.loaded_at_us[b] = at_us + took_us
            _schedule(session, at_us + took_us, LOADED, a, b, at_us, 0, 0, 0)
        elif kind == WAKE:
            _schedule(session, at_us, AWAKE, a, b, 0, 0, 0, 0)
        elif kind == DROPPED:
            session.reason[a] = b
        elif kind == GIVEN_UP:
            for item in range(a, a + journal[i + 5]):
                session.reason[item] = b
        if logs and kind <= EVICTED:
            for place in range(length):
                session.log[progress.logged + place] = journal[i + place]
            progress.logged += length
        i += length


@hot
def _stage_ends_at(
    s: State, session: Session, at_us: int, batch: int, stage: int, slot: int
) -> int:
    """Of a batch (its row) that begins on the slot: by its median beside what runs there, spread,
    slowed as the session says, and with the load that it began before (`Start.behind_us`)."""
    table = s.routes[s.batches[batch].route].first_stage + stage
    entry_of = table * s.world[0].size_max + s.batches[batch].size - 1
    median_us = s.p50_us[entry_of]
    if len(session.own_terms):
        median_us = _beside_us(s, session, table, entry_of, slot)
    took_us = _duration(session, entry_of, median_us)
    if len(session.slower_slots) and at_us >= session.progress[0].slower_from:
        factor = session.slower_stages[table] * session.slower_slots[slot]
        took_us = round(took_us * factor) + session.progress[0].delay_us
    ends_at: int = at_us + took_us
    line = s.slots[slot]
    if line.cold:
        exec_us = s.p50_us[table * s.world[0].size_max] + line.cold_more_us
        took_us = max(1, took_us + line.cold_more_us)
        tail_us = line.cold_tail_us
        part_us = min(tail_us, exec_us)
        behind_us = tail_us - part_us + part_us * took_us // max(1, exec_us)
        ends_at = max(at_us + took_us, session.loaded_at_us[slot] + behind_us)
    return ends_at


@hot
def _beside_us(s: State, session: Session, table: int, entry_of: int, slot: int) -> int:
    """The median beside what runs on the device's other slots now."""
    slowdown, terms = 1.0, len(session.own_terms) // len(session.alone_us)
    for place in range(session.first_near[slot], session.first_near[slot + 1]):
        batch = s.slots[session.near[place]].running
        if batch >= 0:
            other = s.routes[s.batches[batch].route].first_stage + s.batches[batch].stage
            other_of = other * s.world[0].size_max + s.batches[batch].size - 1
            total = 0.0
            for term in range(terms):
                own = session.own_terms[entry_of * terms + term]
                total += own * session.other_terms[other_of * terms + term]
            slowdown = max(slowdown, total)
    return round(session.alone_us[entry_of] * slowdown) + session.server_us[table]


@hot
def _duration(session: Session, entry_of: int, p50_us: int) -> int:
    """Log-normal with this median and the profile's spread, at least 1 us; or the median."""
    if len(session.sigma) == 0:
        return p50_us
    return _drawn_us(session, session.sigma[entry_of], p50_us)


@hot
def _drawn_us(session: Session, sigma: float, p50_us: int) -> int:
    progress = session.progress[0]
    normal = session.normals[progress.normals_used]
    progress.normals_used += 1
    return max(1, round(p50_us * exp(sigma * normal)))


@hot
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


@hot
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


@hot
def _comes_before(one: Any, at_us: int, sequence: int) -> bool:
    return one.at_us < at_us or (one.at_us == at_us and one.sequence < sequence)


@hot
def _move(heap: Any, from_place: int, to_place: int) -> None:
    source, target = heap[from_place], heap[to_place]
    target.at_us, target.sequence, target.event = source.at_us, source.sequence, source.event
