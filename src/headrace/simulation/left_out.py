"""Stretches of a rehearsal's log that say nothing of a load like theirs.

*Behind.* A load generator that shares its cores with the server may be slower than the rate that it
is to send. Its requests then wait for each other before they are sent, longer and longer: hundreds
of milliseconds, which are of that rate and of no lower one, and of no client but this. A stall is
something else: the scheduler gives the core to others, at any rate, and a moment later all that was
due is sent. So the generator counts as behind where, for longer than a window of `moments`, at
every instant some request was due that was then sent more than STALL_US late.

*Pauses.* Between two rates a rehearsal waits for its answers and opens connections. Nothing is due
for longer than a window, and than PAUSE_GAPS of its gaps: that is no load, and what comes first
behind it waits for its connection.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from headrace.domain.events import Answered, AnyEvent, Arrived, Seen
from headrace.simulation.moments import WINDOW_US

STALL_US = 3_000
"""A slice of the scheduler."""
PAUSE_GAPS = 20
"""More than arrivals by chance leave between each other: exp(-20)."""

Stretch = tuple[int, int]
"""First and last instant of the log."""


def seen_in(events: Iterable[AnyEvent]) -> list[Seen]:
    """Empty, but for a rehearsal's log."""
    return [event for event in events if isinstance(event, Seen)]


def left_out(seen: Iterable[Seen]) -> Sequence[Stretch]:
    """What no simulated window is laid onto, of a log whose clients tell of these requests; in
    order, apart from each other."""
    known = list(seen)
    found: list[Stretch] = []
    for begin_us, end_us in sorted([*behind(known), *_pauses(known)]):
        if found and begin_us <= found[-1][1]:
            found[-1] = found[-1][0], max(end_us, found[-1][1])
        else:
            found.append((begin_us, end_us))
    return found


def behind(seen: Iterable[Seen]) -> Sequence[Stretch]:
    """When the clients that tell of these requests were behind; in order, apart from each other.

    >>> sent = [Seen(0, i, 1_000 * i, 3_000 * i) for i in range(200)]
    >>> behind(sent), behind(sent[:80])
    ([(2000, 597000)], [])
    """
    found: list[Stretch] = []
    begin_us = end_us = 0
    for scheduled_at_us, sent_at_us in sorted((e.scheduled_at_us, e.sent_at_us) for e in seen):
        if sent_at_us - scheduled_at_us <= STALL_US:
            continue
        if scheduled_at_us > end_us:
            found.append((begin_us, end_us))
            begin_us = scheduled_at_us
        end_us = max(end_us, sent_at_us)
    found.append((begin_us, end_us))
    return [(begin, end) for begin, end in found if end - begin > WINDOW_US]


def _pauses(seen: Sequence[Seen]) -> Iterator[Stretch]:
    due = sorted(event.scheduled_at_us for event in seen)
    if due:
        least_us = max(WINDOW_US, PAUSE_GAPS * (due[-1] - due[0]) // len(due))
        yield from (gap for gap in pairwise(due) if gap[1] - gap[0] > least_us)


def without(stretches: Sequence[Stretch], events: Sequence[AnyEvent]) -> Iterator[AnyEvent]:
    """The events, but for requests that were due in one of these stretches."""
    spoiled = {
        event.request
        for event in events
        if isinstance(event, Seen)
        and any(begin <= event.scheduled_at_us <= end for begin, end in stretches)
    }
    for event in events:
        if not isinstance(event, Arrived | Answered | Seen) or event.request not in spoiled:
            yield event
