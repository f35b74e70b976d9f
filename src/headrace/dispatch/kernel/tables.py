"""A topology as arrays, and room for what happens on it."""

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.dispatch.kernel.layout import (
    BATCH,
    HOP,
    JOURNAL_WIDTH,
    LINE,
    MODEL,
    NEVER_US,
    NODE,
    NUMBER,
    PROMISE,
    REQUEST,
    ROUTE,
    SLOT,
    STAGE,
    WORLD,
    Ints,
    State,
)
from headrace.dispatch.policies import Rules
from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology

FIRST_ROWS = 64
"""Requests there is room for at first; doubled when needed."""


_NOTHING = StageTable(0, 0, (), (), (), 0)


def make_state(topology: Topology, rules: Rules, *, queue_max: int) -> State:
    """An idle system: all slots alive, nothing promised, empty queues."""
    routes = [route for model in topology.models for route in model.routes]
    stages = [stage for route in routes for stage in route.stages]
    stages_max = max(len(route.stages) for route in routes)
    state = State(
        world=np.zeros(1, WORLD),
        models=np.zeros(len(topology.models), MODEL),
        routes=np.zeros(len(routes), ROUTE),
        stages=np.zeros(len(stages), STAGE),
        pools=np.array([slot for stage in stages for slot in stage.slots], dtype=np.int64),
        p50_us=_padded([stage.p50_us for stage in stages]),
        slack_us=_padded([route.slack_us for route in routes]),
        slots=np.zeros(len(topology.slots), SLOT),
        ends_at=np.full(len(topology.slots), NEVER_US, NUMBER),
        nodes=np.zeros(len(topology.nodes), NODE),
        lines=np.zeros(len(topology.slots) + 2 * len(topology.nodes), LINE),
        promises=np.zeros(0, PROMISE),
        hops=np.zeros(0, HOP),
        path=np.zeros(len(routes) * stages_max, HOP),
        batches=np.zeros(0, BATCH),
        members=np.zeros(0, NUMBER),
        requests=np.zeros(0, REQUEST),
        queues=np.zeros(0, NUMBER),
        moved=np.zeros(0, NUMBER),
        affected=np.zeros(0, NUMBER),
        journal=np.zeros(0, NUMBER),
    )
    world = state.world
    world["policy"], world["fill"], world["queue_max"] = rules.policy, rules.fill, queue_max
    world["stages_max"] = stages_max
    world["size_max"] = max(route.batch_size for route in routes)
    world["slots"], world["nodes"] = len(topology.slots), len(topology.nodes)
    world["has_links"] = any(speed is not None for speed in topology.node_bytes_per_us)
    for name in ("free_batch", "free_request", "first_batch", "last_batch", "first_waiting"):
        world[name] = -1
    world["links_wake_at"] = -1
    world["next_end_at"] = NEVER_US
    _lay_out(state, topology)
    return grow(state, FIRST_ROWS)


def _lay_out(state: State, topology: Topology) -> None:
    routes = [route for model in topology.models for route in model.routes]
    stages = [stage for route in routes for stage in route.stages]
    ends = np.cumsum([len(model.routes) for model in topology.models])
    state.models["first_route"], state.models["end_route"] = _before(ends), ends
    state.models["wake_at"] = -1
    state.routes["batch_size"] = [route.batch_size for route in routes]
    state.routes["stages"] = [len(route.stages) for route in routes]
    state.routes["first_stage"] = _before(np.cumsum(state.routes["stages"]))
    state.routes["collect_us"] = [route.collect_us for route in routes]
    state.routes["patience_us"] = [
        _patience_us(model, route) for model in topology.models for route in model.routes
    ]
    state.routes["longest_us"] = [route.longest_us for route in routes]
    state.routes["is_part"] = [route.is_part for route in routes]
    state.routes["gap"] = [max(1, round(1e9 / route.rate_rps)) for route in routes]
    state.stages["bytes_per_us"] = [
        _fastest_into(topology, before, stage)
        for route in routes
        for before, stage in zip((_NOTHING, *route.stages), route.stages, strict=False)
    ]
    ends = np.cumsum([len(stage.slots) for stage in stages])
    state.stages["first_pool"], state.stages["end_pool"] = _before(ends), ends
    state.stages["input_bytes"] = [stage.input_bytes for stage in stages]
    state.stages["output_bytes"] = [
        after.input_bytes for route in routes for after in (*route.stages[1:], _NOTHING)
    ]
    state.slots["node"], state.slots["alive"] = topology.slot_node, 1
    for name in ("running", "running_hop", "first_ready", "wake_at", "due_at"):
        state.slots[name] = -1
    state.nodes["bytes_per_us"] = [speed or 0.0 for speed in topology.node_bytes_per_us]
    state.nodes["sending"] = -1
    state.lines["first"] = state.lines["last"] = -1


def _patience_us(model: ModelRoutes, route: Route) -> int:
    """How long a machine with part of a load lets its first request wait for a full batch.

    What it collects comes at its rate, save for the time in which others take all that comes.
    """
    if not route.is_part:
        return NEVER_US
    first = model.routes[0]
    return route.collect_us + (first.collect_us if first is not route else 0)


def _fastest_into(topology: Topology, before: StageTable, stage: StageTable) -> float:
    """Bytes per us of the fastest link between two stages; 0 where both may share a node."""
    from_nodes = {topology.slot_node[slot] for slot in before.slots}
    to_nodes = {topology.slot_node[slot] for slot in stage.slots}
    speeds = [topology.node_bytes_per_us[node] for node in from_nodes | to_nodes]
    if not from_nodes or from_nodes & to_nodes or None in speeds:
        return 0.0
    return max(speed for speed in speeds if speed)


def _before(ends: Ints) -> Ints:
    return np.concatenate(([0], ends[:-1]))


def _padded(rows: Sequence[Iterable[int]]) -> Ints:
    """Rows of different lengths in one array, row by row."""
    lists = [list(row) for row in rows]
    padded = np.zeros((len(lists), max(map(len, lists))), dtype=np.int64)
    for i, row in enumerate(lists):
        padded[i, : len(row)] = row
    return padded.ravel()


# -- room -----------------------------------------------------------------------------------------


def grow(state: State, rows: int) -> State:
    """Room for `rows` requests, and as many batches; what there is stays where it is.

    No event brings more than one request, and no batch is without one, so that there is room for
    whatever an event may do as long as a row of requests is free.
    """
    world = state.world
    stages, sizes = int(world["stages_max"][0]), int(world["size_max"][0])
    had = len(state.batches)
    # In one event every batch may get a new path or an end, and be started and woken for.
    journal_rows = 64 + 2 * len(state.slots) + rows * (16 + 2 * stages)
    state = state._replace(
        batches=_longer(state.batches, rows),
        members=_longer(state.members, rows * sizes),
        hops=_longer(state.hops, rows * stages),
        promises=_longer(state.promises, 3 * rows * stages),
        moved=_longer(state.moved, rows * stages),
        affected=_longer(state.affected, rows),
        queues=_longer_rings(state, rows),
        requests=_longer(state.requests, rows),
        journal=_longer(state.journal, journal_rows * JOURNAL_WIDTH),
    )
    world["queue_room"] = rows
    state.promises["line"][3 * had * stages :] = -1
    state.batches["id"][had:] = -1
    for table, head in ((state.batches, "free_batch"), (state.requests, "free_request")):
        table["after"][had:] = np.append(np.arange(had + 1, rows), world[head])
        world[head] = had
    return state


def _longer(array: Ints, length: int) -> Ints:
    more = np.zeros(length, array.dtype)
    more[: len(array)] = array
    return more


def _longer_rings(state: State, room: int) -> Ints:
    """Queues as they were, each in a longer ring."""
    models = len(state.models)
    had = len(state.queues) // models
    rings = np.zeros((models, room), dtype=np.int64)
    for model, queue in enumerate(state.models):
        if queue["queued"]:
            places = (int(queue["queue_from"]) + np.arange(int(queue["queued"]))) % had
            rings[model, : len(places)] = state.queues.reshape(models, had)[model, places]
    state.models["queue_from"] = 0
    return rings.ravel()
