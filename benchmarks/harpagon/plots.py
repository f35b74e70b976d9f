"""Figures 5 to 12 of the paper as SVG files: ours, and the paper's where it prints a number."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harpagon.figures import (
    LATENCY_7A,
    LEFT_10,
    MODULES_7B,
    MODULES_11,
    THROUGHPUT_9,
    Runs,
    extra_latency,
    left_over,
    lower,
)
from benchmarks.harpagon.fit import ABLATIONS, BASELINES
from benchmarks.harpagon.runs import extra
from benchmarks.harpagon.workloads import Workload
from benchmarks.ppipe.plots import draw

COST = "cost / harpagon's"
LATENCY = "worst case / harpagon's"
THROUGHPUT = "throughput per price / harpagon's"


def plot(runs: Runs, workloads: Sequence[Workload], folder: Path) -> None:
    """Write every figure to `folder`; 5b, 8a and 12 are distributions, the others bars."""
    systems = ("least-cost", *BASELINES)

    def throughput(name: str, app: str, module: str) -> float:
        return 1 + lower(runs, name, app, module, workloads)

    def save(figure: str, paint: Callable[[Any], None], width: float = 4.0) -> None:
        draw(folder / f"fig{figure}.svg", 1, lambda axes: paint(axes[0]), width=width)

    save("5a", lambda axis: _bars(axis, _means(runs, systems), {}, COST))
    save("5b", lambda axis: _curves(axis, runs, systems))
    save(
        "6",
        lambda axis: _bars(axis, _means(runs, tuple(ABLATIONS)), _factors(ABLATIONS), COST),
        width=8,
    )
    latencies = {name: 1 + extra_latency(runs, name) for name in LATENCY_7A}
    save("7a", lambda axis: _bars(axis, latencies, _factors(LATENCY_7A), LATENCY))
    modules = {
        f"{module} {name[5:]}": throughput(name, "traffic", module)
        for module in MODULES_7B
        for name in LATENCY_7A
    }
    save("7b", lambda axis: _bars(axis, modules, {}, THROUGHPUT))
    save("8a", lambda axis: _curves(axis, runs, ("harp-1c", "harp-2c")))
    single = {name: throughput(name, "traffic", "detect") for name in THROUGHPUT_9}
    save("9", lambda axis: _bars(axis, single, _factors(THROUGHPUT_9), THROUGHPUT))
    left = {name: left_over(runs, name, workloads) for name in LEFT_10}
    save("10", lambda axis: _bars(axis, left, LEFT_10, "remaining budget / harpagon's"))
    by_throughput = {module: throughput("harp-tb", "pose", module) for module in MODULES_11}
    save("11", lambda axis: _bars(axis, by_throughput, {}, f"harp-tb: {THROUGHPUT}"))
    save("12", lambda axis: _curves(axis, runs, ("harp-q0.01", "harp-q0.1")))


def _means(runs: Runs, names: Sequence[str]) -> dict[str, float]:
    base = runs["harpagon"]
    return {name: 1 + float(np.nanmean(extra(runs[name], base))) for name in names}


def _factors(percents: Mapping[str, float]) -> dict[str, float]:
    return {name: 1 + value / 100 for name, value in percents.items()}


def _bars(axis: Any, ours: Mapping[str, float], paper: Mapping[str, float], label: str) -> None:
    places = np.arange(len(ours))
    aside = 0.2 if paper else 0.0
    axis.bar(places - aside, list(ours.values()), 0.4, label="ours", color="#2b6cb0")
    if paper:
        told = [place for place, name in zip(places, ours, strict=True) if name in paper]
        theirs = [paper[name] for name in ours if name in paper]
        axis.bar(np.array(told) + aside, theirs, 0.4, label="paper", color="#9aa5b1")
    axis.axhline(1, color="#4a5568", linewidth=0.8)
    axis.set_xticks(places, list(ours), rotation=60, fontsize="small")
    axis.set_ylabel(label, fontsize="small")


def _curves(axis: Any, runs: Runs, names: Sequence[str]) -> None:
    for name in names:
        costs = 1 + extra(runs[name], runs["harpagon"])
        costs = np.sort(costs[~np.isnan(costs)])
        axis.plot(costs, np.arange(1, len(costs) + 1) / len(costs), label=name)
    axis.set_xlabel(COST)
    axis.set_ylabel("part of workloads")
