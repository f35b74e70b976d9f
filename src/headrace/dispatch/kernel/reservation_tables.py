"""When a slot or a link is reserved, and for whom: the reservation tables of PPipe, section 5.4.

A *line* is a slot, an uplink or a downlink. Its reservations are intervals [start, end), a doubly
linked list in order of start; equal starts lie in the order in which they were made. Invariants:

    slots   intervals do not overlap after `push_back`, which every correction ends with: where a
            batch runs late, all behind it move by what it overlaps them (lateness is passed on)
    links   intervals may overlap while reality runs late; a scan takes the latest end it has met
    free_from >= every end, so that a question from there on needs no scan

The question is `earliest`: the least t >= at with no interval in [t, t + length): one pass, since
starts do not decrease. A line holds what is reserved within one SLO, some ten intervals: a list
that is scanned beats any tree. `earliest_noted` keeps its last answer: in [full_from, full_to) no
gap as long as `full_for` starts. That stays true as time goes on and reservations are added, and
until one is released; so mostly nothing is scanned.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.layout import NEVER_US, State, Table, ints

SLOT, UPLINK, DOWNLINK = range(3)
"""Which of a hop's reservations."""

LINE = ints("first", "last", "free_from", "full_from", "full_to", "full_for")
"""The reservations of a slot, an uplink or a downlink, in order of start. From `free_from` on there
is none. In [full_from, full_to) no gap starts that is as long as `full_for`."""

INTERVAL = ints("start", "end", "before", "after", "line")

TABLES = {
    "lines": Table(
        rows=lambda n: n.slots + 2 * n.nodes, item=LINE, empty={"first": -1, "last": -1}
    ),
    "reserved": Table(
        rows=lambda n: 3 * n.requests * n.stages_max, item=INTERVAL, empty={"line": -1}
    ),
    "ends_at": Table(rows=lambda n: n.slots, empty={"": NEVER_US}),
    "moved": Table(rows=lambda n: n.requests * n.stages_max),
}
"""lines    slots, then uplinks, then downlinks
reserved 3 x hop + SLOT, UPLINK or DOWNLINK
ends_at  what runs on a slot should end then, or later; NEVER_US: nothing runs
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
            interval = s.reserved[i]
            if interval.end > start:
                if interval.start - start >= length_us:
                    return start
                start = interval.end
            i = interval.after
    return start


@hot
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

    What was full stays full until a reservation is released. One that is pushed back leaves no gap:
    another lies there.
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

    What is reserved later does not count: it is expected to move (`push_back`).
    """
    last_place_us = max(place_us, at_us)
    start = at_us
    i = s.lines[line].first
    while i >= 0:
        interval = s.reserved[i]
        if interval.start <= last_place_us:
            start = max(start, interval.end)
        i = interval.after
    return start


@hot
def reserve(s: State, i: int, line: int, start_us: int, end_us: int) -> None:
    """Reserve [start_us, end_us) of a line, which may overlap what is already late."""
    head = s.lines[line]
    before = head.last
    while before >= 0 and s.reserved[before].start > start_us:
        before = s.reserved[before].before
    after = s.reserved[before].after if before >= 0 else head.first
    mine = s.reserved[i]
    mine.start, mine.end, mine.before, mine.after, mine.line = start_us, end_us, before, after, line
    if before >= 0:
        s.reserved[before].after = i
    else:
        head.first = i
    if after >= 0:
        s.reserved[after].before = i
    else:
        head.last = i
    if end_us > head.free_from:
        head.free_from = end_us
    if start_us <= head.full_to < end_us:
        head.full_to = end_us


@hot
def release(s: State, i: int) -> None:
    """Take a reservation back; harmless when there is none."""
    mine = s.reserved[i]
    if mine.line < 0:
        return
    head = s.lines[mine.line]
    if mine.before >= 0:
        s.reserved[mine.before].after = mine.after
    else:
        head.first = mine.after
    if mine.after >= 0:
        s.reserved[mine.after].before = mine.before
    else:
        head.last = mine.before
    # What is known to be full is so only for later instants now.
    head.full_from = max(head.full_from, mine.end)
    mine.line = -1
    if mine.end == head.free_from:
        latest = 0
        other = head.first
        while other >= 0:
            latest = max(latest, s.reserved[other].end)
            other = s.reserved[other].after
        head.free_from = latest


@kernel
def push_back(s: State, slot: int) -> None:
    """Move every reservation that an earlier one overlaps behind it, and its hop with it.

    Without this, lateness adds up unseen: each batch starts late by all overruns before it, while
    new reservations still queue behind the old, too early ends.
    """
    busy_to = 0
    i = s.lines[slot].first
    while i >= 0:
        mine = s.reserved[i]
        if mine.start < busy_to:
            hop = s.hops[i // 3]
            hop.start_at = busy_to
            mine.start = busy_to
            mine.end = busy_to + hop.latency_us
            note_moved(s, i // 3)
        busy_to = max(busy_to, mine.end)
        i = mine.after
    s.lines[slot].free_from = busy_to


@hot
def note_running(s: State, slot: int, hop: int) -> None:
    """That hop runs on the slot now; -1: none does."""
    s.slots[slot].running_hop = hop
    s.ends_at[slot] = s.hops[hop].start_at + s.hops[hop].latency_us if hop >= 0 else NEVER_US


@hot
def note_moved(s: State, hop: int) -> None:
    """What follows this hop has to move as well (`follow_moved`)."""
    if not s.hops[hop].moved:
        s.hops[hop].moved = 1
        s.moved[s.world[0].moved] = hop
        s.world[0].moved += 1


@kernel
def free_for(s: State, i: int, start_us: int, end_us: int) -> bool:
    """Whether no other reservation on the line of reservation `i` lies in [start_us, end_us)."""
    other = s.lines[s.reserved[i].line].first
    while other >= 0:
        interval = s.reserved[other]
        if interval.start >= end_us:
            return True
        if interval.end > start_us and other != i:
            return False
        other = interval.after
    return True
