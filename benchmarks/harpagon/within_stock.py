"""`least-cost` on clusters that have too few of the devices that its plans use most.

    python -m benchmarks.harpagon.within_stock [--count 1131] [--apps 1] [--time-limit-s 60]

Each of the study's workloads (or so many of them together, with `--apps`) is given a part, drawn
from 60 to 80 %, of the devices of the type that its cheapest machines take most of. Of every other
type there are as many as they take, and as many more as are missing of that one. Printed are the
share of workloads with a plan, the share where that is proven the cheapest or that there is none,
what the plans cost more than without limits, and CPU time of the search.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.harpagon.profiles import PRICES, load
from benchmarks.harpagon.workloads import COUNT, SEED, workloads

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.planning.apps.assembly import slot_count
from headrace.planning.apps.candidates import AppCase
from headrace.planning.apps.solve import AppSolution, plan_least_cost
from headrace.planning.apps.stock.devices import DeviceStock, flat
from headrace.planning.apps.stock.search import Within, cheapest_within
from headrace.planning.common.deadline import Deadline

PARTS = (0.6, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One search."""

    within: Within
    premium: float
    """Cost over that of the cheapest machines without limits, less 1; infinite: no plan."""
    seconds: float


def outcome(cases: Sequence[AppCase], part: float, limit_s: float) -> Outcome | None:
    """None where an app has no plan at all."""
    free = [plan_least_cost(case) for case in cases]
    planned = [solution for solution in free if solution is not None]
    if len(planned) < len(free):
        return None
    stock = DeviceStock.of(short_cluster(planned, part), flat(cases), [0] * len(flat(cases)))
    least = sum(solution.cost for solution in planned)
    began = time.thread_time()
    within = cheapest_within(
        cases,
        stock,
        limit=Deadline(limit_s),
        at_least=sum(solution.bound or 0.0 for solution in planned),
    )
    seconds = time.thread_time() - began
    return Outcome(within=within, premium=within.cost / least - 1, seconds=seconds)


def short_cluster(planned: Sequence[AppSolution], part: float) -> Cluster:
    """Too few devices of the type that is used most, by at least one."""
    used: Counter[str] = Counter()
    for solution in planned:
        for schedule in solution.modules:
            for entry in schedule.entries:
                used[entry.candidate.device] += slot_count(entry)
    most, wanted = used.most_common(1)[0]
    there = min(round(part * wanted), wanted - 1)
    counts = {device: used[device] + wanted - there for device in PRICES} | {most: there}
    return Cluster(
        device_types=tuple(
            DeviceType(name=device, price_per_hour=price) for device, price in PRICES.items()
        ),
        nodes=(Node(name="n", devices={device: n for device, n in counts.items() if n}),),
    )


def report(outcomes: Sequence[Outcome]) -> str:
    solved = [one for one in outcomes if one.within.machines is not None]
    premiums = np.array([one.premium for one in solved])
    seconds = np.array([one.seconds for one in outcomes])
    gaps = [1 - one.within.bound / one.within.cost for one in solved if not one.within.proven]
    return (
        f"{len(outcomes)} searches: {len(solved) / len(outcomes):.2%} with a plan,"
        f" {np.mean([one.within.proven for one in outcomes]):.2%} proven"
        f" (largest gap {max(gaps, default=0.0):.2%});"
        f" cost over that without limits: mean {premiums.mean():.1%},"
        f" median {np.median(premiums):.1%}, most {premiums.max():.1%};"
        f" CPU ms: mean {1e3 * seconds.mean():.1f}, median {1e3 * np.median(seconds):.1f},"
        f" p95 {1e3 * np.quantile(seconds, 0.95):.1f}, most {1e3 * seconds.max():.0f};"
        f" nodes: mean {np.mean([one.within.nodes for one in outcomes]):.1f},"
        f" most {max(one.within.nodes for one in outcomes)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="workloads")
    parser.add_argument("--apps", type=int, default=1, help="workloads that share a cluster")
    parser.add_argument("--time-limit-s", type=float, default=60.0)
    asked = parser.parse_args()
    cases = [workload.case for workload in workloads(load(), asked.count)]
    rng = np.random.default_rng(SEED)
    groups = [cases[i : i + asked.apps] for i in range(0, len(cases), asked.apps)]
    found = [outcome(group, rng.uniform(*PARTS), asked.time_limit_s) for group in groups]
    print(report([one for one in found if one is not None]))


if __name__ == "__main__":
    main()
