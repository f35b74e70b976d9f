"""Anchors: the mean maximum load factor at 99 % attainment, paper | artifact | artifact mode.

    python -m benchmarks.ppipe.anchors [--seeds 5] [--json]

The paper's main experiment on Poisson arrivals (its figure 6): 4 clusters, 6 groups of 3 models,
plans of no partitioning (NP), DART-r and PPipe as published; 30 s sessions, the load lowered from
PPipe's planned throughput in steps of 5 %. "artifact" are means of its own simulator over 10
seeds. Also prints what a CPU second simulates at load factor 1 on PPipe's plans.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
from benchmarks.ppipe.artifact import max_load_factor, poisson_us, run_session
from benchmarks.ppipe.artifact.capacity import SESSION_US, LoadFactor
from benchmarks.ppipe.cases import ALGORITHMS, CLUSTERS, cluster_of
from benchmarks.ppipe.paper import LOAD_FACTOR
from benchmarks.ppipe.reference import (
    anchor_means,
    hardware_of,
    reference_plans,
    required_reference,
)

from headrace.commands.progress import counting

TOLERANCE_POINTS = 0.5


class Results:
    """Load factors in percent by (algorithm, cluster), one per model and seed."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.ignored: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.sessions = 0
        self.requests = 0

    def add(self, algorithm: str, cluster: str, found: LoadFactor) -> None:
        self.counted[algorithm, cluster].append(100 * found.lateness_counted.load_factor)
        self.ignored[algorithm, cluster].append(100 * found.artifact.load_factor)
        self.sessions += found.sessions
        self.requests += found.requests


def run(folder: Path, seeds: int) -> Results:
    """Every configuration with every seed."""
    plans = {name: reference_plans(folder, "maf19", ext) for name, ext in ALGORITHMS.items()}
    # A load factor of 1 is the model's throughput in PPipe's plan, its integer part.
    load_at_1 = {
        (cluster_of(plan), deployment.model): int(deployment.stated_rps)
        for plan in plans["ppipe"]
        for deployment in plan.deployments
    }
    jobs = [
        (name, plan, index)
        for name, members in plans.items()
        for plan in members
        for index in range(len(plan.deployments))
    ]
    results = Results()
    with counting("sessions", len(jobs) * seeds, redraws_per_s=2.0) as progress:
        for done, (name, plan, index) in enumerate(jobs):
            hardware, cluster = hardware_of(folder, plan, index), cluster_of(plan)
            load_rps = load_at_1[cluster, plan.deployments[index].model]
            for seed in range(seeds):
                rng = np.random.default_rng([seed, done])
                results.add(name, cluster, max_load_factor(hardware, load_rps, "reservation", rng))
                progress(done * seeds + seed + 1)
    return results


def speed(folder: Path) -> dict[str, float]:
    """Requests per CPU second, warm, at load factor 1 on PPipe's plans: slowest, mean, fastest."""
    rates = []
    for plan in reference_plans(folder, "maf19", "v4")[::4]:
        for index, deployment in enumerate(plan.deployments):
            hardware = hardware_of(folder, plan, index)
            rng = np.random.default_rng(index)
            arrivals_us = poisson_us(int(deployment.stated_rps), SESSION_US, rng)
            spent_s = []
            for _ in range(3):
                begun_s = time.process_time()
                run_session(hardware, arrivals_us).attainment(lateness_counted=True)
                spent_s.append(time.process_time() - begun_s)
            rates.append(len(arrivals_us) / min(spent_s))
    return {"slowest": min(rates), "mean": fmean(rates), "fastest": max(rates)}


def table(results: Results, folder: Path) -> list[dict[str, object]]:
    """One row per algorithm and cluster."""
    artifact, published = (anchor_means(folder, lateness_counted=c) for c in (True, False))
    rows: list[dict[str, object]] = []
    for algorithm in ALGORITHMS:
        for cluster in (*CLUSTERS.values(), "all"):
            members = [cluster] if cluster != "all" else list(CLUSTERS.values())
            counted = fmean(x for c in members for x in results.counted[algorithm, c])
            ignored = fmean(x for c in members for x in results.ignored[algorithm, c])
            rows.append(
                {
                    "algorithm": algorithm,
                    "cluster": cluster,
                    "paper": LOAD_FACTOR[algorithm] if cluster == "all" else None,
                    "artifact": artifact[cluster, "all", algorithm],
                    "ours": counted,
                    "artifact_lateness_ignored": published[cluster, "all", algorithm],
                    "ours_lateness_ignored": ignored,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="arrival seeds [5]")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    folder = required_reference()
    begun_s = time.process_time()
    results = run(folder, arguments.seeds)
    cpu_s = time.process_time() - begun_s
    rows, warm = table(results, folder), speed(folder)
    if arguments.json:
        counts = {"sessions": results.sessions, "requests": results.requests, "cpu_s": cpu_s}
        print(json.dumps({"rows": rows, "requests_per_cpu_s": warm, **counts}, indent=2))
        return
    print(f"mean maximum load factor at 99 % (percent), {arguments.seeds} seeds, 72 configurations")
    print(f"{'':<18}{'lateness counted':>36}{'ignored, as published':>27}")
    print(f"{'':<18}{'paper':>9}{'artifact':>9}{'ours':>9}{'within':>9}{'artifact':>18}{'ours':>9}")
    for row in rows:
        paper = f"{row['paper']:.1f}" if row["paper"] is not None else ""
        gap = abs(float(str(row["ours"])) - float(str(row["artifact"])))
        within = "" if row["cluster"] != "all" else "yes" if gap <= TOLERANCE_POINTS else "NO"
        print(
            f"{row['algorithm']:<10}{row['cluster']:<8}{paper:>9}{row['artifact']:>9.1f}"
            f"{row['ours']:>9.1f}{within:>9}{row['artifact_lateness_ignored']:>18.1f}"
            f"{row['ours_lateness_ignored']:>9.1f}"
        )
    print(
        f"{results.sessions:,} sessions, {results.requests:,} requests in {cpu_s:.0f} CPU s\n"
        f"warm, at load factor 1 on PPipe's plans: {warm['mean'] / 1e6:.2f} M requests per CPU s"
        f" (slowest {warm['slowest'] / 1e6:.2f}, fastest {warm['fastest'] / 1e6:.2f})"
    )


if __name__ == "__main__":
    main()
