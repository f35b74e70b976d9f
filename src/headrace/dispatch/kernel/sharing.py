"""Models that take turns on common slots: who goes first, and how large a batch may be.

Where a slot serves one model, a batch may be promised its time early: what comes later has later
deadlines. Where it serves several, a request of another model may come that has less time. So
nothing is promised there before its first slot is idle (late binding), and then

    1. the model goes whose first request must start first: by priority, then by the latest start
       d - (median + slack of a batch of one), d its deadline. But one that has a full batch goes
       before it where those that wait have time for that: full batches waste least. The others
       wait for their turn. Where the plan has a duty cycle, whoever would make others late gives
       way to the one that has waited longest for its turn (`turns`)
    2. it takes the largest batch b, at most as planned and as many as wait, such that
         all of its own are in time:    now + path(b) + slack(b) <= tightest deadline
         those that wait still can be:  now + L(b) <= d' - (L'(b') + slack'(b')), of each model that
                                        waits for this slot, b' what it would take of those that
                                        wait, by the next rule
         those that come still can be:  L(b) <= PATIENCE x (SLO' - L'(1) - slack'(1)), of each model
                                        that the slot serves, unless the plan has a duty cycle for
                                        it, which promises room for the planned sizes
       and one request where no larger batch is. Whoever waits and is late even for the smallest
       batch that is worth its slot does not count
       Where the first waits for a busy slot, since it is in time on no other, those behind it that
       are in time on an idle one go there; by the next rule, in a batch that is worth that slot
    3. a request that is not in time alone, on any route, is dropped. So are first requests that
       have waited so long that only a batch not worth its slot is in time for them: in lasting
       overload every batch would be one of those. But not in a crowd's first batch
    4. a batch of several stages is not sent while, on a later slot of its path, it would be in
       front of a model that waits to begin there and must start there first, by rule 1 with the
       batch's latest start on that slot. It is not in front where the other's batch fits in before

Rule 4 because later slots are reserved when a batch is sent, ahead of all who are bound late: a
stage of 1.4 ms that comes every 3.8 ms would leave nothing to a tenant that takes 4.5 ms.

Why the latest start and not the deadline: both keep all deadlines that can be kept when batches
may be interrupted, which they may not. By deadlines a long batch waits for all short ones that are
due before it, though it could not wait and they could; measured on two models, 1.5 and 7.4 ms
(`benchmarks/gpulets/two_models.py`), it loses the long model's requests first.

Invariant: no model has a request that it could start while a slot of its pools is idle, unless
rule 4 holds it; and nobody is held for one that is held itself, so that some model goes. A model
that waits for another's turn is *deferred*; it is woken where that one is sent or drops, if it
leaves a slot idle. Cost: O(models on the slot) per decision, besides a probe per route and size.
Less where a batch ends and all that wait decide: whose turn it is on a slot is found once for all
of them (`slots.turn`), and models of one pool look at its slots instead of probing them.
"""

from typing import Any

import numpy as np

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import turns
from headrace.dispatch.kernel.contract import (
    SEND,
    SLOT_RECOVERY_US,
    WAIT,
    Decision,
    drop,
    send,
    wait,
)
from headrace.dispatch.kernel.drift import of_stage_us, slack_us
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT, WAKE, WAKE_QUEUE, note
from headrace.dispatch.kernel.layout import NEVER_US, SHIFT, State, merged
from headrace.dispatch.kernel.probing import probe
from headrace.dispatch.kernel.queues import at, rotate, tightest
from headrace.dispatch.kernel.reservation_tables import earliest
from headrace.dispatch.kernel.turns import (
    batch_us,
    others_spare_us,
    route_us,
    start_by,
    turn_on,
    waits_to_begin,
)
from headrace.dispatch.topology import ModelRoutes, Topology

PATIENCE = 0.5
"""A batch may take so much of the time that another model's request can wait: the other half is for
what else waits there."""
WASTE = 1 / 8
"""A batch is worth its slot if a request of it takes at most so much more of it than one of the
largest."""

FIELDS = merged(
    turns.FIELDS,
    {
        "models": {
            "one_pool": 0,
            "longest_us": NEVER_US,
            "most": 1,
            "least": 1,
            "crowded": 0,
            "deferred": 0,
            "held": 0,
        },
    },
)
"""`longest_us`: a batch of more than one may not
take more on its first slot. As profiled, `most`: requests of the largest batch that does not;
`least`: of the smallest that is worth its slot. `crowded`: since all that waited were sent, a batch
was smaller than that because the first had waited too long. `deferred`: it waits for another
model's turn on an idle slot. `held`: it waits, though its first slot is idle, because of a later
one (rule 4). `one_pool`: its batches run in one pool, on whose slots nothing is reserved ahead."""


def lay_out(state: Any, topology: Topology) -> None:
    """Who meets whom on which slot."""
    turns.lay_out(state, topology)
    models = topology.models
    runs = np.zeros((len(topology.slots), len(models)), dtype=np.int64)
    for number, model in enumerate(models):
        for route in model.routes:
            for stage in route.stages:
                runs[list(stage.slots), number] = 1
    together = runs.T @ runs > 0
    for number in range(len(models)):
        others = [i for i in np.flatnonzero(together[number]) if i != number]
        if others:
            patience_us = min(_patience_us(models[other]) for other in others)
            state.models["in_turns"][number] = 1
            longest_us = round(PATIENCE * max(0, patience_us))
            if _in_cycles(topology, models[number]):
                longest_us = NEVER_US
            state.models["longest_us"][number] = longest_us
            most = _most(models[number], longest_us)
            state.models["most"][number] = most
            state.models["least"][number] = _least(models[number], most)
            state.models["one_pool"][number] = _has_one_pool(topology, number, runs)


def _in_cycles(topology: Topology, model: ModelRoutes) -> bool:
    """Whether all its slots have duty cycles, in which there is room for batches as planned."""
    slots = {slot for route in model.routes for stage in route.stages for slot in stage.slots}
    return all(topology.duty_us(slot) is not None for slot in slots)


def _has_one_pool(topology: Topology, number: int, runs: Any) -> bool:
    """A batch of several stages is promised all its slots at once; single ones start at once."""
    met = np.flatnonzero(runs[runs[:, number] > 0].any(axis=0))
    ahead = any(len(route.stages) > 1 for other in met for route in topology.models[other].routes)
    return len(topology.models[number].routes) == 1 and not ahead


def _most(model: ModelRoutes, longest_us: int) -> int:
    sizes = (
        size
        for route in model.routes
        for size, us in enumerate(route.stages[0].p50_us, start=1)
        if us <= longest_us
    )
    return max(sizes, default=1)


def _least(model: ModelRoutes, most: int) -> int:
    times = [route.stages[0].p50_us for route in model.routes if route.batch_size >= most]
    p50_us = times[0]
    worth_us = (1 + WASTE) * p50_us[most - 1] / most
    return next(size for size in range(1, most + 1) if p50_us[size - 1] / size <= worth_us)


def _patience_us(model: ModelRoutes) -> int:
    """How long a request may wait for its slot."""
    return model.slo_us - model.fastest_us


@kernel
def decide_in_turn(s: State, model: int, now_us: int) -> Decision:
    """The queue of a model that shares slots is not empty."""
    decision = _decide(s, model, now_us)
    s.world[0].left_in_turns += int(decision.what != WAIT or s.models[model].held)
    return decision


@kernel
def _decide(s: State, model: int, now_us: int) -> Decision:
    decision = _for_first(s, model, now_us)
    mine = s.models[model]
    waits = decision.what == WAIT and mine.deferred == 0 and mine.held == 0
    if not waits or mine.one_pool or s.world[0].apart:
        return decision
    idle_end_at = _idle_end_at(s, model, 1, now_us)
    if idle_end_at == NEVER_US:
        return decision
    place = _first_due(s, model, idle_end_at, now_us)
    if place:
        behind = _for_those_behind(s, model, place, now_us)
        if behind.what == SEND:
            return behind
        if behind.what == WAIT:
            return wait(min(decision.at_us, behind.at_us), mine.queued + 1)
    return wait(decision.at_us, mine.queued + 1)


@kernel
def _idle_end_at(s: State, model: int, size: int, now_us: int) -> int:
    """When a batch would end that starts now, slack included: the first of those that
    `_first_to_start` has looked at; NEVER_US: the slots of all routes are busy."""
    best_at, end = NEVER_US, s.models[model].end_route
    for route in range(s.models[model].first_route, end):
        end_at = s.routes[route].end_at
        if end_at < NEVER_US and s.path[route * s.world[0].stages_max].start_at <= now_us:
            end_at += slack_us(s, route, 1)
            if size > 1:
                end_at += route_us(s, route, size) - route_us(s, route, 1)
            best_at = min(best_at, end_at)
    return best_at


@kernel
def _first_due(s: State, model: int, at_us: int, now_us: int) -> int:
    """The place of the first request behind the first one that has time until then; 0: no such. In
    a crowd that is one which has time for a batch that is worth its slot, unless it never had."""
    mine, worth_at, worth_us = s.models[model], at_us, 0
    least = min(mine.least, mine.queued)
    if mine.crowded and least > 1:
        worth_at, worth_us = _idle_end_at(s, model, least, now_us), batch_us(s, model, least)
    for place in range(1, mine.queued):
        request = s.requests[at(s, model, place)]
        never = request.arrived_at + worth_us > request.deadline_at
        if request.deadline_at >= (at_us if never else worth_at):
            return place
    return 0


@kernel
def _for_those_behind(s: State, model: int, place: int, now_us: int) -> Decision:
    """What becomes of the requests from that place on, which are in time on a slot that is idle,
    while those before them wait for a faster one. Only those of a batch that goes leave their
    places."""
    mine = s.models[model]
    count, crowded = min(mine.queued - place, mine.most), mine.crowded
    rotate(s, model, place, count)
    decision = _for_first(s, model, now_us)
    rotate(s, model, count, place)
    if decision.what == SEND:
        rotate(s, model, place, decision.size)
    else:
        mine.crowded = crowded
    return decision


@kernel
def _for_first(s: State, model: int, now_us: int) -> Decision:
    s.models[model].deferred = s.models[model].held = 0
    route = _first_to_start(s, model, now_us)
    if route < 0:
        wake_deferred(s, model, now_us)
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    first, mine = s.requests[at(s, model, 0)], s.routes[route]
    hop = s.path[route * s.world[0].stages_max]
    late_us = mine.end_at + slack_us(s, route, 1) - first.deadline_at
    if late_us > 0:
        wake_deferred(s, model, now_us)
        return drop(DEADLINE, late_us)
    if hop.start_at > now_us:
        # Whoever ends there has all queues decided; what is only promised there does not.
        running = s.slots[hop.slot].running >= 0
        return wait(hop.start_at - late_us + 1 if running else hop.start_at, NEVER_US)
    if turn_on(s, model, hop.slot, now_us) != model:
        s.models[model].deferred = 1
        return wait(max(now_us, start_by(s, model)) + 1, NEVER_US)
    size = _largest(s, model, route, now_us)
    if size:
        turn_at = _turn_before(s, model, route, size, now_us) if mine.stages > 1 else NEVER_US
        if turn_at == NEVER_US:
            return send(route, size)
        # Who waited for this one's turn on the first slot has it instead.
        s.models[model].deferred = s.models[model].held = 1
        wake_deferred(s, model, now_us)
        return wait(max(now_us, min(turn_at, start_by(s, model))) + 1, NEVER_US)
    wake_deferred(s, model, now_us)
    return drop(DEADLINE, batch_us(s, model, s.models[model].least))


@kernel
def _first_to_start(s: State, model: int, now_us: int) -> int:
    """The route on which a batch of one starts first, of those on which it is in time; of those
    that end first where none is; -1: no route has a slot in every pool. Sets `end_at`."""
    if s.models[model].one_pool:
        return _first_of_pool(s, model, now_us)
    first = s.requests[at(s, model, 0)]
    best, best_late, best_at = -1, True, 0
    for route in range(s.models[model].first_route, s.models[model].end_route):
        waiting, end_at = probe(s, route, 1, now_us)
        s.routes[route].end_at = end_at if waiting >= 0 else NEVER_US
        if waiting < 0:
            continue
        late = end_at + slack_us(s, route, 1) > first.deadline_at
        key_at = end_at if late else s.path[route * s.world[0].stages_max].start_at
        if best < 0 or (best_late and not late) or (late == best_late and key_at < best_at):
            best, best_late, best_at = route, late, key_at
    return best


@kernel
def _first_of_pool(s: State, model: int, now_us: int) -> int:
    """What `probe` finds for a batch of one where nothing is reserved ahead."""
    route, world = s.models[model].first_route, s.world[0]
    stage = s.routes[route].first_stage
    table, median_us = s.stages[stage], s.p50_us[stage * world.size_max]
    least_at = now_us + (median_us * table.least_level >> SHIFT)
    best, best_start, best_end = -1, 0, 0
    for place in range(table.first_pool, table.end_pool):
        slot = s.pools[place]
        start = max(now_us, s.lines[slot].free_from)
        end = start + (median_us * s.level[place] >> SHIFT)
        sooner = end < best_end or (end == best_end and start < best_start)
        if (best < 0 or sooner) and s.slots[slot].alive:
            best, best_start, best_end = place, start, end
            if end == least_at:
                break
    if best < 0:
        return -1
    hop = s.path[route * world.stages_max]
    hop.slot, hop.place, hop.start_at = s.pools[best], best, best_start
    hop.latency_us, hop.transfer_at, hop.transfer_us = best_end - best_start, best_start, 0
    s.routes[route].end_at = best_end
    return route


@kernel
def _turn_before(s: State, model: int, route: int, size: int, now_us: int) -> int:
    """When to decide again because the path would be in front of a model (rule 4): once that one
    can have started; NEVER_US: it is in front of none."""
    mine, hops = s.routes[route], route * s.world[0].stages_max
    last, priority = s.path[hops + mine.stages - 1], s.requests[at(s, model, 0)].priority
    end_at = last.start_at + last.latency_us + slack_us(s, route, size)
    spare_us = tightest(s, model, size) - end_at
    for stage in range(1, mine.stages):
        hop = s.path[hops + stage]
        for other in range(len(s.models)):
            if other == model or not waits_to_begin(s, other, hop.slot):
                continue
            first = s.requests[at(s, other, 0)]
            their_us = batch_us(s, other, min(s.models[other].queued, s.models[other].most))
            sooner = first.deadline_at - their_us < hop.start_at + spare_us
            if first.priority < priority or (first.priority == priority and sooner):
                turn_at = earliest(s, hop.slot, now_us, their_us)
                if turn_at + their_us > hop.start_at:
                    return turn_at if turn_at > now_us else hop.start_at
    return NEVER_US


@kernel
def _largest(s: State, model: int, route: int, now_us: int) -> int:
    """The size of the batch to send now; its path lies in the route's rows of `path`. 0: the first
    request is in the way of a batch that is worth its slot."""
    table, queue, first = s.routes[route], s.models[model], route * s.world[0].stages_max
    most = min(queue.queued, table.batch_size)
    if most == 1:
        queue.crowded = 0
        return 1
    floor = min(queue.least, most)
    slot, stage = s.path[first].slot, table.first_stage
    spare_us = others_spare_us(s, model, slot, now_us, of_stage_us(s, stage, floor))
    free_us = min(queue.longest_us, spare_us)
    for size in range(most, 0, -1):
        _, end_at = probe(s, route, size, now_us)
        hop = s.path[first]
        in_time = end_at + slack_us(s, route, size) <= tightest(s, model, size)
        if in_time and hop.start_at == now_us and (hop.latency_us <= free_us or size == 1):
            break
    if size >= floor or size == queue.queued:
        queue.crowded *= int(size < queue.queued)
        return size
    oldest = s.requests[at(s, model, 0)]
    if oldest.arrived_at + batch_us(s, model, floor) > oldest.deadline_at or not queue.crowded:
        queue.crowded = 1
        return size
    return 0


@kernel
def wake_deferred(s: State, model: int, now_us: int) -> None:
    """The model has had its turn, or is held: whoever waited for that, and for a slot that is idle
    still, decides again."""
    held = s.models[model].held
    for other in range(len(s.models)):
        theirs = s.models[other]
        if held and theirs.held:
            continue  # or two that are held would wake each other for ever
        if theirs.deferred and other != model and _may_start(s, other, now_us):
            s.models[other].deferred = 0
            s.models[other].wake_at = now_us
            note(s, WAKE, now_us, WAKE_QUEUE, other, 0)


@hot
def _may_start(s: State, model: int, now_us: int) -> bool:
    models = len(s.models)
    for slot in range(s.world[0].slots):
        idle = s.slots[slot].running < 0 and s.slots[slot].alive
        if idle and s.serves[slot * models + model] and earliest(s, slot, now_us, 1) == now_us:
            return True
    return False
