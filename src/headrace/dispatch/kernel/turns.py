"""Whose turn it is on a slot that several models share (`sharing`, rule 1).

The model goes whose first request must start first, or one with a full batch where the others have
time for that. On a slot with a duty cycle D that does not keep what the plan promises, that each
batch begins within D of its requests (decision 0040): a tenant whose requests are as urgent has a
second turn, of a few requests, while another waits for its first. So

    who is chosen by latest start goes if all others that wait are still in time, one behind the
    other by how long they have waited for their turns, each for its longest batch; else the one
    that has waited longest, if that leaves the others in time; else whoever was chosen

A model waits for its turn since its last one on that slot has ended, or since its first request
came if that was later.

Why that keeps the promise of regular arrivals at up to the planned rates, on a slot whose tenants
have no other: let all that wait be in time in that order. They still are when the first of them has
gone, so that somebody can always go. Who comes to wait is behind the rest of the batch that runs
and at most one turn of every other: together no more than D. And no more than a full batch comes to
wait in D, so that one turn is enough.
"""

from typing import Any

import numpy as np

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.drift import of_stage_us, slack_us
from headrace.dispatch.kernel.layout import NEVER_US, State, Table
from headrace.dispatch.kernel.queues import at
from headrace.dispatch.topology import Topology

FIELDS = {
    "world": {"left_in_turns": 0},
    "slots": {"turn": -1, "turn_known": -1, "in_cycle": 0},
    "routes": {"longest_turn": 1},
}
"""`turn`: whose it is on the slot, as long as nothing happens, which `turn_known` tells.
`in_cycle`: the plan has a duty cycle for it. `left_in_turns`: how often a model that takes turns
has sent, dropped or been held. `longest_turn`: the size, up to the planned one, of the batch that
takes longest, as profiled."""

TABLES = {
    "serves": Table(rows=lambda n: n.slots * n.models),
    "turn_ends": Table(rows=lambda n: n.slots * n.models),
}
"""serves     slots x models: 1 + the route of the model that begins on the slot; 0: none does
turn_ends  slots x models: when the model's last turn on the slot ends, as predicted"""


def lay_out(state: Any, topology: Topology) -> None:
    """Who begins on which slot."""
    serves = np.zeros((len(topology.slots), len(topology.models)), dtype=np.int64)
    routes = [(number, r) for number, model in enumerate(topology.models) for r in model.routes]
    for place, (number, route) in enumerate(routes):
        serves[list(route.stages[0].slots), number] = 1 + place
        path_us = np.array(route.slack_us[: route.batch_size])
        for stage in route.stages:
            path_us += stage.p50_us[: route.batch_size]
        state.routes["longest_turn"][place] = 1 + np.argmax(path_us)
    state.serves[:] = serves.ravel()
    in_cycle = [topology.duty_us(slot) is not None for slot in range(len(topology.slots))]
    state.slots["in_cycle"] = in_cycle


@hot
def turn_on(s: State, model: int, slot: int, now_us: int) -> int:
    """Whose turn it is on the slot: all that wait there ask, mostly in one event."""
    mine, world = s.slots[slot], s.world[0]
    # Neither ever falls, so that their sum is the same only while nothing happens.
    moment = world.event + world.left_in_turns
    if mine.turn_known != moment or world.apart:
        mine.turn, mine.turn_known = _whose_turn(s, model, slot, now_us), moment
    return mine.turn


@kernel
def _whose_turn(s: State, model: int, slot: int, now_us: int) -> int:
    """Of the models that wait and that the slot serves. The same, whichever of them asks."""
    chosen = _by_latest_start(s, model, slot, now_us)
    if not s.slots[slot].in_cycle or _leaves_time(s, chosen, slot, now_us):
        return chosen
    longest = chosen
    for other in range(len(s.models)):
        if waits_to_begin(s, other, slot) and _waits_longer(s, other, longest, slot):
            longest = other
    if longest != chosen and _leaves_time(s, longest, slot, now_us):
        return longest
    return chosen


@kernel
def _leaves_time(s: State, first: int, slot: int, now_us: int) -> bool:
    """Whether all others that wait are in time behind its batch, by how long they have waited for
    their turns, each with the longest that it may have."""
    first_end_at = now_us + route_us(s, _route_on(s, first, slot), s.models[first].queued)
    for each in range(len(s.models)):
        if each == first or not waits_to_begin(s, each, slot):
            continue
        end_at = first_end_at + _turn_us(s, each, slot)
        for other in range(len(s.models)):
            before = other not in (first, each) and waits_to_begin(s, other, slot)
            if before and _waits_longer(s, other, each, slot):
                end_at += _turn_us(s, other, slot)
        if end_at > s.requests[at(s, each, 0)].deadline_at:
            return False
    return True


@hot
def _waits_longer(s: State, one: int, other: int, slot: int) -> bool:
    a, b = _waits_from(s, one, slot), _waits_from(s, other, slot)
    return a < b or (a == b and one < other)


@hot
def _waits_from(s: State, model: int, slot: int) -> int:
    """Since when a model waits for its turn on the slot."""
    return max(s.turn_ends[slot * len(s.models) + model], s.requests[at(s, model, 0)].arrived_at)


@hot
def note_turn(s: State, model: int, slot: int, end_at: int) -> None:
    """It has a turn there, which ends then."""
    s.turn_ends[slot * len(s.models) + model] = end_at


@hot
def _turn_us(s: State, model: int, slot: int) -> int:
    route = _route_on(s, model, slot)
    return route_us(s, route, s.routes[route].longest_turn)


@hot
def _route_on(s: State, model: int, slot: int) -> int:
    return s.serves[slot * len(s.models) + model] - 1


@kernel
def _by_latest_start(s: State, model: int, slot: int, now_us: int) -> int:
    """Who must start first; or a full batch, where those that wait have time for it."""
    urgent, full = model, -1
    if _is_full(s, model):
        full = model
    for other in range(len(s.models)):
        if other == model or not waits_to_begin(s, other, slot):
            continue
        if _goes_before(s, other, urgent):
            urgent = other
        if _is_full(s, other) and (full < 0 or _goes_before(s, other, full)):
            full = other
    if full < 0 or full == urgent:
        return urgent
    size = min(s.models[full].queued, s.models[full].most)
    spare_us = others_spare_us(s, full, slot, now_us, -NEVER_US)
    return full if batch_us(s, full, size) <= spare_us else urgent


@hot
def waits_to_begin(s: State, model: int, slot: int) -> bool:
    """On this slot; who is held would not take it."""
    mine = s.models[model]
    return mine.queued > 0 and mine.held == 0 and s.serves[slot * len(s.models) + model] > 0


@hot
def _is_full(s: State, model: int) -> bool:
    """Larger batches pay, and more requests would make no larger one. Nobody is full while some may
    not run with others, since only their own model sees how many may."""
    mine = s.models[model]
    return s.world[0].apart == 0 and mine.least > 1 and mine.queued >= mine.most


@kernel
def _goes_before(s: State, one: int, other: int) -> bool:
    a, b = s.requests[at(s, one, 0)], s.requests[at(s, other, 0)]
    if a.priority != b.priority:
        return a.priority < b.priority
    mine, theirs = start_by(s, one), start_by(s, other)
    return mine < theirs or (mine == theirs and one < other)


@kernel
def start_by(s: State, model: int) -> int:
    """When the first request must start to be in time alone, on the fastest route."""
    return s.requests[at(s, model, 0)].deadline_at - batch_us(s, model, 1)


@kernel
def batch_us(s: State, model: int, size: int) -> int:
    """What a batch of `size`, at most as planned, takes from its start, slack included."""
    least_us = NEVER_US
    for route in range(s.models[model].first_route, s.models[model].end_route):
        least_us = min(least_us, route_us(s, route, size))
    return least_us


@kernel
def route_us(s: State, route: int, size: int) -> int:
    """The same on one route."""
    batch, first = min(size, s.routes[route].batch_size), s.routes[route].first_stage
    total_us = slack_us(s, route, batch)
    for stage in range(first, first + s.routes[route].stages):
        total_us += of_stage_us(s, stage, batch)
    return total_us


@kernel
def others_spare_us(s: State, model: int, slot: int, now_us: int, least_us: int) -> int:
    """How long the slot may be taken without making those late that wait for it; except those that
    will be even if it is taken for no more than `least_us`."""
    models, spare_us = len(s.models), NEVER_US
    for other in range(models):
        size = min(s.models[other].queued, s.models[other].most)
        if other != model and size and s.serves[slot * models + other]:
            first = s.requests[at(s, other, 0)]
            left_us = first.deadline_at - batch_us(s, other, size) - now_us
            if left_us >= least_us:
                spare_us = min(spare_us, left_us)
    return spare_us
