"""Room for an urgent request: reservations that have not begun are taken back (decision 0027).

Urgency is (priority, deadline), smaller first. A batch is as urgent as its most important request
by its tightest deadline, and may be displaced until its first stage runs. Where the first request
of a queue, r, would be dropped for its deadline:

    1. candidates: batches not begun, less urgent than r, of models that share a slot with r's
    2. set all their paths aside, and find the largest batch of requests as urgent as r that is in
       time then; none: put all paths back
    3. reserve that batch's path, and put back every path that it does not cross
    4. who has r's priority and was crossed must be in time on another path; one that is not: put
       everything back, and drop r
    5. who is less important and was crossed takes another path in time, or goes back to its queue

So an accepted request is made late only for a more important one, and nothing changes unless r is
sent. It ends: each batch is displaced at most once per event, and each time for one more urgent.

Cost: where no batch can be less urgent than r, as where all requests of a model have one SLO and
one priority, two comparisons per model (`latest_at`, `lowest`: bounds over batches not begun).
Otherwise O(batches) to look for candidates, and O(their hops) plus a probe per crossed path.
"""

from typing import Any

import numpy as np

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import queues
from headrace.dispatch.kernel.drift import slack_us
from headrace.dispatch.kernel.flow import leave_ready, note_path
from headrace.dispatch.kernel.journal import ENDED, WAKE, WAKE_QUEUE, WAKE_SLOT, note
from headrace.dispatch.kernel.layout import HOP, State, Table
from headrace.dispatch.kernel.probing import downlink, probe, release_from, take_path, uplink
from headrace.dispatch.kernel.queues import at
from headrace.dispatch.kernel.reservation_tables import DOWNLINK, SLOT, UPLINK, reserve
from headrace.dispatch.kernel.rows import remove_batch
from headrace.dispatch.topology import ModelRoutes, Topology

FIELDS = {
    "world": {"evicted": 0, "evicted_at": 0},
    "models": {"latest_at": 0, "lowest": -(1 << 62), "least_important": -(1 << 62)},
    "batches": {"priority": 0, "least_important": 0, "displaced_in": 0, "crossed": 0},
}
"""`evicted`: how many of those that are `displaced`, the first ones, go back to their queues when
the batch is made that needs their room; `evicted_at`: that instant.
`latest_at`, `lowest`, `least_important`: no batch of the model that has not begun has a later
deadline or a larger number. `priority`, `least_important`: of its most and least important request.
`displaced_in`: the event in which the
batch was made or given another path. `crossed`: scratch; it found no other path."""

TABLES = {
    "shares": Table(rows=lambda n: n.models * n.models),
    "displaced": Table(rows=lambda n: n.requests),
    "kept": Table(rows=lambda n: n.requests * n.stages_max, item=HOP),
}
"""shares     models x models: 1 where two models' pools have a slot in common
displaced  batches; scratch of `make_room`
kept       hops of batches that are being given other paths, as they were
"""


def lay_out(state: Any, topology: Topology) -> None:
    """Which models contend for slots."""
    slots = [_slots_of(model) for model in topology.models]
    shares = [[not one.isdisjoint(other) for other in slots] for one in slots]
    state.shares[:] = np.array(shares, dtype=np.int64).ravel()


def _slots_of(model: ModelRoutes) -> set[int]:
    return {slot for route in model.routes for stage in route.stages for slot in stage.slots}


@kernel
def note_urgency(s: State, batch: int) -> None:
    """A batch is new."""
    mine = s.batches[batch]
    first = batch * s.world[0].size_max
    mine.priority = mine.least_important = s.requests[s.members[first]].priority
    for i in range(1, mine.size):
        priority = s.requests[s.members[first + i]].priority
        mine.priority = min(mine.priority, priority)
        mine.least_important = max(mine.least_important, priority)
    mine.displaced_in = s.world[0].event
    note_bounds(s, batch)


@hot
def note_bounds(s: State, batch: int) -> None:
    mine = s.batches[batch]
    model = s.models[mine.model]
    model.latest_at = max(model.latest_at, mine.deadline_at)
    model.lowest = max(model.lowest, mine.priority)
    model.least_important = max(model.least_important, mine.least_important)


@kernel
def make_room(s: State, model: int, now_us: int) -> tuple[int, int]:
    """Take back what keeps the first request of a queue from being in time.

    Returns:
        (route, size) of the batch to send now; its path lies in the route's rows of `path`.
        (-1, 0): there is nothing that may be taken back, or it would not help.
    """
    count = _collect(s, model) if _may_help(s, model) else 0
    if count == 0:
        return -1, 0
    for i in range(count):
        release_from(s, s.displaced[i], 0)
    route, size = _largest_in_time(s, model, now_us)
    if route < 0:
        _put_back(s, 0, count)
        return -1, 0
    guest = s.world[0].free_batch  # nobody's row: it holds the path until the batch is sent
    _take(s, guest, route)
    crossed = _part_crossed(s, count, guest, s.routes[route].stages)
    _put_back(s, crossed, count)
    moved = _move_equals(s, crossed, s.requests[at(s, model, 0)].priority, now_us)
    if moved:
        _settle_crossed(s, crossed, now_us)
    _release(s, guest, s.routes[route].stages)
    if not moved:
        _undo(s, crossed)
        return -1, 0
    for stage in range(s.routes[route].stages):
        copy_hop(s.hops[guest * s.world[0].stages_max + stage], s.path[_place(s, route, stage)])
    return route, size


# -- who may be displaced -------------------------------------------------------------------------


@kernel
def _may_help(s: State, model: int) -> bool:
    first, models = s.requests[at(s, model, 0)], len(s.models)
    for other in range(models):
        if s.shares[model * models + other]:
            theirs = s.models[other]
            if theirs.latest_at > first.deadline_at or theirs.lowest > first.priority:
                return True
    return False


@kernel
def _collect(s: State, model: int) -> int:
    """Write the candidates to `displaced`; where there are none, find the bounds afresh."""
    first, models, count = s.requests[at(s, model, 0)], len(s.models), 0
    batch = s.world[0].first_batch
    while batch >= 0:
        mine = s.batches[batch]
        if not_begun(s, batch) and s.shares[model * models + mine.model]:
            later = mine.priority == first.priority and mine.deadline_at > first.deadline_at
            if (mine.priority > first.priority or later) and mine.displaced_in != s.world[0].event:
                s.displaced[count] = batch
                count += 1
        batch = mine.after
    if count == 0:
        for other in range(models):
            s.models[other].latest_at, s.models[other].lowest = 0, -(1 << 62)
        batch = s.world[0].first_batch
        while batch >= 0:
            if not_begun(s, batch):
                note_bounds(s, batch)
            batch = s.batches[batch].after
    return count


@hot
def not_begun(s: State, batch: int) -> bool:
    hop = batch * s.world[0].stages_max
    running = s.slots[s.hops[hop].slot].running == batch
    return s.batches[batch].stage == 0 and not running and s.reserved[3 * hop + SLOT].line >= 0


@kernel
def _largest_in_time(s: State, model: int, now_us: int) -> tuple[int, int]:
    """(route, size) of a batch of requests as urgent as the first; (-1, 0): none is in time."""
    table, first = s.models[model], s.requests[at(s, model, 0)]
    alike = 1
    while alike < table.queued:
        other = s.requests[at(s, model, alike)]
        if other.priority != first.priority or other.deadline_at != first.deadline_at:
            break
        alike += 1
    best, best_size, best_end_at = -1, 0, 0
    for route in range(table.first_route, table.end_route):
        for size in range(min(alike, s.routes[route].batch_size), 0, -1):
            waiting, end_at = probe(s, route, size, now_us)
            if waiting >= 0 and in_time(s, route, size, end_at, first.deadline_at):
                if size > best_size or (size == best_size and end_at < best_end_at):
                    best, best_size, best_end_at = route, size, end_at
                break
    return best, best_size


@hot
def in_time(s: State, route: int, size: int, end_at: int, deadline_at: int) -> bool:
    return end_at + slack_us(s, route, size) <= deadline_at


# -- paths aside, back, and moved -----------------------------------------------------------------


@hot
def _place(s: State, route: int, stage: int) -> int:
    return route * s.world[0].stages_max + stage


@hot
def copy_hop(hop: Any, to: Any) -> None:
    to.slot, to.place = hop.slot, hop.place
    to.start_at, to.latency_us = hop.start_at, hop.latency_us
    to.transfer_at, to.transfer_us = hop.transfer_at, hop.transfer_us


@kernel
def _take(s: State, batch: int, route: int) -> None:
    """Reserve for a row of `batches` what the last probe of the route has found."""
    from_slot = -1
    for stage in range(s.routes[route].stages):
        take_path(s, batch, stage, _place(s, route, stage), from_slot)
        from_slot = s.path[_place(s, route, stage)].slot


@kernel
def _release(s: State, batch: int, hops: int) -> None:
    s.batches[batch].hops = hops
    release_from(s, batch, 0)


@kernel
def _put_back(s: State, first: int, end: int) -> None:
    """Reserve again, as they were, the paths of some that are `displaced`."""
    for i in range(first, end):
        batch = s.displaced[i]
        from_slot, first_hop = -1, batch * s.world[0].stages_max
        for row in range(first_hop, first_hop + s.batches[batch].hops):
            hop = s.hops[row]
            reserve(s, 3 * row + SLOT, hop.slot, hop.start_at, hop.start_at + hop.latency_us)
            if hop.transfer_us:
                end_us = hop.transfer_at + hop.transfer_us
                reserve(s, 3 * row + UPLINK, uplink(s, from_slot), hop.transfer_at, end_us)
                reserve(s, 3 * row + DOWNLINK, downlink(s, hop.slot), hop.transfer_at, end_us)
            from_slot = hop.slot


@kernel
def _part_crossed(s: State, count: int, guest: int, stages: int) -> int:
    """Put first, of those that are `displaced`, who needs what the guest has now; how many."""
    crossed = 0
    for i in range(count):
        batch = s.displaced[i]
        if _crosses(s, batch, guest, stages):
            s.displaced[i], s.displaced[crossed] = s.displaced[crossed], batch
            crossed += 1
    return crossed


@kernel
def _crosses(s: State, batch: int, guest: int, stages: int) -> bool:
    longest = s.world[0].stages_max
    for mine in range(batch * longest, batch * longest + s.batches[batch].hops):
        hop = s.hops[mine]
        for row in range(guest * longest, guest * longest + stages):
            other = s.hops[row]
            if hop.slot == other.slot and _overlap(
                hop.start_at, hop.latency_us, other.start_at, other.latency_us
            ):
                return True
            if hop.transfer_us and other.transfer_us:
                one_up = uplink(s, s.hops[mine - 1].slot) == uplink(s, s.hops[row - 1].slot)
                one_down = downlink(s, hop.slot) == downlink(s, other.slot)
                if (one_up or one_down) and _overlap(
                    hop.transfer_at, hop.transfer_us, other.transfer_at, other.transfer_us
                ):
                    return True
    return False


@hot
def _overlap(one_at: int, one_us: int, other_at: int, other_us: int) -> bool:
    return one_at < other_at + other_us and other_at < one_at + one_us


@kernel
def _move_equals(s: State, crossed: int, priority: int, now_us: int) -> bool:
    """Other paths for those of this priority, the most urgent first; False: one would be late."""
    longest = s.world[0].stages_max
    for i in range(crossed):
        for row in range(s.displaced[i] * longest, (s.displaced[i] + 1) * longest):
            copy_hop(s.hops[row], s.kept[row])
    _sort(s, crossed)
    for i in range(crossed):
        batch = s.displaced[i]
        s.batches[batch].crossed = 0 if _move(s, batch, now_us) else 1
        if s.batches[batch].crossed and s.batches[batch].priority == priority:
            return False
    return True


@kernel
def _sort(s: State, count: int) -> None:
    """By urgency, then id: important ones choose first. Few, so by insertion."""
    for i in range(1, count):
        batch, place = s.displaced[i], i
        while place > 0 and _before(s, batch, s.displaced[place - 1]):
            s.displaced[place] = s.displaced[place - 1]
            place -= 1
        s.displaced[place] = batch


@hot
def _before(s: State, one: int, other: int) -> bool:
    a, b = s.batches[one], s.batches[other]
    if a.priority != b.priority:
        return a.priority < b.priority
    if a.deadline_at != b.deadline_at:
        return a.deadline_at < b.deadline_at
    return a.id < b.id


@kernel
def _move(s: State, batch: int, now_us: int) -> bool:
    mine = s.batches[batch]
    waiting, end_at = probe(s, mine.route, mine.size, now_us)
    if waiting < 0 or not in_time(s, mine.route, mine.size, end_at, mine.deadline_at):
        return False
    _take(s, batch, mine.route)
    return True


@kernel
def _undo(s: State, crossed: int) -> None:
    """All crossed batches have their paths again as they were."""
    longest = s.world[0].stages_max
    for i in range(crossed):
        release_from(s, s.displaced[i], 0)
    for i in range(crossed):
        for row in range(s.displaced[i] * longest, (s.displaced[i] + 1) * longest):
            copy_hop(s.kept[row], s.hops[row])
    _put_back(s, 0, crossed)


# -- what follows ---------------------------------------------------------------------------------


@kernel
def _settle_crossed(s: State, crossed: int, now_us: int) -> None:
    """Who has another path waits for its slot; who has none goes back to its queue, soon."""
    world = s.world[0]
    world.evicted, world.evicted_at = 0, now_us
    for i in range(crossed):
        batch = s.displaced[i]
        mine, first_hop = s.batches[batch], batch * world.stages_max
        mine.displaced_in, mine.held_up = world.event, 1
        leave_ready(s, batch, s.kept[first_hop].slot)
        if mine.crossed:
            s.displaced[world.evicted] = batch
            world.evicted += 1
            continue
        note_path(s, batch, 0, now_us)
        slot = s.hops[first_hop].slot
        mine.next_ready, s.slots[slot].first_ready = s.slots[slot].first_ready, batch
        # Not from here: a start corrects reservations, and the guest is no batch yet.
        s.slots[slot].wake_at = now_us
        note(s, WAKE, now_us, WAKE_SLOT, slot, 0)


@kernel
def requeue_evicted(s: State, model: int) -> None:
    """The batch is made that took their room: the others wait for another decision.

    Args:
        model: a decision about its queue follows in any case.
    """
    world = s.world[0]
    for i in range(world.evicted):
        batch = s.displaced[i]
        mine, first = s.batches[batch], batch * world.size_max
        for place in range(mine.size):
            queues.insert(s, mine.model, s.members[first + place])
        if mine.model != model:
            s.models[mine.model].fill_size = 0
            s.models[mine.model].wake_at = world.evicted_at
            note(s, WAKE, world.evicted_at, WAKE_QUEUE, mine.model, 0)
        note(s, ENDED, world.evicted_at, mine.id, 0, 0)
        remove_batch(s, batch)
    world.evicted = 0
