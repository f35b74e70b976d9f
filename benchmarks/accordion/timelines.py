"""Figures 7 and 9: queries at work, and places that queries hold, over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from benchmarks.accordion.simulated import (
    BASELINES,
    policy_of,
    simulate_stream,
    topology_of,
)
from benchmarks.accordion.streams import DURATION_S, query_stream

from headrace.domain.events import Answered, AnyEvent, Dispatched, Placed, Ran

POLICIES_7 = ("malleable", "accordion", *BASELINES)
SLO_7 = "moderate"
STEP_S = 5.0
FULL = 0.95
"""Places that hold so much of the machine fill it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One simulation at instants `STEP_S` apart; arrays have shape (instants,)."""

    active: npt.NDArray[np.int64]
    """Queries with an item under way."""
    working: npt.NDArray[np.float64]
    """Part of the places that run an item."""
    ended_s: float
    """Last answer."""

    @property
    def in_stream(self) -> slice:
        """While queries arrive."""
        return slice(0, round(DURATION_S / STEP_S))


Timelines = Mapping[tuple[int, str], Timeline]
"""By stream and policy."""


def timeline_of(events: Sequence[AnyEvent], items: npt.NDArray[np.int64], slots: int) -> Timeline:
    """Args: items: of each query, in the order of arrival."""
    query = np.repeat(np.arange(len(items)), items)
    first = np.full(len(items), np.iinfo(np.int64).max)
    last = np.full(len(items), -1)
    ran = []
    for event in events:
        if isinstance(event, Dispatched):
            of = query[event.requests[0]]
            first[of] = min(first[of], event.at_us)
        elif isinstance(event, Answered):
            last[query[event.request]] = event.at_us
        elif isinstance(event, Ran):
            ran.append((event.started_at_us, event.at_us))
    begins, ends = np.array(ran).T
    at_us = np.arange(0, last.max() + STEP_S * 1e6, STEP_S * 1e6)
    served = last >= 0
    return Timeline(
        active=_open_at(np.sort(first[served]), np.sort(last[served]), at_us),
        working=_open_at(np.sort(begins), np.sort(ends), at_us) / slots,
        ended_s=float(last.max()) / 1e6,
    )


def _open_at(
    begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], at: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.searchsorted(begins, at, "right") - np.searchsorted(
        ends, at, "right"
    )
    return found


def depth_changes(events: Sequence[AnyEvent]) -> int:
    """How often a query that has places gets another number of them."""
    had: dict[int, int] = {}
    changes = 0
    for event in events:
        if isinstance(event, Placed):
            changes += had.get(event.request, 0) not in (0, len(event.slots))
            had[event.request] = len(event.slots)
    return changes


def show_timelines(streams: Sequence[int], seed: int) -> Timelines:
    """Print them, for one seed."""
    print(f"\nFigures 7 and 9: seed {seed}, {SLO_7} SLO, every {STEP_S:g} s while queries arrive")
    print(
        f"{'':8}{'':16}{'active: mean':>14}{'most':>6}{'working: mean':>15}"
        f"{f'>= {FULL:.0%}':>8}{'last answer':>13}{'changes per item':>18}"
    )
    found: dict[tuple[int, str], Timeline] = {}
    for stream in streams:
        queries, topology = query_stream(stream, seed), topology_of(stream)
        for name in POLICIES_7:
            log: list[AnyEvent] = []
            simulate_stream(topology, queries, queries.slo_us(SLO_7), policy_of(name), log)
            mine = timeline_of(log, queries.items, len(topology.slots))
            found[stream, name] = mine
            active, working = mine.active[mine.in_stream], mine.working[mine.in_stream]
            print(
                f"{stream:<8}{name:16}{active.mean():14.1f}{active.max():6}"
                f"{working.mean():15.0%}{(working >= FULL).mean():8.0%}{mine.ended_s:11.0f} s"
                f"{depth_changes(log) / queries.items.sum():18.2%}"
            )
    return found
