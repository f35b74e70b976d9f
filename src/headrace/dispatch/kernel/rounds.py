"""Machines as `batch_aware` has them, and modules of apps that take turns on shared slots.

A plan of whole devices (decision 0044) gives a module machines of its own, a *turn* on a slot with
a duty cycle D, or both. What it promises of a turn is kept without a clock:

    1. a slot's tenants are asked in the order of its round, beginning behind the one that ran last.
       The first with requests runs a batch of at most its planned size, at once; those without are
       passed over. As no batch takes longer than planned, a round takes at most D, in which come no
       more requests than a turn has places: who just misses a turn has the next one, D later
    2. one that *follows* others on the slot gets its calls when their batch has ended, and would be
       passed over at that instant: until its `lead_us` is over the slot waits for it, and it waits
       for its batch to fill
    3. of a module with machines as well, requests that no machine collects belong to the turn, at
       most as many as its places. What comes beyond waits for whoever is first: a machine that
       begins to collect takes the oldest, and so does the turn. So the machines' b / w is kept:
       those that wait are at most a batch, and they came at w

A batch takes no more requests than all can be answered in time; a request that could not be, were
its slot idle now, is dropped. Turns are pipelines of one stage on one slot with a duty cycle, the
last of their module; all other pipelines are machines.

Cost: O(tenants of the slot) per decision, beside that of `batch_aware` where a module has both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import batch_aware, reactive
from headrace.dispatch.kernel.batch_aware import (
    FILLED_LEAST,
    NOBODY,
    collecting,
    count_given,
    ends_at,
    first_to_start,
    forget,
    gather,
    give_up_request,
    latest_start_at,
    least_us,
    next_hop,
    note_given,
    on_admitted,
    on_answered,
    on_arrived,
    on_dispatched,
    on_level_changed,
    on_load_failed,
    on_loaded,
    on_slot_gained,
    on_slot_lost,
    on_started,
    on_transferred,
    open_request,
    put_back,
    reroute,
    serve,
    start_at,
    start_or_wait,
    transfer_at,
)
from headrace.dispatch.kernel.contract import SEND, SLOT_RECOVERY_US, Decision, drop, send, wait
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT
from headrace.dispatch.kernel.layout import NEVER_US, State, Table, ints, merged
from headrace.dispatch.kernel.queues import at, tightest, to_front
from headrace.dispatch.kernel.reactive import path_us, take_slot
from headrace.dispatch.topology import ModelRoutes, Topology

__all__ = [
    "forget",
    "give_up_request",
    "next_hop",
    "on_admitted",
    "on_answered",
    "on_arrived",
    "on_dispatched",
    "on_level_changed",
    "on_load_failed",
    "on_loaded",
    "on_slot_gained",
    "on_slot_lost",
    "on_started",
    "on_transferred",
    "open_request",
    "put_back",
    "reroute",
    "serve",
    "start_at",
    "transfer_at",
]

FIELDS = merged(
    batch_aware.FIELDS,
    {
        "models": {"turns_on": NOBODY, "places": 0, "cycle_us": 0, "lead_us": 0, "calls_until": 0},
        "slots": {"first_tenant": 0, "end_tenant": 0, "ran": 0},
    },
)
TABLES = {
    **batch_aware.TABLES,
    "tenants": Table(rows=lambda n: n.routes, item=ints("route", "model")),
    "follows": Table(rows=lambda n: n.models * n.models),
}
"""Of models: the slot that it has turns on, requests of its turns in one round, and until when
calls may come that follow the last batch of others. Of slots: its tenants, and which ran last.

tenants  of all slots, in the order of their rounds
follows  models x models: 1 where the first follows the second
"""


def lay_out(state: Any, topology: Topology, parameters: Mapping[str, int]) -> None:
    """Parameters: those of `batch_aware`."""
    batch_aware.lay_out(state, topology, parameters)
    rounds: dict[int, list[tuple[int, int, int]]] = {}
    route = 0
    for number, model in enumerate(topology.models):
        turns = _turns(topology, model)
        first, route = route, route + len(model.routes)
        if turns:
            slot = turns[0].stages[0].slots[0]
            mine = rounds.setdefault(slot, [])
            mine += [(turn.turn, route - len(turns) + i, number) for i, turn in enumerate(turns)]
            state.models["turns_on"][number] = slot
            state.models["places"][number] = sum(turn.batch_size for turn in turns)
            state.models["cycle_us"][number] = topology.duty_us(slot)
            state.models["in_turns"][number] = 1
            state.models["end_machines"][number] = max(first, route - len(turns))
        state.models["lead_us"][number] = max(1, model.lead_us)
        for other in model.follows:
            state.follows[number * len(topology.models) + other] = 1
    row = 0
    for slot, tenants in rounds.items():
        state.slots["first_tenant"][slot] = row
        for _, of_route, number in sorted(tenants):
            state.tenants["route"][row], state.tenants["model"][row] = of_route, number
            row += 1
        state.slots["end_tenant"][slot] = row
        state.slots["ran"][slot] = row - 1


def _turns(topology: Topology, model: ModelRoutes) -> Sequence[Any]:
    """The last pipelines of a model, as far as they are turns on one slot."""
    turns: list[Any] = []
    for route in reversed(model.routes):
        slots = route.stages[0].slots
        is_turn = len(route.stages) == 1 and len(slots) == 1
        if not is_turn or topology.duty_us(slots[0]) is None:
            break
        if turns and turns[0].stages[0].slots != slots:
            break
        turns.insert(0, route)
    return turns


@kernel
def on_ended(s: State, hop: int, now_us: int) -> None:
    """Those that follow what has ended get their calls from now on."""
    reactive.on_ended(s, hop, now_us)
    slot = s.slots[s.hops[hop].slot]
    if slot.first_tenant == slot.end_tenant:
        return
    ended = s.tenants[slot.ran].model
    for i in range(slot.first_tenant, slot.end_tenant):
        model = s.tenants[i].model
        if s.follows[model * len(s.models) + ended]:
            s.models[model].calls_until = now_us + s.models[model].lead_us


@kernel
def decide(s: State, model: int, now_us: int) -> Decision:
    """The model's queue is not empty."""
    mine = s.models[model]
    if mine.turns_on == NOBODY:
        return batch_aware.decide(s, model, now_us)
    if mine.end_machines == mine.first_route:
        return _decide_turn(s, model, now_us)
    return _decide_both(s, model, now_us)


# -- a module that has nothing but its turn -------------------------------------------------------


@kernel
def _decide_turn(s: State, model: int, now_us: int) -> Decision:
    mine = s.models[model]
    if not s.slots[mine.turns_on].alive:
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    late_at = _late_at(s, model, s.requests[at(s, model, 0)].deadline_at, now_us)
    if late_at <= now_us:
        return drop(DEADLINE, max(1, now_us - late_at))
    tenant, from_us = _whose_turn(s, model, mine.queued, now_us)
    if tenant < 0:
        # Whoever ends on the slot has all queues decided; until then the first may become too late.
        busy = s.slots[mine.turns_on].running >= 0
        latest_at = _latest_turn_at(s, model, s.requests[at(s, model, 0)].deadline_at)
        return wait(min(from_us, latest_at + 1), NEVER_US if busy else mine.places)
    return _send_turn(s, model, tenant, mine.queued, now_us)


@hot
def _late_at(s: State, model: int, deadline_at: int, now_us: int) -> int:
    """From when on a request is late, even if its turn begins as soon as the slot is free. While
    the slot runs, this comes no nearer."""
    slot = s.slots[s.models[model].turns_on]
    waits_us = max(0, slot.free_at - now_us) if slot.running >= 0 else 0
    return _latest_turn_at(s, model, deadline_at) - waits_us + 1


@hot
def _latest_turn_at(s: State, model: int, deadline_at: int) -> int:
    """When a request's turn begins at the latest, alone."""
    route = s.models[model].end_route - 1
    return deadline_at - path_us(s, route, _place(s, route), 1)


@hot
def _place(s: State, route: int) -> int:
    """Of a turn's slot, in `pools`."""
    return s.stages[s.routes[route].first_stage].first_pool


@kernel
def _send_turn(s: State, model: int, tenant: int, ready: int, now_us: int) -> Decision:
    """Run the first of the queue, which are the turn's."""
    route = s.tenants[tenant].route
    place = _place(s, route)
    size = min(ready, s.routes[route].batch_size)
    while size > 1 and now_us + path_us(s, route, place, size) > tightest(s, model, size):
        size -= 1
    s.slots[s.models[model].turns_on].ran = tenant
    take_slot(s, s.routes[route].first_stage, place, size, now_us, 0)
    return send(route, size)


# -- whose turn it is -----------------------------------------------------------------------------


@kernel
def _whose_turn(s: State, model: int, ready: int, now_us: int) -> tuple[int, int]:
    """(the model's tenant whose turn it is, now); else (-1, when to ask again at the latest).

    Args:
        ready: the model's requests that wait for its turn; not 0.
    """
    slot = s.slots[s.models[model].turns_on]
    if slot.running >= 0 or slot.first_ready >= 0:
        return -1, now_us + SLOT_RECOVERY_US  # a report comes first
    count = slot.end_tenant - slot.first_tenant
    for step in range(1, count + 1):
        tenant = slot.first_tenant + (slot.ran - slot.first_tenant + step) % count
        other = s.tenants[tenant].model
        theirs = s.models[other]
        waiting = ready if other == model else _ready(s, other)
        expects = now_us < theirs.calls_until and theirs.closed == 0
        if expects and waiting < s.routes[s.tenants[tenant].route].batch_size:
            return -1, theirs.calls_until
        if other == model:
            return tenant, now_us
        if waiting:
            return -1, now_us + 1  # it is asked at this instant, too; it may have to drop them
    return -1, now_us + SLOT_RECOVERY_US


@kernel
def _ready(s: State, model: int) -> int:
    """How many requests wait for the model's turn."""
    mine = s.models[model]
    if mine.end_machines == mine.first_route:
        return mine.queued
    count = 0
    for place in range(mine.queued):
        count += int(s.requests[at(s, model, place)].slot == mine.turns_on)
    return count


# -- a module that has machines as well -----------------------------------------------------------


@kernel
def _decide_both(s: State, model: int, now_us: int) -> Decision:
    mine = s.models[model]
    turn = s.slots[mine.turns_on]
    turn.given = 0
    if not count_given(s, model, now_us) and not turn.alive:
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    asked_at = NEVER_US
    for place in range(mine.queued):
        request = s.requests[at(s, model, place)]
        if _stays(s, model, request.slot, request.deadline_at, now_us):
            continue
        slot = _who(s, model, request.deadline_at, now_us)
        request.slot = slot
        if slot != NOBODY:
            s.slots[slot].seen += 1
            note_given(s, slot, request.arrived_at, request.deadline_at)
            continue
        ask_at = _ask_at(s, model, request.deadline_at, now_us)
        if ask_at <= now_us:
            to_front(s, model, place)
            late_us = least_us(s, model, now_us) + now_us - request.deadline_at
            return drop(DEADLINE, max(1, late_us))
        asked_at = min(asked_at, ask_at)
    if turn.given and turn.alive:
        tenant, from_us = _whose_turn(s, model, turn.given, now_us)
        if tenant >= 0:
            size = min(turn.given, s.routes[s.tenants[tenant].route].batch_size)
            gather(s, model, mine.turns_on, size)
            return _send_turn(s, model, tenant, size, now_us)
        asked_at = min(asked_at, from_us)
    decision = start_or_wait(s, model, now_us)
    if decision.what == SEND:
        return decision
    return wait(min(decision.at_us, asked_at), 0)


@kernel
def _stays(s: State, model: int, slot: int, deadline_at: int, now_us: int) -> bool:
    """Whether a request stays with the slot that it was given to, which answers it in time."""
    if slot == NOBODY:
        return False
    mine = s.slots[slot]
    if slot == s.models[model].turns_on:
        in_time = now_us < _late_at(s, model, deadline_at, now_us)
    else:
        in_time = ends_at(s, slot, mine.seen, mine.given, now_us) <= deadline_at
    if in_time:
        mine.seen += 1
    else:
        mine.given -= 1
    return in_time


@kernel
def _who(s: State, model: int, deadline_at: int, now_us: int) -> int:
    """Who is given a request; NOBODY: it waits, for a machine to collect or for the next turn."""
    mine = s.models[model]
    slot = collecting(s, model, deadline_at, now_us)
    if slot != NOBODY:
        return slot
    turn, late_at = s.slots[mine.turns_on], _late_at(s, model, deadline_at, now_us)
    if turn.alive and turn.given < mine.places and now_us < late_at:
        return mine.turns_on
    if now_us + mine.cycle_us < late_at and turn.alive:
        return NOBODY
    slot = first_to_start(s, model, deadline_at, now_us, 4)
    if slot == NOBODY:
        slot = first_to_start(s, model, deadline_at, now_us, FILLED_LEAST)
    return slot


@kernel
def _ask_at(s: State, model: int, deadline_at: int, now_us: int) -> int:
    """When to look again at a request that nobody was given; now: nobody can answer it in time."""
    if not s.slots[s.models[model].turns_on].alive:
        return now_us
    latest_at = latest_start_at(s, model, deadline_at, now_us)
    if now_us < _late_at(s, model, deadline_at, now_us):
        latest_at = max(latest_at, _latest_turn_at(s, model, deadline_at))
    urgent_at = latest_at + 1 - s.models[model].cycle_us
    return urgent_at if urgent_at > now_us else latest_at + 1
