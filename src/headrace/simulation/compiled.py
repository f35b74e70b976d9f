"""A simulated session without Python in its loop: arrays in, what became of every request out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from headrace.dispatch.facts import facts_of
from headrace.dispatch.kernel.handle import GAINED, LOST
from headrace.dispatch.kernel.layout import JOURNAL_WIDTH, Ints, addresses
from headrace.dispatch.kernel.tables import grow, make_state
from headrace.dispatch.policies import rules_of
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.events import AnyEvent
from headrace.simulation import loop
from headrace.simulation.driver import NORMALS_AT_ONCE, sigma_of

NEVER = 1 << 62
FIRST_EVENTS = 1024
LOG_ROWS = 1 << 16
ROWS_AT_ONCE = 256
PROGRESS_STEP = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """N requests, in order of arrival; a request's id is its index."""

    arrived_at_us: Ints
    model: Ints
    """Index among the topology's models."""
    deadline_at_us: Ints
    priority: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What became of N requests on S slots."""

    ended_at_us: Ints
    """Shape (N,): when it was answered; -1: never."""
    reason: Ints
    """Shape (N,): why it was dropped, an index into `journal.REASONS`; -1: it was answered."""
    busy_us: Ints
    """Shape (S,): how long each slot ran."""
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """A slot, by index, is lost or gained."""

    at_us: int
    slot: int
    gained: bool


def offer(topology: Topology, arrived_at_us: Ints, model: Ints | int = 0) -> Offered:
    """Requests with their model's SLO as deadline, all of one priority."""
    arrived_at_us = np.ascontiguousarray(arrived_at_us, dtype=np.int64)
    models = np.broadcast_to(np.asarray(model, dtype=np.int64), arrived_at_us.shape).copy()
    slos_us = np.array([each.slo_us for each in topology.models], dtype=np.int64)
    return Offered(
        arrived_at_us=arrived_at_us,
        model=models,
        deadline_at_us=arrived_at_us + slos_us[models],
        priority=np.zeros(len(models), dtype=np.int64),
    )


def run(
    topology: Topology,
    policy: str,
    offered: Offered,
    *,
    rng: np.random.Generator | None = None,
    changes: Sequence[SlotChange] = (),
    log: list[AnyEvent] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Outcomes:
    """Simulate until the last request is answered or dropped.

    Args:
        rng: for execution times with the profile's spread; None: always the medians.
        changes: of slots; at equal instants before everything else.
        log: filled with everything that happened, if given.
        on_progress: called with the number of arrivals so far, now and then.

    Raises:
        PlanError: no policy has this name.
    """
    state = make_state(topology, rules_of(policy), queue_max=10_000)
    session = _open(topology, offered, rng, changes, logged=log is not None)
    progress = session.progress
    step = PROGRESS_STEP if on_progress else NEVER
    progress["pause_at"] = step
    while True:
        why = loop.run(addresses(state), addresses(session))
        if log is not None and why in (loop.LOG_FULL, loop.DONE):
            log.extend(facts_of(_rows_of(session.log, int(progress["logged"][0]))))
            progress["logged"] = 0
        assert why != loop.JOURNAL_FULL, "the journal has room for all an event can bring"
        if why == loop.DONE:
            break
        if why == loop.PAUSED:
            arrived = int(progress["next_arrival"][0])
            progress["pause_at"] = arrived + step if arrived < len(offered.model) else NEVER
            if on_progress is not None:
                on_progress(arrived)
        elif why == loop.ROWS_FULL:
            state = grow(state, 2 * len(state.requests))
        elif why == loop.HEAP_FULL:
            session = _with_more_events(session)
        elif why == loop.NO_NORMALS:
            assert rng is not None
            session = _with_more_normals(session, rng)
        if len(session.log):
            session = _with_room_in_log(session, len(state.journal) // JOURNAL_WIDTH)
    return Outcomes(
        ended_at_us=session.ended_at_us,
        reason=session.reason,
        busy_us=session.busy_us,
        batches=int(state.world["next_batch"][0]),
    )


def _rows_of(log: Ints, count: int) -> Iterator[list[int]]:
    """The first rows of a log as lists, of which only a few exist at a time.

    Python's garbage collector looks at all lists again and again: with many of them that took
    longer than all the rest.
    """
    rows = log.reshape(-1, JOURNAL_WIDTH)[:count]
    pieces = (rows[at : at + ROWS_AT_ONCE].tolist() for at in range(0, count, ROWS_AT_ONCE))
    return chain.from_iterable(pieces)


def _open(
    topology: Topology,
    offered: Offered,
    rng: np.random.Generator | None,
    changes: Sequence[SlotChange],
    *,
    logged: bool,
) -> loop.Session:
    requests = len(offered.model)
    session = loop.Session(
        progress=np.zeros(1, loop.PROGRESS),
        arrived_at_us=offered.arrived_at_us,
        model=offered.model,
        deadline_at_us=offered.deadline_at_us,
        priority=offered.priority,
        sigma=np.zeros(0) if rng is None else _sigmas(topology),
        normals=np.zeros(0),
        ended_at_us=np.full(requests, -1, dtype=np.int64),
        reason=np.full(requests, -1, dtype=np.int64),
        busy_us=np.zeros(len(topology.slots), dtype=np.int64),
        heap=np.zeros(0, loop.SCHEDULED),
        events=np.zeros(0, loop.EVENT),
        log=np.zeros(LOG_ROWS * JOURNAL_WIDTH if logged else 0, dtype=np.int64),
    )
    session = _with_more_events(session, at_least=2 * len(changes) + 8 * len(topology.slots))
    # An ordered list is a heap.
    for place, change in enumerate(sorted(changes, key=lambda change: change.at_us)):
        session.heap[place] = change.at_us, place, place
        session.events[["kind", "a"]][place] = GAINED if change.gained else LOST, change.slot
    progress = session.progress
    progress["scheduled"] = progress["free_event"] = len(changes)
    progress["arrival_sequence"], progress["sequence"] = len(changes), len(changes) + 1
    return session


def _sigmas(topology: Topology) -> npt.NDArray[np.float64]:
    """In the order of the kernel's table of medians."""
    routes = [route for model in topology.models for route in model.routes]
    sizes = max(route.batch_size for route in routes)
    stages: list[StageTable] = [stage for route in routes for stage in route.stages]
    sigmas = np.zeros((len(stages), sizes))
    for i, stage in enumerate(stages):
        for size in range(1, len(stage.p50_us) + 1):
            sigmas[i, size - 1] = sigma_of(stage, size)
    return sigmas.ravel()


def _with_more_events(session: loop.Session, at_least: int = FIRST_EVENTS) -> loop.Session:
    had = len(session.heap)
    rows = max(2 * had, at_least, FIRST_EVENTS)
    events = np.zeros(rows, loop.EVENT)
    events[:had] = session.events
    # Free rows are a list.
    events["kind"][had:] = np.append(np.arange(had + 1, rows), session.progress["free_event"])
    session.progress["free_event"] = had
    heap = np.zeros(rows, loop.SCHEDULED)
    heap[:had] = session.heap
    return session._replace(events=events, heap=heap)


def _with_more_normals(session: loop.Session, rng: np.random.Generator) -> loop.Session:
    left = session.normals[int(session.progress["normals_used"][0]) :]
    session.progress["normals_used"] = 0
    more = [rng.standard_normal(NORMALS_AT_ONCE)[::-1] for _ in range(16)]
    return session._replace(normals=np.concatenate([left, *more]))


def _with_room_in_log(session: loop.Session, rows: int) -> loop.Session:
    """For all that one event can bring about."""
    logged = int(session.progress["logged"][0])
    if len(session.log) // JOURNAL_WIDTH - logged >= rows:
        return session
    log = np.zeros(2 * (logged + rows) * JOURNAL_WIDTH, dtype=np.int64)
    log[: logged * JOURNAL_WIDTH] = session.log[: logged * JOURNAL_WIDTH]
    return session._replace(log=log)
