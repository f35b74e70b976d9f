"""Planned throughput against the most that is measured at 99 % of answers in time.

    python -m benchmarks.live.planned_throughput [--case "600 kB"] [--blocks 3]

Of a model that does nothing, and of one that takes 600 kB pictures; server on core 0, an open-loop
client (latency from the scheduled instant) on core 1. The objective is a thousand times the model's
p99, or LEAST_SLO_MS: gateway and worker have one core and pass it on every few milliseconds.

A machine stalls for tens of milliseconds now and then, and a single stall in a run decides whether
99 % were in time. So a rate holds where most of TRIES runs held it; a run that failed while the
client itself was late says nothing of the server, and is done again. Where the client stays late,
that is said of the result, with what it took of its core.

A core whose neighbours come and go may be a third slower a minute later, and a plan is made of what
was profiled before. So a case is profiled, planned and measured in blocks, each from the beginning:
the mean distance between planned and measured, whichever is larger, is held against the target, and
all are printed.
"""

import argparse
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.live import networks
from benchmarks.live.documented import (
    CLIENT_CORE,
    PROGRAM,
    SERVER_CORE,
    headrace,
    served,
    write_problem,
)

TARGET = 0.15
CASES = {"trivial": 8, "600 kB": 150_000}
"""Name -> numbers of four bytes per request."""
SLO_FACTOR, LEAST_SLO_MS = 1_000.0, 25.0
STEPS = 6
BLOCKS = 3
TRIES = 3
MOST_RUNS = 5
"""At a rate, with those that are done again."""
MOST_LATE_US = LEAST_SLO_MS * 1000 / 10
"""Of the client at its p99."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration-s", type=float, default=3.0, help="per rate tried")
    parser.add_argument("--case", choices=CASES, action="append", help="only these")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of a case")
    asked = parser.parse_args()
    for name in asked.case or CASES:
        found = []
        for _ in range(asked.blocks):
            planned_rps, most, gateway_us = _case(CASES[name], asked.duration_s)
            found.append(planned_rps / most.rate_rps - 1)
            print(
                f"{name:8} planned {planned_rps:8,.0f} /s (gateway {gateway_us} us), measured"
                f" {most.rate_rps:8,.0f} /s: {found[-1]:+.0%}, load average"
                f" {os.getloadavg()[0]:.1f}; where it failed the client took"
                f" {most.client_busy:.0%} of its core"
                + (" and was late" if most.client_late else ""),
                flush=True,
            )
        print(f"{name:8} {verdict(found)}", flush=True)


def verdict(apart: Sequence[float]) -> str:
    """Of the blocks' planned / measured - 1. Too much in one does not make up for too little in
    another.

    >>> verdict([-0.3, 0.0, 0.3])
    'off by 20% in the mean (+0% with signs)   target within 15%: miss'
    """
    off = fmean(abs(each) for each in apart)
    return (
        f"off by {off:.0%} in the mean ({fmean(apart):+.0%} with signs)"
        f"   target within {TARGET:.0%}: {'pass' if off <= TARGET else 'miss'}"
    )


def _case(items: int, duration_s: float) -> tuple[float, "Most", int]:
    """(planned, measured, what the gateway takes of a request in microseconds)"""
    with TemporaryDirectory() as name:
        folder = Path(name)
        # Profiles are kept by content, those of a busier hour too.
        os.environ["HEADRACE_CACHE"] = str(folder / "cache")
        networks.add_one(folder / "m.onnx", items)
        headrace(
            folder,
            *("profile", "m.onnx", "--blocks", "1", "--max-batch", "16", "--budget-s", "10"),
            *("-o", "m.profile.json"),
        )
        write_problem(folder, ("m",), cores=1, slo_factor=SLO_FACTOR, least_slo_ms=LEAST_SLO_MS)
        headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
        plan = json.loads((folder / "plan.json").read_text())
        profile = json.loads((folder / "m.profile.json").read_text())
        planned_rps = plan["deployments"][0]["throughput_rps"]
        with served(folder, "plan.json", core=SERVER_CORE) as url:
            _run(folder, url, planned_rps / 2, duration_s)  # To warm up.
            found = _most(partial(_run, folder, url, duration_s=duration_s), planned_rps)
        return planned_rps, found, profile["gateway_shared_us"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run at one rate."""

    holds: bool
    """99 % were in time."""
    client_late: bool
    client_busy: float
    """What the client took of its core, its start included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Most:
    """The largest rate that held, and the client at the least one that did not."""

    rate_rps: float
    client_late: bool
    client_busy: float


def _most(run_at: Callable[[float], Run], planned_rps: float) -> Most:
    """By halving between what held and what did not, from the planned rate on."""
    held, failed, rate_rps = 0.0, 0.0, planned_rps
    there = Run(holds=False, client_late=False, client_busy=0.0)
    for _ in range(STEPS):
        runs = _runs(partial(run_at, rate_rps))
        if sum(run.holds for run in runs) > len(runs) / 2:
            held = rate_rps
        else:
            failed, there = rate_rps, next(run for run in reversed(runs) if not run.holds)
        rate_rps = (held + failed) / 2 if held and failed else held * 1.5 or failed / 1.5
    return Most(
        rate_rps=held or failed, client_late=there.client_late, client_busy=there.client_busy
    )


def _runs(run: Callable[[], Run]) -> Sequence[Run]:
    """Until most of TRIES that count agree; if none counts, those that do not."""
    counted: list[Run] = []
    late: list[Run] = []
    for _ in range(MOST_RUNS):
        found = run()
        (late if found.client_late and not found.holds else counted).append(found)
        held = sum(each.holds for each in counted)
        if max(held, len(counted) - held) > TRIES // 2:
            break
    return counted or late


def _run(folder: Path, url: str, rate_rps: float, duration_s: float) -> Run:
    before_s, began_s = _children_s(), time.monotonic()
    done = subprocess.run(
        [
            *("taskset", "-c", CLIENT_CORE, PROGRAM, "load", url, "--model", "m"),
            *("--rps", f"{rate_rps:g}", "--duration-s", f"{duration_s:g}", "--json"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    return Run(
        holds=said["total"]["slo_attainment"] >= 0.99,
        client_late=said["lateness"]["p99_us"] > MOST_LATE_US,
        client_busy=(_children_s() - before_s) / (time.monotonic() - began_s),
    )


def _children_s() -> float:
    """Processor time of commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
