"""`malleable`: places by deadline, and back when they fall idle.

At every event that may change who should have what:

1. Requests that cannot be in time, whatever they are given, are dropped; if nothing else happens
   until then, at that instant.
2. Those that wait are taken in order of priority, then deadline; those last that stand back, since
   not all can be in time (`standing_back`). Each is aimed at the fewest places on which it is in
   time. Missing ones are taken one by one, each from the request whose end it puts off least, of
   those that are in time without it; while high priority has most places, those of higher priority
   keep a part of their slack besides. If that is not enough and requests that yield to it have
   enough places, these give theirs up, those with most work left first, and wait.
   Else it waits: places fall free, and another time it may be taken with more of them.
3. Requests that would end too late on their places, since these have others' items to finish first,
   get as many more as they need from those that can spare them.
4. Spare places go, one after the other, to whom they bring most: the speed-up that a deeper route
   adds per place. So nothing is idle that could be of use, and what is lent here is what step 2
   takes back.
5. All that changed is exchanged at once. As soon as a request has sent its last item, its places
   serve others, behind what is still on its way there.

Whether a request is in time is asked of the places that it would have, with all that they were
given (`ends_if`). So once a request of high priority has places on which it ends in time, it is in
time: later ones take only what it can spare. That is exact
where batches take what is predicted, and no slot is lost.

Cost: O(requests under way x depths) per place that changes hands, O(requests that wait) on top.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.contract import SLOT_RECOVERY_US
from headrace.dispatch.kernel.drift import fade
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT, WAKE, WAKE_QUEUE, note
from headrace.dispatch.kernel.layout import NEVER_US, State
from headrace.dispatch.kernel.malleable.places import (
    aim,
    count_spare,
    ends_if,
    fits,
    hold,
    in_service,
    lose_places,
    needs,
    release,
)
from headrace.dispatch.kernel.malleable.requests import (
    drop_rest,
    join,
    leave,
    leave_line,
    put_in_line,
)
from headrace.dispatch.kernel.malleable.standing_back import HIGHEST, line_up, yields
from headrace.dispatch.kernel.malleable.tables import (
    ends_at,
    fastest_of,
    lasts_us,
    left,
    shallowest_within,
)

SLACK_KEPT = 1 / 4
"""Of the time until its deadline, by a request that spares places for one of lower priority: what
comes next may need them, and high priority at its own limit lost a quarter more without."""
CROWDED = 3 / 4
"""Of all places, which the highest priority has before its requests keep slack: with less, what
comes next finds places, and slack that is kept only makes low priority late."""


@kernel
def give_by_deadline(s: State, now_us: int) -> None:
    _drop_hopeless(s, now_us)
    count_spare(s)
    _accept(s, now_us)
    _hasten(s, now_us)
    _grow(s, now_us)
    _exchange(s, now_us)
    _wake_for_hopeless(s)


@kernel
def _drop_hopeless(s: State, now_us: int) -> None:
    """What cannot be in time with any places."""
    row = s.rules[0].first_waiting
    while row >= 0:
        after = s.items_of[row].after
        late_us = _late_us(s, row, now_us)
        if late_us > 0:
            leave_line(s, row)
            if _lacks_slots(s, row):
                drop_rest(s, row, NO_SLOT, SLOT_RECOVERY_US, now_us)
            else:
                drop_rest(s, row, DEADLINE, late_us, now_us)
            join(s, row)
            s.rules[0].stale = 1
        row = after
    for i in range(s.rules[0].under_way):
        row = s.under_way[i]
        if left(s, row) == 0:
            continue
        late_us = _late_us(s, row, now_us)
        if late_us > 0:
            drop_rest(s, row, DEADLINE, late_us, now_us)
            release(s, row)
            s.rules[0].stale = 1


@kernel
def _late_us(s: State, row: int, now_us: int) -> int:
    """By how much at least, with any places; before it is, what has not run for long is faded."""
    mine = s.items_of[row]
    late_us = now_us + lasts_us(s, row, fastest_of(s, row)) - mine.deadline_at
    if late_us > 0 and fade(s, mine.model, now_us):
        late_us = now_us + lasts_us(s, row, fastest_of(s, row)) - mine.deadline_at
    return late_us


@kernel
def _lacks_slots(s: State, row: int) -> bool:
    """Whether it is late for want of slots that are out of service, whoever has the others."""
    mine, lacks = s.items_of[row], False
    for route in range(s.models[mine.model].first_route, s.models[mine.model].end_route):
        if lasts_us(s, row, route) <= mine.deadline_at - mine.arrived_at:
            if in_service(s, route):
                return False
            lacks = True
    return lacks


@kernel
def _wake_for_hopeless(s: State) -> None:
    """Nothing else may happen before the first of those that wait cannot be in time any more."""
    rules = s.rules[0]
    model, wake_at, row = -1, NEVER_US, rules.first_waiting
    while row >= 0:
        mine = s.items_of[row]
        hopeless_at = mine.deadline_at - lasts_us(s, row, fastest_of(s, row)) + 1
        if hopeless_at < wake_at:
            model, wake_at = mine.model, hopeless_at
        row = mine.after
    if model >= 0 and (rules.wake_at < 0 or wake_at < rules.wake_at):
        rules.wake_at = wake_at
        note(s, WAKE, wake_at, WAKE_QUEUE, model, 0)


@kernel
def _accept(s: State, now_us: int) -> None:
    waiting = line_up(s, now_us)
    exhausted = False  # nobody can spare any more, for this priority and so for lower ones
    for i in range(waiting):
        row = s.turns[i]
        mine = s.items_of[row]
        route = shallowest_within(s, row, mine.deadline_at - now_us)
        if route < 0:
            continue
        while not exhausted and not fits(s, row, route):
            exhausted = not _take_one(s, row, now_us)
        if not fits(s, row, route):
            if not _give_way(s, row, route):
                continue
            s.rules[0].stale = 1  # those that have given way wait, or get what is left
        else:
            route = _prompt(s, row, route, now_us)
        if route >= 0:
            leave_line(s, row)
            join(s, row)
            aim(s, row, route)


@kernel
def _prompt(s: State, row: int, route: int, now_us: int) -> int:
    """That route, or the next deeper one that fits, on which it ends in time, though its places may
    have others' items to finish first; -1: none."""
    mine = s.items_of[row]
    for deeper in range(route, s.models[mine.model].end_route):
        if fits(s, row, deeper) and ends_if(s, row, deeper, now_us) <= mine.deadline_at:
            return deeper
    return -1


@kernel
def _hasten(s: State, now_us: int) -> None:
    """Requests that end too late on their places, since these have others' items to finish first,
    get as many more as they need, from those that can spare them."""
    for i in range(s.rules[0].under_way):
        row = s.under_way[i]
        mine = s.items_of[row]
        if mine.target < 0 or not left(s, row):
            continue
        if ends_if(s, row, mine.target, now_us) <= mine.deadline_at:
            continue
        had = mine.target
        for route in range(had + 1, s.models[mine.model].end_route):
            if ends_if(s, row, route, now_us) > mine.deadline_at:
                continue
            while not fits(s, row, route) and _take_one(s, row, now_us):
                pass
            if fits(s, row, route):
                aim(s, row, route)
            break


@kernel
def _take_one(s: State, row: int, now_us: int) -> bool:
    best, best_cost, priority = -1, NEVER_US, s.items_of[row].priority
    kept = SLACK_KEPT if priority > HIGHEST and _crowded(s) else 0.0
    for i in range(s.rules[0].under_way):
        other = s.under_way[i]
        theirs = s.items_of[other]
        if theirs.route < 0 or theirs.target <= s.models[theirs.model].first_route:
            continue
        if not left(s, other):
            continue
        end_at = ends_if(s, other, theirs.target - 1, now_us)
        if theirs.priority < priority:
            end_at += int((theirs.deadline_at - now_us) * kept)
        if end_at > theirs.deadline_at:
            continue
        cost = lasts_us(s, other, theirs.target - 1) - lasts_us(s, other, theirs.target)
        if cost < best_cost:
            best, best_cost = other, cost
    if best >= 0:
        aim(s, best, s.items_of[best].target - 1)
    return best >= 0


@kernel
def _crowded(s: State) -> bool:
    """Whether the highest priority is to have most places."""
    places = given = 0
    for slot in range(s.world[0].slots):
        places += s.slots[slot].counted
    for i in range(s.rules[0].under_way):
        mine = s.items_of[s.under_way[i]]
        if mine.priority == HIGHEST and mine.target >= 0:
            given += s.routes[mine.target].stages
    return given >= CROWDED * places


@kernel
def _give_way(s: State, row: int, route: int) -> bool:
    """Take all places of requests that yield to it, first of those with most work left, until that
    route fits; or of none."""
    for kind in range(s.rules[0].kinds):
        there = s.kinds[kind].spare - needs(s, route, kind)
        for i in range(s.rules[0].under_way):
            other = s.under_way[i]
            if yields(s, other, row):
                there += needs(s, s.items_of[other].target, kind)
        if there < 0:
            return False
    while not fits(s, row, route):
        best, most_us = -1, -1
        for i in range(s.rules[0].under_way):
            other = s.under_way[i]
            theirs = s.items_of[other]
            if theirs.target >= 0 and yields(s, other, row):
                work_us = lasts_us(s, other, s.models[theirs.model].first_route)
                if work_us > most_us:
                    best, most_us = other, work_us
        aim(s, best, -1)
    return True


@kernel
def _grow(s: State, now_us: int) -> None:
    for i in range(s.rules[0].under_way):
        s.items_of[s.under_way[i]].grown = 0
    while True:
        best, best_route, best_gain = -1, -1, 0.0
        for i in range(s.rules[0].under_way):
            row = s.under_way[i]
            mine = s.items_of[row]
            if mine.target < 0 or mine.grown or not left(s, row):
                continue
            now_lasts = lasts_us(s, row, mine.target)
            for route in range(mine.target + 1, s.models[mine.model].end_route):
                saved = now_lasts - lasts_us(s, row, route) - s.rules[0].move_us
                if saved <= 0 or not fits(s, row, route):
                    continue
                gain = _gain(s, row, route)
                if gain > best_gain:
                    best, best_route, best_gain = row, route, gain
        if best < 0:
            return
        mine = s.items_of[best]
        if ends_if(s, best, best_route, now_us) < ends_if(s, best, mine.target, now_us):
            aim(s, best, best_route)
        else:
            mine.grown = 1  # places that are spare have others' items to finish first


@hot
def _gain(s: State, row: int, route: int) -> float:
    mine = s.items_of[row]
    more = s.routes[route].stages - s.routes[mine.target].stages
    one = lasts_us(s, row, s.models[mine.model].first_route)
    return (one / lasts_us(s, row, route) - one / lasts_us(s, row, mine.target)) / more


@kernel
def _exchange(s: State, now_us: int) -> None:
    """Meet all targets: places are given back before others are taken."""
    rules = s.rules[0]
    for grows in range(2):
        i = 0
        while i < rules.under_way:
            row = s.under_way[i]
            mine = s.items_of[row]
            i += 1
            if mine.target == mine.route:
                continue
            if grows == 0 and (mine.route < 0 or mine.target > mine.route):
                continue
            if mine.target < 0:
                lose_places(s, row, now_us)
            elif mine.route >= 0 and _ends_too_late(s, row, now_us):
                mine.target = mine.route
            elif _affordable(s, row):
                hold(s, row, mine.target, now_us)
            else:
                mine.target = mine.route
                if mine.route < 0:
                    leave(s, row)
                    put_in_line(s, row)
                    i -= 1


@kernel
def _affordable(s: State, row: int) -> bool:
    mine = s.items_of[row]
    for kind in range(s.rules[0].kinds):
        if needs(s, mine.target, kind) - needs(s, mine.route, kind) > s.kinds[kind].free:
            return False
    return True


@kernel
def _ends_too_late(s: State, row: int, now_us: int) -> bool:
    """Whether to change its places would make it end later than now, and not in time: places that
    it would get may still have to do what others sent there."""
    mine = s.items_of[row]
    if not _affordable(s, row):
        return False
    then_at = ends_if(s, row, mine.target, now_us)
    soon_at = ends_at(s, row, now_us)
    return then_at >= soon_at and (mine.target > mine.route or then_at > mine.deadline_at)
