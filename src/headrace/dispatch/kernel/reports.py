"""What a driver reports: transfers and runs that ended, slots lost and gained."""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.contract import NO_REASON
from headrace.dispatch.kernel.drift import observe, renew_slot
from headrace.dispatch.kernel.flow import (
    RETRY_US,
    advance_links,
    advance_slot,
    decide_all,
    enter_next_stage,
    enter_stage,
    hop_of,
    join_slot,
    leave_links,
    leave_ready,
    note_path,
)
from headrace.dispatch.kernel.journal import (
    DROPPED,
    ENDED,
    FAILED,
    INVALID_INPUT,
    RAN,
    SLOT_GAINED,
    SLOT_LOST,
    TRANSFERRED,
    add,
    add_two,
    note,
)
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.rows import drop_batch, free_request, remove_batch
from headrace.dispatch.kernel.splitting import (
    LOSSES_MAX,
    count_loss,
    queue_all,
    queue_halves,
    queue_survivors,
)

INPUT_SUSPECTED, TENSORS_LOST = 1, 2
"""Why a batch failed; 0: its executor alone is to blame."""


@hot
def _is_current(s: State, row: int, batch_id: int, stage: int, attempt: int) -> bool:
    """Reports of an older path are stale."""
    batch = s.batches[row]
    return batch.id == batch_id and batch.stage == stage and batch.attempt == attempt


@kernel
def on_transferred(
    s: State, now_us: int, row: int, batch_id: int, stage: int, attempt: int, started_at: int
) -> None:
    """The tensors that enter `stage` have reached their node."""
    current = _is_current(s, row, batch_id, stage, attempt)
    from_node = s.slots[s.hops[hop_of(s, row) - 1].slot].node if current else 0
    _free_links(s, batch_id, attempt, from_node)
    if current:
        hop = hop_of(s, row)
        to_slot = s.hops[hop].slot
        if s.world[0].logged:
            note(s, TRANSFERRED, now_us, batch_id, stage, s.hops[hop - 1].slot)
            add_two(s, to_slot, started_at)
        s.policy.on_transferred(s, hop, now_us)
        join_slot(s, row, to_slot, now_us)
    advance_links(s, now_us)


@kernel
def _free_links(s: State, batch_id: int, attempt: int, first_node: int) -> None:
    """A transfer ended, of whatever attempt: its links are idle again.

    Args:
        first_node: not to be searched for in vain.
    """
    for node in range(first_node, s.world[0].nodes):
        sender = s.nodes[node]
        if sender.sending == batch_id and sender.sending_attempt == attempt:
            sender.sending = -1
            s.nodes[sender.sending_to].receiving = 0
            return


@kernel
def on_ran(
    s: State,
    now_us: int,
    row: int,
    batch_id: int,
    stage: int,
    attempt: int,
    started_at: int,
    ended_at: int,
) -> None:
    """`stage` has run; the instants are the worker's own."""
    if not _is_current(s, row, batch_id, stage, attempt):
        return
    slot = _leave_slot(s, row, stage, started_at, ended_at, now_us)
    enter_next_stage(s, row, now_us)
    advance_slot(s, slot, now_us)
    decide_all(s, now_us)


@kernel
def _leave_slot(s: State, row: int, stage: int, started_at: int, ended_at: int, now_us: int) -> int:
    hop = hop_of(s, row)
    slot = s.hops[hop].slot
    if s.world[0].logged:
        note(s, RAN, ended_at, s.batches[row].id, stage, slot)
        add(s, started_at)
    s.slots[slot].running = -1
    s.policy.on_ended(s, hop, now_us)
    batch = s.batches[row]
    took_us = now_us - s.slots[slot].started_at
    table = s.routes[batch.route].first_stage + stage
    if not s.slots[slot].cold:  # else it says nothing of batches in memory
        observe(s, table, s.hops[hop].place, batch.size, took_us, now_us)
    return slot


@kernel
def on_failed(
    s: State, now_us: int, row: int, batch_id: int, stage: int, attempt: int, cause: int
) -> None:
    """The executor could not run the batch, and would not be able to elsewhere: it is dropped, or,
    where an input may be to blame, run again in halves; where its tensors are lost, from the
    beginning."""
    if not _is_current(s, row, batch_id, stage, attempt):
        return
    hop = hop_of(s, row)
    slot = s.hops[hop].slot
    s.slots[slot].running = -1
    s.policy.on_ended(s, hop, now_us)
    s.batches[row].stage += 1  # this stage is over: only what follows is still to be released
    if cause == TENSORS_LOST:
        s.policy.forget(s, row)
        queue_all(s, row)
        note(s, ENDED, now_us, batch_id, 0, 0)
        remove_batch(s, row)
    elif cause != INPUT_SUSPECTED:
        drop_batch(s, row, FAILED, RETRY_US, now_us)
    elif s.batches[row].size == 1:
        drop_batch(s, row, INVALID_INPUT, 0, now_us)
    else:
        s.policy.forget(s, row)
        queue_halves(s, row)
        note(s, ENDED, now_us, batch_id, 0, 0)
        remove_batch(s, row)
    advance_slot(s, slot, now_us)
    decide_all(s, now_us)


@kernel
def on_slot_lost(s: State, now_us: int, slot: int) -> None:
    """The slot is gone with all it ran; its batches run elsewhere if their deadlines allow."""
    note(s, SLOT_LOST, now_us, slot, 0, 0)
    s.slots[slot].alive = 0
    s.policy.on_slot_lost(s, slot)
    ran = s.slots[slot].running
    s.slots[slot].running = -1
    row = s.world[0].first_batch
    last = s.world[0].last_batch
    while row >= 0:
        after = s.batches[row].after if row != last else -1
        s.batches[row].held_up = 1  # late for want of a slot says nothing of times
        lost = _stage_on(s, row, slot)
        if lost >= 0 and lost == s.batches[row].stage:
            _restart_stage(s, row, count_loss(s, row) if row == ran else 0, now_us)
        elif lost >= 0 and s.policy.reroute(s, row, lost, now_us) == NO_REASON:
            # Without a new path the batch is dropped when its current stage has ended: until then
            # the slot may come back.
            note_path(s, row, lost, now_us)
        row = after
    decide_all(s, now_us)


@hot
def _stage_on(s: State, row: int, slot: int) -> int:
    """The first stage, not yet over, that the batch has on that slot; -1: none."""
    batch, first_hop = s.batches[row], row * s.world[0].stages_max
    for stage in range(batch.stage, batch.hops):
        if s.hops[first_hop + stage].slot == slot:
            return stage
    return -1


@kernel
def _restart_stage(s: State, row: int, losses: int, now_us: int) -> None:
    """The stage that the batch was in, or about to enter, must run on another slot.

    Args:
        losses: of workers that ran one of its requests, if the last of them was lost now.
    """
    batch = s.batches[row]
    # Out of every line: what its current work reports is stale from now on.
    batch.attempt += 1
    leave_links(s, row)
    leave_ready(s, row, s.hops[hop_of(s, row)].slot)
    if batch.stage == 0:
        # Nothing is computed yet: any pipeline will do, so decide afresh.
        s.policy.forget(s, row)
        given_up = queue_survivors(s, row)
        for i in range(given_up):
            request = s.members[row * s.world[0].size_max + i]
            note(s, DROPPED, now_us, s.requests[request].id, FAILED, RETRY_US)
            free_request(s, request)
        note(s, ENDED, now_us, batch.id, 0, 0)
        remove_batch(s, row)
        return
    if losses >= LOSSES_MAX:
        drop_batch(s, row, FAILED, RETRY_US, now_us)
        return
    hopeless = s.policy.reroute(s, row, batch.stage, now_us)
    if hopeless != NO_REASON:
        drop_batch(s, row, hopeless, RETRY_US, now_us)
        return
    note_path(s, row, batch.stage, now_us)
    enter_stage(s, row, now_us)


@kernel
def on_slot_gained(s: State, now_us: int, slot: int) -> None:
    """The slot is (back) in service, idle."""
    note(s, SLOT_GAINED, now_us, slot, 0, 0)
    s.slots[slot].alive = 1
    renew_slot(s, slot, now_us)
    s.policy.on_slot_gained(s, slot, now_us)
    decide_all(s, now_us)
