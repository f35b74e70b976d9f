"""Models that come and go: the contract's functions, and which slot gets a request.

A request is promised a slot as soon as it comes, or refused. Each slot says where in its order a
batch would fit (`order.fit`):

    loaded   it is in memory, or on its way there: a second request joins what the first has ordered
    absent   a start: memory (`loads.room_at`), then links, then execution

Of the slots on which it is in time, and nobody else too late, the one on which it ends first takes
it. A start counts as if it ended `keep_percent` of its load later, and twice that where another
model has to leave: slots that hold a model get its requests while they can answer them, and free
memory is used first. If there is no such slot, the request cannot be in time and is refused at
once; only where its model is just about to leave a slot, to make room for another, it waits until
it may be asked for again.

What is promised is kept, if batches and copies take no longer than foreseen: orders are kept, loads
begin in the order of their numbers, and neither the model of a promised batch leaves nor is the
memory given twice.

Variants are of the paper's server: each model bound to a slot, batches in the order in which they
came, none refused, copies not before execution.
"""

from typing import NamedTuple

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import queues
from headrace.dispatch.kernel.contract import (
    NO_REASON,
    SLOT_RECOVERY_US,
    Decision,
    at_once,
    drop,
    ignore_answer,
    ignore_arrival,
    ignore_give_up,
    ignore_hop,
    ignore_items,
    ignore_serve,
    put_in_queue,
    send,
    wait,
)
from headrace.dispatch.kernel.drift import predicted_us, slack_us
from headrace.dispatch.kernel.flow import RETRY_US, advance_slot, leave_ready
from headrace.dispatch.kernel.journal import DEADLINE, FAILED, NO_SLOT, add, note
from headrace.dispatch.kernel.journal import LOAD_FAILED as HAS_FAILED
from headrace.dispatch.kernel.journal import LOADED as IS_LOADED
from headrace.dispatch.kernel.layout import NEVER_US, State
from headrace.dispatch.kernel.provision.eviction import note_asked
from headrace.dispatch.kernel.provision.learned import (
    fade_loads,
    forget_loads,
    late_us,
    load_slack_us,
    observe_copies,
    observe_first,
)
from headrace.dispatch.kernel.provision.loads import (
    add_pending,
    begin_loads,
    begin_with_batch,
    call_off,
    change,
    evict,
    fits,
    foresee,
    forget_slot,
    free_links,
    order,
    room_at,
    stay_of,
    would_begin_at,
)
from headrace.dispatch.kernel.provision.order import (
    NOWHERE,
    fit,
    insert,
    may_start_at,
    released_at,
    remove,
    settle,
    start_us,
    waits_for_load,
)
from headrace.dispatch.kernel.provision.tables import (
    ABSENT,
    AWAITED,
    FIELDS,
    LOADED,
    LOADING,
    TABLES,
    lay_out,
)
from headrace.dispatch.kernel.rows import drop_batch

__all__ = ["FIELDS", "TABLES", "lay_out"]

on_arrived = ignore_arrival
transfer_at = at_once
on_transferred = ignore_hop
open_request, give_up_request = ignore_items, ignore_give_up
serve, put_back, on_answered = ignore_serve, put_in_queue, ignore_answer


# -- which slot -----------------------------------------------------------------------------------


class Offer(NamedTuple):
    """What a slot offers a batch."""

    after: int
    """See `order.Fit`."""
    start_at: int
    end_at: int
    slack_us: int
    memory_at: int
    cold: int
    """1: it needs a load of its own."""


@kernel
def decide(s: State, model: int, now_us: int) -> Decision:
    """The model's queue is not empty."""
    rules, asked = s.rules[0], s.starts[model]
    request = s.requests[queues.at(s, model, 0)]
    if asked.closed:
        return drop(FAILED, RETRY_US)
    route = s.models[model].first_route
    stage = s.routes[route].first_stage
    pool = s.stages[stage]
    foresee(s, now_us)
    best, best_score, late_us = -1, NEVER_US, NEVER_US
    alive, blocked = False, False
    for place in range(pool.first_pool, pool.end_pool):
        slot = s.pools[place]
        if rules.bound and place - pool.first_pool != model % (pool.end_pool - pool.first_pool):
            continue
        if not s.slots[slot].alive:
            continue
        alive = True
        row = stay_of(s, slot, model)
        if s.stays[row].leaving or (s.stays[row].state != ABSENT and not fits(s, slot, model)):
            blocked = True
            continue
        offer = _offer(s, slot, place, model, request.deadline_at, now_us)
        if offer.after == NOWHERE:
            late_us = min(late_us, offer.end_at + offer.slack_us - request.deadline_at)
            continue
        score = offer.end_at + (_burden_us(s, slot, model) if offer.cold else 0)
        if score < best_score:
            best, best_score = place, score
            rules.after, rules.memory_at, rules.cold = offer.after, offer.memory_at, offer.cold
            found = s.path[route * s.world[0].stages_max]
            found.slot, found.place = slot, place
            found.start_at, found.latency_us = offer.start_at, offer.end_at - offer.start_at
            found.transfer_at, found.transfer_us = now_us, 0
    if best >= 0:
        note_asked(s, model, request.arrived_at)
        return send(route, 1)
    if not alive:
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    alone_us = predicted_us(s, stage, pool.first_pool, 1) + slack_us(s, route, 1)
    if blocked and now_us + alone_us <= request.deadline_at:
        return wait(request.deadline_at - alone_us + 1, 1)
    note_asked(s, model, request.arrived_at)
    fade_loads(s, model, now_us)
    # What is a little too late now is so a moment later, too: a batch of its own is the least.
    return drop(DEADLINE, min(max(late_us, alone_us), RETRY_US))


@kernel
def _burden_us(s: State, slot: int, model: int) -> int:
    """What a start costs others: a load, and another where somebody has to leave for it."""
    mine, here = s.starts[model], s.slots[slot]
    leaves = max(here.held_bytes, here.promised_bytes) + mine.bytes > here.memory_bytes
    return mine.load_us * s.rules[0].keep_percent * (2 if leaves else 1) // 100


@kernel
def _offer(s: State, slot: int, place: int, model: int, deadline_at: int, now_us: int) -> Offer:
    rules, stay = s.rules[0], s.stays[stay_of(s, slot, model)]
    route = s.models[model].first_route
    takes_us = predicted_us(s, s.routes[route].first_stage, place, 1)
    spare_us, not_before, memory_at = slack_us(s, route, 1), now_us, now_us
    behind_model, cold = -1, 0
    if stay.state == ABSENT:
        cold = 1
        memory_at = room_at(s, slot, model, now_us, 0)
        if memory_at == NEVER_US:
            return Offer(NOWHERE, NEVER_US, NEVER_US >> 1, 0, memory_at, cold)
        begins_at = would_begin_at(s, slot, model, memory_at, now_us)
        not_before = released_at(s, slot, model, begins_at)
        takes_us = start_us(s, slot, model, takes_us)
        spare_us = max(spare_us, load_slack_us(s, slot, model))
    elif stay.state != LOADED:
        behind_model = model
    latest_end = deadline_at - spare_us if rules.refuses else NEVER_US
    there = fit(s, slot, behind_model, not_before, memory_at, takes_us, latest_end, now_us)
    return Offer(there.after, there.start_at, there.end_at, spare_us, memory_at, cold)


@kernel
def on_dispatched(s: State, batch: int) -> None:
    """Promise what `decide` has found."""
    rules, mine = s.rules[0], s.batches[batch]
    found = s.path[mine.route * s.world[0].stages_max]
    slot, now_us = found.slot, found.transfer_at
    hop = s.hops[batch * s.world[0].stages_max]
    hop.slot, hop.place = slot, found.place
    hop.start_at, hop.latency_us = found.start_at, found.latency_us
    hop.transfer_at, hop.transfer_us = now_us, 0
    mine.hops, mine.cold = 1, rules.cold
    s.stays[stay_of(s, slot, mine.model)].used_at = now_us
    if mine.cold:
        room_at(s, slot, mine.model, now_us, 1)
    add_pending(s, slot, mine.model, 1)
    insert(s, slot, batch, rules.after)
    if mine.cold:
        order(s, slot, mine.model, rules.memory_at, now_us)
        begin_loads(s, now_us)
        foresee(s, now_us)
    settle(s, slot, now_us)


# -- batches --------------------------------------------------------------------------------------


@kernel
def next_hop(s: State, batch: int, _now_us: int) -> int:
    slot = s.hops[batch * s.world[0].stages_max].slot
    return NO_REASON if s.slots[slot].alive else NO_SLOT


@kernel
def start_at(s: State, hop: int, now_us: int) -> int:
    batch = hop // s.world[0].stages_max
    return max(s.hops[hop].start_at, may_start_at(s, s.hops[hop].slot, batch, now_us))


@kernel
def on_started(s: State, hop: int, now_us: int) -> None:
    mine, batch = s.hops[hop], hop // s.world[0].stages_max
    slot, theirs = s.slots[mine.slot], s.batches[batch]
    stage = s.routes[theirs.route].first_stage
    mine.start_at = now_us
    mine.latency_us = predicted_us(s, stage, mine.place, theirs.size)
    slot.cold = slot.cold_more_us = slot.cold_tail_us = 0
    if waits_for_load(s, mine.slot, batch):
        start = s.starts[theirs.model]
        stay = s.stays[stay_of(s, mine.slot, theirs.model)]
        if stay.state == AWAITED:
            begin_with_batch(s, mine.slot, theirs.model, now_us)
        slot.cold, slot.cold_more_us = 1, start.more_us
        slot.cold_tail_us = start.last_us - start.load_us
        if slot.copies:
            late = late_us(s, mine.slot, theirs.model)
            released_at = stay.begins_at + start.last_us - start.exec_us + late
            ends_at = released_at + start.more_us + mine.latency_us
            mine.latency_us = max(mine.latency_us + start.more_us, ends_at - now_us)
        else:
            ends_at = stay.begins_at + start_us(s, mine.slot, theirs.model, mine.latency_us)
            mine.latency_us = max(mine.latency_us + start.more_us, ends_at - now_us)
    settle(s, mine.slot, now_us)


@kernel
def on_ended(s: State, hop: int, now_us: int) -> None:
    batch, slot = hop // s.world[0].stages_max, s.hops[hop].slot
    mine, here = s.batches[batch], s.slots[slot]
    stay = s.stays[stay_of(s, slot, mine.model)]
    stay.used_at = now_us
    if here.cold and not here.copies and stay.begins_at == here.started_at:
        stage = s.routes[mine.route].first_stage
        warm_us = predicted_us(s, stage, s.hops[hop].place, mine.size)
        observe_first(s, slot, mine.model, now_us - here.started_at - warm_us, now_us)
    _leave(s, batch, now_us)


@kernel
def forget(s: State, batch: int) -> None:
    if s.batches[batch].there >= 0:
        _leave(s, batch, s.world[0].now_us)


@kernel
def _leave(s: State, batch: int, now_us: int) -> None:
    """The batch is no more on its slot."""
    mine = s.batches[batch]
    slot, model = mine.there, mine.model
    stay = s.stays[stay_of(s, slot, model)]
    remove(s, batch)
    add_pending(s, slot, model, -1)
    if mine.cold and stay.state in (AWAITED, LOADING):
        after = _next_of(s, slot, model)
        if after >= 0:
            s.batches[after].cold = 1
        elif stay.state == AWAITED:
            call_off(s, slot, model)
    if s.starts[model].closed and stay.state == LOADED and stay.pending == 0:
        evict(s, slot, model, now_us)
    if s.slots[slot].alive:
        begin_loads(s, now_us)
        foresee(s, now_us)
        settle(s, slot, now_us)


@kernel
def _next_of(s: State, slot: int, model: int) -> int:
    batch = s.slots[slot].first_there
    while batch >= 0 and s.batches[batch].model != model:
        batch = s.batches[batch].next_there
    return batch


@hot
def reroute(_s: State, _batch: int, _first_stage: int, _now_us: int) -> int:
    """Of later stages only, and there are none."""
    return NO_SLOT


# -- slots, and what they hold --------------------------------------------------------------------


@kernel
def _settle_all(s: State, behind: int, now_us: int) -> None:
    """From the slot behind this one on, so that those that share a link take turns."""
    begin_loads(s, now_us)
    foresee(s, now_us)
    slots = s.world[0].slots
    for number in range(slots):
        slot = (behind + 1 + number) % slots
        if s.slots[slot].alive:
            settle(s, slot, now_us)
            advance_slot(s, slot, now_us)


@kernel
def on_level_changed(s: State, _stage: int, place: int, now_us: int) -> None:
    settle(s, s.pools[place], now_us)


@kernel
def on_slot_lost(s: State, slot: int) -> None:
    forget_slot(s, slot)
    _settle_all(s, slot, s.world[0].now_us)


@kernel
def on_slot_gained(s: State, slot: int, now_us: int) -> None:
    """It holds nothing."""
    forget_loads(s, slot, now_us)
    _settle_all(s, slot, now_us)


@kernel
def on_loaded(s: State, load: int, slot: int, started_at: int, now_us: int) -> None:
    model = s.slots[slot].bringing
    stay = s.stays[stay_of(s, slot, model)]
    if stay.load != load or stay.state != LOADING:
        return
    if s.world[0].logged:
        note(s, IS_LOADED, now_us, load, slot, model)
        add(s, started_at)
    change(s, slot, model, LOADED, stay.pending, stay.leaving)
    stay.used_at = now_us
    if s.slots[slot].copies:
        observe_copies(s, slot, model, now_us - stay.begins_at, now_us)
    free_links(s, slot)
    if s.starts[model].closed and stay.pending == 0:
        evict(s, slot, model, now_us)
    _settle_all(s, slot, now_us)


@kernel
def on_load_failed(s: State, load: int, slot: int, now_us: int) -> None:
    """Its batches there are refused, and the model everywhere, until it is admitted."""
    model = s.slots[slot].bringing
    stay = s.stays[stay_of(s, slot, model)]
    if stay.load != load or stay.state != LOADING:
        return
    if s.world[0].logged:
        note(s, HAS_FAILED, now_us, load, slot, model)
    free_links(s, slot)
    change(s, slot, model, ABSENT, stay.pending, 0)
    batch = _next_of(s, slot, model)
    while batch >= 0:
        if s.slots[slot].running == batch:
            s.slots[slot].running = -1
        leave_ready(s, batch, slot)
        drop_batch(s, batch, FAILED, RETRY_US, now_us)
        batch = _next_of(s, slot, model)
    on_admitted(s, model, 0, now_us)
    _settle_all(s, slot, now_us)


@kernel
def on_admitted(s: State, model: int, admitted: int, now_us: int) -> None:
    s.starts[model].closed = 1 - admitted
    for slot in range(s.world[0].slots):
        stay = s.stays[stay_of(s, slot, model)]
        if not admitted and stay.state == LOADED and stay.pending == 0:
            evict(s, slot, model, now_us)
