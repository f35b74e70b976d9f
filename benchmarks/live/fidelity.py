"""Does the simulator foretell the server? The same arrivals in both, side by side.

First a rehearsal: a server of its own, under other arrivals, whose event log tells the simulator
how long stages take beside a gateway and a load generator. The profile alone, which timed each
stage on an idle core, is simulated and printed as well.

One repetition loads the running server at every factor in turn, so that a machine that grows
slower or faster over the minutes touches all factors alike. Every repetition has arrivals of its
own; simulation and load share them. Medians over the repetitions are judged.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.live.processes import CoreTime
from benchmarks.live.result import Check, Result
from benchmarks.live.setting import Setting

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.metrics import Distribution, Summary, run_report
from headrace.reporting.summary import milliseconds, percent
from headrace.simulation.session import simulate

FACTORS = (0.5, 0.8, 1.0)
DURATION_S = 30.0
REHEARSAL_FACTOR = 0.8
REHEARSAL_SEED = 1_000_000
"""Far from the seeds of the repetitions: its arrivals are never those that are judged."""
MOST_POINTS = 3.0
MOST_P99_ERROR = 0.2
CHANCE_SEEDS = 20
"""Simulations that differ in jitter alone: how far p99 moves when nothing but chance does."""

Times = tuple[EventLogHeader, Sequence[AnyEvent]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One run, simulated and measured."""

    factor: float
    seed: int
    simulated_attainment: float
    measured_attainment: float
    simulated_p50_us: int
    measured_p50_us: int
    simulated_p99_us: int
    profiled_p99_us: int
    """Simulated with the profile's times instead of the rehearsal's."""
    measured_p99_us: int
    simulated_dropped: int
    measured_dropped: int
    arrived: int
    lateness_p99_us: int
    """Of the load generator; part of every measured latency."""
    others_share: float
    stolen_share: float

    @property
    def points(self) -> float:
        """Measured minus simulated attainment, percentage points."""
        return 100 * (self.measured_attainment - self.simulated_attainment)

    @property
    def p50_ratio(self) -> float:
        return self.measured_p50_us / self.simulated_p50_us

    @property
    def p99_ratio(self) -> float:
        return self.measured_p99_us / self.simulated_p99_us


def measure(setting: Setting, duration_s: float, seed: int, repetitions: int) -> Result:
    with setting.serve("rehearsal.events") as server:
        setting.settle(server.url)
        felt = setting.load(server.url, REHEARSAL_FACTOR, duration_s, REHEARSAL_SEED).report()
    times = read_event_log(setting.folder / "rehearsal.events")
    transport_us = _transport_us(felt.total, run_report("measured", *times).total)
    with setting.serve("fidelity.events") as server:
        setting.settle(server.url)
        pairs = [
            _pair(
                setting,
                times,
                transport_us,
                server.url,
                server.pid,
                factor,
                duration_s,
                seed + repetition,
            )
            for repetition in range(repetitions)
            for factor in FACTORS
        ]
    checks = [
        check
        for factor in FACTORS
        for check in _judge(factor, [pair for pair in pairs if pair.factor == factor])
    ]
    chance = _chance(setting, times, duration_s, seed)
    checks += [
        Check(what=f"p99 by chance alone at {factor:g}", measured=text)
        for factor, text in chance.items()
    ]
    checks.append(
        Check(
            what="transport",
            measured=f"{milliseconds(transport_us)} of each simulated latency, from the rehearsal",
        )
    )
    checks.append(_noise(pairs))
    return Result(
        name="fidelity",
        what="simulated against measured, demo",
        checks=tuple(checks),
        details={"repetitions": repetitions, "runs": [asdict(pair) for pair in pairs]},
    )


def _pair(
    setting: Setting,
    times: Times,
    transport_us: int,
    url: str,
    server: int,
    factor: float,
    duration_s: float,
    seed: int,
) -> Pair:
    simulated = _simulated(setting, times, factor, duration_s, seed, jitter_seed=seed)
    profiled = _simulated(setting, None, factor, duration_s, seed, jitter_seed=seed)
    with CoreTime(os.getpid(), server) as cores:
        load = setting.load(url, factor, duration_s, seed)
    measured = load.report().total
    foretold, seen = _latency(simulated), _latency(measured)
    return Pair(
        factor=factor,
        seed=seed,
        simulated_attainment=simulated.slo_attainment or 0.0,
        measured_attainment=measured.slo_attainment or 0.0,
        simulated_p50_us=foretold.p50_us + transport_us,
        measured_p50_us=seen.p50_us,
        simulated_p99_us=foretold.p99_us + transport_us,
        profiled_p99_us=_latency(profiled).p99_us,
        measured_p99_us=seen.p99_us,
        simulated_dropped=simulated.dropped_total,
        measured_dropped=measured.dropped_total,
        arrived=measured.arrived,
        lateness_p99_us=load.lateness.p99_us if load.lateness else 0,
        others_share=cores.others,
        stolen_share=cores.stolen,
    )


def _simulated(
    setting: Setting,
    times: Times | None,
    factor: float,
    duration_s: float,
    seed: int,
    jitter_seed: int,
) -> Summary:
    arrivals = setting.arrivals(factor, duration_s, seed)
    header, events = simulate(
        setting.plan, setting.profiles, arrivals, seed=jitter_seed, times=times
    )
    return run_report("simulated", header, events, round(duration_s * 1e6)).total


def _transport_us(felt: Summary, served: Summary) -> int:
    """What the network and both ends of HTTP add to a latency.

    The simulator's clock, like the server's log, runs from the request's arrival to its answer;
    a client also waits for 0.2 MB to get there and 1 MB to come back.
    """
    return max(0, _latency(felt).p50_us - _latency(served).p50_us)


def _latency(summary: Summary) -> Distribution:
    if summary.latency is None:
        raise SystemExit("nothing was answered; see the server's output above")
    return summary.latency


def _judge(factor: float, pairs: Sequence[Pair]) -> list[Check]:
    points = median(pair.points for pair in pairs)
    p99 = median(pair.p99_ratio for pair in pairs)
    attained = (
        f"{percent(median(pair.simulated_attainment for pair in pairs))} simulated,"
        f" {percent(median(pair.measured_attainment for pair in pairs))} measured"
    )
    dropped = (
        f"{sum(pair.simulated_dropped for pair in pairs)} simulated,"
        f" {sum(pair.measured_dropped for pair in pairs)} measured,"
        f" of {sum(pair.arrived for pair in pairs)}"
    )
    return [
        Check(
            what=f"attainment at {factor:g}",
            target=f"within {MOST_POINTS:g} points",
            measured=f"{points:+.2f} points{_range([pair.points for pair in pairs])}: {attained}",
            met=abs(points) <= MOST_POINTS,
        ),
        Check(
            what=f"p99 at {factor:g}",
            target=f"within {MOST_P99_ERROR:.0%}",
            measured=f"x {p99:.3f}{_range([pair.p99_ratio for pair in pairs])} of"
            f" {milliseconds(median(pair.simulated_p99_us for pair in pairs))}",
            met=abs(p99 - 1) <= MOST_P99_ERROR,
        ),
        Check(
            what=f"p50 at {factor:g}",
            measured=f"x {median(pair.p50_ratio for pair in pairs):.3f} of"
            f" {milliseconds(median(pair.simulated_p50_us for pair in pairs))}",
        ),
        Check(
            what=f"p99 at {factor:g}, from the profile",
            measured=f"x {median(p.measured_p99_us / p.profiled_p99_us for p in pairs):.3f} of"
            f" {milliseconds(median(pair.profiled_p99_us for pair in pairs))}",
        ),
        Check(what=f"dropped at {factor:g}", measured=dropped),
    ]


def _chance(setting: Setting, times: Times, duration_s: float, seed: int) -> dict[float, str]:
    """Load factor -> how far the simulated p99 of one and the same trace moves with the jitter."""
    spreads = {}
    for factor in FACTORS:
        p99s_us = [
            _latency(_simulated(setting, times, factor, duration_s, seed, jitter_seed)).p99_us
            for jitter_seed in range(CHANCE_SEEDS)
        ]
        spreads[factor] = f"{milliseconds(min(p99s_us))} to {milliseconds(max(p99s_us))}"
    return spreads


def _noise(pairs: Sequence[Pair]) -> Check:
    return Check(
        what="the machine's own noise",
        measured=f"generator late by {milliseconds(max(p.lateness_p99_us for p in pairs))} (p99);"
        f" others used {max(p.others_share for p in pairs):.1%} of core time,"
        f" the host took {max(p.stolen_share for p in pairs):.1%} (worst run)",
    )


def _range(values: Sequence[float]) -> str:
    return f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
