"""Which policy decides: one line of each function below per policy."""

from headrace.dispatch.kernel import batch_aware, reactive, reservation
from headrace.dispatch.kernel.compile import inlined, kernel
from headrace.dispatch.kernel.feedback import follow_moved, place_anew
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.probing import release_from, take_path
from headrace.dispatch.kernel.promises import note_running
from headrace.dispatch.kernel.reactive import NO_REASON
from headrace.dispatch.kernel.reservation import Decision

RESERVATION, REACTIVE, BATCH_AWARE = range(3)
"""All but the first keep account of slots as the reactive policy does, and look no hop ahead."""


@inlined
def decide(s: State, model: int, now_us: int) -> Decision:
    """What to do with the requests that wait for `model`; see `reservation.SEND`."""
    if s.world[0].policy == REACTIVE:
        return reactive.decide(s, model, now_us)
    if s.world[0].policy == BATCH_AWARE:
        return batch_aware.decide(s, model, now_us)
    return reservation.decide(s, model, now_us)


@inlined
def on_dispatched(s: State, batch: int) -> None:
    """The requests of the last SEND are a batch now: its path lies in `path`."""
    if s.world[0].policy != RESERVATION:
        reactive.take_path(s, batch)
        return
    mine = s.batches[batch]
    mine.hops = s.routes[mine.route].stages
    first, from_slot = mine.route * s.world[0].stages_max, -1
    for stage in range(mine.hops):
        take_path(s, batch, stage, first + stage, from_slot)
        from_slot = s.path[first + stage].slot


@kernel
def next_hop(s: State, batch: int, now_us: int) -> int:
    """Settle the hop of the batch's stage just before it is used, or say why to drop the batch."""
    if s.world[0].policy != RESERVATION:
        return reactive.next_hop(s, batch, now_us)
    mine = s.batches[batch]
    first_hop = batch * s.world[0].stages_max
    if not s.slots[s.hops[first_hop + mine.stage].slot].alive:
        return reroute(s, batch, mine.stage, now_us)
    # By medians: what is probably late for everybody is not worth a slot's time.
    last = s.hops[first_hop + mine.hops - 1]
    return NO_REASON if last.start_at + last.latency_us <= mine.last_deadline_at else DEADLINE


@inlined
def transfer_at(s: State, hop: int, now_us: int) -> int:
    """When the transfer into the hop may start; `now_us`: at once."""
    if s.world[0].policy != RESERVATION:
        return now_us
    return reservation.transfer_at(s, hop, now_us)


@inlined
def start_at(s: State, hop: int, now_us: int) -> int:
    """When the hop, whose slot is idle, may start; `now_us`: at once."""
    if s.world[0].policy != RESERVATION:
        return now_us
    return reservation.start_at(s, hop, now_us)


@kernel
def on_transferred(s: State, hop: int, now_us: int) -> None:
    """The tensors that enter the hop arrived now."""
    if s.world[0].policy == RESERVATION:
        reservation.on_transferred(s, hop, now_us)


@kernel
def on_started(s: State, hop: int, now_us: int) -> None:
    """The hop began to run now, earlier or later than promised."""
    if s.world[0].policy != RESERVATION:
        reactive.on_started(s, hop, now_us)
    else:
        reservation.on_started(s, hop, now_us)


@kernel
def on_ended(s: State, hop: int, now_us: int) -> None:
    """The hop ended now, earlier or later than promised."""
    if s.world[0].policy != RESERVATION:
        reactive.on_ended(s, hop, now_us)
    else:
        reservation.on_ended(s, hop, now_us)


@kernel
def forget(s: State, batch: int) -> None:
    """The batch ends here: release whatever it still holds from its stage on."""
    if s.world[0].policy != RESERVATION:
        reactive.forget(s, batch)
    else:
        release_from(s, batch, s.batches[batch].stage)


@kernel
def reroute(s: State, batch: int, first_stage: int, now_us: int) -> int:
    """Find a new path from `first_stage` on, or say why there is none in time."""
    mine = s.batches[batch]
    if s.world[0].policy != RESERVATION:
        mine.hops = first_stage
        return reactive.next_hop(s, batch, now_us) if first_stage == mine.stage else NO_REASON
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


@inlined
def on_slot_lost(s: State, slot: int) -> None:
    s.slots[slot].alive = 0
    note_running(s, slot, -1)


@inlined
def on_slot_gained(s: State, slot: int, now_us: int) -> None:
    s.slots[slot].alive = 1
    note_running(s, slot, -1)
    s.slots[slot].free_at = now_us
