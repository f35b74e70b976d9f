"""Reservation-based adaptive batching (PPipe, section 5.4 and appendix A.3; decision 0006).

A batch is dispatched only when its whole path ends, with the profile's spread on top, before its
tightest deadline; then the path is reserved. For a model's queue, in this order:

    1. probe every route at its planned batch size b: waiting W and end E (`probing`)
    2. by increasing W: if E + slack(b) <= tightest deadline of the first b requests, take b
    3. else by increasing W: the largest smaller size that is in time; where a full batch is late
       only because it must wait, at most once until the path was idle, or a size that takes hardly
       longer per request, as long as the path was idle a short time ago (`_smaller_batch`)
    4. else drop the first request: no size on any route is in time

A size that was taken but not reached by the queue waits for more requests, until it would be late,
unless the path is idle and `fill_idle_path` is not set (`_settle`). slack(b) is the sum of p99 -
p50 along the route. Two rules let urgent requests pass: a batch with more time left than the
model's SLO is not sent before its path is idle (`_send_or_hold`), and what was reserved and has not
begun gives way before 4 (`displacement`).

Cost: a probe per route, and one per smaller size where full batches are late.

Reserved transfers and runs go in the order of their reservations, and earlier than reserved where
that delays nobody.
"""

from collections.abc import Mapping
from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import (
    displacement,
    exchange,
    feedback,
    probing,
    reservation_tables,
    sharing,
    turns,
)
from headrace.dispatch.kernel.contract import (
    DROP,
    NO_REASON,
    SEND,
    SLOT_RECOVERY_US,
    Decision,
    drop,
    ignore_admitted,
    ignore_answer,
    ignore_arrival,
    ignore_give_up,
    ignore_items,
    ignore_load_failed,
    ignore_loaded,
    ignore_serve,
    put_in_queue,
    send,
    wait,
)
from headrace.dispatch.kernel.drift import of_stage_us, slack_us
from headrace.dispatch.kernel.feedback import (
    extend_overruns,
    follow_moved,
    move,
    place_anew,
    relevel,
    stretch,
)
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT
from headrace.dispatch.kernel.layout import NEVER_US, State, merged
from headrace.dispatch.kernel.probing import (
    probe,
    release_from,
    release_links,
    release_slot,
    take_path,
)
from headrace.dispatch.kernel.queues import at, tightest, to_front
from headrace.dispatch.kernel.reservation_tables import (
    DOWNLINK,
    SLOT,
    UPLINK,
    free_for,
    note_running,
)
from headrace.dispatch.topology import Topology

DEARER = 16
"""A size whose batches take at most this part longer per request than planned ones is no dearer."""
BURST_SLOS = 4
"""A path that was idle within so many objectives is behind because of a burst, which passes."""

FIELDS = merged(
    reservation_tables.FIELDS,
    probing.FIELDS,
    feedback.FIELDS,
    displacement.FIELDS,
    exchange.FIELDS,
    sharing.FIELDS,
    {
        "world": {"fill_idle_path": 0},
        "models": {"slo_us": 0, "gateway_us": 0},
        "routes": {"shrunk": 0, "idle_at": 0, "waiting": 0, "end_at": 0, "done": 0},
    },
)
"""`fill_idle_path`: a partial batch waits until its deadline forces it (the paper) even where its
whole path is idle; 0: it starts at once there.
`slo_us`: who has more time left is not sent before its path is idle. `gateway_us`: of a request.
`shrunk`: since its path was last idle, a batch was smaller than planned because full ones came too
late. `idle_at`: when its path was last found idle.
`waiting`, `end_at`, `done`: scratch of a decision that compares routes."""

TABLES = {
    **reservation_tables.TABLES,
    **feedback.TABLES,
    **displacement.TABLES,
    **turns.TABLES,
}


def lay_out(state: Any, topology: Topology, parameters: Mapping[str, int]) -> None:
    """Parameters: `fill_idle_path`, see FIELDS; 0 unless given."""
    state.world["fill_idle_path"] = parameters.get("fill_idle_path", 0)
    state.models["slo_us"] = [model.slo_us for model in topology.models]
    state.models["gateway_us"] = [model.gateway_us for model in topology.models]
    displacement.lay_out(state, topology)
    sharing.lay_out(state, topology)


on_arrived = ignore_arrival
open_request, give_up_request = ignore_items, ignore_give_up
serve, put_back, on_answered = ignore_serve, put_in_queue, ignore_answer
on_loaded, on_load_failed, on_admitted = ignore_loaded, ignore_load_failed, ignore_admitted


# -- decisions ------------------------------------------------------------------------------------


@kernel
def decide(s: State, model: int, now_us: int) -> Decision:
    """The model's queue is not empty. Routes are asked in order of how long they make wait."""
    extend_overruns(s, now_us)
    follow_moved(s)
    if s.models[model].in_turns:
        return sharing.decide_in_turn(s, model, now_us)
    first, end = s.models[model].first_route, s.models[model].end_route
    usable = _mark_usable(s, first, end, now_us)
    if usable == 0:
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    for _ in range(usable):
        route = _least_waiting(s, first, end)
        s.routes[route].done = 1
        decision = _full_batch(s, model, route, now_us)
        if decision.what != DROP:
            return decision
    for route in range(first, end):
        s.routes[route].done = s.routes[route].waiting < 0
    for _ in range(usable):
        route = _least_waiting(s, first, end)
        s.routes[route].done = 1
        decision = _smaller_batch(s, model, route, now_us)
        if decision.what != DROP:
            return decision
    _tightest_to_front(s, model)
    route, size = exchange.make_room(s, model, now_us)
    if size:
        return send(route, size)
    return drop(DEADLINE, _backlog_us(s, model, now_us))


@kernel
def _full_batch(s: State, model: int, route: int, now_us: int) -> Decision:
    """A batch of the planned size, on the path that `_mark_usable` found; DROP: it is late."""
    table = s.routes[route]
    planned = table.batch_size
    if table.end_at + slack_us(s, route, planned) > tightest(s, model, planned):
        return drop(DEADLINE, 0)
    if table.waiting == 0:
        table.shrunk = 0
    return _settle(s, model, route, planned, table.waiting, table.end_at, now_us)


@kernel
def _smaller_batch(s: State, model: int, route: int, now_us: int) -> Decision:
    """Because a full batch would be late, even on an idle path or only for its turn to come.

    In the latter case only once until the path was idle. A smaller batch makes it, but takes more
    of each slot per request; the next would have to wait longer and be smaller still, for as long
    as the load lasts that full batches could carry. A few requests are dropped instead until a full
    batch is in time. Sizes that take hardly more per request do no such harm while a burst lasts
    (decision 0086).
    """
    table = s.routes[route]
    held_back, burst = _is_held_back(s, model, route), _in_burst(s, model, route, now_us)
    if held_back and not burst:
        return drop(DEADLINE, 0)
    for size in range(table.batch_size - 1, 0, -1):
        no_dearer = burst and _no_dearer(s, route, size)
        if held_back and not no_dearer:
            continue
        waiting, end_at = probe(s, route, size, now_us)
        if end_at + slack_us(s, route, size) <= tightest(s, model, size):
            decision = _settle(s, model, route, size, waiting, end_at, now_us)
            if not no_dearer:
                table.shrunk = decision.what == SEND
            return decision
    return drop(DEADLINE, 0)


@hot
def _is_held_back(s: State, model: int, route: int) -> bool:
    """A batch of the route was smaller than planned since it was idle, and a full one would be late
    only for its turn to come."""
    table = s.routes[route]
    idle_end_at = table.end_at - table.waiting
    limit_at = tightest(s, model, table.batch_size)
    return table.shrunk != 0 and idle_end_at + slack_us(s, route, table.batch_size) <= limit_at


@hot
def _in_burst(s: State, model: int, route: int, now_us: int) -> bool:
    return now_us - s.routes[route].idle_at <= BURST_SLOS * s.models[model].slo_us


@kernel
def _no_dearer(s: State, route: int, size: int) -> bool:
    """Batches of `size` take hardly longer per request than planned ones."""
    planned = s.routes[route].batch_size
    allowed_us = _path_us(s, route, planned) * size * (DEARER + 1)
    return _path_us(s, route, size) * planned * DEARER <= allowed_us


@kernel
def _path_us(s: State, route: int, size: int) -> int:
    """What a batch takes of the slots on its way, by medians."""
    path_us, first = 0, s.routes[route].first_stage
    for stage in range(first, first + s.routes[route].stages):
        path_us += of_stage_us(s, stage, size)
    return path_us


@kernel
def _mark_usable(s: State, first: int, end: int, now_us: int) -> int:
    """How many routes have a slot left in every pool; how long each makes wait, and until when."""
    usable = 0
    for route in range(first, end):
        table = s.routes[route]
        table.waiting, table.end_at = probe(s, route, table.batch_size, now_us)
        table.done = table.waiting < 0
        usable += table.waiting >= 0
        if table.waiting == 0:
            table.idle_at = now_us
    return usable


@kernel
def _least_waiting(s: State, first: int, end: int) -> int:
    best = -1
    for route in range(first, end):
        if not s.routes[route].done and (
            best < 0 or s.routes[route].waiting < s.routes[best].waiting
        ):
            best = route
    return best


@kernel
def _settle(
    s: State, model: int, route: int, size: int, waiting: int, end_at: int, now_us: int
) -> Decision:
    """A batch of `size` makes it: send it, or wait for more requests to fill it."""
    queued = s.models[model].queued
    if queued >= size:
        return _send_or_hold(s, model, route, size, waiting, now_us)
    if not s.world[0].fill_idle_path or s.models[model].closed:
        partial_waiting, _ = probe(s, route, queued, now_us)
        if partial_waiting == 0:
            return send(route, queued)
    # Until a batch of `size` would be late. While it waits anyway for slots and links, waiting for
    # requests costs nothing. Then the next smaller size is the largest that makes it.
    spare_us = tightest(s, model, queued) - end_at - slack_us(s, route, size)
    return wait(now_us + max(1, spare_us + waiting), size)


@kernel
def _send_or_hold(
    s: State, model: int, route: int, size: int, waiting: int, now_us: int
) -> Decision:
    """Hold a batch that would wait on its way and has time for that: more urgent ones may come.

    Where all requests have the model's SLO, no batch has so much time. Waiting for less than the
    route's spread is none: a pool whose work comes just in time would fall idle now and then.
    """
    spare_us = s.requests[at(s, model, 0)].deadline_at - s.models[model].slo_us - now_us
    if waiting == 0 or spare_us <= 0:
        return send(route, size)
    spare_us = min(spare_us, tightest(s, model, size) - s.models[model].slo_us - now_us)
    start_at = s.path[route * s.world[0].stages_max].start_at
    wait_us = min(spare_us, max(waiting - slack_us(s, route, size), start_at - now_us))
    if wait_us <= 0:
        return send(route, size)
    # Whoever comes behind those that wait does not change that.
    return _refuse_late(s, model, wait(now_us + wait_us, NEVER_US), now_us)


@kernel
def _refuse_late(s: State, model: int, held: Decision, now_us: int) -> Decision:
    """While the first are held: whoever is less important is not, but may have less time."""
    queue = s.models[model]
    first, last = s.requests[at(s, model, 0)], s.requests[at(s, model, queue.queued - 1)]
    if first.priority == last.priority:
        return held
    tightest_at, place = NEVER_US, 0
    for i in range(queue.queued):
        deadline_at = s.requests[at(s, model, i)].deadline_at
        if deadline_at < tightest_at:
            tightest_at, place = deadline_at, i
    start_by = tightest_at - _fastest_us(s, model)
    if start_by >= now_us:
        return wait(min(held.at_us, start_by + 1), held.size)
    to_front(s, model, place)
    return drop(DEADLINE, _backlog_us(s, model, now_us))


@kernel
def _fastest_us(s: State, model: int) -> int:
    """What one request takes alone (`ModelRoutes.fastest_us`, as it is by now)."""
    fastest_us = NEVER_US
    for route in range(s.models[model].first_route, s.models[model].end_route):
        fastest_us = min(fastest_us, slack_us(s, route, 1) + _path_us(s, route, 1))
    return s.models[model].gateway_us + fastest_us


@kernel
def _tightest_to_front(s: State, model: int) -> None:
    """No batch of the first requests is in time: that is for the one with the tightest deadline,
    which is the first unless a less important one has less time."""
    first, end = s.models[model].first_route, s.models[model].end_route
    most = 1
    for route in range(first, end):
        most = max(most, s.routes[route].batch_size)
    tightest_at, place = s.requests[at(s, model, 0)].deadline_at, 0
    for i in range(1, min(most, s.models[model].queued)):
        if s.requests[at(s, model, i)].deadline_at < tightest_at:
            tightest_at, place = s.requests[at(s, model, i)].deadline_at, i
    to_front(s, model, place)


@kernel
def _backlog_us(s: State, model: int, now_us: int) -> int:
    """How much the backlog must shrink before a request like the first could make it: in the
    smallest batch that would be sent."""
    first_end = NEVER_US
    for route in range(s.models[model].first_route, s.models[model].end_route):
        if s.routes[route].waiting >= 0:
            size = _least_size(s, model, route, now_us)
            _, end_at = probe(s, route, size, now_us)
            first_end = min(first_end, end_at + slack_us(s, route, size))
    return max(1, first_end - s.requests[at(s, model, 0)].deadline_at)


@kernel
def _least_size(s: State, model: int, route: int, now_us: int) -> int:
    """Of a batch that `_full_batch` or `_smaller_batch` would send if it were in time."""
    planned = s.routes[route].batch_size
    if not _is_held_back(s, model, route):
        return 1
    if _in_burst(s, model, route, now_us):
        for size in range(1, planned):
            if _no_dearer(s, route, size):
                return size
    return planned


# -- on the way -----------------------------------------------------------------------------------


@hot
def on_dispatched(s: State, batch: int) -> None:
    """Reserve the whole path."""
    mine = s.batches[batch]
    mine.hops = s.routes[mine.route].stages
    first, from_slot = mine.route * s.world[0].stages_max, -1
    for stage in range(mine.hops):
        take_path(s, batch, stage, first + stage, from_slot)
        from_slot = s.path[first + stage].slot
    exchange.note_new(s, batch)
    if s.world[0].evicted:
        displacement.requeue_evicted(s, mine.model)
    if s.models[mine.model].in_turns:
        turn = s.hops[batch * s.world[0].stages_max]
        turns.note_turn(s, mine.model, turn.slot, turn.start_at + turn.latency_us)
        sharing.wake_deferred(s, mine.model, turn.start_at)


@kernel
def next_hop(s: State, batch: int, now_us: int) -> int:
    """As reserved; anew where the slot is lost. Why to drop the batch where it will be late."""
    mine = s.batches[batch]
    first_hop = batch * s.world[0].stages_max
    hop = first_hop + mine.stage
    # Nothing is reserved where the whole pool was lost, and is back, since the path was found.
    if not s.slots[s.hops[hop].slot].alive or s.reserved[3 * hop + SLOT].line < 0:
        return reroute(s, batch, mine.stage, now_us)
    # By medians: what is probably late for everybody is not worth a slot's time.
    last = s.hops[first_hop + mine.hops - 1]
    return NO_REASON if last.start_at + last.latency_us <= mine.last_deadline_at else DEADLINE


@kernel
def reroute(s: State, batch: int, first_stage: int, now_us: int) -> int:
    """Find a new path from `first_stage` on, or say why there is none in time."""
    mine = s.batches[batch]
    first_hop = batch * s.world[0].stages_max
    ready_at = now_us
    if first_stage > mine.stage:
        before = s.hops[first_hop + first_stage - 1]
        ready_at = max(now_us, before.start_at + before.latency_us)
    release_from(s, batch, first_stage)
    placed = place_anew(s, batch, first_stage, ready_at)
    follow_moved(s)
    if not placed:
        return NO_SLOT
    last = s.hops[first_hop + mine.hops - 1]
    return NO_REASON if last.start_at + last.latency_us <= mine.last_deadline_at else DEADLINE


@kernel
def forget(s: State, batch: int) -> None:
    release_from(s, batch, s.batches[batch].stage)


@hot
def on_slot_lost(s: State, slot: int) -> None:
    note_running(s, slot, -1)


@hot
def on_slot_gained(s: State, slot: int, _now_us: int) -> None:
    note_running(s, slot, -1)


@hot
def on_level_changed(s: State, stage: int, place: int, _now_us: int) -> None:
    relevel(s, stage, place)


# -- order of execution ---------------------------------------------------------------------------


@hot
def transfer_at(s: State, hop: int, now_us: int) -> int:
    """At its reservation, or earlier where that delays nobody."""
    mine = s.hops[hop]
    if mine.transfer_at <= now_us:
        return now_us
    end_us = now_us + mine.transfer_us
    early = free_for(s, 3 * hop + UPLINK, now_us, end_us) and free_for(
        s, 3 * hop + DOWNLINK, now_us, end_us
    )
    return now_us if early else mine.transfer_at


@hot
def start_at(s: State, hop: int, now_us: int) -> int:
    """At its reservation, or earlier where that delays nobody."""
    mine = s.hops[hop]
    if mine.start_at <= now_us:
        return now_us
    early = free_for(s, 3 * hop + SLOT, now_us, now_us + mine.latency_us)
    return now_us if early else mine.start_at


# -- feedback -------------------------------------------------------------------------------------


@kernel
def on_transferred(s: State, hop: int, now_us: int) -> None:
    release_links(s, hop)
    if s.hops[hop].start_at < now_us:
        move(s, hop, now_us)
        follow_moved(s)


@kernel
def on_started(s: State, hop: int, now_us: int) -> None:
    mine = s.hops[hop]
    if mine.start_at != now_us:
        move(s, hop, now_us)
    note_running(s, mine.slot, hop)
    world = s.world[0]
    world.next_end_at = min(world.next_end_at, s.ends_at[mine.slot])
    follow_moved(s)


@kernel
def on_ended(s: State, hop: int, now_us: int) -> None:
    mine = s.hops[hop]
    if mine.start_at + mine.latency_us != now_us:
        stretch(s, hop, now_us)
    release_slot(s, hop)
    follow_moved(s)
