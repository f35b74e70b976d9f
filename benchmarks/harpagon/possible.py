"""Could any dispatcher keep a module's bound? An exhaustive search over all that one could do.

Requests come at equal gaps, and each must end within the bound. A dispatcher chooses when a machine
starts, with how many requests, and with which. Three choices are never worth anything, so that
what is left is finite between two arrivals:

- to start later than both the machine and the youngest request of the batch are there: the same
  batch now leaves the machine free earlier;
- to take a younger request where an older one would be in time: exchanged, both are in time, since
  the younger has longer to go;
- to be where another choice has the same requests or fewer waiting, and every machine free no
  later.

What remains after an arrival are the requests that wait and the instants when machines are free. If
nothing remains, no dispatcher has answered all requests so far in time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

State = tuple[tuple[int, ...], tuple[int, ...]]
"""(requests that wait, oldest first; when each machine is free), of which machines of one kind
stand in order of time."""


def answered_at_most(
    duration_us: Sequence[Sequence[int]], rate_rps: float, bound_us: int, requests: int
) -> int:
    """How many of the first requests can all end within the bound; `requests`: all of them.

    Args:
        duration_us: per machine; entry b - 1 is batch size b, the last the largest it may run.
            Machines of one kind stand side by side.

    >>> answered_at_most([(10_000,)], 90.0, 21_000, requests=100)
    100
    >>> answered_at_most([(10_000,)], 110.0, 21_000, requests=100)
    13
    """
    search = _Search(tuple(map(tuple, duration_us)), rate_rps, bound_us)
    states: list[State] = [((), (0,) * len(duration_us))]
    for request in range(requests):
        after: list[State] = []
        for waiting, free_at in states:
            after += search.between(request, (*waiting, request), free_at)
        states = _best(after)
        if not states:
            return request
    return requests


@dataclass(frozen=True, slots=True)
class _Search:
    duration_us: tuple[tuple[int, ...], ...]
    rate_rps: float
    bound_us: int

    def arrives_at(self, request: int) -> int:
        return round(request * 1e6 / self.rate_rps)

    def between(
        self, request: int, waiting: tuple[int, ...], free_at: tuple[int, ...]
    ) -> Iterator[State]:
        """All that can be once `request` has come, until the next one does."""
        next_at = self.arrives_at(request + 1)
        yield from self._kept(waiting, free_at, next_at)
        for machine, table in enumerate(self.duration_us):
            start_at = max(free_at[machine], self.arrives_at(request))
            if start_at >= next_at:
                continue
            for size in range(1, len(table) + 1):
                end_at = start_at + table[size - 1]
                in_time = [r for r in waiting if end_at <= self.arrives_at(r) + self.bound_us]
                if len(in_time) < size:
                    continue
                left = tuple(r for r in waiting if r not in in_time[:size])
                later = (*free_at[:machine], end_at, *free_at[machine + 1 :])
                yield from self.between(request, left, later)

    def _kept(
        self, waiting: tuple[int, ...], free_at: tuple[int, ...], next_at: int
    ) -> Iterator[State]:
        """The state at the next arrival, unless the oldest request is lost by then."""
        from_at = [max(at_us, next_at) for at_us in free_at]
        if waiting:
            soonest = min(
                at_us + min(table) for at_us, table in zip(from_at, self.duration_us, strict=True)
            )
            if soonest > self.arrives_at(waiting[0]) + self.bound_us:
                return
        kinds = sorted(set(self.duration_us), key=self.duration_us.index)
        in_order = [
            at_us
            for kind in kinds
            for at_us in sorted(
                a for a, table in zip(from_at, self.duration_us, strict=True) if table == kind
            )
        ]
        yield waiting, tuple(in_order)


def _best(states: Sequence[State]) -> list[State]:
    """Without those that another one is as good as."""
    kept: list[State] = []
    for waiting, free_at in sorted(set(states), key=lambda state: (len(state[0]), state[1])):
        if not any(
            set(fewer) <= set(waiting) and all(a <= b for a, b in zip(sooner, free_at, strict=True))
            for fewer, sooner in kept
        ):
            kept.append((waiting, free_at))
    return kept
