"""The artifact's reservation scheduler, and what then happens to its batches.

Decisions look at reservations only, never at execution, so a session is two passes: all
decisions in time order (`dispatch`), then the execution stage by stage (`execute`).

A reservation is one "reserved until" time per slot and per link direction: no gap is filled.
Execution keeps the reserved path but neither its order nor its times: slots and uplinks serve
first come, first served; downlinks are reserved and never simulated.
"""

from typing import NamedTuple

import numpy as np
from benchmarks.ppipe.artifact.hardware import Hardware, Ints

from headrace.compilation.loops import compiled, hot

NEVER = 1 << 62


class Reserved(NamedTuple):
    """Until when, microseconds."""

    slot: Ints
    up: Ints
    """Per link, as a sender."""
    down: Ints
    """Per link, as a receiver."""


class Path(NamedTuple):
    """What a probe found; one entry per stage of a pipeline."""

    slot: Ints
    end_us: Ints
    """When its inference there ends."""
    moved_us: Ints
    """When its transfer into the stage ends."""


class Batches(NamedTuple):
    """Of a session, in the order of their decisions. Requests in none were dropped."""

    first: Ints
    """Shape (N,): first request; a batch's requests are consecutive."""
    size: Ints
    pipeline: Ints
    decided_us: Ints
    slot: Ints
    """Shape (N, most stages): its path."""


@hot
def probe(
    hardware: Hardware, reserved: Reserved, pipeline: int, size: int, now_us: int, path: Path
) -> tuple[int, int]:
    """Where a batch of `size` would go and when it would be done; nothing is reserved.

    Stage by stage it goes to the slot where it would end first, ties to the lowest; except in
    the last stage an uplink that is reserved for longer counts as the slot's end. The way is
    written to `path`.

    Returns:
        When it is done, and how long it waits on the way.
    """
    link, first_stage = hardware.link, hardware.stage_at[pipeline]
    at_us, busy_us, sender = now_us, 0, -1
    for stage in range(first_stage, hardware.stage_at[pipeline + 1]):
        inference_us = hardware.latency_us[stage, size]
        last = stage + 1 == hardware.stage_at[pipeline + 1]
        moving_us = 0
        if sender >= 0:
            moving_us = size * hardware.item_transfer_us[stage - 1]
            at_us = max(at_us, reserved.up[sender])
        best, best_key, best_end, best_moved = -1, NEVER, NEVER, NEVER
        for slot in range(hardware.slot_at[stage], hardware.slot_at[stage + 1]):
            moved_us = at_us
            if sender >= 0:
                moved_us = max(at_us, reserved.down[link[slot]]) + moving_us
            end_us = max(moved_us, reserved.slot[slot]) + inference_us
            key = end_us if last else max(end_us, reserved.up[link[slot]])
            if key < best_key:
                best, best_key, best_end, best_moved = slot, key, end_us, moved_us
        step = stage - first_stage
        path.slot[step], path.end_us[step], path.moved_us[step] = best, best_end, best_moved
        busy_us += inference_us + moving_us
        at_us, sender = best_end, link[best]
    return at_us, at_us - now_us - busy_us


@hot
def reserve(hardware: Hardware, reserved: Reserved, pipeline: int, path: Path) -> None:
    """Keep what a probe found."""
    for step in range(hardware.stage_at[pipeline + 1] - hardware.stage_at[pipeline]):
        reserved.slot[path.slot[step]] = path.end_us[step]
        if step > 0:
            reserved.up[hardware.link[path.slot[step - 1]]] = path.moved_us[step]
            reserved.down[hardware.link[path.slot[step]]] = path.moved_us[step]


@hot
def choose(
    hardware: Hardware, reserved: Reserved, deadline_us: int, now_us: int, path: Path, spare: Path
) -> tuple[int, int]:
    """The pipeline whose planned batch waits least, and when that batch would be done.

    A pipeline of batch size 1 that would miss the deadline counts as waiting an SLO longer.
    `path` receives the batch's way; `spare` is for the others.
    """
    best, best_waiting, best_done = -1, NEVER, NEVER
    for pipeline in range(len(hardware.batch)):
        planned = hardware.batch[pipeline]
        done_us, waiting_us = probe(hardware, reserved, pipeline, planned, now_us, spare)
        if planned == 1 and done_us > deadline_us:
            waiting_us += hardware.slo_us
        if waiting_us < best_waiting:
            best, best_waiting, best_done = pipeline, waiting_us, done_us
            # One by one: assigning slices this short takes longer than all else here.
            for step in range(len(path.slot)):
                path.slot[step] = spare.slot[step]
                path.end_us[step] = spare.end_us[step]
                path.moved_us[step] = spare.moved_us[step]
    return best, best_done


def least_first_size(planned: int) -> int:
    """The smallest size that a head may get at its first look: 95 % of planned, halves up."""
    return (19 * planned + 10) // 20


_least_first_size = hot(least_first_size)


@hot
def decide(
    hardware: Hardware,
    reserved: Reserved,
    deadline_us: int,
    waiting: int,
    examined: bool,
    now_us: int,
    path: Path,
    spare: Path,
) -> tuple[int, int, int]:
    """What to do with the head of a queue of `waiting` requests, the head among them.

    (The artifact starts over between a first look and the choice of a size; nothing would
    change in between.)

    Returns:
        (size, pipeline, 0) to send a batch along `path`; (0, 0, 0) to drop the head; (0, 0, time)
        to wait until then.
    """
    pipeline, done_us = choose(hardware, reserved, deadline_us, now_us, path, spare)
    size = hardware.batch[pipeline]
    least = 1 if examined else _least_first_size(size)
    while done_us > deadline_us and size > least:
        size -= 1
        done_us, _ = probe(hardware, reserved, pipeline, size, now_us, path)
    if done_us > deadline_us:
        return 0, 0, 0
    if waiting >= size:
        return size, pipeline, 0
    done_us, waiting_us = probe(hardware, reserved, pipeline, waiting + 1, now_us, path)
    if done_us > deadline_us:
        return 0, 0, 0
    # One microsecond after one more request would be too late, if the waiting shrinks meanwhile.
    return 0, 0, now_us + (deadline_us - done_us) + waiting_us + 1


@compiled
def dispatch(hardware: Hardware, arrivals_us: Ints) -> Batches:
    """Decide a whole session; arrivals and a single wake-up timer drive it."""
    count, depth = len(arrivals_us), np.max(np.diff(hardware.stage_at))
    slots, links = len(hardware.link), hardware.link_count
    reserved = Reserved(
        np.zeros(slots, np.int64), np.zeros(links, np.int64), np.zeros(links, np.int64)
    )
    path = Path(np.empty(depth, np.int64), np.empty(depth, np.int64), np.empty(depth, np.int64))
    spare = Path(np.empty(depth, np.int64), np.empty(depth, np.int64), np.empty(depth, np.int64))
    first, size_of = np.empty(count, np.int64), np.empty(count, np.int64)
    pipeline_of, decided_us = np.empty(count, np.int64), np.empty(count, np.int64)
    slot = np.empty((count, depth), np.int64)
    made, head, tail, examined, timer_us = 0, 0, 0, -1, NEVER
    while tail < count or timer_us < NEVER:
        # At one instant a wake-up comes before an arrival.
        if tail == count or timer_us <= arrivals_us[tail]:
            now_us = timer_us
        else:
            now_us = arrivals_us[tail]
            tail += 1
        timer_us = NEVER
        while head < tail and timer_us == NEVER:
            deadline_us = arrivals_us[head] + hardware.slo_us
            size, pipeline, wake_us = decide(
                hardware, reserved, deadline_us, tail - head, examined == head, now_us, path, spare
            )
            if wake_us > 0:
                examined, timer_us = head, wake_us
            elif size == 0:
                head += 1
            else:
                reserve(hardware, reserved, pipeline, path)
                first[made], size_of[made], pipeline_of[made] = head, size, pipeline
                decided_us[made] = now_us
                for step in range(depth):
                    slot[made, step] = path.slot[step]
                made += 1
                head += size
    return Batches(first[:made], size_of[:made], pipeline_of[:made], decided_us[:made], slot[:made])


@compiled
def execute(hardware: Hardware, batches: Batches, requests: int) -> tuple[Ints, Ints]:
    """Run the batches on their paths: FIFO slots, FIFO uplinks.

    Stages only feed forward, so each is worked off whole, its batches in the order in which they
    reach it. Batches that reach a stage at one instant come in the order of the objects that sent
    them: by slot onto a link, by link into a slot.

    Returns:
        Per request when its first stage starts and when it is done, shape (requests,); -1 for
        those in no batch.
    """
    started, done = np.full(requests, -1, np.int64), np.full(requests, -1, np.int64)
    slot_until = np.zeros(len(hardware.link), np.int64)
    up_until = np.zeros(hardware.link_count, np.int64)
    for pipeline in range(len(hardware.batch)):
        first_stage, end_stage = hardware.stage_at[pipeline], hardware.stage_at[pipeline + 1]
        order = np.flatnonzero(batches.pipeline == pipeline)
        at_us = batches.decided_us[order]
        for stage in range(first_stage, end_stage):
            for i in range(len(order)):
                b = order[i]
                size, slot = batches.size[b], batches.slot[b, stage - first_stage]
                start_us = max(at_us[i], slot_until[slot])
                at_us[i] = slot_until[slot] = start_us + hardware.latency_us[stage, size]
                for request in range(batches.first[b], batches.first[b] + size):
                    if stage == first_stage:
                        started[request] = start_us
                    if stage + 1 == end_stage:
                        done[request] = at_us[i]
            if stage + 1 == end_stage:
                break
            slots = batches.slot[:, stage - first_stage]
            order, at_us = _in_order(order, at_us, slots[order], len(slot_until))
            for i in range(len(order)):
                via = hardware.link[slots[order[i]]]
                moving_us = batches.size[order[i]] * hardware.item_transfer_us[stage]
                at_us[i] = up_until[via] = max(at_us[i], up_until[via]) + moving_us
            order, at_us = _in_order(order, at_us, hardware.link[slots[order]], len(up_until))
    return started, done


@compiled
def _in_order(order: Ints, at_us: Ints, sender: Ints, senders: int) -> tuple[Ints, Ints]:
    """Batches by time, then by sender, then as they came."""
    by_time = np.argsort(at_us * senders + sender, kind="mergesort")
    return order[by_time], at_us[by_time]


def busy_us(hardware: Hardware, batches: Batches) -> Ints:
    """Shape (G,): how long every slot infers in all."""
    busy = np.zeros(len(hardware.link), np.int64)
    for pipeline in range(len(hardware.batch)):
        mine = np.flatnonzero(batches.pipeline == pipeline)
        first_stage = hardware.stage_at[pipeline]
        for stage in range(first_stage, hardware.stage_at[pipeline + 1]):
            slots = batches.slot[mine, stage - first_stage]
            np.add.at(busy, slots, hardware.latency_us[stage, batches.size[mine]])
    return busy
