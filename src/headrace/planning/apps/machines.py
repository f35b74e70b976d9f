"""The machines of one module, as every planner of apps writes them down.

A schedule is a list of entries in the order of dispatch: n whole machines of one configuration; or,
at the end, as many as it takes for a load that would fill n of them, and that they share evenly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.domain.plan import Reading
from headrace.planning.apps.candidates import LEAST_RPS, Candidate, worst_case_us

WHOLE = 1e-9
"""A count this close below a whole number is that number: 200 / 40 may come out as 4.999 999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """n machines of one configuration."""

    candidate: Candidate
    machines: float

    @property
    def rate_rps(self) -> float:
        return self.machines * self.candidate.rate_rps

    @property
    def cost(self) -> float:
        return self.machines * self.candidate.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The machines of one module."""

    entries: tuple[Entry, ...]
    worst_case_us: int
    cost: float
    dummy_rps: float = 0.0


def remaining_rps(entries: Sequence[Entry]) -> list[float]:
    """w of each entry: its own load and that of all behind it.

    >>> from fractions import Fraction
    >>> c = Candidate(
    ...     batch=2, duration_us=1, rate_rps=2.0, device="x", share=Fraction(1), price=1.0
    ... )
    >>> remaining_rps([Entry(candidate=c, machines=3.0), Entry(candidate=c, machines=0.5)])
    [7.0, 1.0]
    """
    left, total = [], 0.0
    for entry in reversed(entries):
        total += entry.rate_rps
        left.append(total)
    return left[::-1]


def schedule_of(entries: Sequence[Entry], rate_rps: float, reading: Reading) -> Schedule:
    """Work out the worst case, cost and dummy load of machines."""
    left = remaining_rps(entries)
    return Schedule(
        entries=tuple(entries),
        worst_case_us=max(
            worst_case_us(reading, entry.candidate, w, entry.machines)
            for entry, w in zip(entries, left, strict=True)
        ),
        cost=sum(entry.cost for entry in entries),
        dummy_rps=max(0.0, left[0] - rate_rps) if left[0] - rate_rps > LEAST_RPS else 0.0,
    )
