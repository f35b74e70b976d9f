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
COUNTS = ("late", "late_possible")
"""From none to hundreds: on a logarithmic axis, linear up to one."""
COLUMNS = 3
"""Panels in a row: six beside each other are too small to read."""
AVERAGED_STEPS = 6
"""Of lines, so that six of them can be told apart: half a minute."""


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
                if field in COUNTS:
                    axis.set_yscale("symlog", linthresh=1)  # type: ignore[attr-defined]
                    axis.set_ylim(bottom=0)  # type: ignore[attr-defined]
                    axis.yaxis.set_major_formatter("{x:g}")  # type: ignore[attr-defined]

        draw(folder / f"{name}.svg", len(streams), paint, columns=COLUMNS)
    for name, field, label in (
        ("fig7", "active", "queries at work"),
        ("fig9", "working", "part of the places at work"),
    ):

        def lines(axes: Sequence[object], field: str = field, label: str = label) -> None:
            for axis, stream in zip(axes, streams, strict=True):
                for number, policy in enumerate(POLICIES_7):
                    heights = averaged(getattr(timelines[stream, policy], field))
                    at_s = STEP_S * AVERAGED_STEPS * (0.5 + np.arange(len(heights)))
                    # The first, which is ours, above the others.
                    thick, above = (1.8 if number == 0 else 1.0), 10 - number
                    axis.plot(  # type: ignore[attr-defined]
                        at_s, heights, label=policy, lw=thick, zorder=above
                    )
                axis.set_title(f"stream {stream}")  # type: ignore[attr-defined]
                axis.set_xlabel("s")  # type: ignore[attr-defined]
                axis.set_ylabel(label)  # type: ignore[attr-defined]

        draw(folder / f"{name}.svg", len(streams), lines, columns=COLUMNS)


def averaged(heights: Sequence[float]) -> list[float]:
    """Means of AVERAGED_STEPS; the last of those that are left."""
    return [
        float(np.mean(heights[i : i + AVERAGED_STEPS]))
        for i in range(0, len(heights), AVERAGED_STEPS)
    ]
