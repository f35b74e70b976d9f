"""What happens next: batches on their paths, in order on slots and links.

A driver reports arrivals, transfers and runs; the policy says where and when; this says who is
next. Orders to the driver and events for the log go to the journal. A batch goes through

    queue -> add_batch -> [ enter_stage -> (waits for links -> transfer ->) ready -> runs ]* ->
    finish

and is in exactly one place: first in line for two links (`first_waiting`, one list for all, in
order of `transfer_at`), in the list of batches ready for a slot (`slots.first_ready`; the least
`start_at` is next), or running (`slots.running`). Ties go to the smaller batch id. Whenever
something may have become possible, `advance_slot`, `advance_links` or `decide` looks; each of them
is harmless when nothing is.

A wake-up is asked for only where it is earlier than the one that is set. One that comes too early
decides afresh, so that none is ever taken back.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import queues
from headrace.dispatch.kernel.contract import DROP, NO_REASON, SEND
from headrace.dispatch.kernel.drift import fade, observe_end, of_stage_us, predicted_us, slack_us
from headrace.dispatch.kernel.journal import (
    ANSWERED,
    ARRIVED,
    CANCELLED,
    DEADLINE,
    DISPATCHED,
    DRAINING,
    DROPPED,
    QUEUE_FULL,
    START_STAGE,
    START_TRANSFER,
    WAKE,
    WAKE_LINKS,
    WAKE_QUEUE,
    WAKE_SLOT,
    add,
    add_four,
    add_two,
    note,
)
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.rows import (
    add_batch,
    add_request,
    drop_batch,
    free_request,
    remove_batch,
)
from headrace.dispatch.kernel.splitting import set_apart, together

RETRY_US = 1_000_000
"""Advice to clients where the policy has no better estimate."""


# -- arrivals -------------------------------------------------------------------------------------


@kernel
def arrive(
    s: State,
    now_us: int,
    request_id: int,
    model: int,
    arrived_at: int,
    deadline_at: int,
    priority: int,
    apart: int,
) -> None:
    """Take a request; from here on it is answered or refused exactly once."""
    world, queue = s.world[0], s.models[model]
    if world.logged:
        note(s, ARRIVED, arrived_at, request_id, model, deadline_at)
    if world.draining:
        note(s, DROPPED, now_us, request_id, DRAINING, RETRY_US)
        return
    if queue.queued >= world.queue_max and not _drop_less_urgent(
        s, model, deadline_at, priority, now_us
    ):
        note(s, DROPPED, now_us, request_id, QUEUE_FULL, RETRY_US)
        return
    request = add_request(s, request_id, arrived_at, deadline_at, priority)
    if apart:
        set_apart(s, request, -(request_id + 1))
    s.policy.on_arrived(s, request)
    last = queue.queued
    place = queues.insert(s, model, request)
    if place == last and last > 0 and queue.queued < queue.fill_size:
        tighter = deadline_at < s.requests[queues.at(s, model, 0)].deadline_at
        if not tighter:
            return  # the last decision stands
    decide(s, model, now_us)


@kernel
def _drop_less_urgent(s: State, model: int, deadline_at: int, priority: int, now_us: int) -> bool:
    """The queue is full: drop its least urgent request, if a new one is more urgent than that."""
    last = s.models[model].queued - 1
    if last < 0:
        return False
    request = queues.at(s, model, last)
    theirs = s.requests[request]
    if priority > theirs.priority:
        return False
    if priority == theirs.priority and deadline_at >= theirs.deadline_at:
        return False
    queues.remove(s, model, last)
    note(s, DROPPED, now_us, theirs.id, QUEUE_FULL, RETRY_US)
    free_request(s, request)
    return True


@kernel
def cancel(s: State, now_us: int, request_id: int) -> None:
    """The client went away. Work that is already in a batch goes on."""
    for model in range(len(s.models)):
        for place in range(s.models[model].queued):
            request = queues.at(s, model, place)
            if s.requests[request].id == request_id:
                queues.remove(s, model, place)
                note(s, DROPPED, now_us, request_id, CANCELLED, 0)
                free_request(s, request)
                return
    s.policy.give_up_request(s, request_id, now_us)


@kernel
def decide(s: State, model: int, now_us: int) -> None:
    """Send, drop or wait, until the queue is empty or waits."""
    queue = s.models[model]
    queue.fill_size = 0
    while queue.queued:
        queued = queue.queued
        queue.closed = 0
        if s.world[0].apart:
            # The policy sees those that may run together and are served next.
            queue.queued = together(s, model)
            first = s.requests[queues.at(s, model, 0)]
            queue.closed = int(queue.queued < queued or first.apart != 0)
        decision = s.policy.decide(s, model, now_us)
        queue.queued = queued
        if decision.what == SEND:
            batch = add_batch(s, model, decision.route, decision.size)
            s.policy.on_dispatched(s, batch)
            note_path(s, batch, 0, now_us)
            enter_stage(s, batch, now_us)
        elif decision.what == DROP:
            if fade(s, model, now_us):
                continue
            request = queues.take_first(s, model)
            reason, retry_after_us = decision.reason, decision.retry_after_us
            note(s, DROPPED, now_us, s.requests[request].id, reason, retry_after_us)
            free_request(s, request)
        else:
            queue.fill_size = 0 if queue.closed else decision.size
            if _sooner(queue.wake_at, decision.at_us):
                queue.wake_at = decision.at_us
                note(s, WAKE, decision.at_us, WAKE_QUEUE, model, 0)
            return


@kernel
def decide_all(s: State, now_us: int) -> None:
    for model in range(len(s.models)):
        if s.models[model].queued:
            decide(s, model, now_us)


@hot
def _sooner(wake_at: int, at_us: int) -> bool:
    """Whether to ask for a wake-up: an earlier one, which decides afresh, is not set."""
    return wake_at < 0 or wake_at > at_us


# -- a batch on its path --------------------------------------------------------------------------


@hot
def hop_of(s: State, batch: int) -> int:
    return s.batches[batch].stage + batch * s.world[0].stages_max


@kernel
def enter_stage(s: State, batch: int, now_us: int) -> None:
    """The batch is ready for its stage: cross the network first where it must."""
    hopeless = s.policy.next_hop(s, batch, now_us)
    if hopeless != NO_REASON:
        drop_batch(s, batch, hopeless, RETRY_US, now_us)
        return
    # Not when it is placed anew, which may be several times on its way and in one event.
    if s.batches[batch].rerouted:
        note_path(s, batch, s.batches[batch].stage, now_us)
    hop = hop_of(s, batch)
    if s.hops[hop].transfer_us:
        _join_links(s, batch, hop)
        advance_links(s, now_us)
    else:
        join_slot(s, batch, s.hops[hop].slot, now_us)


@kernel
def join_slot(s: State, batch: int, slot: int, now_us: int) -> None:
    s.batches[batch].next_ready = s.slots[slot].first_ready
    s.slots[slot].first_ready = batch
    advance_slot(s, slot, now_us)


@kernel
def advance_slot(s: State, slot: int, now_us: int) -> None:
    """Start the batch whose turn it is, if the slot is idle and the time has come."""
    line = s.slots[slot]
    if line.running >= 0:
        return
    if s.world[0].drifted:
        _drop_hopeless(s, slot, now_us)
    if line.first_ready < 0:
        return
    batch = _first_reserved(s, line.first_ready)
    hop = hop_of(s, batch)
    start_at = s.policy.start_at(s, hop, now_us)
    if start_at > now_us:
        if _sooner(line.wake_at, start_at):
            line.wake_at = start_at
            note(s, WAKE, start_at, WAKE_SLOT, slot, 0)
        return
    leave_ready(s, batch, slot)
    line.running, line.started_at = batch, now_us
    s.policy.on_started(s, hop, now_us)
    mine = s.batches[batch]
    note(s, START_STAGE, now_us, batch, mine.id, mine.stage)
    add_two(s, mine.attempt, slot)


@kernel
def _drop_hopeless(s: State, slot: int, now_us: int) -> None:
    """What was dispatched before its times were known to be others, and is late for everybody by
    now, is not worth the slot's time."""
    line = s.slots[slot]
    while line.first_ready >= 0:
        batch = _first_reserved(s, line.first_ready)
        mine, hop = s.batches[batch], s.hops[hop_of(s, batch)]
        stage = s.routes[mine.route].first_stage + mine.stage
        end_at = now_us + predicted_us(s, stage, hop.place, mine.size)
        route = s.routes[mine.route]
        for later in range(stage + 1, route.first_stage + route.stages):
            end_at += of_stage_us(s, later, mine.size)
        # It may be as much faster than its median as the slack allows it to be slower.
        if end_at <= mine.last_deadline_at + slack_us(s, mine.route, mine.size):
            return
        if fade(s, mine.model, now_us):
            continue
        leave_ready(s, batch, slot)
        drop_batch(s, batch, DEADLINE, end_at - mine.last_deadline_at, now_us)


@kernel
def _first_reserved(s: State, batch: int) -> int:
    """Of the batches ready for one slot, the one with the first reservation."""
    best = batch
    while batch >= 0:
        here, there = s.hops[hop_of(s, batch)].start_at, s.hops[hop_of(s, best)].start_at
        if here < there or (here == there and s.batches[batch].id < s.batches[best].id):
            best = batch
        batch = s.batches[batch].next_ready
    return best


@kernel
def leave_ready(s: State, batch: int, slot: int) -> None:
    """Harmless when the batch is not ready for that slot."""
    line = s.slots[slot]
    if line.first_ready == batch:
        line.first_ready = s.batches[batch].next_ready
        return
    other = line.first_ready
    while other >= 0:
        after = s.batches[other].next_ready
        if after == batch:
            s.batches[other].next_ready = s.batches[batch].next_ready
            return
        other = after


@kernel
def _join_links(s: State, batch: int, hop: int) -> None:
    """Wait for both links, in the order of reservations."""
    world, mine = s.world[0], s.batches[batch]
    before, after = -1, world.first_waiting
    while after >= 0:
        other = s.hops[hop_of(s, after)].transfer_at
        reserved = s.hops[hop].transfer_at
        if reserved < other or (reserved == other and mine.id < s.batches[after].id):
            break
        before, after = after, s.batches[after].next_waiting
    mine.next_waiting = after
    if before >= 0:
        s.batches[before].next_waiting = batch
    else:
        world.first_waiting = batch


@kernel
def leave_links(s: State, batch: int) -> None:
    """Harmless when the batch does not wait for links."""
    world = s.world[0]
    if world.first_waiting == batch:
        world.first_waiting = s.batches[batch].next_waiting
        return
    other = world.first_waiting
    while other >= 0:
        after = s.batches[other].next_waiting
        if after == batch:
            s.batches[other].next_waiting = s.batches[batch].next_waiting
            return
        other = after


@kernel
def advance_links(s: State, now_us: int) -> None:
    """Start every transfer whose two links are idle and whose time has come."""
    world = s.world[0]
    batch = world.first_waiting
    while batch >= 0:
        mine, hop = s.batches[batch], hop_of(s, batch)
        after = mine.next_waiting
        from_node = s.slots[s.hops[hop - 1].slot].node
        to_node = s.slots[s.hops[hop].slot].node
        if s.nodes[from_node].sending < 0 and not s.nodes[to_node].receiving:
            start_at = s.policy.transfer_at(s, hop, now_us)
            if start_at > now_us:
                if _sooner(world.links_wake_at, start_at):
                    world.links_wake_at = start_at
                    note(s, WAKE, start_at, WAKE_LINKS, 0, 0)
            else:
                leave_links(s, batch)
                sender = s.nodes[from_node]
                sender.sending, sender.sending_attempt = mine.id, mine.attempt
                sender.sending_to = to_node
                s.nodes[to_node].receiving = 1
                length_us = s.hops[hop].transfer_us
                slot = s.hops[hop].slot
                note(s, START_TRANSFER, now_us, batch, mine.id, mine.stage)
                add_two(s, mine.attempt, slot)
                add(s, length_us)
        batch = after


@kernel
def finish(s: State, batch: int, now_us: int) -> None:
    """The last stage has run."""
    mine = s.batches[batch]
    observe_end(s, batch, now_us)
    mine.stage += 1  # all stages are over: nothing is left to release
    s.policy.on_answered(s, batch)
    s.policy.forget(s, batch)
    first = batch * s.world[0].size_max
    note(s, ANSWERED, now_us, mine.id, mine.size, s.requests[s.members[first]].id)
    free_request(s, s.members[first])
    for i in range(1, mine.size):
        request = s.members[first + i]
        add(s, s.requests[request].id)
        free_request(s, request)
    remove_batch(s, batch)


@kernel
def note_path(s: State, batch: int, first_stage: int, now_us: int) -> None:
    """The batch got its path, or the rest of it from `first_stage` on a new one."""
    mine, world = s.batches[batch], s.world[0]
    mine.rerouted = 0
    pipeline = mine.route - s.models[mine.model].first_route
    end = mine.hops if world.logged else first_stage
    note(s, DISPATCHED, now_us, mine.id, mine.model, pipeline)
    add_four(s, first_stage, mine.size, end - first_stage, batch)
    for i in range(mine.size):
        add(s, s.requests[s.members[batch * world.size_max + i]].id)
    for stage in range(first_stage, end):
        hop = s.hops[batch * world.stages_max + stage]
        add_four(s, hop.slot, hop.transfer_at, hop.transfer_us, hop.start_at)
        add(s, hop.latency_us)


@kernel
def enter_next_stage(s: State, batch: int, now_us: int) -> None:
    """A stage has run: on to the next, or done."""
    mine = s.batches[batch]
    if mine.stage + 1 < s.routes[mine.route].stages:
        mine.stage += 1
        enter_stage(s, batch, now_us)
    else:
        finish(s, batch, now_us)
