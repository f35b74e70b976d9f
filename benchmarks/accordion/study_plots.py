"""Figures 5 to 9 of Accordion's study, drawn."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.accordion.simulated import POLICIES
from benchmarks.accordion.streams import SLOS
from benchmarks.accordion.study import Row, mean
from benchmarks.accordion.timelines import POLICIES_7, STEP_S, Timelines
from benchmarks.ppipe.plots import bars, draw

FIGURES = {
    "fig5": ("latency_s", "mean latency, s"),
    "fig6": ("late", "queries late"),
    "fig6-possible": ("late_possible", "late that could be in time"),
    "fig8": ("answered_rps", "answered per second"),
}


def plot(rows: Sequence[Row], streams: Sequence[int], timelines: Timelines, folder: Path) -> None:
    """Bars with a panel per stream and a group per SLO; lines with a panel per stream."""
    for name, (field, label) in FIGURES.items():

        def paint(axes: Sequence[object], field: str = field, label: str = label) -> None:
            for axis, stream in zip(axes, streams, strict=True):
                shown = {
                    policy: [mean(rows, policy, field, stream=stream, slo=slo) for slo in SLOS]
                    for policy in POLICIES
                    if not policy.endswith("-all")
                }
                bars(axis, list(SLOS), shown)
                axis.set_title(f"stream {stream}")  # type: ignore[attr-defined]
                axis.set_ylabel(label)  # type: ignore[attr-defined]

        draw(folder / f"{name}.svg", len(streams), paint)
    for name, field, label in (
        ("fig7", "active", "queries at work"),
        ("fig9", "working", "part of the places at work"),
    ):

        def lines(axes: Sequence[object], field: str = field, label: str = label) -> None:
            for axis, stream in zip(axes, streams, strict=True):
                for policy in POLICIES_7:
                    heights = getattr(timelines[stream, policy], field)
                    at_s = STEP_S * np.arange(len(heights))
                    axis.plot(at_s, heights, label=policy, lw=0.8)  # type: ignore[attr-defined]
                axis.set_title(f"stream {stream}")  # type: ignore[attr-defined]
                axis.set_xlabel("s")  # type: ignore[attr-defined]
                axis.set_ylabel(label)  # type: ignore[attr-defined]

        draw(folder / f"{name}.svg", len(streams), lines)
