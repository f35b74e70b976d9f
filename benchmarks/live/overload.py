"""Twice the planned load: does goodput hold, and does every request hear what became of it?

The same server is loaded as planned, twice as much, and as planned again; the doubled run is
compared with the mean of its neighbours, so that a machine that drifts does not count.
"""

import os
from collections import Counter

import msgspec
from benchmarks.live.processes import CoreTime
from benchmarks.live.refusals import RefusalProbe
from benchmarks.live.result import Check, Result
from benchmarks.live.setting import Setting

from headrace.load.result import LoadResult
from headrace.reporting.summary import milliseconds, percent, rate

DURATION_S = 20.0
PLANNED, DOUBLE = 1.0, 2.0
LEAST_RATIO = 0.85


def measure(setting: Setting, duration_s: float, seed: int, repetitions: int) -> Result:
    """One block of three loads; `repetitions` is for measurements whose target is tighter."""
    with setting.serve("overload.events") as server:
        setting.settle(server.url)
        with CoreTime(os.getpid(), server.pid) as cores:
            before = setting.load(server.url, PLANNED, duration_s, seed)
            with RefusalProbe(server.url) as probe:
                double = setting.load(server.url, DOUBLE, duration_s, seed)
            after = setting.load(server.url, PLANNED, duration_s, seed + 1)
    loads = (before, double, after)
    planned_rps = (_goodput(before) + _goodput(after)) / 2
    ratio = _goodput(double) / planned_rps if planned_rps else 0.0
    summary = double.report().total
    silent = silent_ends(loads)
    kinds = Counter(r.reason for r in double.requests if r.reason)
    return Result(
        name="overload",
        what="twice the planned load, demo",
        checks=(
            Check(
                what="goodput at twice / at planned load",
                target=f">= {LEAST_RATIO}",
                measured=f"{ratio:.3f} ({rate(_goodput(double))} / {rate(planned_rps)} per s;"
                f" planned {rate(_goodput(before))} before, {rate(_goodput(after))} after)",
                met=ratio >= LEAST_RATIO,
            ),
            Check(
                what="requests without a reply",
                target="0",
                measured=f"{sum(silent.values())} of {sum(len(load.requests) for load in loads)}",
                met=not silent,
            ),
            Check(
                what="refusals with Retry-After",
                target="all",
                measured=f"{probe.with_retry_after} of {probe.refused} that a probe met",
                met=probe.with_retry_after == probe.refused if probe.refused else None,
            ),
            Check(
                what="ends at twice the load",
                measured=", ".join(
                    [f"{summary.in_time} in time", *(f"{n} {k}" for k, n in kinds.most_common())]
                ),
            ),
            Check(
                what="answered at twice the load",
                measured=f"p99 {milliseconds(summary.latency.p99_us if summary.latency else None)}"
                f" (SLO {milliseconds(setting.slo_us)}), attainment"
                f" {percent(summary.slo_attainment)}",
            ),
            Check(
                what="the machine's own noise",
                measured=f"others used {cores.others:.1%} of core time,"
                f" the host took {cores.stolen:.1%}",
            ),
        ),
        details={
            "loads": [msgspec.to_builtins(load.report().total) for load in loads],
            "error_samples": double.error_samples,
        },
    )


def silent_ends(loads: tuple[LoadResult, ...]) -> dict[str, int]:
    """Requests to which no complete response came, by what befell the connection."""
    return dict(Counter(r.reason for load in loads for r in load.requests if r.status == 0))


def _goodput(load: LoadResult) -> float:
    return load.report().total.goodput_rps or 0.0
