"""When a slot or a link is promised to whom: the reservation tables of PPipe, section 5.4.

A line holds few promises (what is promised within one SLO): a list that is scanned beats any tree.
On slots, lateness is passed on at once (`push_back`); on links, promises may overlap for a moment
when reality runs late, and a scan copes with that.
"""

from headrace.compilation.loops import hot, inlined, kernel
from headrace.dispatch.kernel.layout import NEVER_US, State, Table, ints

SLOT, UPLINK, DOWNLINK = range(3)
"""Which of a hop's promises."""

LINE = ints("first", "last", "free_from", "full_from", "full_to", "full_for")
"""The promises of a slot, an uplink or a downlink, in order of start. From `free_from` on there
is none. In [full_from, full_to) no gap starts that is as long as `full_for`."""

PROMISE = ints("start", "end", "before", "after", "line")

TABLES = {
    "lines": Table(
        rows=lambda n: n.slots + 2 * n.nodes, item=LINE, empty={"first": -1, "last": -1}
    ),
    "promises": Table(
        rows=lambda n: 3 * n.requests * n.stages_max, item=PROMISE, empty={"line": -1}
    ),
    "ends_at": Table(rows=lambda n: n.slots, empty={"": NEVER_US}),
    "moved": Table(rows=lambda n: n.requests * n.stages_max),
}
"""lines    slots, then uplinks, then downlinks
promises 3 x hop + SLOT, UPLINK or DOWNLINK
ends_at  what runs on a slot is promised to end then, or later; NEVER_US: nothing runs
moved    hops that have moved since the batches behind them were placed anew
"""

FIELDS: dict[str, dict[str, int]] = {
    "world": {"moved": 0},
    "slots": {"running_hop": -1},
    "hops": {"moved": 0},
}
"""`slots.running_hop`: what runs there. `world.moved`: how many hops are in the list of those that
have moved; `hops.moved`: this one is."""


@hot
def earliest(s: State, line: int, at_us: int, length_us: int) -> int:
    """The earliest instant from `at_us` on that starts a gap of `length_us`."""
    start = at_us
    if s.lines[line].free_from > at_us:
        i = s.lines[line].first
        while i >= 0:
            promise = s.promises[i]
            if promise.end > start:
                if promise.start - start >= length_us:
                    return start
                start = promise.end
            i = promise.after
    return start


@inlined
def full_to(s: State, line: int, at_us: int, length_us: int) -> int:
    """`earliest` is not before, as far as is known without a search."""
    mine = s.lines[line]
    from_us, to_us, for_us = mine.full_from, mine.full_to, mine.full_for
    # Without branches, which nobody could predict.
    known = (from_us <= at_us) & (for_us <= length_us) & (to_us > at_us)
    return to_us if known else at_us


@hot
def earliest_noted(s: State, line: int, at_us: int, length_us: int) -> int:
    """As `earliest`, and kept for `full_to`.

    Time goes on and promises are added, so that what was full stays full until one is released. One
    that is pushed back leaves no gap: another lies there.
    """
    mine = s.lines[line]
    start = earliest(s, line, full_to(s, line, at_us, length_us), length_us)
    mine.full_from, mine.full_to, mine.full_for = at_us, start, length_us
    return start


@kernel
def earliest_common(s: State, one: int, other: int, at_us: int, length_us: int) -> int:
    """The earliest gap that both lines share (`earliestSlot`, PPipe, Algorithm 2)."""
    start = at_us
    while True:
        later = earliest(s, other, earliest(s, one, start, length_us), length_us)
        if later == start:
            return start
        start = later


@kernel
def behind(s: State, line: int, place_us: int, at_us: int) -> int:
    """The earliest instant from `at_us` on, behind all that starts up to `place_us`.

    What is promised later does not count: it is expected to move (`push_back`).
    """
    last_place_us = max(place_us, at_us)
    start = at_us
    i = s.lines[line].first
    while i >= 0:
        promise = s.promises[i]
        if promise.start <= last_place_us:
            start = max(start, promise.end)
        i = promise.after
    return start


@hot
def promise(s: State, i: int, line: int, start_us: int, end_us: int) -> None:
    """Promise [start_us, end_us) of a line, which may overlap what is already late."""
    head = s.lines[line]
    before = head.last
    while before >= 0 and s.promises[before].start > start_us:
        before = s.promises[before].before
    after = s.promises[before].after if before >= 0 else head.first
    mine = s.promises[i]
    mine.start, mine.end, mine.before, mine.after, mine.line = start_us, end_us, before, after, line
    if before >= 0:
        s.promises[before].after = i
    else:
        head.first = i
    if after >= 0:
        s.promises[after].before = i
    else:
        head.last = i
    if end_us > head.free_from:
        head.free_from = end_us
    if start_us <= head.full_to < end_us:
        head.full_to = end_us


@hot
def release(s: State, i: int) -> None:
    """Take a promise back; harmless when there is none."""
    mine = s.promises[i]
    if mine.line < 0:
        return
    head = s.lines[mine.line]
    if mine.before >= 0:
        s.promises[mine.before].after = mine.after
    else:
        head.first = mine.after
    if mine.after >= 0:
        s.promises[mine.after].before = mine.before
    else:
        head.last = mine.before
    # What is known to be full is so only for later instants now.
    head.full_from = max(head.full_from, mine.end)
    mine.line = -1
    if mine.end == head.free_from:
        latest = 0
        other = head.first
        while other >= 0:
            latest = max(latest, s.promises[other].end)
            other = s.promises[other].after
        head.free_from = latest


@kernel
def push_back(s: State, slot: int) -> None:
    """Move every promise that an earlier one overlaps behind it, and its hop with it.

    Without this, lateness adds up unseen: each batch starts late by all overruns before it, while
    new promises still queue behind the old, too early ends.
    """
    busy_to = 0
    i = s.lines[slot].first
    while i >= 0:
        mine = s.promises[i]
        if mine.start < busy_to:
            hop = s.hops[i // 3]
            hop.start_at = busy_to
            mine.start = busy_to
            mine.end = busy_to + hop.latency_us
            note_moved(s, i // 3)
        busy_to = max(busy_to, mine.end)
        i = mine.after
    s.lines[slot].free_from = busy_to


@inlined
def note_running(s: State, slot: int, hop: int) -> None:
    """That hop runs on the slot now; -1: none does."""
    s.slots[slot].running_hop = hop
    s.ends_at[slot] = s.hops[hop].start_at + s.hops[hop].latency_us if hop >= 0 else NEVER_US


@inlined
def note_moved(s: State, hop: int) -> None:
    """What follows this hop has to move as well (`follow_moved`)."""
    if not s.hops[hop].moved:
        s.hops[hop].moved = 1
        s.moved[s.world[0].moved] = hop
        s.world[0].moved += 1


@kernel
def free_for(s: State, i: int, start_us: int, end_us: int) -> bool:
    """Whether no other promise on the line of promise `i` lies in [start_us, end_us)."""
    other = s.lines[s.promises[i].line].first
    while other >= 0:
        promise = s.promises[other]
        if promise.start >= end_us:
            return True
        if promise.end > start_us and other != i:
            return False
        other = promise.after
    return True
