"""The study: every planner on 1,131 workloads, and Figures 5 to 12, paper | ours.

    python -m benchmarks.harpagon.study [--count 1131] [--plots FOLDER] [--synthetic]
        [--prices A100=3.2,T4=0.5] [--slo-factors 6,20]

Takes about a minute; `--count 100` a few seconds.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from benchmarks.harpagon.figures import ABLATIONS, BASELINES, FIGURES, Row
from benchmarks.harpagon.plots import plot
from benchmarks.harpagon.profiles import PRICES, load
from benchmarks.harpagon.runs import Run, extra, run_planner
from benchmarks.harpagon.verified import violations
from benchmarks.harpagon.workloads import COUNT, Workload, workloads

from headrace.planning.apps.heuristics.schemes import SCHEMES

PLANNERS = ("least-cost", "harpagon", *BASELINES, *ABLATIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--synthetic", action="store_true", help="use the made-up profiles")
    parser.add_argument("--prices", default="", help="per GPU and hour: A100=3.2,T4=0.5")
    parser.add_argument("--slo-factors", default="6,20", help="of the least duration, from and to")
    asked = parser.parse_args()
    prices = {k: float(v) for k, v in (p.split("=") for p in asked.prices.split(",") if p)}
    library = load(prices, synthetic=asked.synthetic)
    print(f"profiles: {library.origin}; prices per hour: {PRICES | prices}")
    low, high = map(float, asked.slo_factors.split(","))
    drawn = workloads(library, asked.count, slo_factors=(low, high))
    runs = {planner: run_planner(planner, drawn) for planner in PLANNERS}
    for figure in FIGURES:
        title = str(figure.__doc__).split("\n", 1)[0]
        print_rows(f"Figure {figure.__name__[7:]}: {title}", figure(runs, drawn))
    if asked.plots:
        plot(runs, drawn, asked.plots)
    sys.exit(0 if verdicts(runs, drawn) else 1)


def print_rows(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}\n{'':<52}{'paper':>26} | ours")
    for what, paper, ours in rows:
        print(f"{what:<52}{paper:>26} | {ours}")


def verdicts(runs: Mapping[str, Run], drawn: Sequence[Workload]) -> bool:
    """Print target and result of what must hold; whether all of it does."""
    least, harpagon = runs["least-cost"], runs["harpagon"]
    at_optimum = float(np.mean(extra(harpagon, least) < 1e-9))
    broken = {
        name: sum(
            bool(found and violations(w, found, SCHEMES[name].reading, name))
            for w, found in zip(drawn, runs[name].modules, strict=True)
        )
        for name in ("harpagon", *BASELINES)
    }
    below = sum(int(np.nansum(extra(run, least) < -1e-9)) for run in runs.values())
    n = len(drawn)
    mean, most = least.runtime_ms.mean(), least.runtime_ms.max()
    lines: list[tuple[str, str, str, bool | None]] = [
        ("least-cost: mean CPU time", "<= 5 ms (1 ms)", f"{mean:.2f} ms", bool(mean <= 5)),
        ("least-cost: longest CPU time", "<= 100 ms", f"{most:.1f} ms", bool(most <= 100)),
        ("least-cost: proven", f"{n}", f"{least.proven}", least.proven == n),
        ("plans of others below least-cost", "0", f"{below}", below == 0),
        ("harpagon: at the optimum", ">= 85 %", f"{at_optimum:.1%}", at_optimum >= 0.85),
        (
            "harpagon: mean CPU time",
            "<= 5 ms",
            f"{harpagon.runtime_ms.mean():.2f} ms",
            bool(harpagon.runtime_ms.mean() <= 5),
        ),
        *(
            (f"{name}: plans that verify rejects", "0", f"{count}", count == 0)
            for name, count in broken.items()
        ),
    ]
    print(f"\n{'must hold, ' + str(n) + ' workloads':<44}{'target':>16}{'measured':>12}  verdict")
    for what, target, measured, met in lines:
        print(f"{what:<44}{target:>16}{measured:>12}  {'met' if met else 'MISSED'}")
    return all(met for *_, met in lines)


if __name__ == "__main__":
    main()
