"""A simulated session without Python in its loop: arrays in, what became of every request out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.dispatch.event_log import events_of
from headrace.dispatch.kernel.handle import GAINED, LOST
from headrace.dispatch.kernel.layout import NEVER_US, Ints
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.policies import Policy, chosen_for
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.events import AnyEvent
from headrace.simulation import loop as loops
from headrace.simulation.beside import Beside
from headrace.simulation.driver import NORMALS_AT_ONCE, Slower, sigma_of, table_of_loads
from headrace.simulation.gateway import through_gateway
from headrace.simulation.loop import loop_of

FIRST_EVENTS = 1024
LOG_NUMBERS = 1 << 14
"""Of the log at a time: Python's garbage collector looks at long lists again and again."""
PROGRESS_STEP = 10_000
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """N requests, in order of arrival; a request's id is its index."""

    arrived_at_us: Ints
    model: Ints
    """Index among the topology's models."""
    deadline_at_us: Ints
    priority: Ints
    items: Ints = field(default_factory=lambda: _NONE)
    """With a malleable plan: of an entry at which a request begins, how many entries it is, one per
    item; elsewhere anything. Empty: each entry is a request of its own."""


def of_items(requests: Offered, items: Ints) -> Offered:
    """Each of N requests as so many items.

    Args:
        items: shape (N,), at least 1.
    """
    return Offered(
        arrived_at_us=np.repeat(requests.arrived_at_us, items),
        model=np.repeat(requests.model, items),
        deadline_at_us=np.repeat(requests.deadline_at_us, items),
        priority=np.repeat(requests.priority, items),
        items=np.repeat(items, items),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutcomes:
    """What became of N requests on S slots."""

    ended_at_us: Ints
    """Shape (N,): when it was answered; -1: never."""
    reason: Ints
    """Shape (N,): why it was dropped, an index into `journal.REASONS`; -1: it was answered."""
    busy_us: Ints
    """Shape (S,): how long each slot ran."""
    batches: int
    loads: int = 0
    """Of a plan of models that come and go: starts that were ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """A slot, by index, is lost or gained."""

    at_us: int
    slot: int
    gained: bool


def offer(topology: Topology, arrived_at_us: Ints, model: Ints | int = 0) -> Offered:
    """Requests with their model's SLO as deadline, and its priority, behind the gateway."""
    arrived_at_us = np.ascontiguousarray(arrived_at_us, dtype=np.int64)
    models = np.broadcast_to(np.asarray(model, dtype=np.int64), arrived_at_us.shape).copy()
    slos_us = np.array([each.slo_us for each in topology.models], dtype=np.int64)
    priorities = np.array([each.priority for each in topology.models], dtype=np.int64)
    return Offered(
        arrived_at_us=behind_gateway(topology, arrived_at_us, models),
        model=models,
        deadline_at_us=arrived_at_us + slos_us[models],
        priority=priorities[models],
    )


def behind_gateway(topology: Topology, arrived_at_us: Ints, model: Ints) -> Ints:
    """When the dispatcher gets the requests that reach the machine at `arrived_at_us`."""
    gateway_us = np.array([each.gateway_us for each in topology.models], dtype=np.int64)
    return through_gateway(arrived_at_us, gateway_us[model])


def run(
    topology: Topology,
    policy: str | Policy,
    offered: Offered,
    *,
    rng: np.random.Generator | None = None,
    changes: Sequence[SlotChange] = (),
    slower: Slower | None = None,
    beside: Beside | None = None,
    queue_limit: int = QUEUE_LIMIT,
    log: list[AnyEvent] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SessionOutcomes:
    """Simulate until the last request is answered or dropped.

    Args:
        rng: for execution times with the profile's spread; None: always the medians.
        changes: of slots; at equal instants before everything else.
        slower: how much longer batches take than profiled; None: they do not.
        beside: what batches on one device cost each other; None: what the topology says.
        queue_limit: requests of one model that may wait for a decision.
        log: filled with everything that happened, if given.
        on_progress: called with the number of arrivals so far, now and then.

    Raises:
        PlanError: no policy has this name, or it is for other plans.
    """
    chosen = chosen_for(topology, policy)
    store = Store(topology, chosen, queue_max=queue_limit)
    loop = loop_of(chosen.module)
    session = _open(topology, offered, rng, changes, slower, beside, logged=log is not None)
    progress = session.progress
    step = PROGRESS_STEP if on_progress else NEVER_US
    progress["pause_at"] = step
    while True:
        if len(session.log):
            session = _with_room_in_log(session, len(store.state.journal))
        held = loop.state_kind.hold(store.arrays), loop.session_kind.hold(session._asdict())
        why = loop.run(held[0].where, held[1].where)
        if log is not None and why in (loops.LOG_FULL, loops.DONE):
            log.extend(events_of(tuple(session.log[: int(progress["logged"][0])].tolist())))
            progress["logged"] = 0
        assert why != loops.JOURNAL_FULL, "the journal has room for all an event can bring"
        if why == loops.DONE:
            break
        if why == loops.PAUSED:
            arrived = int(progress["next_arrival"][0])
            progress["pause_at"] = arrived + step if arrived < len(offered.model) else NEVER_US
            if on_progress is not None:
                on_progress(arrived)
        elif why == loops.ROWS_FULL:
            store.grow(2 * store.rows)
        elif why == loops.HEAP_FULL:
            session = _with_more_events(session)
        elif why == loops.NO_NORMALS:
            assert rng is not None
            session = _with_more_normals(session, rng)
    return SessionOutcomes(
        ended_at_us=session.ended_at_us,
        reason=session.reason,
        busy_us=session.busy_us,
        batches=int(store.state.world["next_batch"][0]),
        loads=int(store.state.rules["loads"][0]) if topology.is_provisioned else 0,
    )


def _open(
    topology: Topology,
    offered: Offered,
    rng: np.random.Generator | None,
    changes: Sequence[SlotChange],
    slower: Slower | None,
    beside: Beside | None,
    *,
    logged: bool,
) -> loops.Session:
    requests = len(offered.model)
    session = loops.Session(
        progress=np.zeros(1, loops.PROGRESS),
        arrived_at_us=offered.arrived_at_us,
        model=offered.model,
        deadline_at_us=offered.deadline_at_us,
        priority=offered.priority,
        items=_items(topology, offered),
        sigma=np.zeros(0) if rng is None else _sigmas(topology),
        load_sigma=np.zeros(0) if rng is None else _load_sigmas(topology),
        normals=np.zeros(0),
        slower_stages=np.array(slower.stages if slower else (), dtype=np.float64),
        slower_slots=np.array(slower.slots if slower else (), dtype=np.float64),
        own_terms=np.zeros(0) if beside is None else beside.own_terms,
        other_terms=np.zeros(0) if beside is None else beside.other_terms,
        alone_us=_NONE if beside is None else beside.alone_us,
        server_us=_NONE if beside is None else beside.server_us,
        first_near=_NONE if beside is None else beside.first_near,
        near=_NONE if beside is None else beside.near,
        ended_at_us=np.full(requests, -1, dtype=np.int64),
        reason=np.full(requests, -1, dtype=np.int64),
        busy_us=np.zeros(len(topology.slots), dtype=np.int64),
        loaded_at_us=np.zeros(len(topology.slots), dtype=np.int64),
        heap=np.zeros(0, loops.SCHEDULED),
        events=np.zeros(0, loops.EVENT),
        log=np.zeros(LOG_NUMBERS if logged else 0, dtype=np.int64),
    )
    session = _with_more_events(session, at_least=2 * len(changes) + 8 * len(topology.slots))
    # An ordered list is a heap.
    for place, change in enumerate(sorted(changes, key=lambda change: change.at_us)):
        session.heap[place] = change.at_us, place, place
        session.events[["kind", "a"]][place] = GAINED if change.gained else LOST, change.slot
    progress = session.progress
    progress["scheduled"] = progress["free_event"] = len(changes)
    progress["arrival_sequence"], progress["sequence"] = len(changes), len(changes) + 1
    if slower is not None:
        progress["slower_from"], progress["delay_us"] = slower.from_us, slower.delay_us
    return session


def _items(topology: Topology, offered: Offered) -> Ints:
    """Of a malleable plan every request has items."""
    if topology.is_malleable and not len(offered.items):
        return np.ones(len(offered.model), dtype=np.int64)
    return offered.items


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


def _load_sigmas(topology: Topology) -> npt.NDArray[np.float64]:
    starts = [model.start for model in topology.models]
    return np.array([sigma_of(table_of_loads(each), 1) for each in starts if each is not None])


def _with_more_events(session: loops.Session, at_least: int = FIRST_EVENTS) -> loops.Session:
    had = len(session.heap)
    rows = max(2 * had, at_least, FIRST_EVENTS)
    events = np.zeros(rows, loops.EVENT)
    events[:had] = session.events
    # Free rows are a list.
    events["kind"][had:] = np.append(np.arange(had + 1, rows), session.progress["free_event"])
    session.progress["free_event"] = had
    heap = np.zeros(rows, loops.SCHEDULED)
    heap[:had] = session.heap
    return session._replace(events=events, heap=heap)


def _with_more_normals(session: loops.Session, rng: np.random.Generator) -> loops.Session:
    left = session.normals[int(session.progress["normals_used"][0]) :]
    session.progress["normals_used"] = 0
    more = [rng.standard_normal(NORMALS_AT_ONCE)[::-1] for _ in range(16)]
    return session._replace(normals=np.concatenate([left, *more]))


def _with_room_in_log(session: loops.Session, numbers: int) -> loops.Session:
    """For all that one event can bring about."""
    logged = int(session.progress["logged"][0])
    if len(session.log) - logged >= numbers:
        return session
    log = np.zeros(max(LOG_NUMBERS, 2 * (logged + numbers)), dtype=np.int64)
    log[:logged] = session.log[:logged]
    return session._replace(log=log)
