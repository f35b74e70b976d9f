"""A profile as a picture: latency and throughput over batch size and over share of the device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.domain.errors import DocumentError
from headrace.domain.profile import Profile
from headrace.profiling.share_curves import ShareCurve, share_curves

MOST_LINES = 8
"""Of one panel; of more batch sizes every so many are drawn."""


def check_plots() -> None:
    """
    Raises:
        DocumentError: what draws is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DocumentError(
            "--plot: drawing needs matplotlib, which is not installed; pip install 'headrace[plot]'"
        ) from error


def plot_profile(profile: Profile, device: str, path: Path) -> None:
    """Write an SVG file; equal profiles give equal files.

    Two panels over the batch size, one line per share; of several shares two more over the share,
    one line per batch size, with the knees of throughput marked.

    Args:
        device: that the profile has times of.
        path: written as PNG if it is named so, else as SVG.

    Raises:
        DocumentError: matplotlib is not installed, or the file cannot be written.
    """
    check_plots()
    import matplotlib

    matplotlib.use("svg")
    # Otherwise two runs differ in their identifiers and date alone.
    matplotlib.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    curves = share_curves(profile, device)
    several = max(len(curve.points) for curve in curves) > 1
    panels = 4 if several else 2
    figure, axes = pyplot.subplots(1, panels, figsize=(4 * panels, 3.4), layout="constrained")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    _over_batch_sizes(axes[0], axes[1], curves, device)
    if several:
        _over_shares(axes[2], axes[3], curves, device)
    machine = profile.provenance.machine
    figure.suptitle(f"{profile.model} on {device}" + (f" ({machine})" if machine else ""))
    try:
        kind = "png" if path.suffix.lower() == ".png" else "svg"
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else {})
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        pyplot.close(figure)


def _over_batch_sizes(
    latency: Any, throughput: Any, curves: Sequence[ShareCurve], device: str
) -> None:
    for share in sorted({point.share for curve in curves for point in curve.points}):
        known = [
            (curve.batch_size, point)
            for curve in curves
            for point in curve.points
            if point.share == share
        ]
        sizes = [size for size, _ in known]
        line = f"{share} of {device}"
        latency.plot(sizes, [p.p50_us / 1000 for _, p in known], marker="o", ms=3, label=line)
        throughput.plot(sizes, [p.throughput_rps for _, p in known], marker="o", ms=3, label=line)
    for axis, what in ((latency, "p50 of a batch, ms"), (throughput, "requests/s")):
        axis.set(xlabel="batch size", ylabel=what, ylim=(0, None))
    latency.legend(fontsize="small", frameon=False)


def _over_shares(latency: Any, throughput: Any, curves: Sequence[ShareCurve], device: str) -> None:
    step = -(-len(curves) // MOST_LINES)
    for curve in curves[::step]:
        shares = [float(point.share) for point in curve.points]
        rates = [point.throughput_rps for point in curve.points]
        line = f"batch {curve.batch_size}"
        latency.plot(
            shares, [point.p50_us / 1000 for point in curve.points], marker="o", ms=3, label=line
        )
        [drawn] = throughput.plot(shares, rates, marker="o", ms=3, label=line)
        if curve.knee is not None:
            at = shares[curve.knee], rates[curve.knee]
            throughput.plot(*at, "o", ms=9, mfc="none", color=drawn.get_color())
    for axis, what in ((latency, "p50 of a batch, ms"), (throughput, "requests/s; o: knee")):
        axis.set(xlabel=f"share of {device}", ylabel=what, xlim=(0, None), ylim=(0, None))
    latency.legend(fontsize="small", frameon=False)
