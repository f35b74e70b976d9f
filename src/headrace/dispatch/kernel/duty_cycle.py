"""Rounds on every slot: how gpu-lets execute shared devices (section 2.2); a baseline.

A slot with duty cycle D goes round its tenants. Each has a place in the round, behind the batches
of those before it, each at the size up to the planned one that takes longest, slowed, so that turn
k of tenant i begins at

    k D + offset_i,    offset_i = sum of p99 latencies of the tenants before it on the slot

and takes what has collected by then, at most its batch size. A request that just misses a turn
waits for the next one, D later, and then for its own batch: D + latency, which is what a plan
promises. No tenant takes what another leaves of its turn; that is what this is a baseline for.
Where a batch runs late, the next turn begins as soon as the slot is idle. Slots without a duty
cycle have that of one batch of every tenant. A batch takes no more requests than all can be
answered in time; a request that cannot be in time alone at the next turn of any slot is dropped.

Pools of later stages are used as `reactive` does. Cost: O(slots of the model's pools) per decision.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import reactive
from headrace.dispatch.kernel.contract import (
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
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT
from headrace.dispatch.kernel.layout import NEVER_US, State, Table, ints, merged
from headrace.dispatch.kernel.queues import at, tightest
from headrace.dispatch.kernel.reactive import (
    forget,
    next_hop,
    on_dispatched,
    on_ended,
    on_slot_gained,
    on_slot_lost,
    on_started,
    path_us,
    reroute,
    take_slot,
)
from headrace.dispatch.topology import Topology

__all__ = [
    "forget",
    "next_hop",
    "on_dispatched",
    "on_ended",
    "on_slot_gained",
    "on_slot_lost",
    "on_started",
    "reroute",
]

FIELDS = merged(reactive.FIELDS)
TABLES = {
    **reactive.TABLES,
    "turns": Table(rows=lambda n: n.places, item=ints("cycle_us", "offset_us", "next_at", "after")),
}
"""turns  of each place of `pools`: its slot's duty cycle and its own place in it; `next_at`: the
       turn it waits for; `after`: its next turn begins no earlier
"""


def lay_out(state: Any, topology: Topology, _parameters: Mapping[str, int]) -> None:
    """Tenants of a slot go in the order of the topology's stages."""
    state.models["in_turns"] = 1
    stages = [
        stage for model in topology.models for route in model.routes for stage in route.stages
    ]
    taken_us: dict[int, int] = defaultdict(int)
    place = 0
    for stage in stages:
        for slot in stage.slots:
            state.turns["offset_us"][place] = taken_us[slot]
            taken_us[slot] += max(stage.p99_us)
            place += 1
    place = 0
    for stage in stages:
        for slot in stage.slots:
            duty_us = topology.duty_us(slot)
            state.turns["cycle_us"][place] = max(1, taken_us[slot] if duty_us is None else duty_us)
            place += 1


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
    route, place = _next_turn(s, model, now_us)
    if route < 0:
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    turn, slot = s.turns[place], s.pools[place]
    start_at = max(now_us, turn.next_at, s.slots[slot].free_at)
    late_us = start_at + path_us(s, route, place, 1) - s.requests[at(s, model, 0)].deadline_at
    if late_us > 0:
        return drop(DEADLINE, late_us)
    if turn.next_at > now_us:
        return wait(turn.next_at, NEVER_US)
    if s.slots[slot].running >= 0 or s.slots[slot].first_ready >= 0:
        # Whoever ends there has all queues decided; until then the first may become too late.
        return wait(start_at - late_us + 1, NEVER_US)
    size = min(s.models[model].queued, s.routes[route].batch_size)
    while size > 1 and now_us + path_us(s, route, place, size) > tightest(s, model, size):
        size -= 1
    turn.after = turn.next_at + 1
    take_slot(s, s.routes[route].first_stage, place, size, now_us, 0)
    return send(route, size)


@kernel
def _next_turn(s: State, model: int, now_us: int) -> tuple[int, int]:
    """(route, place) of the model's next turn on any slot that is left; (-1, -1): none is."""
    arrived_at = s.requests[at(s, model, 0)].arrived_at
    best_route, best = -1, -1
    for route in range(s.models[model].first_route, s.models[model].end_route):
        stage = s.stages[s.routes[route].first_stage]
        for place in range(stage.first_pool, stage.end_pool):
            if s.slots[s.pools[place]].alive:
                _set_turn(s, place, arrived_at, now_us)
                if best < 0 or s.turns[place].next_at < s.turns[best].next_at:
                    best_route, best = route, place
    return best_route, best


@hot
def _set_turn(s: State, place: int, arrived_at: int, now_us: int) -> None:
    """The first turn that is not over. One that has begun is not while its slot is held up, if the
    first request was there when it began. One that was taken is, at once."""
    turn = s.turns[place]
    missed = turn.next_at < now_us and arrived_at > turn.next_at
    if missed or turn.next_at < turn.after:
        from_us = max(now_us, turn.after) - turn.offset_us
        turn.next_at = -(-from_us // turn.cycle_us) * turn.cycle_us + turn.offset_us
