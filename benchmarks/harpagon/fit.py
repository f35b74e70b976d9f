"""How near a study comes to the paper: the mean absolute log ratio of what systems cost.

Of every ablation, |ln(ours / paper's)| of its mean cost over `harpagon`'s; of the baselines, of
which the paper prints the range of the means alone, that of the cheapest and of the dearest. 0 is
the paper itself; 0.08 is 8 % beside it.

A workload for which a system finds no plan is counted: at what one request at a time costs on the
machines that are fastest at that, the least that a system has to be able to do. Leaving it out
would make a system cheaper the more it refuses.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from benchmarks.harpagon.runs import Floats, Run
from benchmarks.harpagon.workloads import Workload

BASELINES = ("nexus", "scrooge", "inferline", "clipper")
BASELINES_RANGE = (49.3, 137.2)
"""The paper's least and largest mean extra cost of a baseline over Harpagon, percent (Fig. 5)."""

ABLATIONS = {
    "harp-2d": 79.6,
    "harp-dt": 44.1,
    "harp-1c": 66.5,
    "harp-2c": 3.0,
    "harp-nb": 89.6,
    "harp-nhc": 23.2,
    "harp-nhe": 14.0,
    "harp-nd": 0.8,
    "harp-0re": 1.0,
    "harp-1re": 0.6,
    "harp-tb": 35.3,
    "harp-q0.01": 1.2,
    "harp-q0.1": 30.6,
    "harp-nnm": 0.2,
    "harp-ncd": 0.3,
}
"""The paper's extra cost over Harpagon, percent (section IV.C)."""

TARGET = 0.08


def one_by_one(workloads: Sequence[Workload]) -> Floats:
    """Cost of every workload with batches of one on the GPUs that are fastest then, shape (N,)."""
    costs = []
    for workload in workloads:
        cost = 0.0
        for module in workload.case.modules:
            least = min(c.batch for c in module.candidates)
            alone = [c for c in module.candidates if c.batch == least]
            fastest = min(alone, key=lambda c: (c.duration_us, c.price))
            cost += module.rate_rps / fastest.per_price
        costs.append(cost)
    return np.array(costs)


def ratios(run: Run, base: Run, fallback: Floats) -> Floats:
    """Cost over that of `base`, shape (N,); workloads without a plan at the fallback's."""
    ours, theirs = (np.where(np.isnan(r.cost), fallback, r.cost) for r in (run, base))
    found: Floats = ours / theirs
    return found


def means(runs: Mapping[str, Run], workloads: Sequence[Workload]) -> dict[str, float]:
    """Mean cost over harpagon's, by system."""
    fallback = one_by_one(workloads)
    return {
        name: float(ratios(run, runs["harpagon"], fallback).mean()) for name, run in runs.items()
    }


def terms(mean: Mapping[str, float]) -> dict[str, float]:
    """|ln(ours / paper's)| by what is compared."""
    found = {name: abs(np.log(mean[name] / (1 + p / 100))) for name, p in ABLATIONS.items()}
    ours = [mean[name] for name in BASELINES]
    for what, own, paper in zip(
        ("cheapest baseline", "dearest baseline"),
        (min(ours), max(ours)),
        BASELINES_RANGE,
        strict=True,
    ):
        found[what] = abs(np.log(own / (1 + paper / 100)))
    return {what: float(value) for what, value in found.items()}


def score(mean: Mapping[str, float]) -> float:
    """The mean of `terms`."""
    return float(np.mean(list(terms(mean).values())))
