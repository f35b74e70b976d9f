"""Reactive batching: the baseline that looks no further than the next slot.

It is what serving systems do without reservations (PPipe, section 7.4, calls it reactive): a
batch is sent to the pool's slot that should be free first; the slot of the next stage is chosen
only when the batch gets there, and contention on links is suffered, not foreseen. Slots that are
equally free are taken in turn, so that consecutive batches leave through different nodes.

All that is kept of a slot is `free_at`: the end of what it was given, by medians, corrected by what
really happened. Cost: O(slots of the first pools) per decision.
"""

from collections.abc import Mapping
from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.contract import (
    NO_REASON,
    SLOT_RECOVERY_US,
    Decision,
    at_once,
    drop,
    ignore_admitted,
    ignore_answer,
    ignore_arrival,
    ignore_give_up,
    ignore_hop,
    ignore_items,
    ignore_level,
    ignore_load_failed,
    ignore_loaded,
    ignore_serve,
    put_in_queue,
    send,
    wait,
)
from headrace.dispatch.kernel.drift import of_stage_us, predicted_us, slack_us
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT
from headrace.dispatch.kernel.layout import State, Table
from headrace.dispatch.kernel.links import transfer_us
from headrace.dispatch.kernel.queues import tightest
from headrace.dispatch.topology import Topology

TABLES: dict[str, Table] = {}
FIELDS = {
    "world": {"uses": 0},
    "slots": {"free_at": 0, "last_use": 0, "moved_us": 0},
    "hops": {"moved_us": 0},
}
"""`free_at`: when a slot has done what it was given; `last_use`: the number of its last batch.
`moved_us`: of a slot, all corrections of its `free_at`; of a hop, those before it was given, since
those after have moved its start already."""


def lay_out(_state: Any, _topology: Topology, _parameters: Mapping[str, int]) -> None:
    """Nothing beside what every policy has."""


on_arrived = ignore_arrival
transfer_at = start_at = at_once
on_transferred = ignore_hop
on_level_changed = ignore_level
open_request, give_up_request = ignore_items, ignore_give_up
serve, put_back, on_answered = ignore_serve, put_in_queue, ignore_answer
on_loaded, on_load_failed, on_admitted = ignore_loaded, ignore_load_failed, ignore_admitted


@kernel
def decide(s: State, model: int, now_us: int) -> Decision:
    """The model's queue is not empty."""
    best = -1
    for route in range(s.models[model].first_route, s.models[model].end_route):
        place = _first_place(s, route, now_us)
        if place >= 0 and (
            best < 0 or _freer(s, s.pools[place], s.pools[_first_place(s, best, now_us)], now_us)
        ):
            best = route
    if best < 0:
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    return _fill(s, model, best, now_us)


@hot
def _first_place(s: State, route: int, now_us: int) -> int:
    return _freest(s, s.routes[route].first_stage, now_us)


@kernel
def _fill(s: State, model: int, route: int, now_us: int) -> Decision:
    place = _first_place(s, route, now_us)
    start_us = max(now_us, s.slots[s.pools[place]].free_at)
    deadline_at = tightest(s, model, s.routes[route].batch_size)
    queued = s.models[model].queued
    for size in range(s.routes[route].batch_size, 0, -1):
        if start_us + path_us(s, route, place, size) > deadline_at:
            continue
        if queued >= size or start_us == now_us:
            size = min(size, queued)
            take_slot(s, s.routes[route].first_stage, place, size, now_us, 0)
            return send(route, size)
        return wait(max(start_us, now_us + 1), size)
    return drop(DEADLINE, max(1, start_us + path_us(s, route, place, 1) - deadline_at))


@kernel
def _freest(s: State, stage: int, now_us: int) -> int:
    """The place in `pools` of the living slot that is free first; among idle ones, of the one
    unused for longest; or -1."""
    best, best_place = -1, -1
    for i in range(s.stages[stage].first_pool, s.stages[stage].end_pool):
        slot = s.pools[i]
        if s.slots[slot].alive and (
            best < 0
            or _freer(s, slot, best, now_us)
            or (slot < best and not _freer(s, best, slot, now_us))
        ):
            best, best_place = slot, i
    return best_place


@kernel
def _freer(s: State, one: int, other: int, now_us: int) -> bool:
    a, b = s.slots[one], s.slots[other]
    a_free_at, b_free_at = max(now_us, a.free_at), max(now_us, b.free_at)
    if a_free_at != b_free_at:
        return a_free_at < b_free_at
    return a.last_use < b.last_use


@kernel
def path_us(s: State, route: int, place: int, size: int) -> int:
    """Of an otherwise idle pipeline, spread included, links not foreseen.

    Args:
        place: in the pool of its first stage.
    """
    first = s.routes[route].first_stage
    total = slack_us(s, route, size) + predicted_us(s, first, place, size)
    for stage in range(first + 1, first + s.routes[route].stages):
        total += of_stage_us(s, stage, size)
    return total


@kernel
def take_slot(s: State, stage: int, place: int, size: int, now_us: int, length_us: int) -> None:
    """Count on the slot at that place of the stage's pool; writes `path[0]`."""
    hop, world = s.path[0], s.world[0]
    hop.slot, hop.place = s.pools[place], place
    hop.transfer_at, hop.transfer_us = now_us, length_us
    mine = s.slots[hop.slot]
    hop.start_at = max(now_us + length_us, mine.free_at)
    hop.latency_us = predicted_us(s, stage, place, size)
    mine.free_at = hop.start_at + hop.latency_us
    world.uses += 1
    mine.last_use = world.uses


@kernel
def on_dispatched(s: State, batch: int) -> None:
    """Make `path[0]` the next hop of the batch."""
    mine = s.batches[batch]
    hop, found = s.hops[batch * s.world[0].stages_max + mine.hops], s.path[0]
    hop.slot, hop.place = found.slot, found.place
    hop.start_at, hop.latency_us = found.start_at, found.latency_us
    hop.transfer_at, hop.transfer_us = found.transfer_at, found.transfer_us
    hop.moved_us = s.slots[hop.slot].moved_us
    mine.hops += 1


@kernel
def next_hop(s: State, batch: int, now_us: int) -> int:
    """Choose the slot of the next stage; or why there is none in time."""
    mine = s.batches[batch]
    first_hop = batch * s.world[0].stages_max
    if mine.stage < mine.hops:
        alive = s.slots[s.hops[first_hop + mine.stage].slot].alive
        return NO_REASON if alive else NO_SLOT
    stage = s.routes[mine.route].first_stage + mine.stage
    place = _freest(s, stage, now_us)
    if place < 0:
        return NO_SLOT
    slot = s.pools[place]
    before = s.hops[first_hop + mine.stage - 1].slot
    length_us = transfer_us(s, before, slot, mine.size * s.stages[stage].input_bytes)
    rest_us = length_us + predicted_us(s, stage, place, mine.size)
    for later in range(stage + 1, s.routes[mine.route].first_stage + s.routes[mine.route].stages):
        rest_us += of_stage_us(s, later, mine.size)
    if max(now_us, s.slots[slot].free_at) + rest_us > mine.last_deadline_at:
        return DEADLINE
    take_slot(s, stage, place, mine.size, now_us, length_us)
    on_dispatched(s, batch)
    return NO_REASON


@kernel
def on_started(s: State, hop: int, now_us: int) -> None:
    mine = s.hops[hop]
    slot = s.slots[mine.slot]
    _move(slot, now_us - mine.start_at - (slot.moved_us - mine.moved_us))
    mine.start_at = now_us


@kernel
def on_ended(s: State, hop: int, now_us: int) -> None:
    mine = s.hops[hop]
    _move(s.slots[mine.slot], now_us - mine.start_at - mine.latency_us)


@hot
def _move(slot: Any, by_us: int) -> None:
    """What the slot was given ends so much later, all of it."""
    slot.free_at += by_us
    slot.moved_us += by_us


@kernel
def forget(s: State, batch: int) -> None:
    mine = s.batches[batch]
    first_hop = batch * s.world[0].stages_max
    for hop in range(first_hop + mine.stage, first_hop + mine.hops):
        _move(s.slots[s.hops[hop].slot], -s.hops[hop].latency_us)


@kernel
def reroute(s: State, batch: int, first_stage: int, now_us: int) -> int:
    """Slots of later stages are chosen when the batch gets there."""
    mine = s.batches[batch]
    mine.hops = first_stage
    return next_hop(s, batch, now_us) if first_stage == mine.stage else NO_REASON


@hot
def on_slot_lost(_s: State, _slot: int) -> None:
    """Nothing is kept of it."""


@hot
def on_slot_gained(s: State, slot: int, now_us: int) -> None:
    s.slots[slot].free_at = now_us
