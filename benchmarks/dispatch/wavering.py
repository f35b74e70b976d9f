"""Attainment on machines whose speed wavers, in virtual time: what learned times cost and save.

A batch takes the profile's median, times the jitter of its machine, times its *level* while it
runs (a batch that runs into another level goes on at that pace). Machines:

    calm      level 1, the jitter that was profiled (p99 / p50 = SPREAD)
    x 1.1, 1.3  always so many times slower, the same jitter
    noisy     level 1, p99 / p50 of NOISE where SPREAD was profiled
    bursts    2.5 times slower for 0.2 to 1 s, then quick for 0.4 to 2 s
    flicker   2.5 times slower for 20 to 100 ms, then quick for 60 to 300 ms
    stalls    12 times slower for 30 ms, every 0.5 to 3 s
    hiccups   3 times slower for 50 ms, every 0.5 to 3 s

Load 1 is what the slots carry in full batches at the machine's mean pace. Every trace is run twice:

    learned   as a server does: times follow reports (decision 0024)
    told      the dispatcher is told the level whenever it changes (`Dispatcher.assume`), and still
              learns from reports: no bound, but what knowing the present is worth

`in time` is attainment, `late` of what was answered, and `alone` the refused requests that would
have ended in time on a slot behind what had been sent before they were refused: alone, by the
durations that followed.

    python -m benchmarks.dispatch.wavering [--json] [--load 0.8] [--machine bursts] [--seeds 3]
        [--spread 1.75]
"""

import argparse
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log

import numpy as np

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.domain.events import Answered, AnyEvent, Dispatched, Dropped, Ran
from headrace.domain.request import Request
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import Z99, SimDriver, Slower, exact_durations
from headrace.simulation.session import replay

SPREAD = 1.15
NOISE = 2.0
SLOW = 2.5
SECONDS = 20
SECOND_US = 1_000_000
LOADS = (0.5, 0.8, 2.0)


# -- topologies -----------------------------------------------------------------------------------


def _stage(slots: Sequence[int], first_us: int, sizes: int, spread: float) -> StageTable:
    """A batch of b takes (1 + b) / 2 of what one request takes."""
    p50_us = [first_us * (1 + b) // 2 for b in range(1, sizes + 1)]
    p99_us = [round(us * spread) for us in p50_us]
    return StageTable(0, 1, tuple(slots), tuple(p50_us), tuple(p99_us), 0)


def route(*stages: StageTable) -> Route:
    sizes = len(stages[0].p50_us)
    slack_us = tuple(sum(s.p99_us[b] - s.p50_us[b] for s in stages) for b in range(sizes))
    return Route("p0", sizes, stages, slack_us)


def topology(slots: int, routes: Sequence[Route], objective: float = 5.0) -> Topology:
    """A model per route, whose SLO is `objective` times the p99 of one request."""
    models = tuple(
        ModelRoutes(f"m{i}", round(objective * sum(s.p99_us[0] for s in r.stages)), (r,))
        for i, r in enumerate(routes)
    )
    names = tuple(f"s{i}" for i in range(slots))
    return Topology(models, names, (0,) * slots, ("n0",), (None,))


def topologies(spread: float) -> dict[str, Topology]:
    """`spread`: p99 / p50 as profiled."""
    stage = partial(_stage, spread=spread)
    return {
        "one slot": topology(1, [route(stage([0], 8_000, 1))]),
        "one slot, batches of 4": topology(1, [route(stage([0], 8_000, 4))]),
        "two models, a slot each": topology(
            2, [route(stage([0], 9_000, 2)), route(stage([1], 4_000, 2))]
        ),
        "two models, two slots in turns": topology(
            2, [route(stage([0, 1], 9_000, 2)), route(stage([0, 1], 4_000, 2))]
        ),
        "pool of four": topology(4, [route(stage(range(4), 12_000, 4))]),
        "three stages of two": topology(
            6, [route(*(stage([2 * i, 2 * i + 1], 6_000, 2) for i in range(3)))]
        ),
    }


def rates_rps(these: Topology) -> list[float]:
    """Per model, at load 1: slots in turns are shared evenly."""
    owners = [0] * len(these.slots)
    for model in these.models:
        for table in model.routes[0].stages:
            for slot in table.slots:
                owners[slot] += 1
    return [
        min(
            1e6
            * model.routes[0].batch_size
            / table.p50_us[-1]
            * sum(1 / owners[s] for s in table.slots)
            for table in model.routes[0].stages
        )
        for model in these.models
    ]


# -- machines -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """Levels over time: `levels[i]` from `from_us[i]` on, the first from 0."""

    from_us: Sequence[int]
    levels: Sequence[float]

    def end_us(self, start_us: int, work_us: float) -> int:
        """When work that takes `work_us` at level 1 ends."""
        i, at_us, left_us = bisect_right(self.from_us, start_us) - 1, float(start_us), work_us
        while i + 1 < len(self.from_us):
            done_us = (self.from_us[i + 1] - at_us) / self.levels[i]
            if done_us >= left_us:
                break
            left_us -= done_us
            i += 1
            at_us = self.from_us[i]
        return round(at_us + left_us * self.levels[i])

    def speed(self, end_us: int) -> float:
        """The mean of 1 / level until then."""
        ends = [*self.from_us[1:], end_us]
        spans = zip(self.from_us, ends, self.levels, strict=True)
        return sum((end - start) / level for start, end, level in spans) / end_us


def switching(
    rng: np.random.Generator, slow: float, slow_s: tuple[float, float], quick_s: tuple[float, float]
) -> Pace:
    """Quick and slow in turn, each for a time drawn evenly from a range."""
    from_us, levels, at_us = [0], [1.0], 0
    while at_us < (SECONDS + 5) * SECOND_US:
        lasts = quick_s if levels[-1] == 1.0 else slow_s
        at_us += round(SECOND_US * rng.uniform(*lasts))
        from_us.append(at_us)
        levels.append(slow if levels[-1] == 1.0 else 1.0)
    return Pace(from_us, levels)


MACHINES: dict[str, tuple[float, Callable[[np.random.Generator], Pace]]] = {
    "calm": (SPREAD, lambda rng: Pace([0], [1.0])),
    "x 1.1": (SPREAD, lambda rng: Pace([0], [1.1])),
    "x 1.3": (SPREAD, lambda rng: Pace([0], [1.3])),
    "noisy": (NOISE, lambda rng: Pace([0], [1.0])),
    "bursts": (SPREAD, lambda rng: switching(rng, SLOW, (0.2, 1.0), (0.4, 2.0))),
    "flicker": (SPREAD, lambda rng: switching(rng, SLOW, (0.02, 0.1), (0.06, 0.3))),
    "stalls": (SPREAD, lambda rng: switching(rng, 12.0, (0.03, 0.03), (0.5, 3.0))),
    "hiccups": (SPREAD, lambda rng: switching(rng, 3.0, (0.05, 0.05), (0.5, 3.0))),
}
"""Name -> p99 / p50 of its jitter, and its pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wavering(Slower):
    """Durations by a machine's pace, with its jitter."""

    pace: Pace
    jitter: Iterator[float]

    def took_us(self, took_us: int, stage: int, slot: int, now_us: int) -> int:
        return max(1, self.pace.end_us(now_us, took_us * next(self.jitter)) - now_us)


def jitters(rng: np.random.Generator, spread: float) -> Iterator[float]:
    while True:
        for normal in rng.standard_normal(4096).tolist():
            yield exp(log(spread) / Z99 * normal)


# -- a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of requests."""

    arrived: int
    in_time: int
    late: int
    refused: int
    alone: int

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            self.arrived + other.arrived,
            self.in_time + other.in_time,
            self.late + other.late,
            self.refused + other.refused,
            self.alone + other.alone,
        )


def requests_of(
    these: Topology, load: float, pace: Pace, rng: np.random.Generator
) -> list[Request]:
    """Poisson arrivals of all models."""
    speed = pace.speed((SECONDS + 5) * SECOND_US)
    arrivals: list[tuple[int, int]] = []
    for model, rate in enumerate(rates_rps(these)):
        rps = rate * load * speed
        gaps_us = rng.exponential(SECOND_US / rps, size=round(rps * SECONDS))
        arrivals += [(int(at), model) for at in np.cumsum(gaps_us)]
    return [
        Request(
            id=number,
            model=model,
            arrived_at_us=at,
            deadline_at_us=at + these.models[model].slo_us,
        )
        for number, (at, model) in enumerate(sorted(arrivals))
    ]


def run(these: Topology, machine: str, load: float, seed: int, *, told: bool) -> Figures:
    """One trace through the dispatcher; equal arguments, equal figures."""
    spread, pace_of = MACHINES[machine]
    pace = pace_of(np.random.default_rng([seed, 0]))
    requests = requests_of(these, load, pace, np.random.default_rng([seed, 1]))
    clock, events = SimClock(), list[AnyEvent]()
    by = Wavering(
        stages=(), slots=(), pace=pace, jitter=jitters(np.random.default_rng([seed, 2]), spread)
    )
    driver = SimDriver(these, clock, exact_durations, by)
    dispatcher = Dispatcher(these, "reservation", clock, driver, events.append)
    driver.reports = dispatcher
    if told:
        names = {time.stage for time in dispatcher.levels()}
        for at_us, level in zip(pace.from_us, pace.levels, strict=True):
            if at_us <= requests[-1].arrived_at_us:
                levels = dict.fromkeys(names, level)
                clock.call_at(at_us, partial(dispatcher.assume, levels))
    replay(iter(requests), clock, dispatcher.on_arrival)
    clock.run()
    return figures(these, pace, requests, events)


def figures(
    these: Topology, pace: Pace, requests: Sequence[Request], events: Sequence[AnyEvent]
) -> Figures:
    deadline = {request.id: request.deadline_at_us for request in requests}
    in_time = late = refused = alone = 0
    ends = real_ends(events)
    sent: list[list[int]] = [[0] for _ in these.slots]
    for event in events:
        match event:
            case Dispatched():
                for number, hop in enumerate(event.path):
                    end = ends.get((event.batch, event.first_stage + number))
                    if end is not None:
                        sent[hop.slot].append(max(sent[hop.slot][-1], end))
            case Answered():
                late += event.at_us > deadline[event.request]
                in_time += event.at_us <= deadline[event.request]
            case Dropped():
                refused += 1
                mine = requests[event.request]
                end = end_alone_us(these, pace, sent, mine.model, event.at_us)
                alone += end <= mine.deadline_at_us
            case _:
                pass
    return Figures(len(requests), in_time, late, refused, alone)


def real_ends(events: Sequence[AnyEvent]) -> dict[tuple[int, int], int]:
    """(Batch, stage) -> when it had run."""
    return {(event.batch, event.stage): event.at_us for event in events if isinstance(event, Ran)}


def end_alone_us(
    these: Topology, pace: Pace, sent: Sequence[Sequence[int]], model: int, at_us: int
) -> int:
    """Of one request that enters each pool behind all that was sent there."""
    for table in these.models[model].routes[0].stages:
        start_us = max(at_us, min(sent[slot][-1] for slot in table.slots))
        at_us = pace.end_us(start_us, table.p50_us[0])
    return at_us


# -- the study ------------------------------------------------------------------------------------


def study(
    machines: Sequence[str], loads: Sequence[float], seeds: int, spread: float
) -> Iterator[dict[str, float | str]]:
    for name, these in topologies(spread).items():
        for machine in machines:
            for load in loads:
                row: dict[str, float | str] = {"topology": name, "machine": machine, "load": load}
                for kind, told in (("learned", False), ("told", True)):
                    total = Figures(0, 0, 0, 0, 0)
                    for seed in range(seeds):
                        total += run(these, machine, load, seed, told=told)
                    row[f"{kind}_in_time"] = 100 * total.in_time / total.arrived
                    row[f"{kind}_late"] = 100 * total.late / max(1, total.arrived - total.refused)
                    row[f"{kind}_refused"] = 100 * total.refused / total.arrived
                    row[f"{kind}_alone"] = 100 * total.alone / total.arrived
                yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--machine", action="append", choices=list(MACHINES))
    parser.add_argument("--load", action="append", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--spread", type=float, default=SPREAD, help="p99 / p50 as profiled")
    arguments = parser.parse_args()
    columns = ("in_time", "late", "refused", "alone")
    if not arguments.json:
        print("learned, then told:", *columns, "(% of arrivals; late: of answers)")
    machines = arguments.machine or list(MACHINES)
    loads = arguments.load or LOADS
    for row in study(machines, loads, arguments.seeds, arguments.spread):
        if arguments.json:
            print(json.dumps(row))
            continue
        both = "   ".join(
            " ".join(f"{row[f'{kind}_{column}']:6.2f}" for column in columns)
            for kind in ("learned", "told")
        )
        print(f"{row['topology']:31} {row['machine']:8} {row['load']:4}  {both}", flush=True)


if __name__ == "__main__":
    main()
