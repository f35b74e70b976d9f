"""What decision 0015 leaves out: machines of one configuration that share its load evenly.

    python -m benchmarks.harpagon.even_load [--count 1131]

Read to the letter, Theorem 1 lets n machines of one configuration, none quite full, collect their
batches at the module's whole rate. One configuration per module is then the cheapest: load x price
/ throughput, worst case d + b / T. This prints by how much such plans would be cheaper.
"""

import argparse

import numpy as np
from benchmarks.harpagon.profiles import load
from benchmarks.harpagon.workloads import COUNT, workloads

from headrace.planning.apps.candidates import AppCase, ModuleCase, collect_us
from headrace.planning.apps.exact.combine import CostCurve, least_cost
from headrace.planning.apps.order import decompose
from headrace.planning.apps.solve import plan_least_cost


def even_curve(module: ModuleCase) -> CostCurve:
    """Undominated (d + b / T, cost) of single configurations."""
    points = sorted(
        (
            c.duration_us + collect_us(c.batch, c.duration_us, module.rate_rps),
            module.rate_rps / c.per_price,
        )
        for c in module.candidates
    )
    kept = [points[0]]
    for point in points[1:]:
        if point[1] < kept[-1][1]:
            kept.append(point)
    return CostCurve(np.array([p[0] for p in kept], np.int64), np.array([p[1] for p in kept]))


def even_cost(case: AppCase) -> float:
    curves = [even_curve(module) for module in case.modules]
    chosen = least_cost(decompose(case.before), curves, case.before, case.budget_us)
    if chosen is None:
        return float("nan")
    return float(sum(curve.cost[i] for curve, i in zip(curves, chosen, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    asked = parser.parse_args()
    ratios = []
    for workload in workloads(load(), asked.count):
        planned = plan_least_cost(workload.case)
        ratios.append(even_cost(workload.case) / planned.cost if planned else np.nan)
    saved = 1 - np.array(ratios)
    print(
        f"even load against least-cost, {len(ratios)} workloads: {np.nanmean(saved):.1%} cheaper on"
        f" average, {np.nanmax(saved):.1%} at most, cheaper on {np.mean(saved > 1e-9):.1%}"
    )


if __name__ == "__main__":
    main()
