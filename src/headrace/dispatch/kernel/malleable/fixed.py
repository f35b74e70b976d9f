"""`accordion` and the baselines of its study: who gets places of those that fall free, in turn.

By priority, then arrival, each request that waits gets places if its rule says so (Accordion,
sections 3.3 and 4.2); those that do not fit are passed over:

    accordion       its best depth; else fewer places, the free ones, if it ends in time on them;
                    else as few as it needs to be in time, the missing ones taken from requests
                    under way, the first served first, one by one while those still end in time
    slo-conforming  the shallowest depth that lasts no longer than its SLO
    fastest         its best depth
    buffer-based    its best depth; where that does not fit, the places of a request of the same
                    model and SLO, when that is over
    one-stage       one place

What cannot be in time any more is served all the same, when the places that the rule wants are
free. Places are kept until all items are back.

The dropout predictor (Algorithm 1) lays every request that arrives on the places that it expects to
be free first, as many as meet its SLO; one of low priority that would take longer than the window
is dropped.
"""

from headrace.compilation.loops import kernel
from headrace.dispatch.kernel.layout import NEVER_US, State
from headrace.dispatch.kernel.malleable.places import (
    aim,
    count_spare,
    ends_if,
    first_held,
    fits,
    hold,
    needs,
    note_places,
    stages_of,
)
from headrace.dispatch.kernel.malleable.requests import join, leave_line
from headrace.dispatch.kernel.malleable.tables import (
    ACCORDION,
    BUFFERED,
    CONFORMING,
    ONE_STAGE,
    fastest_of,
    lasts_us,
    shallowest_within,
)


@kernel
def give_in_turn(s: State, now_us: int) -> None:
    count_spare(s)
    in_vain = NEVER_US
    row = s.rules[0].first_waiting
    while row >= 0:
        after = s.items_of[row].after
        route = _free_route(s, row, now_us)
        if route < 0 and s.rules[0].rule == ACCORDION:
            least = shallowest_within(s, row, s.items_of[row].deadline_at - now_us)
            # Where so many could not be taken, more cannot: nobody gave any back in between.
            if least >= 0 and (s.rules[0].kinds > 1 or s.routes[least].stages < in_vain):
                if _fetch(s, row, least, now_us):
                    route = least
                else:
                    in_vain = s.routes[least].stages
        if route >= 0:
            leave_line(s, row)
            join(s, row)
            aim(s, row, route)
            hold(s, row, route, now_us)
        row = after


@kernel
def _free_route(s: State, row: int, now_us: int) -> int:
    """What the rule gives it of the free places; -1: it waits."""
    mine, rule = s.items_of[row], s.rules[0].rule
    if mine.behind >= 0:
        return -1
    best = wanted_route(s, row)
    if fits(s, row, best):
        return best
    if rule == BUFFERED:
        mine.behind = _alike(s, row)
    if rule != ACCORDION:
        return -1
    largest = _largest_free(s, row)
    in_time = mine.deadline_at - now_us
    if largest >= 0 and lasts_us(s, row, largest) > in_time:
        return -1
    return largest


@kernel
def wanted_route(s: State, row: int) -> int:
    mine, rule = s.items_of[row], s.rules[0].rule
    if rule == ONE_STAGE:
        return s.models[mine.model].first_route
    if rule == CONFORMING:
        route = shallowest_within(s, row, mine.deadline_at - mine.arrived_at)
        if route >= 0:
            return route
    return fastest_of(s, row)


@kernel
def _largest_free(s: State, row: int) -> int:
    """The route on which it lasts least, of those that fit on free places; -1: none does."""
    model, best = s.models[s.items_of[row].model], -1
    for route in range(model.first_route, model.end_route):
        if fits(s, row, route) and (best < 0 or lasts_us(s, row, route) < lasts_us(s, row, best)):
            best = route
    return best


@kernel
def _fetch(s: State, row: int, route: int, now_us: int) -> bool:
    """Take places from requests under way until that route fits; or from nobody."""
    count = s.rules[0].under_way
    for i in range(count):
        other = s.under_way[i]
        theirs = s.items_of[other]
        if theirs.route < 0:
            continue
        first, shallower = s.models[theirs.model].first_route, theirs.target
        while shallower > first and not fits(s, row, route):
            shallower -= 1
            # Of some kind it may need more slots, and gets none of those behind it, which give
            # theirs up later.
            if not fits(s, other, shallower):
                continue
            if ends_if(s, other, shallower, now_us) > theirs.deadline_at:
                break
            aim(s, other, shallower)
    enough = fits(s, row, route)
    for i in range(count):
        other = s.under_way[i]
        theirs = s.items_of[other]
        if theirs.target != theirs.route:
            if enough:
                hold(s, other, theirs.target, now_us)
            else:
                aim(s, other, theirs.route)
    return enough


# -- buffers --------------------------------------------------------------------------------------


@kernel
def _alike(s: State, row: int) -> int:
    """The request under way whose places it waits for, the one that got them first; -1: none."""
    mine = s.items_of[row]
    for i in range(s.rules[0].under_way):
        theirs = s.items_of[s.under_way[i]]
        same_slo = theirs.deadline_at - theirs.arrived_at == mine.deadline_at - mine.arrived_at
        if theirs.model == mine.model and same_slo and theirs.route >= 0:
            return s.under_way[i]
    return -1


@kernel
def hand_down(s: State, row: int, now_us: int) -> None:
    """The request is over: the first that waits for its places gets them."""
    heir, other = -1, s.rules[0].first_waiting
    while other >= 0:
        after = s.items_of[other].after
        if s.items_of[other].behind == row:
            s.items_of[other].behind = heir
            if heir < 0 and s.items_of[row].route >= 0:
                heir = other
                leave_line(s, heir)
                join(s, heir)
                _inherit(s, heir, row, now_us)
        other = after


@kernel
def _inherit(s: State, heir: int, row: int, now_us: int) -> None:
    mine, theirs = s.items_of[heir], s.items_of[row]
    to, held = first_held(s, heir), first_held(s, row)
    for i in range(stages_of(s, theirs.route)):
        s.held[to + i] = s.held[held + i]
        s.slots[s.held[to + i]].owner = heir
    mine.route = mine.target = theirs.route
    mine.ready_at = now_us
    theirs.route = theirs.target = -1
    if s.world[0].logged:
        note_places(s, heir, now_us)


# -- the dropout predictor ------------------------------------------------------------------------


@kernel
def foreseen_late(s: State, row: int, now_us: int) -> bool:
    """Whether a request that arrives would take longer than the window; if not, it is laid out."""
    mine = s.items_of[row]
    slo_us = mine.deadline_at - mine.arrived_at
    route = shallowest_within(s, row, slo_us)
    if route < 0:
        route = fastest_of(s, row)
    from_us, count = now_us, 0
    for kind in range(s.rules[0].kinds):
        for _ in range(needs(s, route, kind)):
            slot = _next_done(s, kind, count)
            if slot < 0:
                break
            s.chosen[count] = slot
            count += 1
            from_us = max(from_us, s.slots[slot].finish_at)
    end_at = from_us + lasts_us(s, row, route)
    late = (end_at - mine.arrived_at) * 100 > slo_us * s.rules[0].window_percent
    if late and mine.priority > 0:
        return True
    for i in range(count):
        s.slots[s.chosen[i]].finish_at = end_at
    return False


@kernel
def _next_done(s: State, kind: int, count: int) -> int:
    """The slot in service that is foreseen to be done first, besides those chosen."""
    best = -1
    for slot in range(s.world[0].slots):
        mine = s.slots[slot]
        if not mine.counted or mine.kind != kind:
            continue
        if best >= 0 and mine.finish_at >= s.slots[best].finish_at:
            continue
        taken = False
        for i in range(count):
            taken = taken or s.chosen[i] == slot
        if not taken:
            best = slot
    return best
