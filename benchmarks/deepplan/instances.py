"""Instances beyond memory under Poisson arrivals (Figures 13 and 14).

python -m benchmarks.deepplan.instances [--network bert-base --rate 100] [--requests 20000]
    [--plot FILE]

One network, its requests spread evenly over all instances. A system leaves its objective at the
first number of instances whose p99 is above 100 ms. The paper's figures are of 1,000 requests.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.deepplan.cluster import SLO_US
from benchmarks.deepplan.serving import PAPERS, SYSTEMS, serve
from benchmarks.ppipe.plots import COLOURS, draw

PAPER = {"PipeSwitch": 120, "DHA": 160, "PT+DHA": 180}
"""Of BERT-Base at 100 requests/s: where p99 rises above the objective, as section 5.3.1 has it."""

STEP, MOST = 20, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="bert-base")
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--from", dest="least", type=int, default=80)
    parser.add_argument("--step", type=int, default=STEP)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the three figures there")
    asked = parser.parse_args()
    print(f"{asked.network}, {asked.rate:g} requests/s; p99 ms, goodput %, starts % of requests")
    print("instances" + "".join(name.rjust(26) for name in asked.systems))
    left: dict[str, int] = {}
    counts: list[int] = []
    drawn: dict[str, list[tuple[float, float, float]]] = {name: [] for name in asked.systems}
    for instances in range(asked.least, MOST + 1, asked.step):
        row = []
        counts.append(instances)
        for name in asked.systems:
            rng = np.random.default_rng(instances)
            warm = 20 * instances
            count = warm + asked.requests
            at_us = np.cumsum(rng.exponential(1e6 / asked.rate, count)).astype(np.int64)
            who = rng.integers(0, instances, count)
            served = serve(name, [asked.network] * instances, at_us, who, first=warm)
            row.append(f"{served.p99_ms:11.1f} {served.goodput():7.2%} {served.loads / count:6.1%}")
            drawn[name].append((served.p99_ms, served.goodput(), served.loads / count))
            if served.p99_ms * 1e3 > SLO_US:
                left.setdefault(name, instances)
        print(f"{instances:9d}" + "".join(row), flush=True)
        if all(name in left for name in PAPERS if name in asked.systems) and instances >= 2 * min(
            left.values()
        ):
            break
    for name in asked.systems:
        paper = f" (paper: {PAPER[name]})" if name in PAPER and asked.network == "bert-base" else ""
        print(f"{name:14s} p99 leaves 100 ms at {left.get(name, f'more than {instances}')}{paper}")
    if asked.plot:
        plot(f"{asked.network}, {asked.rate:g}/s", counts, drawn, asked.plot)


def plot(
    title: str,
    counts: Sequence[int],
    drawn: dict[str, list[tuple[float, float, float]]],
    path: Path,
) -> None:
    """Over instances: p99, goodput, and the part of requests that are starts."""

    def paint(axes: Sequence[Any]) -> None:
        for at, label in enumerate(
            ("p99, ms", "goodput within 100 ms, %", "starts, % of requests")
        ):
            for name, rows in drawn.items():
                scale = 100 if at else 1
                values = [scale * row[at] for row in rows]
                colour = COLOURS.get(name)
                axes[at].plot(counts, values, marker="o", ms=3, label=name, color=colour)
            axes[at].set(title=title if not at else "", xlabel="instances", ylabel=label)
        axes[0].axhline(SLO_US / 1e3, color="black", lw=0.8, ls=":")
        axes[0].set(yscale="log")
        axes[1].set(ylim=(0, 102))

    draw(path, 3, paint)


if __name__ == "__main__":
    main()
