"""The probe that finds the next path, and reserving it (PPipe, section 5.4; A.3, Algorithm 2).

A probe walks a route's stages. With at_0 = now, stage i takes, of its pool's slots, the one that
minimises (key, start, place in the pool):

    sent   = earliest common gap of uplink(from) and downlink(slot) from at_i on, for the transfer
    start  = earliest gap of the slot from sent + transfer on, for what the stage takes there
    key    = start + that time; where tensors leave the node, when the slot's uplink takes them then
    at_i+1 = start + that time, which is the stage's median, corrected by what is learned (`drift`)

It is greedy per stage, as the paper's: O(pool) per stage in the worst case, each with a few scans.
Three bounds make it O(1) mostly, and change no answer: the slot that seems to end first
(`_seems_first`, without scans) is looked at first, and is the answer if nothing can beat it; a
slot that is known to be full until too late is passed by; and slots of one node share a transfer.
"""

from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.layout import NEVER_US, SHIFT, State
from headrace.dispatch.kernel.links import transfer_us
from headrace.dispatch.kernel.reservation_tables import (
    DOWNLINK,
    SLOT,
    UPLINK,
    earliest,
    earliest_common,
    earliest_noted,
    full_to,
    note_running,
    release,
    reserve,
)

FIELDS = {
    "world": {"probes": 0},
    "nodes": {"probe": 0, "probe_at": 0, "probe_us": 0},
}
"""`nodes.probe_at`, `probe_us`: the transfer to this node that probe number `probe` has found."""


@hot
def uplink(s: State, slot: int) -> int:
    return s.world[0].slots + s.slots[slot].node


@hot
def downlink(s: State, slot: int) -> int:
    return s.world[0].slots + s.world[0].nodes + s.slots[slot].node


@kernel
def earliest_transfer(
    s: State, from_slot: int, to_slot: int, at_us: int, size_bytes: int
) -> tuple[int, int]:
    """(start, duration) of moving `size_bytes` over both links at once."""
    length_us = transfer_us(s, from_slot, to_slot, size_bytes)
    if length_us == 0:
        return at_us, 0
    start = earliest_common(s, uplink(s, from_slot), downlink(s, to_slot), at_us, length_us)
    return start, length_us


@kernel
def _seems_first(s: State, table: Any, at_us: int, median_us: int) -> tuple[int, int]:
    """(Place in `pools`, end), as far as is known without a search through reservations.

    No slot of the pool can end earlier.
    """
    best, best_at = table.first_pool, NEVER_US
    least_at = at_us + (median_us * table.least_level >> SHIFT)
    for i in range(table.first_pool, table.end_pool):
        length_us = median_us * s.level[i] >> SHIFT
        end_at = full_to(s, s.pools[i], at_us, length_us) + length_us
        if end_at < best_at:
            best, best_at = i, end_at
            if end_at == least_at:
                break
    return best, best_at


@hot
def _goes_before(
    key: int, start: int, place: int, other_key: int, other_start: int, other_place: int
) -> bool:
    if key != other_key:
        return key < other_key
    return start < other_start or (start == other_start and place < other_place)


@kernel
def earliest_hop(s: State, stage: int, size: int, at_us: int, from_slot: int, place: int) -> bool:
    """Find the slot of a stage's pool from which a batch of `size` goes on first.

    That is when the stage ends; where tensors must leave the node then, when its uplink takes them.
    The innermost loop of every decision: it starts with the slot that seems free first, which is
    mostly the one, and passes by those that are known not to beat what is found.
    Writes `path[place]`; False: no slot of the pool is left.
    """
    table = s.stages[stage]
    world = s.world[0]
    median_us = s.p50_us[stage * world.size_max + size - 1]
    crosses = from_slot >= 0 and table.input_bytes > 0 and world.has_links != 0
    leaves = table.output_bytes > 0 and world.has_links != 0
    best, best_start, best_key, best_place = -1, 0, 0, 0
    best_transfer_at, best_transfer_us, best_us = at_us, 0, 0
    transfer_at, length_us = at_us, 0
    ready_at = at_us  # at the earliest, on whatever node
    if crosses and table.bytes_per_us > 0:
        ready_at += round(size * table.input_bytes / table.bytes_per_us)
    first, seems_to_end_at = _seems_first(s, table, ready_at, median_us)
    world.probes += 1
    for turn in range(table.first_pool - 1, table.end_pool):
        i = first if turn < table.first_pool else turn
        slot = s.pools[i]
        latency_us = median_us * s.level[i] >> SHIFT
        if best >= 0:
            # Of slots that are equally good the pool's first is taken.
            beaten_from = best_key - latency_us + (i < best_place)
            if i == first or full_to(s, slot, ready_at, latency_us) >= beaten_from:
                continue
        if not s.slots[slot].alive:
            continue
        start = earliest_noted(s, slot, ready_at, latency_us)
        if crosses:
            # Slots of one node share its downlink: look its transfer up once.
            node = s.nodes[s.slots[slot].node]
            if node.probe != world.probes:
                transfer_at, length_us = earliest_transfer(
                    s, from_slot, slot, at_us, size * table.input_bytes
                )
                node.probe, node.probe_at, node.probe_us = world.probes, transfer_at, length_us
            transfer_at, length_us = node.probe_at, node.probe_us
            if transfer_at + length_us > start:
                start = earliest(s, slot, transfer_at + length_us, latency_us)
        key = start + latency_us
        if leaves:
            key = leaving_at(s, slot, key, size * table.output_bytes)
        if best < 0 or _goes_before(key, start, i, best_key, best_start, best_place):
            best, best_start, best_key, best_place = slot, start, key, i
            best_transfer_at, best_transfer_us, best_us = transfer_at, length_us, latency_us
            if i == first and key == seems_to_end_at:
                break  # as early as it seemed, and no other seems to end before
    if best < 0:
        return False
    hop = s.path[place]
    hop.slot, hop.place, hop.start_at, hop.latency_us = best, best_place, best_start, best_us
    hop.transfer_at, hop.transfer_us = best_transfer_at, best_transfer_us
    return True


@hot
def leaving_at(s: State, slot: int, at_us: int, size_bytes: int) -> int:
    """When the slot's uplink can take so many bytes, from `at_us` on."""
    speed = s.nodes[s.slots[slot].node].bytes_per_us
    if speed == 0:
        return at_us
    return earliest(s, uplink(s, slot), at_us, round(size_bytes / speed))


@kernel
def probe(s: State, route: int, size: int, at_us: int) -> tuple[int, int]:
    """Find a whole path, stage by stage the slot on which the stage ends first.

    Returns:
        (waiting, end): the delays before links and slots (PPipe: waitTime) and the instant of
        completion; the path lies in the route's rows of `path`. (-1, -1): some pool has no slot.
    """
    table = s.routes[route]
    waiting_us, from_slot = 0, -1
    for i in range(table.stages):
        place = route * s.world[0].stages_max + i
        if not earliest_hop(s, table.first_stage + i, size, at_us, from_slot, place):
            return -1, -1
        hop = s.path[place]
        waiting_us += hop.start_at - at_us - hop.transfer_us
        at_us = hop.start_at + hop.latency_us
        from_slot = hop.slot
    return waiting_us, at_us


@kernel
def take_path(s: State, batch: int, stage: int, place: int, from_slot: int) -> None:
    """Make `path[place]` the hop of that stage, and reserve it."""
    row = batch * s.world[0].stages_max + stage
    found, hop = s.path[place], s.hops[row]
    hop.slot, hop.place = found.slot, found.place
    hop.start_at, hop.latency_us = found.start_at, found.latency_us
    hop.transfer_at, hop.transfer_us = found.transfer_at, found.transfer_us
    reserve(s, 3 * row + SLOT, hop.slot, hop.start_at, hop.start_at + hop.latency_us)
    if hop.transfer_us:
        end_us = hop.transfer_at + hop.transfer_us
        reserve(s, 3 * row + UPLINK, uplink(s, from_slot), hop.transfer_at, end_us)
        reserve(s, 3 * row + DOWNLINK, downlink(s, hop.slot), hop.transfer_at, end_us)


@kernel
def release_slot(s: State, hop: int) -> None:
    release(s, 3 * hop + SLOT)
    slot = s.hops[hop].slot
    if s.slots[slot].running_hop == hop:
        note_running(s, slot, -1)


@kernel
def release_links(s: State, hop: int) -> None:
    release(s, 3 * hop + UPLINK)
    release(s, 3 * hop + DOWNLINK)


@kernel
def release_from(s: State, batch: int, stage: int) -> None:
    """Take back what the batch's path holds from that stage on."""
    first = batch * s.world[0].stages_max
    for hop in range(first + stage, first + s.batches[batch].hops):
        release_slot(s, hop)
        release_links(s, hop)
