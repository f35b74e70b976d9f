"""Rows of requests: those that wait are a list in order, those under way an array."""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.journal import DROPPED, GIVEN_UP, add, note
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.malleable.tables import BY_DEADLINE, FREE, UNDER_WAY, WAITING
from headrace.dispatch.kernel.rows import free_request


@kernel
def add_row(
    s: State,
    first_id: int,
    model: int,
    arrived_at: int,
    deadline_at: int,
    priority: int,
    items: int,
) -> int:
    """A request that neither waits yet nor is under way."""
    rules = s.rules[0]
    row = rules.free_row
    if row >= 0:
        rules.free_row = s.items_of[row].after
    else:
        row = rules.rows_used
        rules.rows_used += 1
    s.world[0].requests += 1
    mine = s.items_of[row]
    mine.id, mine.model, mine.items = first_id, model, items
    mine.arrived_at, mine.deadline_at, mine.priority = arrived_at, deadline_at, priority
    mine.sent = mine.on_way = mine.back = mine.returned = mine.ready_at = 0
    mine.last_end_at = mine.lost = mine.aside = 0
    mine.first_returned = mine.route = mine.target = mine.behind = -1
    mine.state = FREE
    return row


@kernel
def free_row(s: State, row: int) -> None:
    """It is neither in the list nor in the array any more."""
    mine = s.items_of[row]
    mine.id, mine.state = -1, FREE
    mine.after = s.rules[0].free_row
    s.rules[0].free_row = row
    s.world[0].requests -= 1


# -- waiting --------------------------------------------------------------------------------------


@hot
def _before(s: State, one: int, other: int) -> bool:
    """By priority, then deadline (`malleable`) or arrival, then id."""
    a, b = s.items_of[one], s.items_of[other]
    if a.priority != b.priority:
        return a.priority < b.priority
    by_deadline = s.rules[0].rule == BY_DEADLINE
    here = a.deadline_at if by_deadline else a.arrived_at
    there = b.deadline_at if by_deadline else b.arrived_at
    return here < there or (here == there and a.id < b.id)


@kernel
def put_in_line(s: State, row: int) -> None:
    rules, mine = s.rules[0], s.items_of[row]
    before, after = rules.last_waiting, -1
    while before >= 0 and _before(s, row, before):
        before, after = s.items_of[before].before, before
    mine.before, mine.after, mine.state = before, after, WAITING
    if before >= 0:
        s.items_of[before].after = row
    else:
        rules.first_waiting = row
    if after >= 0:
        s.items_of[after].before = row
    else:
        rules.last_waiting = row
    rules.waiting += 1


@kernel
def leave_line(s: State, row: int) -> None:
    rules, mine = s.rules[0], s.items_of[row]
    if mine.before >= 0:
        s.items_of[mine.before].after = mine.after
    else:
        rules.first_waiting = mine.after
    if mine.after >= 0:
        s.items_of[mine.after].before = mine.before
    else:
        rules.last_waiting = mine.before
    mine.state = FREE
    rules.waiting -= 1


# -- under way ------------------------------------------------------------------------------------


@kernel
def join(s: State, row: int) -> None:
    rules = s.rules[0]
    s.under_way[rules.under_way] = row
    rules.under_way += 1
    s.items_of[row].state = UNDER_WAY


@kernel
def leave(s: State, row: int) -> None:
    rules = s.rules[0]
    place = 0
    while s.under_way[place] != row:
        place += 1
    rules.under_way -= 1
    for i in range(place, rules.under_way):
        s.under_way[i] = s.under_way[i + 1]
    s.items_of[row].state = FREE


# -- given up -------------------------------------------------------------------------------------


@kernel
def drop_rest(s: State, row: int, reason: int, retry_after_us: int, now_us: int) -> None:
    """Drop all items that are not on their way."""
    mine = s.items_of[row]
    unsent = mine.items - mine.sent
    if unsent:
        note(s, GIVEN_UP, now_us, mine.id + mine.sent, reason, retry_after_us)
        add(s, unsent)
    while mine.first_returned >= 0:
        item = mine.first_returned
        mine.first_returned = s.requests[item].after
        note(s, DROPPED, now_us, s.requests[item].id, reason, retry_after_us)
        free_request(s, item)
    mine.sent -= mine.returned
    mine.returned = 0
    mine.items = mine.sent
