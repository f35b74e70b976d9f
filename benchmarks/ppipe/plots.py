"""Plots as SVG files, equal for equal numbers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ppipe.experiment import note

COLOURS = {
    "np": "#9aa5b1",
    "dart-r": "#e0a526",
    "ppipe": "#2b6cb0",
    "reactive": "#c05621",
    "reactive-shuffled": "#dd8a57",
    "reactive-fair": "#f0bd99",
    "ours-reactive": "#d69e2e",
    "ours": "#2f855a",
    "ours-plan": "#68d391",
    "Baseline": "#9aa5b1",
    "PipeSwitch": "#e0a526",
    "DHA": "#63b3ed",
    "PT": "#dd8a57",
    "PT+DHA": "#2b6cb0",
    "exact": "#2f855a",
    "exact+pt": "#68d391",
}
"""One colour per system in every plot."""


def draw(
    path: Path | None,
    panels: int,
    paint: Callable[[Sequence[Any]], None],
    *,
    width: float = 4.0,
    columns: int | None = None,
) -> None:
    """Make axes, let `paint` fill them, and write them to `path`.

    Args:
        columns: axes in a row; None: all.
    """
    if path is None:
        return
    try:
        import matplotlib
    except ImportError:
        note("skipped: the plot (matplotlib is absent: pip install 'headrace[bench]')")
        return
    matplotlib.use("svg")
    # Otherwise two runs differ in their identifiers and date alone.
    matplotlib.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    columns = min(columns or panels, panels)
    rows = -(-panels // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(width * columns, 3.4 * rows), squeeze=False, layout="constrained"
    )
    axes = list(grid.flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    for axis in axes[panels:]:
        axis.set_visible(False)
    paint(axes[:panels])
    # Beneath, where it covers nothing; every panel shows the same systems.
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=len(labels), fontsize="small"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    note(f"drawn: {path}")


def bars(axis: Any, groups: Sequence[str], values: Mapping[str, Sequence[float | None]]) -> None:
    """One bar per group and system, side by side."""
    width = 0.8 / max(1, len(values))
    for at, (system, heights) in enumerate(values.items()):
        places = [i + (at - (len(values) - 1) / 2) * width for i in range(len(groups))]
        axis.bar(
            places,
            [0.0 if h is None else h for h in heights],
            width,
            label=system,
            color=COLOURS.get(system),
        )
    axis.set_xticks(range(len(groups)), groups)


def lines(axis: Any, x: Sequence[float], values: Mapping[str, Sequence[float | None]]) -> None:
    """One line per system; gaps where there is no value."""
    for system, y in values.items():
        heights = [float("nan") if value is None else value for value in y]
        axis.plot(x, heights, marker=".", label=system, color=COLOURS.get(system))
