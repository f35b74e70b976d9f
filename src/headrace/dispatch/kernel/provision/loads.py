"""What is brought to a slot, and when.

A load waits until the links that it takes are free (its slot's, and its helper's where part of it
comes from there; slots of devices behind one switch have one link together, and take turns), every
load with a lower number that takes one of them has begun, and its memory
is there. So it begins no later than foreseen when it was ordered, if copies take no longer. Slots
without a copy stream of their own load when the batch that needs it starts, and hold execution.

Memory is counted twice, and neither count is ever above the slot's:

    promised  models that a batch was promised or that are on their way, those that are leaving not
    held      models that are loaded or being loaded

A model may be promised if it fits beside what is promised already. Otherwise some of those have to
be `leaving`: they take no further batches, and the load waits for the end of those that they have.
Who is evicted of those that nothing is promised of is decided when the load begins, and not before.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.journal import EVICTED, add, note
from headrace.dispatch.kernel.journal import LOADING as IS_LOADING
from headrace.dispatch.kernel.layout import NEVER_US, State
from headrace.dispatch.kernel.provision.eviction import choose_victim
from headrace.dispatch.kernel.provision.learned import load_us
from headrace.dispatch.kernel.provision.tables import ABSENT, AWAITED, LOADING


@hot
def stay_of(s: State, slot: int, model: int) -> int:
    return slot * len(s.models) + model


# -- memory ---------------------------------------------------------------------------------------


@hot
def _is_needed(s: State, row: int) -> bool:
    stay = s.stays[row]
    return stay.pending > 0 or stay.state in (AWAITED, LOADING)


@hot
def _count(s: State, slot: int, row: int, size: int) -> None:
    """Add the bytes of a stay to what its slot has; or take them away."""
    stay, here = s.stays[row], s.slots[slot]
    if stay.state >= LOADING:
        here.held_bytes += size
    if _is_needed(s, row):
        if stay.leaving:
            here.leaving_bytes += size
        else:
            here.promised_bytes += size


@kernel
def change(s: State, slot: int, model: int, state: int, pending: int, leaving: int) -> None:
    """Let the model's stay be so; memory is counted anew."""
    row = stay_of(s, slot, model)
    stay, size = s.stays[row], s.starts[model].bytes
    _count(s, slot, row, -size)
    stay.state, stay.pending = state, pending
    stay.leaving = leaving if _is_needed(s, row) else 0
    _count(s, slot, row, size)


@kernel
def add_pending(s: State, slot: int, model: int, by: int) -> None:
    stay = s.stays[stay_of(s, slot, model)]
    change(s, slot, model, stay.state, stay.pending + by, stay.leaving)


@kernel
def fits(s: State, slot: int, model: int) -> bool:
    """Whether a model that is there, or on its way, may be promised (once more) at once: beside
    those that are promised, and those that are leaving but may not even have come."""
    here = s.slots[slot]
    if _is_needed(s, stay_of(s, slot, model)):
        return True
    needed_bytes = here.promised_bytes + here.leaving_bytes
    return needed_bytes + s.starts[model].bytes <= here.memory_bytes


@kernel
def room_at(s: State, slot: int, model: int, now_us: int, leave: int) -> int:
    """When the memory of a model that is to be brought there is free; NEVER_US: not foreseen.

    Args:
        leave: 1: let those leave that have to.
    """
    here, at_us = s.slots[slot], now_us
    over = here.promised_bytes + s.starts[model].bytes - here.memory_bytes
    row = here.first_there
    while row >= 0:
        theirs = s.batches[row].model
        stay = s.stays[stay_of(s, slot, theirs)]
        if stay.leaving or (over > 0 and not _again(s, row)):
            hop = s.hops[row * s.world[0].stages_max]
            at_us = max(at_us, hop.start_at + hop.latency_us)
            if not stay.leaving:
                over -= s.starts[theirs].bytes
                if leave:
                    change(s, slot, theirs, stay.state, stay.pending, 1)
        row = s.batches[row].next_there
    return NEVER_US if over > 0 else at_us


@kernel
def _again(s: State, row: int) -> bool:
    """Whether a later batch on the slot is of the same model."""
    model = s.batches[row].model
    other = s.batches[row].next_there
    while other >= 0:
        if s.batches[other].model == model:
            return True
        other = s.batches[other].next_there
    return False


@kernel
def _make_room(s: State, slot: int, model: int, now_us: int) -> bool:
    here = s.slots[slot]
    while here.held_bytes + s.starts[model].bytes > here.memory_bytes:
        victim = choose_victim(s, slot, now_us)
        if victim < 0:
            return False
        evict(s, slot, victim, now_us)
    return True


@kernel
def evict(s: State, slot: int, model: int, now_us: int) -> None:
    change(s, slot, model, ABSENT, 0, 0)
    note(s, EVICTED, now_us, slot, model, 0)


# -- links ----------------------------------------------------------------------------------------


@hot
def link_of(s: State, slot: int) -> int:
    """The slot in whose row its link is kept."""
    return s.slots[slot].link


@hot
def helper_of(s: State, slot: int, model: int) -> int:
    """The link that its load takes besides; -1: none."""
    helper = s.slots[slot].helper
    return s.slots[helper].link if helper >= 0 and s.starts[model].helper else -1


@kernel
def link_free_at(s: State, link: int, now_us: int) -> int:
    """When the load that has the link now is over, as foreseen."""
    owner = s.slots[link].copying
    if owner < 0:
        return now_us
    model = s.slots[owner].bringing
    takes_us = load_us(s, owner, model)
    ends_at = s.stays[stay_of(s, owner, model)].begins_at + takes_us
    return ends_at if ends_at >= now_us else now_us + 1 + (takes_us >> 3)


@kernel
def links_free_at(s: State, slot: int, model: int, now_us: int) -> int:
    """Of all links that a load takes, those that wait not counted; later than now if one is not."""
    link, helper, at_us = link_of(s, slot), helper_of(s, slot, model), now_us
    if s.slots[link].copying >= 0:
        at_us = max(now_us + 1, link_free_at(s, link, now_us))
    if helper >= 0 and s.slots[helper].copying >= 0:
        at_us = max(at_us, now_us + 1, link_free_at(s, helper, now_us))
    return at_us


@kernel
def foresee(s: State, now_us: int) -> None:
    """When each load that waits begins, in the order of their numbers. Afterwards `free_at` of a
    link is when it has done all of them."""
    for link in range(s.world[0].slots):
        s.slots[link].free_at = link_free_at(s, link, now_us)
    row = s.rules[0].first_load
    while row >= 0:
        stay = s.stays[row]
        slot, model = row // len(s.models), row % len(s.models)
        stay.begins_at = _begins_at(s, slot, model, max(now_us, stay.memory_at))
        _take_links(s, slot, model, stay.begins_at)
        row = stay.next_load


@kernel
def _begins_at(s: State, slot: int, model: int, not_before_us: int) -> int:
    helper = helper_of(s, slot, model)
    begins_at = max(not_before_us, s.slots[link_of(s, slot)].free_at)
    return max(begins_at, s.slots[helper].free_at) if helper >= 0 else begins_at


@hot
def _take_links(s: State, slot: int, model: int, begins_at: int) -> None:
    helper = helper_of(s, slot, model)
    ends_at = begins_at + load_us(s, slot, model)
    s.slots[link_of(s, slot)].free_at = ends_at
    if helper >= 0:
        s.slots[helper].free_at = ends_at


@kernel
def would_begin_at(s: State, slot: int, model: int, memory_at: int, now_us: int) -> int:
    """Of one more load; what waits must be foreseen."""
    if not s.slots[slot].copies:
        return max(memory_at, links_free_at(s, slot, model, now_us))
    return _begins_at(s, slot, model, max(now_us, memory_at))


# -- loads that wait ------------------------------------------------------------------------------


@kernel
def order(s: State, slot: int, model: int, memory_at: int, now_us: int) -> None:
    """The model is to come to the slot: its batch is promised already."""
    rules, row = s.rules[0], stay_of(s, slot, model)
    stay = s.stays[row]
    change(s, slot, model, AWAITED, stay.pending, 0)
    stay.memory_at, stay.load = memory_at, rules.loads
    stay.begins_at = would_begin_at(s, slot, model, memory_at, now_us)
    rules.loads += 1
    if not s.slots[slot].copies:
        return
    stay.next_load = -1
    last = rules.first_load
    if last < 0:
        rules.first_load = row
        return
    while s.stays[last].next_load >= 0:
        last = s.stays[last].next_load
    s.stays[last].next_load = row


@kernel
def call_off(s: State, slot: int, model: int) -> None:
    """Nobody needs the load any more, and it has not begun."""
    row = stay_of(s, slot, model)
    _leave_line(s, row)
    change(s, slot, model, ABSENT, s.stays[row].pending, 0)


@kernel
def _leave_line(s: State, row: int) -> None:
    rules = s.rules[0]
    if rules.first_load == row:
        rules.first_load = s.stays[row].next_load
    other = rules.first_load
    while other >= 0:
        if s.stays[other].next_load == row:
            s.stays[other].next_load = s.stays[row].next_load
        other = s.stays[other].next_load
    s.stays[row].next_load = -1


@kernel
def begin_loads(s: State, now_us: int) -> None:
    """Begin all that may begin now."""
    if s.rules[0].first_load < 0:
        return
    for each in range(s.world[0].slots):
        s.slots[each].taken = int(s.slots[each].copying >= 0)
    row = s.rules[0].first_load
    while row >= 0:
        after = s.stays[row].next_load
        slot, model = row // len(s.models), row % len(s.models)
        link, helper = link_of(s, slot), helper_of(s, slot, model)
        taken = s.slots[link].taken or (helper >= 0 and s.slots[helper].taken)
        if not taken and _make_room(s, slot, model, now_us):
            _leave_line(s, row)
            begin(s, slot, model, now_us)
        s.slots[link].taken = 1
        if helper >= 0:
            s.slots[helper].taken = 1
        row = after


@kernel
def begin(s: State, slot: int, model: int, now_us: int) -> None:
    """Its links are free, and so is its memory."""
    stay, helper = s.stays[stay_of(s, slot, model)], helper_of(s, slot, model)
    change(s, slot, model, LOADING, stay.pending, stay.leaving)
    stay.begins_at = now_us
    s.slots[link_of(s, slot)].copying, s.slots[slot].bringing = slot, model
    if helper >= 0:
        s.slots[helper].copying = slot
    note(s, IS_LOADING, now_us, stay.load, slot, model)
    add(s, s.starts[model].load_us)


@kernel
def begin_with_batch(s: State, slot: int, model: int, now_us: int) -> None:
    """On a slot without a copy stream, whose batch starts now."""
    _make_room(s, slot, model, now_us)
    begin(s, slot, model, now_us)


@kernel
def free_links(s: State, slot: int) -> None:
    """The slot's load is over, or lost."""
    for other in range(s.world[0].slots):
        if s.slots[other].copying == slot:
            s.slots[other].copying = -1


@kernel
def forget_slot(s: State, slot: int) -> None:
    """The slot is lost with all that it holds; no load of it goes on."""
    free_links(s, slot)
    for model in range(len(s.models)):
        row = stay_of(s, slot, model)
        _leave_line(s, row)
        stay = s.stays[row]
        change(s, slot, model, ABSENT, stay.pending, 0)
        stay.load = -1
