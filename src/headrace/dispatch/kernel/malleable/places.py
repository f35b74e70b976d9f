"""Which slots serve a request: taken, given back, exchanged; and its items on their way there."""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import queues
from headrace.dispatch.kernel.drift import predicted_us
from headrace.dispatch.kernel.flow import enter_stage, note_path
from headrace.dispatch.kernel.journal import PLACED, add, note
from headrace.dispatch.kernel.layout import NEVER_US, State
from headrace.dispatch.kernel.links import transfer_us
from headrace.dispatch.kernel.malleable.tables import ends_at, ends_on, left
from headrace.dispatch.kernel.rows import add_batch, add_request


@hot
def first_held(s: State, row: int) -> int:
    """Where its places begin in `held`."""
    return row * s.world[0].stages_max


@hot
def stages_of(s: State, route: int) -> int:
    return s.routes[route].stages if route >= 0 else 0


@hot
def needs(s: State, route: int, kind: int) -> int:
    """Slots of that kind on the route; -1 is a route without any."""
    return s.needs[route * s.world[0].slots + kind] if route >= 0 else 0


@kernel
def in_service(s: State, route: int) -> bool:
    """Whether there are slots for all its stages, whoever has them."""
    for kind in range(s.rules[0].kinds):
        counted = 0
        for slot in range(s.world[0].slots):
            counted += int(s.slots[slot].counted and s.slots[slot].kind == kind)
        if counted < needs(s, route, kind):
            return False
    return True


# -- counted, before anything is exchanged --------------------------------------------------------


@kernel
def count_spare(s: State) -> None:
    """Every request keeps what it has; free slots are spare."""
    for kind in range(s.rules[0].kinds):
        s.kinds[kind].spare = s.kinds[kind].free
    for i in range(s.rules[0].under_way):
        mine = s.items_of[s.under_way[i]]
        mine.target = mine.route


@kernel
def fits(s: State, row: int, route: int) -> bool:
    """Whether spare slots and its own are enough for that target."""
    own = s.items_of[row].target
    for kind in range(s.rules[0].kinds):
        if needs(s, route, kind) - needs(s, own, kind) > s.kinds[kind].spare:
            return False
    return True


@kernel
def aim(s: State, row: int, route: int) -> None:
    """Make it the request's target; -1: no places."""
    mine = s.items_of[row]
    for kind in range(s.rules[0].kinds):
        s.kinds[kind].spare += needs(s, mine.target, kind) - needs(s, route, kind)
    mine.target = route


# -- exchanged ------------------------------------------------------------------------------------


@kernel
def release(s: State, row: int) -> None:
    """Give all its places back. What was sent there still runs, before anybody else's."""
    mine, held = s.items_of[row], first_held(s, row)
    for i in range(stages_of(s, mine.route)):
        slot = s.slots[s.held[held + i]]
        if slot.owner == row:
            slot.owner = -1
            s.kinds[slot.kind].free += 1
    mine.route = mine.target = -1


@kernel
def lose_places(s: State, row: int, now_us: int) -> None:
    """Its places go to others though it has items left: it waits."""
    release(s, row)
    if s.world[0].logged:
        note_places(s, row, now_us)


@kernel
def hold(s: State, row: int, route: int, now_us: int) -> None:
    """Go on with that route: on its own places, and on free ones, which there are enough of.

    Places that it needs no more are those that have done soonest what they were given. Places that
    it gets are too; and of all, the one that is done first serves the first stage, and so on.
    """
    mine, held, count = s.items_of[row], first_held(s, row), 0
    had = stages_of(s, mine.route)
    for kind in range(s.rules[0].kinds):
        begin = count
        for i in range(had):
            slot = s.held[held + i]
            if s.slots[slot].owner == row and s.slots[slot].kind == kind:
                s.chosen[count] = slot
                count += 1
        needed = needs(s, route, kind)
        while count - begin > needed:
            first = first_done(s, begin, count, kind)
            slot = s.chosen[first]
            s.slots[slot].owner = -1
            s.kinds[kind].free += 1
            count -= 1
            s.chosen[first] = s.chosen[count]
        while count - begin < needed:
            slot = first_free(s, kind)
            s.slots[slot].owner = row
            s.kinds[kind].free -= 1
            s.chosen[count] = slot
            count += 1
    _assign(s, row, route, count)
    mine.ready_at = now_us + s.rules[0].move_us if had else now_us
    mine.route = mine.target = route
    if s.world[0].logged:
        note_places(s, row, now_us)


@kernel
def _assign(s: State, row: int, route: int, count: int) -> None:
    """The chosen slots to stages, the first done to the first stage of its kind."""
    first, held = s.routes[route].first_stage, first_held(s, row)
    for stage in range(s.routes[route].stages):
        best = first_done(s, 0, count, s.paces[first + stage].kind)
        s.held[held + stage] = s.chosen[best]
        s.chosen[best] = -1


@kernel
def first_done(s: State, begin: int, end: int, kind: int) -> int:
    """Of the chosen slots of that kind, where the one lies that is done first."""
    best, best_at = -1, NEVER_US
    for i in range(begin, end):
        slot = s.chosen[i]
        if slot >= 0 and s.slots[slot].kind == kind:
            free_at = s.slots[slot].free_at
            if best < 0 or free_at < best_at or (free_at == best_at and slot < s.chosen[best]):
                best, best_at = i, free_at
    return best


@kernel
def first_free(s: State, kind: int) -> int:
    best = -1
    for slot in range(s.world[0].slots):
        mine = s.slots[slot]
        if (
            mine.owner < 0
            and mine.counted
            and mine.kind == kind
            and (best < 0 or mine.free_at < s.slots[best].free_at)
        ):
            best = slot
    return best


@kernel
def note_places(s: State, row: int, now_us: int) -> None:
    mine, held = s.items_of[row], first_held(s, row)
    stages = stages_of(s, mine.route)
    ends = ends_at(s, row, now_us) if stages else 0
    note(s, PLACED, now_us, mine.id, stages, ends)
    for i in range(stages):
        add(s, s.held[held + i])


# -- asked before ---------------------------------------------------------------------------------


@kernel
def ends_if(s: State, row: int, route: int, now_us: int) -> int:
    """When the request ends on that route: on those of its places that it would keep (`hold`), and
    on free ones."""
    count, first = _choose(s, row, route), s.routes[route].first_stage
    for stage in range(s.routes[route].stages):
        chosen = first_done(s, 0, count, s.paces[first + stage].kind)
        s.tried[stage] = -1
        if chosen >= 0:
            s.tried[stage], s.chosen[chosen] = s.chosen[chosen], -1
    begins_at = now_us + s.rules[0].move_us if s.items_of[row].route >= 0 else now_us
    return ends_on(s, row, route, s.tried, 0, begins_at, now_us)


@kernel
def _choose(s: State, row: int, route: int) -> int:
    """The slots that it would have there, in `chosen`; returns how many there are."""
    held, count = first_held(s, row), 0
    had = stages_of(s, s.items_of[row].route)
    for kind in range(s.rules[0].kinds):
        begin, needed = count, needs(s, route, kind)
        for i in range(had):
            slot = s.held[held + i]
            if s.slots[slot].kind == kind:
                s.chosen[count] = slot
                count += 1
        while count - begin > needed:
            count -= 1
            s.chosen[first_done(s, begin, count + 1, kind)] = s.chosen[count]
        own = count
        while count - begin < needed:
            slot = first_free(s, kind)
            if slot < 0:
                break
            s.slots[slot].owner = row  # not to be found twice
            s.chosen[count] = slot
            count += 1
        for i in range(own, count):
            s.slots[s.chosen[i]].owner = -1
    return count


# -- items on their way ---------------------------------------------------------------------------


@kernel
def send_next(s: State, row: int, now_us: int) -> bool:
    """Send a batch of its items, if its first place has done all that it was given."""
    mine = s.items_of[row]
    if mine.route < 0 or left(s, row) == 0:
        return False
    if s.slots[s.held[first_held(s, row)]].pending:
        return False
    size = _queue_items(s, row)
    batch = add_batch(s, mine.model, mine.route, size)
    _path(s, row, batch, now_us)
    mine.on_way += size
    note_path(s, batch, 0, now_us)
    enter_stage(s, batch, now_us)
    return True


@kernel
def _queue_items(s: State, row: int) -> int:
    """Items that go together, those first that came back from a lost batch."""
    mine = s.items_of[row]
    size_max, size = s.routes[mine.route].batch_size, 0
    together = 0
    while size < size_max and mine.first_returned >= 0:
        item = mine.first_returned
        if size and s.requests[item].apart != together:
            return size
        together = s.requests[item].apart
        mine.first_returned = s.requests[item].after
        mine.returned -= 1
        queues.insert(s, mine.model, item)
        size += 1
    if together:
        return size
    while size < size_max and mine.sent < mine.items:
        item = add_request(s, mine.id + mine.sent, mine.arrived_at, mine.deadline_at, mine.priority)
        s.requests[item].of = row
        mine.sent += 1
        queues.insert(s, mine.model, item)
        size += 1
    return size


@kernel
def _path(s: State, row: int, batch: int, now_us: int) -> None:
    """Give the batch its hops, each behind all that its slot was given."""
    mine, theirs = s.items_of[row], s.batches[batch]
    first, held = s.routes[mine.route].first_stage, first_held(s, row)
    theirs.of = row
    theirs.held_up = 1  # late or not, it says nothing of times: it has waited for places
    theirs.hops = s.routes[mine.route].stages
    end_at = max(now_us, mine.ready_at)
    for stage in range(theirs.hops):
        slot = s.held[held + stage]
        place = s.stages[first + stage].first_pool + s.slots[slot].place
        end_at = take(s, batch, stage, slot, place, end_at)
    mine.last_end_at = max(mine.last_end_at, end_at)


@kernel
def take(s: State, batch: int, stage: int, slot: int, place: int, from_us: int) -> int:
    """A hop of the batch on that slot, behind all that it was given; returns when that ends."""
    theirs = s.batches[batch]
    table = s.routes[theirs.route].first_stage + stage
    at = batch * s.world[0].stages_max + stage
    hop = s.hops[at]
    hop.slot, hop.place, hop.transfer_at, hop.transfer_us = slot, place, from_us, 0
    if stage:
        size_bytes = theirs.size * s.stages[table].input_bytes
        hop.transfer_us = transfer_us(s, s.hops[at - 1].slot, slot, size_bytes)
    hop.start_at = max(from_us + hop.transfer_us, s.slots[slot].free_at)
    hop.latency_us = predicted_us(s, table, place, theirs.size)
    hop.moved_us = s.slots[slot].moved_us
    s.slots[slot].free_at = hop.start_at + hop.latency_us
    s.slots[slot].pending += 1
    return hop.start_at + hop.latency_us
