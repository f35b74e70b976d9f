"""The batches of a slot, in the order in which they run, and where one more fits.

Each batch starts when the one before it has ended and its weights allow it; a start whose copies
run beside execution not before it can go on without standing still, so that others run until then:

    start = max(end of the one before, released)        end = start + what it takes

    released  of a start: begins_at + last_us - exec_us (`start_times.Start`); else at once

The order is kept: if nothing takes longer than foreseen, nothing ends later. One more is put where
it delays those behind it least, none of them beyond its deadline, and there as early as it goes. So
a request for a model in memory runs before starts that still wait for their copies, and a start
delays nobody who would be late.
"""

from typing import NamedTuple

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.drift import predicted_us, slack_us
from headrace.dispatch.kernel.journal import WAKE, WAKE_SLOT, note
from headrace.dispatch.kernel.layout import NEVER_US, State
from headrace.dispatch.kernel.provision.learned import beside_us, late_us, load_slack_us
from headrace.dispatch.kernel.provision.loads import links_free_at, stay_of
from headrace.dispatch.kernel.provision.tables import AWAITED, LOADED

FRONT, NOWHERE = -1, -2


class Fit(NamedTuple):
    """Where one more batch would run."""

    after: int
    """Behind that batch; FRONT; NOWHERE: somebody would be late."""
    start_at: int
    end_at: int
    """If NOWHERE: at the end of all."""
    delay_us: int
    """Of all others together."""


@hot
def hop_on(s: State, batch: int) -> int:
    """Its only hop."""
    return batch * s.world[0].stages_max


# -- what a batch takes ---------------------------------------------------------------------------


@kernel
def start_us(s: State, slot: int, model: int, warm_us: int) -> int:
    """What a start takes its slot; `warm_us`: what its batch takes in memory."""
    if s.slots[slot].copies:
        return warm_us + s.starts[model].more_us
    return warm_us + beside_us(s, slot, model)


@kernel
def _takes_us(s: State, slot: int, batch: int) -> int:
    mine, hop = s.batches[batch], s.hops[hop_on(s, batch)]
    stage = s.routes[mine.route].first_stage
    warm_us = predicted_us(s, stage, hop.place, mine.size)
    if not waits_for_load(s, slot, batch):
        return warm_us
    return start_us(s, slot, mine.model, warm_us)


@hot
def waits_for_load(s: State, slot: int, batch: int) -> bool:
    mine = s.batches[batch]
    return mine.cold > 0 and s.stays[stay_of(s, slot, mine.model)].state != LOADED


@kernel
def released_at(s: State, slot: int, model: int, begins_at: int) -> int:
    """Of a start whose copies begin then."""
    mine = s.starts[model]
    if s.slots[slot].copies:
        return begins_at + max(0, mine.last_us - mine.exec_us + late_us(s, slot, model))
    return begins_at


@kernel
def may_start_at(s: State, slot: int, batch: int, now_us: int) -> int:
    model = s.batches[batch].model
    if not waits_for_load(s, slot, batch):
        return now_us
    stay = s.stays[stay_of(s, slot, model)]
    if not s.slots[slot].copies:
        return links_free_at(s, slot, model, now_us)
    not_before = now_us + 1 if stay.state == AWAITED else now_us
    return max(not_before, released_at(s, slot, model, stay.begins_at))


@kernel
def slack_of(s: State, slot: int, batch: int) -> int:
    mine = s.batches[batch]
    more_us = load_slack_us(s, slot, mine.model) if waits_for_load(s, slot, batch) else 0
    return max(more_us, slack_us(s, mine.route, mine.size))


# -- in order -------------------------------------------------------------------------------------


@kernel
def settle(s: State, slot: int, now_us: int) -> None:
    """When each batch of the slot runs, as far as is known now."""
    here, at_us = s.slots[slot], now_us
    batch = here.first_there
    while batch >= 0:
        hop = s.hops[hop_on(s, batch)]
        if here.running == batch:
            if hop.start_at + hop.latency_us < now_us:  # it takes longer than foreseen
                hop.latency_us = now_us - hop.start_at + max(1, hop.latency_us >> 3)
        else:
            hop.start_at = max(at_us, may_start_at(s, slot, batch, now_us))
            hop.latency_us = _takes_us(s, slot, batch)
        at_us = hop.start_at + hop.latency_us
        batch = s.batches[batch].next_there
    first = here.first_there
    if first >= 0 and here.running < 0:
        starts_at = s.hops[hop_on(s, first)].start_at
        # What may start now is started by whoever has brought this about.
        if starts_at > now_us and (here.wake_at < 0 or here.wake_at > starts_at):
            here.wake_at = starts_at
            note(s, WAKE, starts_at, WAKE_SLOT, slot, 0)


@kernel
def insert(s: State, slot: int, batch: int, after: int) -> None:
    here, mine = s.slots[slot], s.batches[batch]
    mine.there, mine.before_there = slot, after
    mine.next_there = here.first_there if after < 0 else s.batches[after].next_there
    if after < 0:
        here.first_there = batch
    else:
        s.batches[after].next_there = batch
    if mine.next_there >= 0:
        s.batches[mine.next_there].before_there = batch


@kernel
def remove(s: State, batch: int) -> None:
    mine = s.batches[batch]
    if mine.before_there >= 0:
        s.batches[mine.before_there].next_there = mine.next_there
    else:
        s.slots[mine.there].first_there = mine.next_there
    if mine.next_there >= 0:
        s.batches[mine.next_there].before_there = mine.before_there
    mine.there = mine.before_there = mine.next_there = -1


# -- one more -------------------------------------------------------------------------------------


@kernel
def fit(
    s: State,
    slot: int,
    behind_model: int,
    not_before: int,
    memory_at: int,
    takes_us: int,
    latest_end: int,
    now_us: int,
) -> Fit:
    """Where a batch fits that may start at `not_before` and ends by `latest_end` at the latest.

    Args:
        behind_model: behind all batches of this one, which brings its weights; -1: of none.
        memory_at: behind all that start before, whose end its memory waits for.
    """
    here = s.slots[slot]
    first = _first_behind(s, slot, behind_model, memory_at, now_us)
    best = Fit(NOWHERE, NEVER_US, NEVER_US, NEVER_US)
    after, at_us = FRONT, now_us
    behind = here.first_there
    passed = first == FRONT
    while True:
        start_at = max(at_us, not_before)
        end_at = start_at + takes_us
        if passed:
            if end_at > latest_end:
                break
            delay = _delay_us(s, slot, behind, end_at)
            if delay < best.delay_us:
                best = Fit(after, start_at, end_at, delay)
            if delay == 0:
                break
        if behind < 0:
            break
        hop = s.hops[hop_on(s, behind)]
        after, at_us = behind, hop.start_at + hop.latency_us
        passed = passed or after == first
        behind = s.batches[behind].next_there
    if best.after == NOWHERE:
        while behind >= 0:
            hop = s.hops[hop_on(s, behind)]
            at_us = hop.start_at + hop.latency_us
            behind = s.batches[behind].next_there
        start_at = max(at_us, not_before)
        best = Fit(NOWHERE, start_at, start_at + takes_us, NEVER_US)
    return best


@kernel
def _first_behind(s: State, slot: int, behind_model: int, memory_at: int, now_us: int) -> int:
    """The last batch that must run before; FRONT: none."""
    here, last = s.slots[slot], FRONT
    batch = here.first_there
    while batch >= 0:
        starts_at = s.hops[hop_on(s, batch)].start_at
        if (
            s.rules[0].in_order
            or here.running == batch
            or s.batches[batch].model == behind_model
            or (memory_at > now_us and starts_at < memory_at)
        ):
            last = batch
        batch = s.batches[batch].next_there
    return last


@kernel
def _delay_us(s: State, slot: int, batch: int, at_us: int) -> int:
    """How much later those from `batch` on end if the slot is taken until `at_us`; NEVER_US: one of
    them too late, or memory that waits for it."""
    total = 0
    while batch >= 0:
        mine, hop = s.batches[batch], s.hops[hop_on(s, batch)]
        if at_us <= hop.start_at:
            break
        end_at = at_us + hop.latency_us
        leaving = s.stays[stay_of(s, slot, mine.model)].leaving
        if leaving or end_at + slack_of(s, slot, batch) > mine.deadline_at:
            return NEVER_US
        total += at_us - hop.start_at
        at_us = end_at
        batch = mine.next_there
    return total
