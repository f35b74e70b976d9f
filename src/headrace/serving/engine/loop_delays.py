"""What the gateway's loop adds to a request after the dispatcher's part: learned, and planned for.

The dispatcher's last instant of a request is the report of its batch's last stage. Two delays more
are in no profile, since they are this process's own, on this machine, now:

    tail   from that report to the answer's last byte handed to the kernel: copying the tensors
           out, encoding, writing, and other answers of the same turn of the loop before this one
    lag    how late the loop calls what is due: a batch that is to wait until t starts at t + lag

Both are taken off the deadline that the dispatcher is told, so that what it calls in time is in
time for the client. What a request waits *before* it is submitted is counted by its arrival instant
(`front.arrivals`), and what a worker's report waits by the stage's own times.

Each is a level that rises four times as quickly as it falls,

    level += (seen - level) / 4     seen above the level
    level -= (level - seen) / 16    below it

so that it lies above most of what is seen and below what is seen now and then, which would cost
every request time for the sake of a few. It is bounded by MOST_US, so that one long stop of the
process does not close the door, and halved for every second in which nothing was seen, since a
server that refuses everybody sees no answers. Of no request is more taken off than an eighth of its
time.
"""

MOST_US = 20_000
_SECOND_SHIFT = 20
"""2^20 us are about a second."""
_PART_SHIFT = 3


class Level:
    """One delay, microseconds."""

    __slots__ = ("_seen_at_us", "_us")

    def __init__(self) -> None:
        self._us = 0
        self._seen_at_us = 0

    def note(self, seen_us: int, now_us: int) -> None:
        seen_us = min(seen_us, MOST_US)
        level_us = self.us(now_us)
        self._seen_at_us = now_us
        if seen_us >= level_us:
            self._us = level_us + ((seen_us - level_us + 3) >> 2)
        else:
            self._us = level_us - ((level_us - seen_us + 15) >> 4)

    def us(self, now_us: int) -> int:
        return self._us >> max(0, now_us - self._seen_at_us >> _SECOND_SHIFT)


class LoopDelays:
    """Of one loop; see the module's docstring."""

    __slots__ = ("lag", "tail")

    def __init__(self) -> None:
        self.tail = Level()
        self.lag = Level()

    def off_deadline_us(self, timeout_us: int, now_us: int) -> int:
        """What to take off the deadline of a request that has so much time in all."""
        return min(self.tail.us(now_us) + self.lag.us(now_us), timeout_us >> _PART_SHIFT)
