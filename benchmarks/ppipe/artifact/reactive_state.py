"""What the reactive scheduler's simulation holds: objects, queues, lines and batches."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from benchmarks.ppipe.artifact.hardware import Hardware, Ints

QUEUE, LINK, SLOT, FRONT, ARRIVAL = range(5)
"""Kinds of objects."""


class Session(NamedTuple):
    """One session. N requests, S stages, G slots, L links, O objects.

    Queue S is the front one, before the first stages of all pipelines; the queues of first
    stages stay empty. Lines 0..G-1 are batches at slots, the first of them running; lines
    G..G+L-1 are batches at links, the first of them moving.
    """

    arrivals_us: Ints
    objects: Ints
    """Shape (O, 2): kind, and index of the stage, link or slot; in order of creation."""
    queue_object: Ints
    """Shape (S + 1,): its index in `objects`."""
    slot_object: Ints
    link_object: Ints
    stage_of: Ints
    """Shape (G,)."""
    planned: Ints
    """Shape (S,): batch size."""
    is_first: npt.NDArray[np.bool_]
    is_last: npt.NDArray[np.bool_]
    listed_at: Ints
    """Shape (S + 2,): queue q feeds the slots listed[listed_at[q]:listed_at[q + 1]]."""
    listed: Ints
    queued: Ints
    """Shape (S + 1, N): requests, by deadline, from head to tail."""
    head: Ints
    tail: Ints
    waited_for: Ints
    """Shape (S + 1,): the head for which the queue last waited; -1: none."""
    timer_us: Ints
    """Shape (S + 1,): its wake-up; -1: none."""
    counters: Ints
    """Batches made, members enlisted."""
    batch_stage: Ints
    batch_size: Ints
    batch_member: Ints
    """First of its requests in `members`."""
    batch_next: Ints
    """Next in the same line; -1: none."""
    members: Ints
    line_first: Ints
    """Shape (G + L,): -1: empty."""
    line_last: Ints
    since_us: Ints
    """Shape (G,): when the running batch started, or when the last one ended."""
    backlog_us: Ints
    """Shape (G,): latencies of the batches in its line, the running one included."""
    busy_us: Ints
    """Shape (G,): latencies of all batches that it was ever sent."""
    started_us: Ints
    """Shape (N,): in the first stage; -1: not yet."""
    done_us: Ints
    """Shape (N,); -1: not yet."""


def open_session(hardware: Hardware, arrivals_us: Ints, slot_order: Ints) -> Session:
    """
    Args:
        slot_order: shape (G,), the order in which every queue lists its slots; the artifact's
            is 0, 1, 2, …
    """
    stages, slots, requests = len(hardware.slot_at) - 1, len(hardware.link), len(arrivals_us)
    objects = np.array(_objects(hardware), dtype=np.int64)
    stage_of = np.repeat(np.arange(stages), np.diff(hardware.slot_at))
    is_first, is_last = np.zeros(stages, np.bool_), np.zeros(stages, np.bool_)
    is_first[hardware.stage_at[:-1]] = True
    is_last[hardware.stage_at[1:] - 1] = True
    fed_by = np.where(is_first[stage_of], stages, stage_of)
    lists = [slot_order[fed_by[slot_order] == queue] for queue in range(stages + 1)]
    # A request is enlisted once per stage of its pipeline.
    enlisted = requests * int(np.diff(hardware.stage_at).max())
    return Session(
        arrivals_us=arrivals_us,
        objects=objects,
        queue_object=np.flatnonzero((objects[:, 0] == QUEUE) | (objects[:, 0] == FRONT)),
        slot_object=np.flatnonzero(objects[:, 0] == SLOT),
        link_object=np.flatnonzero(objects[:, 0] == LINK),
        stage_of=stage_of.astype(np.int64),
        planned=np.repeat(hardware.batch, np.diff(hardware.stage_at)),
        is_first=is_first,
        is_last=is_last,
        listed_at=np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int64),
        listed=np.concatenate(lists).astype(np.int64),
        queued=np.empty((stages + 1, requests), np.int64),
        head=np.zeros(stages + 1, np.int64),
        tail=np.zeros(stages + 1, np.int64),
        waited_for=_none(stages + 1),
        timer_us=_none(stages + 1),
        counters=np.zeros(2, np.int64),
        batch_stage=_none(enlisted),
        batch_size=_none(enlisted),
        batch_member=_none(enlisted),
        batch_next=_none(enlisted),
        members=_none(enlisted),
        line_first=_none(slots + hardware.link_count),
        line_last=_none(slots + hardware.link_count),
        since_us=np.zeros(slots, np.int64),
        backlog_us=np.zeros(slots, np.int64),
        busy_us=np.zeros(slots, np.int64),
        started_us=_none(requests),
        done_us=_none(requests),
    )


def _objects(hardware: Hardware) -> list[tuple[int, int]]:
    """In order of creation, which is the order in which they act at one instant.

    Per pipeline and stage its queue, then every slot, preceded by its link if that is new; then
    the front queue's wake-up; then arrivals.
    """
    objects: list[tuple[int, int]] = []
    links = 0
    for stage in range(len(hardware.slot_at) - 1):
        objects.append((QUEUE, stage))
        for slot in range(hardware.slot_at[stage], hardware.slot_at[stage + 1]):
            if hardware.link[slot] == links:
                objects.append((LINK, links))
                links += 1
            objects.append((SLOT, slot))
    return [*objects, (FRONT, len(hardware.slot_at) - 1), (ARRIVAL, 0)]


def _none(count: int) -> Ints:
    return np.full(count, -1, np.int64)
