"""Who stands back where places cannot do what everybody needs by its deadline.

A request needs at least the places and the time of the shallowest depth on which it is in time, so
many that, of all requests with deadlines up to D, not all can be in time on P places where

    sum of places x time  >  P (D - now)

Then the fewest are late if the one that needs most stands back, and so on until the others fit
(Moore, Management Science 15, 1968, for one machine). That is exact on one machine alone; here it
says who should have the first turn, and the turns decide. Who stands back is not dropped: it comes
after all others of its priority, and is late only when no places can save it. Requests of the
highest priority never stand back once they have places, which is their promise; others give theirs
up to those that do not stand back.

Cost: O(n^2) for n requests in the worst case, since they are sorted where they lie; nothing where
none waits.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.malleable.tables import fastest_of, lasts_us, left, shallowest_within

HIGHEST = 0
"""The priority whose requests keep their places."""


@hot
def yields(s: State, other: int, row: int) -> bool:
    """Whether the other request gives its places up to this one."""
    mine, theirs = s.items_of[row], s.items_of[other]
    if theirs.priority != mine.priority:
        return theirs.priority > mine.priority
    return theirs.aside > mine.aside


@kernel
def line_up(s: State, now_us: int) -> int:
    """All that wait, in the order in which they have their turn, in `turns`; returns how many."""
    rules = s.rules[0]
    if rules.first_waiting < 0:
        return 0
    count = _by_deadline(s)
    places = 0
    for slot in range(s.world[0].slots):
        places += s.slots[slot].counted
    priority = HIGHEST
    while priority >= 0:
        priority = _set_aside(s, count, priority, places, now_us)
    return _waiting_in_turn(s)


@kernel
def _by_deadline(s: State) -> int:
    """All that have items to send, by deadline."""
    count = 0
    row = s.rules[0].first_waiting
    while row >= 0:
        count = _insert(s, row, count)
        row = s.items_of[row].after
    for i in range(s.rules[0].under_way):
        if left(s, s.under_way[i]):
            count = _insert(s, s.under_way[i], count)
    return count


@kernel
def _insert(s: State, row: int, count: int) -> int:
    s.items_of[row].aside = 0
    at = count
    while at and s.items_of[row].deadline_at < s.items_of[s.turns[at - 1]].deadline_at:
        s.turns[at] = s.turns[at - 1]
        at -= 1
    s.turns[at] = row
    return count + 1


@kernel
def _set_aside(s: State, count: int, priority: int, places: int, now_us: int) -> int:
    """Of that priority, beside all of higher ones; returns the next lower one, or -1."""
    lower, sum_us = -1, 0
    for i in range(count):
        row = s.turns[i]
        mine = s.items_of[row]
        if mine.priority > priority:
            if lower < 0 or mine.priority < lower:
                lower = mine.priority
            continue
        if mine.aside:
            continue
        sum_us += work_us(s, row, now_us)
        while sum_us > places * (mine.deadline_at - now_us):
            most = _most_work(s, i + 1, priority, now_us)
            if most < 0:
                break
            s.items_of[most].aside = 1
            sum_us -= work_us(s, most, now_us)
    return lower


@kernel
def _most_work(s: State, count: int, priority: int, now_us: int) -> int:
    """Of the first so many, who may stand back; -1: none."""
    best, best_us = -1, -1
    for i in range(count):
        row = s.turns[i]
        mine = s.items_of[row]
        if mine.priority != priority or mine.aside:
            continue
        if priority == HIGHEST and mine.route >= 0:
            continue
        mine_us = work_us(s, row, now_us)
        if mine_us > best_us:
            best, best_us = row, mine_us
    return best


@kernel
def work_us(s: State, row: int, now_us: int) -> int:
    """Places x time of the rest, on the shallowest depth that is in time."""
    route = shallowest_within(s, row, s.items_of[row].deadline_at - now_us)
    if route < 0:
        route = fastest_of(s, row)
    return s.routes[route].stages * lasts_us(s, row, route)


@kernel
def _waiting_in_turn(s: State) -> int:
    """By priority, those that stand back last, by deadline."""
    count, first = 0, s.rules[0].first_waiting
    while first >= 0:
        priority, after = s.items_of[first].priority, first
        for aside in range(2):
            row = first
            while row >= 0 and s.items_of[row].priority == priority:
                if s.items_of[row].aside == aside:
                    s.turns[count] = row
                    count += 1
                row = s.items_of[row].after
            after = row
        first = after
    return count
