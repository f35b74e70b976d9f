"""The artifact's reactive scheduler: batches are formed anew in front of every pool.

One queue feeds the first pools of all pipelines together, and every later pool has its own. A
queue looks only at its own slots and at what the plan states for later stages; links are not
foreseen. Decisions depend on execution, so this is one loop over events: at one instant objects
act in the order of their creation.
"""

import heapq

from benchmarks.ppipe.artifact.hardware import Hardware
from benchmarks.ppipe.artifact.reactive_state import ARRIVAL, LINK, SLOT, Session

from headrace.compilation.loops import compiled

Events = list[tuple[int, int]]
"""A heap of (time, object)."""


@compiled
def simulate(hardware: Hardware, session: Session) -> None:
    """Run the session; `started_us` and `done_us` of it are the outcome."""
    count, arrival_object = len(session.arrivals_us), len(session.objects) - 1
    # Empty, but of a type that the compiler can see.
    events = [(0, 0) for _ in range(0)]
    arrived = 0
    if count:
        heapq.heappush(events, (session.arrivals_us[0], arrival_object))
    while len(events) > 0:
        now_us, who = heapq.heappop(events)
        kind, index = session.objects[who, 0], session.objects[who, 1]
        if kind == ARRIVAL:
            queue = len(session.head) - 1
            enqueue(session, queue, arrived)
            arrived += 1
            if arrived < count:
                heapq.heappush(events, (session.arrivals_us[arrived], who))
            serve(hardware, session, events, queue, now_us)
        elif kind == SLOT:
            end_inference(hardware, session, events, index, now_us)
        elif kind == LINK:
            queue = end_transfer(hardware, session, events, index, now_us)
            serve(hardware, session, events, queue, now_us)
        elif session.timer_us[index] == now_us:
            serve(hardware, session, events, index, now_us)


@compiled
def enqueue(session: Session, queue: int, request: int) -> None:
    """By deadline, which is by arrival; equals in the order they come."""
    queued, at = session.queued, session.tail[queue]
    arrived_us = session.arrivals_us[request]
    while at > session.head[queue] and session.arrivals_us[queued[queue, at - 1]] > arrived_us:
        queued[queue, at] = queued[queue, at - 1]
        at -= 1
    queued[queue, at] = request
    session.tail[queue] += 1


@compiled
def join(session: Session, line: int, batch: int) -> bool:
    """Append to a line; whether it was empty."""
    session.batch_next[batch] = -1
    empty = session.line_first[line] < 0
    if empty:
        session.line_first[line] = batch
    else:
        session.batch_next[session.line_last[line]] = batch
    session.line_last[line] = batch
    return bool(empty)


@compiled
def start_inference(
    hardware: Hardware, session: Session, events: Events, slot: int, now_us: int
) -> None:
    """Of the first batch in the slot's line."""
    batch = session.line_first[slot]
    stage, size = session.batch_stage[batch], session.batch_size[batch]
    end_us = now_us + hardware.latency_us[stage, size]
    heapq.heappush(events, (end_us, session.slot_object[slot]))
    if session.is_first[stage]:
        first = session.batch_member[batch]
        for member in range(first, first + size):
            session.started_us[session.members[member]] = now_us


@compiled
def start_transfer(
    hardware: Hardware, session: Session, events: Events, link: int, now_us: int
) -> None:
    """Of the first batch in the link's line."""
    batch = session.line_first[len(session.stage_of) + link]
    item_us = hardware.item_transfer_us[session.batch_stage[batch]]
    end_us = now_us + session.batch_size[batch] * item_us
    heapq.heappush(events, (end_us, session.link_object[link]))


@compiled
def end_inference(
    hardware: Hardware, session: Session, events: Events, slot: int, now_us: int
) -> None:
    batch = session.line_first[slot]
    stage, size = session.batch_stage[batch], session.batch_size[batch]
    session.line_first[slot] = session.batch_next[batch]
    session.backlog_us[slot] -= hardware.latency_us[stage, size]
    session.since_us[slot] = now_us
    if session.line_first[slot] >= 0:
        start_inference(hardware, session, events, slot, now_us)
    if session.is_last[stage]:
        first = session.batch_member[batch]
        for member in range(first, first + size):
            session.done_us[session.members[member]] = now_us
    else:
        link = hardware.link[slot]
        if join(session, len(session.stage_of) + link, batch):
            start_transfer(hardware, session, events, link, now_us)


@compiled
def end_transfer(
    hardware: Hardware, session: Session, events: Events, link: int, now_us: int
) -> int:
    """Returns the queue that the requests joined."""
    line = len(session.stage_of) + link
    batch = session.line_first[line]
    session.line_first[line] = session.batch_next[batch]
    if session.line_first[line] >= 0:
        start_transfer(hardware, session, events, link, now_us)
    queue = session.batch_stage[batch] + 1
    first = session.batch_member[batch]
    for member in range(first, first + session.batch_size[batch]):
        enqueue(session, queue, session.members[member])
    return int(queue)


@compiled
def first_free(session: Session, queue: int) -> tuple[int, int]:
    """The slot that is free first, and when, which may be past; ties to the first listed."""
    best, best_us = -1, 0
    for at in range(session.listed_at[queue], session.listed_at[queue + 1]):
        slot = session.listed[at]
        free_us = session.since_us[slot] + session.backlog_us[slot]
        if best < 0 or free_us < best_us:
            best, best_us = slot, free_us
    return best, best_us


@compiled
def feasible_size(hardware: Hardware, stage: int, planned: int, limit_us: int) -> int:
    """The largest size up to `planned` such that it, and every smaller one, takes <= limit_us."""
    size = 0
    while size < planned:
        moving_us = (size + 1) * hardware.item_transfer_us[stage]
        if hardware.latency_us[stage, size + 1] + moving_us > limit_us:
            break
        size += 1
    return size


@compiled
def serve(hardware: Hardware, session: Session, events: Events, queue: int, now_us: int) -> None:
    """Send, drop and wait until the queue is empty or waits for more."""
    session.timer_us[queue] = -1
    while session.head[queue] < session.tail[queue]:
        request = session.queued[queue, session.head[queue]]
        slot, free_us = first_free(session, queue)
        stage = session.stage_of[slot]
        planned = session.planned[stage]
        latest_us = session.arrivals_us[request] + hardware.slo_us - hardware.rest_us[stage]
        size = feasible_size(hardware, stage, planned, latest_us - max(free_us, now_us))
        # A head is dropped at its first look below 95 % of the planned size, halves up.
        small = size < (19 * planned + 10) // 20
        if size == 0 or (small and session.waited_for[queue] != request):
            session.head[queue] += 1
            continue
        waiting = session.tail[queue] - session.head[queue]
        if waiting < size:
            # The transfer is forgotten here: the artifact wakes a little late.
            wake_us = latest_us - hardware.latency_us[stage, waiting + 1] + 1
            session.waited_for[queue], session.timer_us[queue] = request, wake_us
            heapq.heappush(events, (wake_us, session.queue_object[queue]))
            break
        send(hardware, session, events, queue, slot, size, now_us)


@compiled
def send(
    hardware: Hardware,
    session: Session,
    events: Events,
    queue: int,
    slot: int,
    size: int,
    now_us: int,
) -> None:
    """The first `size` requests of a queue become a batch in the slot's line."""
    batch, member = session.counters[0], session.counters[1]
    stage, head = session.stage_of[slot], session.head[queue]
    for i in range(size):
        session.members[member + i] = session.queued[queue, head + i]
    session.batch_stage[batch], session.batch_size[batch] = stage, size
    session.batch_member[batch] = member
    session.counters[0] += 1
    session.counters[1] += size
    session.head[queue] += size
    session.backlog_us[slot] += hardware.latency_us[stage, size]
    session.busy_us[slot] += hardware.latency_us[stage, size]
    if join(session, slot, batch):
        session.since_us[slot] = now_us
        start_inference(hardware, session, events, slot, now_us)
