"""How far another machine's clock is from ours, from round trips.

A Ping leaves at t0 (our clock), is answered at s (theirs), and the answer is here at t1. Had both
ways taken the same time, s would have been (t0 + t1) / 2 of ours. They did not; but the error is at
most half the round trip, and what waits in queues makes both larger. So of the last WINDOW round
trips the shortest one tells (as in NTP's clock filter: Mills, RFC 5905, section 10).
"""

from collections import deque

WINDOW = 64
"""Round trips; at ten a second some six seconds, in which two clocks drift by some tens of us."""


class ClockOffset:
    """Of one agent. `us` is what is added to its instants to get ours."""

    def __init__(self) -> None:
        self.us = 0
        self._trips: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def note(self, sent_at_us: int, theirs_us: int, received_at_us: int) -> None:
        """One round trip: left and came back by our clock, was answered by theirs.

        >>> clock = ClockOffset()
        >>> clock.note(1_000, 501_050, 1_100)
        >>> clock.us
        -500000
        """
        trip_us = received_at_us - sent_at_us
        if trip_us < 0:
            return
        offset_us = (sent_at_us + received_at_us) // 2 - theirs_us
        self._trips.append((trip_us, offset_us))
        _, self.us = min(self._trips)
