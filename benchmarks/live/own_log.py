"""Rehearsals simulated with their own logs: what the simulator misses of what it was shown.

    python -m benchmarks.live.own_log PLAN [PLAN ...]

The requests that a rehearsal's clients sent are simulated at the same instants, with times of its
log that begin at other moments for every seed. Later load differs from a rehearsal by chance, and
by what the machine does meanwhile; this does not. Per rate of the rehearsal that lies beside each
plan (`headrace rehearse`): latencies as clients saw them, and simulated / seen.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from headrace.catalog.documents import plan_profiles, read_plan
from headrace.catalog.event_log import read_event_log
from headrace.commands.kept_rehearsal import rehearsal_paths
from headrace.commands.rehearsing import PARTS
from headrace.domain.events import Answered, AnyEvent, Arrived, Seen
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate

PERCENTS = (50, 90, 99)

Latencies = Sequence[Sequence[float]]
"""Per rate of a rehearsal; milliseconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=6)
    asked = parser.parse_args()
    ratios = []
    for path in asked.plan:
        seen, simulated = _latencies(path, range(1, asked.seeds + 1))
        print(f"{path}: seen by clients, and simulated / seen, of p50, p90, p99")
        for part, own, ours in zip(PARTS, seen, simulated, strict=True):
            theirs_ms, ours_ms = np.percentile(own, PERCENTS), np.percentile(ours, PERCENTS)
            ratios.append(ours_ms / theirs_ms)
            figures = "  ".join(f"{ms:7.2f} ms" for ms in theirs_ms)
            print(f"  {part:g}: {len(own):6} requests {figures}   {_ratios(ratios[-1])}")
    print(f"geometric mean of {len(ratios)}: {_ratios(np.exp(np.log(ratios).mean(axis=0)))}")


def _ratios(values: Iterable[float]) -> str:
    return "  ".join(f"x {value:.2f}" for value in values)


def _latencies(path: Path, seeds: Iterable[int]) -> tuple[Latencies, Latencies]:
    """Of the clients, and of all simulations of their requests."""
    plan = read_plan(path)
    if plan.apps:
        raise SystemExit(f"{path}: apps follow scripts; only plans of models are compared")
    profiles = plan_profiles(plan, path)
    header, events = read_event_log(rehearsal_paths(path)[1])
    sent = sorted((event for event in events if isinstance(event, Seen)), key=_scheduled_at_us)
    if not sent:
        raise SystemExit(f"{path}: no client has told the rehearsal's log what it saw")
    model = {e.request: header.models[e.model] for e in events if isinstance(e, Arrived)}
    first_us = sent[0].scheduled_at_us
    arrivals = [
        Arrival(at_us=event.scheduled_at_us - first_us, model=model[event.request])
        for event in sent
    ]
    part = _parts([arrival.at_us for arrival in arrivals])
    answered = {event.request for event in events if isinstance(event, Answered)}
    seen: defaultdict[int, list[float]] = defaultdict(list)
    for number, event in enumerate(sent):
        if event.request in answered:
            seen[part[number]].append((event.at_us - event.scheduled_at_us) / 1000)
    simulated: defaultdict[int, list[float]] = defaultdict(list)
    for seed in seeds:
        _, found = simulate(plan, profiles, arrivals, seed=seed, times=(header, events))
        for number, took_ms in _took_ms(found):
            simulated[part[number]].append(took_ms)
    return [seen[n] for n in range(len(PARTS))], [simulated[n] for n in range(len(PARTS))]


def _scheduled_at_us(event: Seen) -> int:
    return event.scheduled_at_us


def _took_ms(events: Sequence[AnyEvent]) -> list[tuple[int, float]]:
    """(request, latency) of those that were answered."""
    came_us = {event.request: event.at_us for event in events if isinstance(event, Arrived)}
    return [
        (event.request, (event.at_us - came_us[event.request]) / 1000)
        for event in events
        if isinstance(event, Answered)
    ]


def _parts(at_us: Sequence[int]) -> list[int]:
    """Which rate of the rehearsal each request is of: clients are started anew between them, which
    takes longer than any other pause."""
    pauses_us = np.array([later - sooner for sooner, later in pairwise(at_us)])
    ends = np.sort(np.argsort(pauses_us)[1 - len(PARTS) :])
    return [int(part) for part in np.searchsorted(ends, np.arange(len(at_us)), "left")]


if __name__ == "__main__":
    main()
