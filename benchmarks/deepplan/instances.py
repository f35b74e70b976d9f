"""Instances beyond memory under Poisson arrivals (Figures 13 and 14).

python -m benchmarks.deepplan.instances [--network bert-base --rate 100] [--requests 20000]
    [--slo-ms 100] [--plot FILE]

One network, its requests spread evenly over all instances. A system leaves its objective at the
first number of instances whose p99 is above it: 100 ms in Figure 13. The paper's figures are of
1,000 requests. Figure 14 (BERT-Large at 30 requests/s, GPT-2 at 90) shows p99 alone and states no
objective; one start of BERT-Large by PipeSwitch is above 100 ms in the paper, too (122 ms), so
that plans for it need a longer one.
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
    parser.add_argument("--slo-ms", type=float, default=SLO_US / 1e3)
    parser.add_argument("--from", dest="least", type=int, default=80)
    parser.add_argument("--step", type=int, default=STEP)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the three figures there")
    asked = parser.parse_args()
    slo_us = round(asked.slo_ms * 1e3)
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
            served = serve(name, [asked.network] * instances, at_us, who, first=warm, slo_us=slo_us)
            good, starts = served.goodput(slo_us), served.loads / count
            row.append(f"{served.p99_ms:11.1f} {good:7.2%} {starts:6.1%}")
            drawn[name].append((served.p99_ms, good, starts))
            if served.p99_ms * 1e3 > slo_us:
                left.setdefault(name, instances)
        print(f"{instances:9d}" + "".join(row), flush=True)
        if all(name in left for name in PAPERS if name in asked.systems) and instances >= 2 * min(
            left.values()
        ):
            break
    for name in asked.systems:
        of_figure_13 = asked.network == "bert-base" and slo_us == SLO_US
        paper = f" (paper: {PAPER[name]})" if name in PAPER and of_figure_13 else ""
        where = left.get(name, f"more than {instances}")
        print(f"{name:14s} p99 leaves {asked.slo_ms:g} ms at {where}{paper}")
    if asked.plot:
        plot(f"{asked.network}, {asked.rate:g}/s", counts, drawn, asked.slo_ms, asked.plot)


def plot(
    title: str,
    counts: Sequence[int],
    drawn: dict[str, list[tuple[float, float, float]]],
    slo_ms: float,
    path: Path,
) -> None:
    """Over instances: p99, goodput, and the part of requests that are starts."""

    def paint(axes: Sequence[Any]) -> None:
        for at, label in enumerate(
            ("p99, ms", f"goodput within {slo_ms:g} ms, %", "starts, % of requests")
        ):
            for name, rows in drawn.items():
                scale = 100 if at else 1
                values = [scale * row[at] for row in rows]
                colour = COLOURS.get(name)
                axes[at].plot(counts, values, marker="o", ms=3, label=name, color=colour)
            axes[at].set(title=title if not at else "", xlabel="instances", ylabel=label)
        axes[0].axhline(slo_ms, color="black", lw=0.8, ls=":")
        axes[0].set(yscale="log")
        axes[1].set(ylim=(0, 102))

    draw(path, 3, paint)


if __name__ == "__main__":
    main()
