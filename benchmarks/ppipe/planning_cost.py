"""Least cost at given rates, on PPipe's published problems: cost, proof and seconds.

    python -m benchmarks.ppipe.planning_cost [--set maf19 ...] [--parts 0.1 0.5 0.9] [--json]

Every model asks for a part of what the best plan of all devices gives it; the cheapest devices
that carry it are wanted. Prices are examples, dearer for faster types; they are printed. One
thread, profiles in memory, slots placed, every plan verified.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.ppipe.planning_rows import Instance, instances, problem_of
from benchmarks.ppipe.reference import required_reference
from msgspec.structs import replace

from headrace.planning.pooled.planner import plan_pooled
from headrace.verify import verify

PRICES = {"L4": 0.8, "V100": 2.4, "T4": 0.5, "P4": 0.6}
"""Per hour."""

TARGET_S = 0.1
"""Typical time for a plan that is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem at one part of its largest load."""

    name: str
    part: float
    cost_per_hour: float
    everything_per_hour: float
    """Of all devices."""
    proven: bool
    cpu_s: float


def rows_of(instance: Instance, parts: list[float]) -> Iterator[Row]:
    problem = problem_of(instance.task, instance.profiles)
    most = plan_pooled(problem).plan
    assert most is not None, instance.name
    cluster = replace(
        problem.cluster,
        device_types=tuple(
            replace(kind, price_per_hour=PRICES[kind.name]) for kind in problem.cluster.device_types
        ),
    )
    for part in parts:
        rated = tuple(replace(d, rate_rps=part * most.objective * d.weight) for d in most.demands)
        options = replace(problem.options, objective="least-cost")
        asked = replace(problem, cluster=cluster, demands=rated, options=options)
        at_s = time.process_time()
        plan = plan_pooled(asked).plan
        cpu_s = time.process_time() - at_s
        assert plan is not None, instance.name
        faults = verify(plan, problem.profiles)
        assert not faults, faults
        yield Row(
            name=instance.name,
            part=part,
            cost_per_hour=plan.objective,
            everything_per_hour=sum(
                PRICES[kind.name] * cluster.count(kind.name) for kind in cluster.device_types
            ),
            proven=plan.stopped == "optimal",
            cpu_s=cpu_s,
        )


def _rows(folder: Path, sets: list[str], parts: list[float]) -> Iterator[Row]:
    for name in sets:
        for instance in instances(folder, name):
            yield from rows_of(instance, parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", dest="sets", help="maf19, ablation [both]")
    parser.add_argument("--parts", type=float, nargs="+", default=[0.1, 0.5, 0.9])
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    arguments = parser.parse_args()
    folder, rows = required_reference(), []
    # Compiled code is loaded before the clock runs.
    list(rows_of(next(instances(folder, "ablation")), [0.1]))
    for row in _rows(folder, arguments.sets or ["maf19", "ablation"], arguments.parts):
        rows.append(row)
        if not arguments.json:
            print(
                f"{row.name:42} {row.part:5.0%} of its largest load: {row.cost_per_hour:7.2f}"
                f" of {row.everything_per_hour:6.2f} per hour,"
                f" {'proven' if row.proven else 'open'}, {row.cpu_s:.3f} CPU s",
                flush=True,
            )
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    seconds = [row.cpu_s for row in rows]
    proven = sum(row.proven for row in rows)
    print(f"\nprices per hour: {PRICES}")
    print(f"proven {proven} of {len(rows)}   (target: all)")
    print(
        f"CPU s: median {median(seconds):.3f}, most {max(seconds):.3f}"
        f"   (target: median <= {TARGET_S})"
    )


if __name__ == "__main__":
    main()
