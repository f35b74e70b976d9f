"""Accordion's study (section 4): six query streams, three SLOs, every policy, in virtual time.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.accordion.study [--seeds 5] [--jobs 2]
        [--streams 3,5,6] [--json FILE] [--plot DIR]

64 places, at most 8 per query, 5 ms to move blocks. Seeds start at 10: the rules were tuned on
others. Violations: queries not answered within their SLO, dropped ones among them.

`accordion` here is a better one than the paper's (decision 0051). Its predictor's window is 100 %
of a query's SLO; against `malleable` it also gets the window in WINDOWS that serves it best in all.

Tables: Figures 1, 3, 5, 6, 7, 8 and 9, and what must hold.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from benchmarks.accordion.simulated import (
    POLICIES,
    Queries,
    policy_of,
    simulate_stream,
    topology_of,
)
from benchmarks.accordion.streams import SLOS, STREAMS, query_stream
from benchmarks.studies import add_options, running_of, studied

FIRST_SEED = 10
WINDOWS = (125, 150, 200, 300)
"""Of accordion's predictor besides 100, in percent of a query's SLO."""

VARIANTS = {f"accordion-{percent}": percent for percent in WINDOWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stream, SLO and seed under one policy."""

    policy: str
    stream: int
    slo: str
    seed: int
    queries: int
    late: int
    impossible: int
    """Queries that could not be in time alone on an idle machine; late whatever is done."""
    late_possible: int
    """The other late ones."""
    late_high: int
    """Of these, of high priority."""
    latency_s: float
    """Mean of those that were answered."""
    high_latency_s: float
    answered_rps: float
    """Answered per second, first arrival to last answer."""
    in_time_rps: float
    busy: float
    sooner: float
    """Accordion with its predictor: part of the high-priority queries that are answered sooner than
    without; else 0."""
    later: float
    """Likewise, later."""


def rows_of(case: tuple[int, int]) -> list[Row]:
    """Every policy and SLO on one stream, drawn with one seed."""
    stream, seed = case
    queries, topology, rows = query_stream(stream, seed), topology_of(stream), []
    for slo in SLOS:
        found = {
            name: simulate_stream(topology, queries, queries.slo_us(slo), policy_of(name))
            for name in POLICIES
        }
        for name, percent in VARIANTS.items():
            policy = policy_of("accordion", window_percent=percent)
            found[name] = simulate_stream(topology, queries, queries.slo_us(slo), policy)
        for name, each in found.items():
            without = found["accordion-all"] if name == "accordion" else each
            rows.append(_row(name, stream, slo, seed, each, without))
    return rows


def _row(name: str, stream: int, slo: str, seed: int, found: Queries, without: Queries) -> Row:
    span_s = found.span_us / 1e6
    both = found.high & found.answered & without.answered
    gained_us = (without.ended_at_us - found.ended_at_us)[both]
    count = max(1, len(gained_us))
    return Row(
        policy=name,
        stream=stream,
        slo=slo,
        seed=seed,
        queries=len(found.late),
        late=int(found.late.sum()),
        impossible=int((~found.possible).sum()),
        late_possible=int((found.late & found.possible).sum()),
        late_high=int((found.late & found.possible & found.high).sum()),
        latency_s=float(found.latency_us.mean()) / 1e6,
        high_latency_s=float(found.latency_us[found.high[found.answered]].mean()) / 1e6,
        answered_rps=float(found.answered.sum()) / span_s,
        in_time_rps=float((~found.late).sum()) / span_s,
        busy=found.busy,
        sooner=float((gained_us > 0).sum() / count),
        later=float((gained_us < 0).sum() / count),
    )


def mean(rows: Sequence[Row], name: str, field: str, **where: object) -> float:
    """Of a policy, over all rows that have those values."""
    return float(np.mean(values(rows, name, field, **where)))


def values(rows: Sequence[Row], name: str, field: str, **where: object) -> list[float]:
    """One per row, in the order of streams, SLOs and seeds."""
    chosen = [
        row
        for row in rows
        if row.policy == name and all(getattr(row, key) == value for key, value in where.items())
    ]
    chosen.sort(key=lambda row: (row.stream, row.slo, row.seed))
    return [float(getattr(row, field)) for row in chosen]


def main() -> None:
    from benchmarks.accordion.motivation import show_motivation
    from benchmarks.accordion.study_tables import show
    from benchmarks.accordion.timelines import show_timelines

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help=f"how many, from {FIRST_SEED} on [5]")
    add_options(parser)
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)), help="which [all]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row there")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw the figures there")
    given = parser.parse_args()
    chosen = given.streams.split(",")
    if given.seeds < 1 or not {*chosen} <= {*map(str, STREAMS)}:
        parser.error("--seeds is at least 1, --streams some of 1,2,3,4,5,6")
    streams, seeds = [int(each) for each in chosen], range(FIRST_SEED, FIRST_SEED + given.seeds)
    cases = [(stream, seed) for seed in seeds for stream in streams]
    by_case = studied(running_of(given, parser), "streams and seeds", rows_of, cases)
    rows = [row for found in by_case for row in found]
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    show_motivation(seeds)
    show(rows, streams)
    timelines = show_timelines(streams, FIRST_SEED)
    if given.plot:
        from benchmarks.accordion.study_plots import plot

        plot(rows, streams, timelines, given.plot)


if __name__ == "__main__":
    main()
