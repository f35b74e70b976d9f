"""Requests of many items: the contract's functions, and when places are given anew.

Places are given anew (`settle`) when a request arrives, ends or gives places back, when a slot is
lost or gained, and when one that waits cannot be in time any more; between, a request's next batch
is sent whenever its first place has done all that it was given, so that a change of depth takes
effect at a batch's boundary. Batches keep the path that they were sent on.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import reactive
from headrace.dispatch.kernel.contract import (
    NO_REASON,
    SLOT_RECOVERY_US,
    Decision,
    at_once,
    drop,
    ignore_admitted,
    ignore_arrival,
    ignore_hop,
    ignore_load_failed,
    ignore_loaded,
)
from headrace.dispatch.kernel.journal import (
    CANCELLED,
    DEADLINE,
    DRAINING,
    FAILED,
    NO_SLOT,
    OPENED,
    QUEUE_FULL,
    add_two,
    note,
)
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.malleable.by_deadline import give_by_deadline
from headrace.dispatch.kernel.malleable.fixed import foreseen_late, give_in_turn, hand_down
from headrace.dispatch.kernel.malleable.places import (
    first_held,
    hold,
    lose_places,
    needs,
    release,
    send_next,
    stages_of,
    take,
)
from headrace.dispatch.kernel.malleable.requests import (
    add_row,
    drop_rest,
    free_row,
    join,
    leave,
    leave_line,
    put_in_line,
)
from headrace.dispatch.kernel.malleable.tables import (
    BUFFERED,
    BY_DEADLINE,
    FIELDS,
    TABLES,
    WAITING,
    lay_out,
    left,
    on_level_changed,
)

__all__ = ["FIELDS", "TABLES", "lay_out", "on_level_changed"]

RETRY_US = 1_000_000

on_arrived = ignore_arrival
transfer_at = at_once
on_transferred = ignore_hop
on_dispatched = ignore_arrival
on_started = reactive.on_started
on_loaded, on_load_failed, on_admitted = ignore_loaded, ignore_load_failed, ignore_admitted


@hot
def decide(_s: State, _model: int, _now_us: int) -> Decision:
    """A request is told of as a whole: none waits in a model's queue."""
    return drop(NO_SLOT, SLOT_RECOVERY_US)


@kernel
def open_request(
    s: State,
    now_us: int,
    first_id: int,
    model: int,
    arrived_at: int,
    deadline_at: int,
    priority: int,
    items: int,
) -> None:
    rules = s.rules[0]
    if s.world[0].logged:
        note(s, OPENED, arrived_at, first_id, model, deadline_at)
        add_two(s, items, priority)
    row = add_row(s, first_id, model, arrived_at, deadline_at, priority, items)
    if s.world[0].draining:
        _refuse(s, row, DRAINING, now_us)
    elif rules.waiting >= s.world[0].queue_max:
        _refuse(s, row, QUEUE_FULL, now_us)
    elif rules.predictor and foreseen_late(s, row, now_us):
        _refuse(s, row, DEADLINE, now_us)
    else:
        put_in_line(s, row)
        rules.stale = 1


@kernel
def _refuse(s: State, row: int, reason: int, now_us: int) -> None:
    drop_rest(s, row, reason, RETRY_US, now_us)
    free_row(s, row)


@kernel
def give_up_request(s: State, request_id: int, now_us: int) -> None:
    """The client of one of its items went away: none of the others is wanted either."""
    for row in range(s.rules[0].rows_used):
        mine = s.items_of[row]
        if 0 <= mine.id <= request_id < mine.id + mine.items:
            drop_rest(s, row, CANCELLED, 0, now_us)
            if mine.state == WAITING:
                leave_line(s, row)
                join(s, row)
            s.rules[0].stale = 1
            return


@kernel
def put_back(s: State, _model: int, request: int) -> None:
    mine = s.items_of[s.requests[request].of]
    s.requests[request].after = mine.first_returned
    mine.first_returned = request
    mine.returned += 1


# -- when something has become possible -----------------------------------------------------------


@kernel
def serve(s: State, now_us: int) -> None:
    rules = s.rules[0]
    if 0 <= rules.wake_at <= now_us:
        rules.wake_at, rules.stale = -1, 1
    if rules.idle >= 0 and not rules.stale:
        row = s.slots[rules.idle].owner
        if row >= 0:
            _send(s, row, now_us)
    rules.idle = -1
    while rules.stale:
        rules.stale = 0
        settle(s, now_us)
        i = 0
        while i < rules.under_way:
            _send(s, s.under_way[i], now_us)
            i += 1


@kernel
def _send(s: State, row: int, now_us: int) -> None:
    if send_next(s, row, now_us) and left(s, row) == 0 and s.rules[0].rule == BY_DEADLINE:
        release(s, row)
        s.rules[0].stale = 1


@kernel
def settle(s: State, now_us: int) -> None:
    """Give places anew."""
    _sweep(s, now_us)
    if s.rules[0].rule == BY_DEADLINE:
        give_by_deadline(s, now_us)
    else:
        give_in_turn(s, now_us)


@kernel
def _sweep(s: State, now_us: int) -> None:
    """Requests that are over leave; those that lost an item are given up; those without places that
    have items left wait."""
    i = 0
    while i < s.rules[0].under_way:
        row = s.under_way[i]
        mine = s.items_of[row]
        if mine.sent > mine.returned + mine.on_way + mine.back:
            drop_rest(s, row, FAILED, RETRY_US, now_us)  # it lost an item
        if mine.lost:
            _go_on(s, row, now_us)
        if left(s, row) == 0 and s.rules[0].rule == BY_DEADLINE:
            release(s, row)
        if left(s, row) == 0 and mine.on_way == 0:
            if s.rules[0].rule == BUFFERED:
                hand_down(s, row, now_us)
            release(s, row)
            leave(s, row)
            free_row(s, row)
        elif left(s, row) and mine.route < 0:
            leave(s, row)
            put_in_line(s, row)
        else:
            i += 1


@kernel
def _go_on(s: State, row: int, now_us: int) -> None:
    """A slot of the request was lost: go on at the depth that its other slots make."""
    mine = s.items_of[row]
    mine.lost = 0
    first = s.models[mine.model].first_route
    route = mine.route - 1
    while route >= first and not _own_suffice(s, row, route):
        route -= 1
    if route >= first:
        hold(s, row, route, now_us)
    else:
        lose_places(s, row, now_us)


@kernel
def _own_suffice(s: State, row: int, route: int) -> bool:
    held = first_held(s, row)
    for kind in range(s.rules[0].kinds):
        own = 0
        for i in range(stages_of(s, s.items_of[row].route)):
            slot = s.slots[s.held[held + i]]
            own += int(slot.owner == row and slot.kind == kind)
        if own < needs(s, route, kind):
            return False
    return True


# -- batches --------------------------------------------------------------------------------------


@kernel
def next_hop(s: State, batch: int, _now_us: int) -> int:
    mine = s.batches[batch]
    slot = s.hops[batch * s.world[0].stages_max + mine.stage].slot
    return NO_REASON if s.slots[slot].alive else NO_SLOT


@hot
def start_at(s: State, hop: int, now_us: int) -> int:
    """Not before what was given to the slot earlier and is still on its way there."""
    mine = s.hops[hop]
    first = hop % s.world[0].stages_max == 0
    if first or s.slots[mine.slot].pending > 1:
        return max(now_us, mine.start_at)
    return now_us


@kernel
def on_ended(s: State, hop: int, now_us: int) -> None:
    reactive.on_ended(s, hop, now_us)
    _count_over(s, s.hops[hop].slot, now_us)
    s.rules[0].idle = s.hops[hop].slot


@kernel
def _count_over(s: State, slot: int, now_us: int) -> None:
    mine = s.slots[slot]
    mine.pending -= 1
    if mine.pending == 0:
        mine.free_at = now_us


@hot
def on_answered(s: State, batch: int) -> None:
    mine = s.batches[batch]
    s.items_of[mine.of].back += mine.size


@kernel
def forget(s: State, batch: int) -> None:
    mine = s.batches[batch]
    theirs, first_hop = s.items_of[mine.of], batch * s.world[0].stages_max
    reactive.forget(s, batch)
    for hop in range(first_hop + mine.stage, first_hop + mine.hops):
        s.slots[s.hops[hop].slot].pending -= 1
    theirs.on_way -= mine.size
    if theirs.on_way == 0 or theirs.sent > theirs.returned + theirs.on_way + theirs.back:
        s.rules[0].stale = 1  # it may be over, or have lost an item


@kernel
def reroute(s: State, batch: int, first_stage: int, now_us: int) -> int:
    """Its items under way run on where the request has places; elsewhere if need be."""
    mine = s.batches[batch]
    first_hop = batch * s.world[0].stages_max
    end_at = now_us
    for stage in range(first_stage, mine.hops):
        hop = s.hops[first_hop + stage]
        if s.slots[hop.slot].alive:
            end_at = max(end_at, hop.start_at + hop.latency_us)
            continue
        table = s.routes[mine.route].first_stage + stage
        slot = _instead(s, mine.of, s.paces[table].kind)
        if slot < 0:
            return NO_SLOT
        s.slots[hop.slot].pending -= 1
        place = s.stages[table].first_pool + s.slots[slot].place
        end_at = take(s, batch, stage, slot, place, end_at)
    theirs = s.items_of[mine.of]
    theirs.last_end_at = max(theirs.last_end_at, end_at)
    return NO_REASON


@kernel
def _instead(s: State, row: int, kind: int) -> int:
    """A slot of that kind: the request's own that is done first, else a free one, else any; -1."""
    best, best_rank = -1, 0
    for slot in range(s.world[0].slots):
        mine = s.slots[slot]
        if not mine.counted or mine.kind != kind:
            continue
        rank = 0 if mine.owner == row else (1 if mine.owner < 0 else 2)
        if (
            best < 0
            or rank < best_rank
            or (rank == best_rank and mine.free_at < s.slots[best].free_at)
        ):
            best, best_rank = slot, rank
    return best


# -- slots lost and gained ------------------------------------------------------------------------


@kernel
def on_slot_lost(s: State, slot: int) -> None:
    mine = s.slots[slot]
    if not mine.counted:
        return
    mine.counted = 0
    if mine.owner >= 0:
        s.items_of[mine.owner].lost = 1
    else:
        s.kinds[mine.kind].free -= 1
    mine.owner = -1
    s.rules[0].stale = 1


@kernel
def on_slot_gained(s: State, slot: int, now_us: int) -> None:
    mine = s.slots[slot]
    mine.free_at = mine.finish_at = now_us
    if not mine.counted:
        mine.counted, mine.owner = 1, -1
        s.kinds[mine.kind].free += 1
        s.rules[0].stale = 1
