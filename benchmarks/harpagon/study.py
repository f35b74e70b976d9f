"""The study: every planner on 1,131 workloads, and Figures 5 to 12, paper | ours.

    python -m benchmarks.harpagon.study [--count 1131] [--seeds 1,2,3] [--plots FOLDER]
    python -m benchmarks.harpagon.study --public [--synthetic] [--prices A100=3.2,T4=0.5]
        [--slo-factors 6,20]

The first draws workloads in the range of the paper's (`drawn`), once per seed, and prints how near
its figures come (`fit`). The second has NVIDIA's published profiles (`workloads`), with more GPUs,
larger batches and looser objectives than the paper can have had: another question, same planners.

Takes a minute or two per seed; `--count 100` some seconds.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from benchmarks.harpagon.drawn import ORIGIN, drawn_workloads
from benchmarks.harpagon.figures import FIGURES, Row
from benchmarks.harpagon.fit import ABLATIONS, BASELINES, TARGET, means, score, terms
from benchmarks.harpagon.plots import plot
from benchmarks.harpagon.profiles import PRICES, load
from benchmarks.harpagon.runs import Run, extra, run_planner
from benchmarks.harpagon.verified import violations
from benchmarks.harpagon.workloads import COUNT, Workload, workloads

from headrace.planning.apps.heuristics.schemes import SCHEMES

PLANNERS = ("least-cost", "harpagon-optimal", "harpagon", *BASELINES, *ABLATIONS)

AT_OPTIMUM = {True: 0.915, False: 0.85}
"""Share of workloads, drawn or on public profiles; 91.5 % is the paper's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seeds", default="1,2,3", help="of drawn workloads")
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--public", action="store_true", help="published profiles, one seed")
    parser.add_argument("--synthetic", action="store_true", help="made-up ones in their place")
    parser.add_argument("--prices", default="", help="per GPU and hour: A100=3.2,T4=0.5")
    parser.add_argument("--slo-factors", default="6,20", help="of the least duration, from and to")
    asked = parser.parse_args()
    met = True
    for title, drawn in _studies(asked):
        print(f"\n== {title}")
        runs = {planner: run_planner(planner, drawn) for planner in PLANNERS}
        for figure in FIGURES:
            what = str(figure.__doc__).split("\n", 1)[0]
            print_rows(f"Figure {figure.__name__[7:]}: {what}", figure(runs, drawn))
        if asked.plots:
            plot(runs, drawn, asked.plots)
        met &= verdicts(runs, drawn, in_range=not (asked.public or asked.synthetic))
    sys.exit(0 if met else 1)


def _studies(asked: argparse.Namespace) -> Iterator[tuple[str, list[Workload]]]:
    if not (asked.public or asked.synthetic):
        for seed in asked.seeds.split(","):
            title = f"profiles: {ORIGIN}, in the paper's range; seed {seed}"
            yield title, drawn_workloads(asked.count, int(seed))
        return
    prices = {k: float(v) for k, v in (p.split("=") for p in asked.prices.split(",") if p)}
    library = load(prices, synthetic=asked.synthetic)
    low, high = map(float, asked.slo_factors.split(","))
    title = f"profiles: {library.origin}; prices per hour: {PRICES | prices}"
    yield title, workloads(library, asked.count, slo_factors=(low, high))


def print_rows(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}\n{'':<52}{'paper':>26} | ours")
    for what, paper, ours in rows:
        print(f"{what:<52}{paper:>26} | {ours}")


def verdicts(runs: Mapping[str, Run], drawn: Sequence[Workload], *, in_range: bool) -> bool:
    """Print target and result of what must hold; whether all of it does."""
    least, harpagon = runs["least-cost"], runs["harpagon"]
    optimal, aim = runs["harpagon-optimal"], AT_OPTIMUM[in_range]
    at_optimum = float(np.mean(extra(harpagon, optimal) < 1e-9))
    mean_costs = means(runs, drawn)
    nearness = score(mean_costs)
    print("\nfit to the paper, |ln(ours / paper's)| of mean costs over harpagon's:")
    print(", ".join(f"{what} {term:.3f}" for what, term in terms(mean_costs).items()))
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
    lines: list[tuple[str, str, str, bool]] = [
        ("least-cost: mean CPU time", "<= 5 ms (1 ms)", f"{mean:.2f} ms", bool(mean <= 5)),
        ("least-cost: longest CPU time", "<= 100 ms", f"{most:.1f} ms", bool(most <= 100)),
        ("least-cost: proven", f"{n}", f"{least.proven}", least.proven == n),
        ("plans of others below least-cost", "0", f"{below}", below == 0),
        ("harpagon-optimal: proven", f"{n}", f"{optimal.proven}", optimal.proven == n),
        (
            "fit score",
            f"<= {TARGET}" if in_range else "printed",
            f"{nearness:.3f}",
            nearness <= TARGET or not in_range,
        ),
        (
            "harpagon: at the optimum of its form",
            f">= {aim:.1%}",
            f"{at_optimum:.1%}",
            at_optimum >= aim,
        ),
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
