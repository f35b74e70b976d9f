"""Reservation-based adaptive batching (PPipe, section 5.4 and appendix A.3; decision 0006).

A batch is dispatched only when its whole path ends, with the profile's spread on top, before its
tightest deadline; then the path is reserved.
"""

from headrace.dispatch.kernel.compile import inlined, kernel
from headrace.dispatch.kernel.feedback import extend_overruns, follow_moved, move, stretch
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT
from headrace.dispatch.kernel.layout import NEVER_US, State
from headrace.dispatch.kernel.probing import probe, release_links, release_slot
from headrace.dispatch.kernel.promises import DOWNLINK, SLOT, UPLINK, free_for, note_running
from headrace.dispatch.kernel.queues import at, tightest

SEND, WAIT, DROP = range(3)
"""What `decide` says: (SEND, route, size) with the path in `path`, (WAIT, until, size) or
(DROP, reason, retry_after_us)."""

FILL_IDLE, FILL_DEADLINE = range(2)
"""Whether a partial batch starts at once when its whole path is idle, or waits until its deadline
forces it (the paper)."""

SLOT_RECOVERY_US = 1_000_000
"""When to try again after a pool has lost all its slots: about a worker's restart."""

Decision = tuple[int, int, int]


@kernel
def decide(s: State, model: int, now_us: int) -> Decision:
    """The model's queue is not empty. Routes are asked in order of how long they make wait."""
    extend_overruns(s, now_us)
    follow_moved(s)
    first, end = s.models[model].first_route, s.models[model].end_route
    usable = _mark_usable(s, first, end, now_us)
    if usable == 0:
        return DROP, NO_SLOT, SLOT_RECOVERY_US
    for _ in range(usable):
        route = _least_waiting(s, first, end)
        s.routes[route].done = 1
        what, choice, size = _full_batch(s, model, route, now_us)
        if what != DROP:
            return what, choice, size
    for route in range(first, end):
        s.routes[route].done = s.routes[route].waiting < 0
    for _ in range(usable):
        route = _least_waiting(s, first, end)
        s.routes[route].done = 1
        what, choice, size = _smaller_batch(s, model, route, now_us)
        if what != DROP:
            return what, choice, size
    return DROP, DEADLINE, _backlog_us(s, model, now_us)


@kernel
def _full_batch(s: State, model: int, route: int, now_us: int) -> Decision:
    """A batch of the planned size, on the path that `_mark_usable` found; DROP: it is late."""
    table = s.routes[route]
    planned = table.batch_size
    if table.end_at + _slack(s, route, planned) > tightest(s, model, planned):
        return DROP, DEADLINE, 0
    if table.waiting == 0:
        table.shrunk = 0
    return _settle(s, model, route, planned, table.waiting, table.end_at, now_us)


@kernel
def _smaller_batch(s: State, model: int, route: int, now_us: int) -> Decision:
    """Because a full batch would be late, even on an idle path or only for its turn to come.

    In the latter case only once until the path was idle. A smaller batch makes it, but takes more
    of each slot per request; the next would have to wait longer and be smaller still, for as long
    as the load lasts that full batches could carry. A few requests are dropped instead until a full
    batch is in time.
    """
    table = s.routes[route]
    planned = table.batch_size
    idle_end_at = table.end_at - table.waiting
    hurry = idle_end_at + _slack(s, route, planned) > tightest(s, model, planned)
    if table.shrunk and not hurry:
        return DROP, DEADLINE, 0
    for size in range(planned - 1, 0, -1):
        waiting, end_at = probe(s, route, size, now_us)
        if end_at + _slack(s, route, size) <= tightest(s, model, size):
            decision = _settle(s, model, route, size, waiting, end_at, now_us)
            table.shrunk = decision[0] == SEND
            return decision
    return DROP, DEADLINE, 0


@kernel
def _mark_usable(s: State, first: int, end: int, now_us: int) -> int:
    """How many routes have a slot left in every pool; how long each makes wait, and until when."""
    usable = 0
    for route in range(first, end):
        table = s.routes[route]
        table.waiting, table.end_at = probe(s, route, table.batch_size, now_us)
        table.done = table.waiting < 0
        usable += table.waiting >= 0
    return usable


@kernel
def _least_waiting(s: State, first: int, end: int) -> int:
    best = -1
    for route in range(first, end):
        if not s.routes[route].done and (
            best < 0 or s.routes[route].waiting < s.routes[best].waiting
        ):
            best = route
    return best


@inlined
def _slack(s: State, route: int, size: int) -> int:
    return s.slack_us[route * s.world[0].size_max + size - 1]


@kernel
def _settle(
    s: State, model: int, route: int, size: int, waiting: int, end_at: int, now_us: int
) -> Decision:
    """A batch of `size` makes it: send it, or wait for more requests to fill it."""
    queued = s.models[model].queued
    if queued >= size:
        return SEND, route, size
    if s.world[0].fill == FILL_IDLE:
        partial_waiting, _ = probe(s, route, queued, now_us)
        if partial_waiting == 0:
            return SEND, route, queued
    # Until a batch of `size` would be late. While it waits anyway for slots and links, waiting for
    # requests costs nothing. Then the next smaller size is the largest that makes it.
    spare_us = tightest(s, model, queued) - end_at - _slack(s, route, size)
    return WAIT, now_us + max(1, spare_us + waiting), size


@kernel
def _backlog_us(s: State, model: int, now_us: int) -> int:
    """How much the backlog must shrink before a request like the first could make it."""
    first_end = NEVER_US
    for route in range(s.models[model].first_route, s.models[model].end_route):
        if s.routes[route].waiting >= 0:
            _, end_at = probe(s, route, 1, now_us)
            first_end = min(first_end, end_at + _slack(s, route, 1))
    return max(1, first_end - s.requests[at(s, model, 0)].deadline_at)


# -- order of execution ---------------------------------------------------------------------------


@inlined
def transfer_at(s: State, hop: int, now_us: int) -> int:
    """At its promise, or earlier where that delays nobody."""
    mine = s.hops[hop]
    if mine.transfer_at <= now_us:
        return now_us
    end_us = now_us + mine.transfer_us
    early = free_for(s, 3 * hop + UPLINK, now_us, end_us) and free_for(
        s, 3 * hop + DOWNLINK, now_us, end_us
    )
    return now_us if early else mine.transfer_at


@inlined
def start_at(s: State, hop: int, now_us: int) -> int:
    """At its promise, or earlier where that delays nobody."""
    mine = s.hops[hop]
    if mine.start_at <= now_us:
        return now_us
    early = free_for(s, 3 * hop + SLOT, now_us, now_us + mine.latency_us)
    return now_us if early else mine.start_at


# -- feedback -------------------------------------------------------------------------------------


@kernel
def on_transferred(s: State, hop: int, now_us: int) -> None:
    release_links(s, hop)
    if s.hops[hop].start_at < now_us:
        move(s, hop, now_us)
        follow_moved(s)


@kernel
def on_started(s: State, hop: int, now_us: int) -> None:
    mine = s.hops[hop]
    if mine.start_at != now_us:
        move(s, hop, now_us)
    note_running(s, mine.slot, hop)
    world = s.world[0]
    world.next_end_at = min(world.next_end_at, s.ends_at[mine.slot])
    follow_moved(s)


@kernel
def on_ended(s: State, hop: int, now_us: int) -> None:
    mine = s.hops[hop]
    if mine.start_at + mine.latency_us != now_us:
        stretch(s, hop, now_us)
    release_slot(s, hop)
    follow_moved(s)
