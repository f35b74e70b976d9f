"""What becomes of reservations when reality leaves them (PPipe, section 5.4, feedback).

A reservation says when a batch should start and end; batches take longer or shorter. Three events
correct it: a stage starts at another instant (`move`), ends at another instant (`stretch`), or is
still running when it should have ended (`extend_overruns`, before each decision). Each correction

    1. puts the interval where reality has it, and pushes back what it overlaps on that slot
       (`push_back`); every hop that moved is noted in `moved`;
    2. releases the later stages of all batches whose hops moved, then reserves them anew in the
       order in which their hops moved (`follow_moved`). That may move other hops: again from 2.

It ends, since each round moves hops of later stages only. Order matters twice: all is released
before anything is reserved, lest a batch that fell behind stand in the way of one ahead of it; and
on its old slot a batch keeps its place (`_keep_place`), lest it queue behind batches that are still
on their way, beside an idle slot. What was reserved behind such a place moves, or stays and
overlaps for a moment, which scans cope with.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.drift import predicted_us
from headrace.dispatch.kernel.layout import NEVER_US, State, Table
from headrace.dispatch.kernel.links import transfer_us
from headrace.dispatch.kernel.probing import (
    downlink,
    earliest_hop,
    release_from,
    take_path,
    uplink,
)
from headrace.dispatch.kernel.reservation_tables import (
    SLOT,
    behind,
    note_moved,
    note_running,
    push_back,
    release,
    reserve,
)

FIELDS = {"world": {"next_end_at": NEVER_US}, "batches": {"mark": 0}}
"""`next_end_at`: no running batch should end before. `mark`: scratch of `follow_moved`."""

TABLES = {"affected": Table(rows=lambda n: n.requests)}
"""affected  batches; scratch of `follow_moved`"""


@hot
def slot_before(s: State, batch: int, stage: int) -> int:
    return s.hops[batch * s.world[0].stages_max + stage - 1].slot if stage > 0 else -1


@kernel
def _reserve_anew(s: State, hop: int) -> None:
    """The slot is used at another time than reserved; those behind move with it."""
    mine = s.hops[hop]
    release(s, 3 * hop + SLOT)
    reserve(s, 3 * hop + SLOT, mine.slot, mine.start_at, mine.start_at + mine.latency_us)
    note_moved(s, hop)
    push_back(s, mine.slot)


@hot
def move(s: State, hop: int, start_at_us: int) -> None:
    """The slot is used from another instant on."""
    s.hops[hop].start_at = start_at_us
    _reserve_anew(s, hop)


@hot
def stretch(s: State, hop: int, end_at_us: int) -> None:
    """The slot is used until another instant."""
    s.hops[hop].latency_us = end_at_us - s.hops[hop].start_at
    _reserve_anew(s, hop)


@kernel
def place_anew(s: State, batch: int, first_stage: int, at_us: int) -> bool:
    """Reserve the path from `first_stage` on anew; False: some pool has no slot left.

    What was reserved from there on must have been released. A batch takes the slot on which it
    starts first; but on its old slot it keeps its place, and those that are reserved behind it
    move. Otherwise a batch that is a little late would fall behind others that are still on their
    way, and wait for them beside an idle slot.
    """
    mine = s.batches[batch]
    first_hop = batch * s.world[0].stages_max
    from_slot = slot_before(s, batch, first_stage)
    for stage in range(first_stage, mine.hops):
        table = s.routes[mine.route].first_stage + stage
        if not earliest_hop(s, table, mine.size, at_us, from_slot, stage):
            return False
        _keep_place(s, table, mine.size, at_us, from_slot, first_hop + stage, stage)
        hop = s.hops[first_hop + stage]
        if hop.slot != s.path[stage].slot:
            mine.rerouted = 1
        take_path(s, batch, stage, stage, from_slot)
        push_back(s, hop.slot)
        from_slot, at_us = hop.slot, hop.start_at + hop.latency_us
    return True


@kernel
def _keep_place(
    s: State, table: int, size: int, at_us: int, from_slot: int, old_hop: int, place: int
) -> None:
    """Let `path[place]` be the old slot, where the hop's old places there start earlier.

    On links as well: a transfer that is a little late goes before those reserved after it, which
    then are a little late, not behind all of them.
    """
    old, found = s.hops[old_hop], s.path[place]
    if not s.slots[old.slot].alive:
        return
    transfer_at, length_us = at_us, 0
    input_bytes = s.stages[table].input_bytes
    if from_slot >= 0 and input_bytes:
        length_us = transfer_us(s, from_slot, old.slot, size * input_bytes)
        if length_us:
            sent_at = behind(s, uplink(s, from_slot), old.transfer_at, at_us)
            transfer_at = behind(s, downlink(s, old.slot), old.transfer_at, sent_at)
    kept_at = behind(s, old.slot, old.start_at, transfer_at + length_us)
    latency_us = predicted_us(s, table, old.place, size)
    if kept_at + latency_us < found.start_at + found.latency_us:
        found.slot, found.place = old.slot, old.place
        found.start_at, found.latency_us = kept_at, latency_us
        found.transfer_at, found.transfer_us = transfer_at, length_us


@kernel
def relevel(s: State, table: int, place: int) -> None:
    """Batches of a stage take longer or shorter on a slot: so do those that are reserved there, and
    what is behind them moves. What runs is `extend_overruns`'s."""
    slot = s.pools[place]
    line = s.lines[slot]
    i = line.first
    while i >= 0:
        interval, hop = s.reserved[i], i // 3
        batch, stage = hop // s.world[0].stages_max, hop % s.world[0].stages_max
        mine = s.batches[batch]
        same = s.routes[mine.route].first_stage + stage == table
        if same and s.slots[slot].running_hop != hop:
            latency_us = predicted_us(s, table, place, mine.size)
            s.hops[hop].latency_us = latency_us
            interval.end = interval.start + latency_us
            note_moved(s, hop)
        i = interval.after
    line.full_to = 0  # gaps may have opened
    push_back(s, slot)
    follow_moved(s)


@kernel
def follow_moved(s: State) -> None:
    """Reserve anew what follows hops that moved, in the order of those hops.

    All of it is released first: what a batch was reserved before it moved must not stand in the
    way of one that is now ahead of it. Ends, because each round moves later stages.
    """
    world = s.world[0]
    while world.moved:
        affected = _collect_affected(s)
        for i in range(affected):
            batch = s.affected[i]
            release_from(s, batch, s.batches[batch].mark)
        for i in range(affected):
            batch = s.affected[i]
            first_stage = s.batches[batch].mark
            s.batches[batch].mark = 0
            before = s.hops[batch * world.stages_max + first_stage - 1]
            place_anew(s, batch, first_stage, before.start_at + before.latency_us)


@hot
def _collect_affected(s: State) -> int:
    """Empty the list of moved hops; batches whose later stages follow them are `affected`.

    A batch's `mark` is the first stage that follows.
    """
    world = s.world[0]
    count = 0
    for i in range(world.moved):
        hop = s.moved[i]
        s.hops[hop].moved = 0
        batch, following = hop // world.stages_max, hop % world.stages_max + 1
        mine = s.batches[batch]
        if mine.stage < following < mine.hops:
            if mine.mark == 0:
                s.affected[count] = batch
                count += 1
                mine.mark = following
            mine.mark = min(mine.mark, following)
    world.moved = 0
    return count


@kernel
def extend_overruns(s: State, now_us: int) -> None:
    """Batches that run past their reservations are still there: expect them to end a bit later."""
    world = s.world[0]
    if now_us <= world.next_end_at:
        return
    next_end_at = _first_end(s)
    if next_end_at < now_us:
        for slot in range(world.slots):
            if s.ends_at[slot] < now_us:
                _extend(s, slot, now_us)
        next_end_at = _first_end(s)
    world.next_end_at = next_end_at


@hot
def _first_end(s: State) -> int:
    first = NEVER_US
    for slot in range(s.world[0].slots):
        first = min(first, s.ends_at[slot])
    return first


@kernel
def _extend(s: State, slot: int, now_us: int) -> None:
    """Reservations may have been pushed back since `ends_at` was noted; then that is all."""
    hop = s.slots[slot].running_hop
    mine = s.hops[hop]
    if mine.start_at + mine.latency_us < now_us:
        stretch(s, hop, now_us + max(1, mine.latency_us >> 3))
    note_running(s, slot, hop)
