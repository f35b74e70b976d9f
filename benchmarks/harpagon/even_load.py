"""What machines that share their load evenly save, and how soon large apps are proven.

    python -m benchmarks.harpagon.even_load [--count 1131] [--rate 15000]

`least-cost` (decision 0065) against `harpagon-optimal`, the best of the form in which the paper's
heuristics write plans: full machines, and one with a part of a load. On public profiles and on
workloads drawn in the paper's range; then the five apps at a rate that needs hundreds of machines.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np
from benchmarks.harpagon.drawn import drawn_workloads
from benchmarks.harpagon.profiles import load
from benchmarks.harpagon.workloads import APPS, COUNT, Workload, workload, workloads

from headrace.planning.apps.exact.fronts import Form
from headrace.planning.apps.solve import plan_least_cost

SEED = 1

FORMS: tuple[Form, ...] = ("even", "part")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument(
        "--rate", type=float, default=15_000.0, help="of the large apps, per second"
    )
    asked = parser.parse_args()
    library = load()
    public = workloads(library, asked.count)
    _print_saved("public profiles", public)
    _print_saved("the paper's range", drawn_workloads(asked.count, SEED))
    slos = {one.app: one.slo_us for one in public[: len(APPS)]}
    for app, slo_us in slos.items():
        _print_large(workload(library, app, asked.rate, slo_us))


def _print_saved(name: str, some: Sequence[Workload]) -> None:
    ratios = []
    for one in some:
        even, full = (plan_least_cost(one.case, form=form) for form in FORMS)
        if even is not None and full is not None:
            ratios.append(even.cost / full.cost)
    saved = 1 - np.array(ratios)
    print(
        f"{name}: even load against full machines, {len(ratios)} of {len(some)} workloads:"
        f" {saved.mean():.2%} cheaper on average, {saved.max():.1%} at most, cheaper on"
        f" {np.mean(saved > 1e-9):.1%}, dearer on {np.mean(saved < -1e-9):.1%}"
    )


def _print_large(one: Workload) -> None:
    began = time.process_time()
    found = plan_least_cost(one.case)
    took_s = time.process_time() - began
    if found is None or found.bound is None:
        print(f"{one.app} at {one.rate_rps:g} rps: no plan")
        return
    machines = ", ".join(f"{sum(e.machines for e in m.entries):.0f}" for m in found.modules)
    print(
        f"{one.app} at {one.rate_rps:g} rps: machines {machines}; {found.stopped}, gap"
        f" {1 - found.bound / found.cost:.2%}, CPU {took_s:.3f} s"
    )


if __name__ == "__main__":
    main()
