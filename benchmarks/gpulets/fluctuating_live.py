"""The run of `fluctuating` live: `headrace serve --replan` over emulated GPUs, and its simulation.

    python -m benchmarks.gpulets.fluctuating_live
        [--duration-s 300] [--from-s 960] [--stretch 5] [--folder .gpulets/live]

A part of the 1,800 s (the rise of the second wave, at first) with its rates, served by the real
server: HTTP, dispatcher, worker processes, planning in a process of its own, new workers beside the
old ones, migration. Only the GPUs are not there: a slot holds a batch for the profiled time. All
latencies and SLOs are `--stretch` times longer and rates so many times lower, since four GPUs serve
more requests than a gateway on two busy cores passes on. The simulator gets the same arrivals, the
same first plan and the same rule; it decides for itself.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace as with_fields
from pathlib import Path
from statistics import median

from benchmarks.gpulets.fluctuating import (
    DURATION_S,
    PERIOD_S,
    Setting,
    devices_of,
    ended,
    offered,
    print_summary,
    rate_rps,
    setting,
    simulated,
    violated,
)
from benchmarks.gpulets.setting import MODELS
from examples.demo.shell import Server
from msgspec.structs import replace

from headrace.catalog.documents import read_plan, sha256_file, write_document
from headrace.domain.plan import Plan
from headrace.domain.problem import ProfileRef
from headrace.load.generator import LoadOptions, run_load_of_models
from headrace.load.result import LoadResult
from headrace.load.token import token_for
from headrace.serving.changes.plan_watch import ReplanRule
from headrace.simulation.offered.arrivals import Arrival

EVENTS = "run.events"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration-s", type=float, default=300.0)
    parser.add_argument("--from-s", type=float, default=960.0)
    parser.add_argument("--period-s", type=float, default=PERIOD_S)
    parser.add_argument("--ready-after-s", type=float, default=4.0, help="simulated")
    parser.add_argument("--stretch", type=float, default=5.0)
    parser.add_argument("--overhead-us", type=int, default=700)
    parser.add_argument("--headroom", type=float, default=0.4)
    parser.add_argument("--fraction", type=float, default=0.15)
    parser.add_argument("--margin", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".gpulets/live"))
    asked = parser.parse_args()
    rule = ReplanRule(fraction=asked.fraction, period_s=asked.period_s, headroom=asked.headroom)
    here = setting(asked.stretch, asked.margin, asked.overhead_us)
    peak = 1 / asked.stretch
    arrivals = offered(asked.duration_s, peak, asked.seed, from_s=asked.from_s, whole_s=DURATION_S)
    first = {model: peak * rate_rps(model, asked.from_s / DURATION_S) for model in MODELS}

    run, _ = simulated(here, arrivals, first, rule, ready_after_s=asked.ready_after_s)
    print("simulated:", end=" ")
    foretold = print_summary(run, ended(run))

    plan = write_first_plan(here, first, rule, asked.folder)
    results = served(asked.folder, arrivals, rule, asked.duration_s)
    measured = print_live(asked.folder, plan, results)
    print(f"measured - simulated: {measured - foretold:+.3f} points")
    return 0 if abs(measured - foretold) <= 1.0 else 1


def write_first_plan(
    here: Setting, first_rps: Mapping[str, float], rule: ReplanRule, folder: Path
) -> Plan:
    """The plan and its profiles as files, for the rates that the run begins with."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("run*.events"), *folder.glob("plan.replanned.*")):
        old.unlink()
    plan = here.planned({model: (1 + rule.headroom) * rate for model, rate in first_rps.items()})
    assert plan is not None, "the first rates are low"
    refs = []
    for model, profile in here.profiles.items():
        path = folder / f"{model}.profile.json"
        write_document(profile, path)
        refs.append(ProfileRef(model=model, path=path.name, sha256=sha256_file(path)))
    plan = replace(plan, profiles=tuple(refs))
    write_document(plan, folder / "plan.json")
    return plan


def served(
    folder: Path, arrivals: list[Arrival], rule: ReplanRule, duration_s: float
) -> dict[str, LoadResult]:
    """What became of all requests."""
    options = ("--port", "0", "--events", EVENTS, "--executor", "emulated", "--processes", "1")
    replan = ["--replan", "--replan-period-s", f"{rule.period_s:g}"]
    replan += ["--replan-headroom", f"{rule.headroom:g}", "--replan-fraction", f"{rule.fraction:g}"]
    with Server(folder, "plan.json", *options, *replan) as server:
        sending = with_fields(LoadOptions(), token=token_for(server.url, None))
        return run_load_of_models(server.url, arrivals, sending, span_us=round(duration_s * 1e6))


def print_live(folder: Path, first: Plan, results: Mapping[str, LoadResult]) -> float:
    """Totals, from the client's side; returns violations as a percentage of all requests."""
    whole = [request.outcome for result in results.values() for request in result.requests]
    percent = 100 * violated(whole) / len(whole)
    logs = len(list(folder.glob("run*.events")))
    last = folder / "plan.replanned.json"
    gpus = [devices_of(first)] + ([devices_of(read_plan(last))] if last.exists() else [])
    print(
        f"measured: {len(whole):,} requests, {logs - 1} changes of plan, GPUs at first and last"
        f" {gpus}\nviolated: {percent:.3f} %; "
        + ", ".join(
            f"{model} {100 * violated(ended) / len(ended):.3f} %"
            for model, result in sorted(results.items())
            if (ended := [request.outcome for request in result.requests])
        )
    )
    lost = {r.reason for each in results.values() for r in each.requests if r.reason}
    lateness = [each.lateness.p99_us for each in results.values() if each.lateness]
    print(
        f"reasons: {', '.join(sorted(lost)) or 'none'}; client's own lateness p99"
        f" {median(lateness) / 1e3:.2f} ms"
    )
    return percent


if __name__ == "__main__":
    sys.exit(main())
