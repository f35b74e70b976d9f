"""Figures 5 to 12 of the paper as tables: (what, the paper's figure, ours)."""

from collections.abc import Mapping, Sequence

import numpy as np
from benchmarks.harpagon.runs import Floats, Run, extra, throughput_per_price
from benchmarks.harpagon.workloads import Workload

from headrace.domain.plan import Reading
from headrace.planning.apps.candidates import worst_case_us
from headrace.planning.apps.module_scheduling import Schedule, remaining_rps

Row = tuple[str, str, str]
"""(what, paper, ours), as text."""

Runs = Mapping[str, Run]

BASELINES = ("nexus", "scrooge", "inferline", "clipper")

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

SAME = 1e-9


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def share(mask: "np.ndarray") -> str:
    return f"{100 * np.mean(mask):.1f} %"


def figure_5(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Baselines and the optimum against harpagon."""
    harpagon, least = runs["harpagon"], runs["least-cost"]
    gap = extra(harpagon, least)
    rows = []
    for name in BASELINES:
        over = extra(runs[name], harpagon)
        mean, most = percent(float(np.nanmean(over))), percent(float(np.nanmax(over)))
        rows.append((f"5a {name}: extra over harpagon, mean", "+49.3 to +137.2 %", mean))
        rows.append((f"5a {name}: most", "+91.3 to +220.0 %", most))
        rows.append((f"5b {name}: 10th, 50th, 90th percentile", "(curve)", quantiles(over)))
        rows.append(
            (
                f"5  {name}: extra over least-cost, mean",
                "not given",
                percent(float(np.nanmean(extra(runs[name], least)))),
            )
        )
        rows.append((f"5  {name}: finds no plan", "0.0 %", share(np.isnan(runs[name].cost))))
    rows.append(("5a harpagon at the optimum", "91.5 %", share(gap < SAME)))
    rows.append(("5a harpagon over the optimum, most", "+12.1 %", percent(float(np.nanmax(gap)))))
    rows.append(("5a harpagon over the optimum, mean", "not given", percent(float(np.mean(gap)))))
    rows.append(("5  harpagon, mean runtime", "5 ms", f"{harpagon.runtime_ms.mean():.2f} ms"))
    rows.append(("5  optimum, mean runtime", "35,900 ms", f"{least.runtime_ms.mean():.2f} ms"))
    return rows


def figure_6(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Every ablation against harpagon."""
    return [
        (
            f"6  {name}: extra over harpagon, mean",
            f"{paper:+.1f} %",
            percent(float(np.nanmean(extra(runs[name], runs["harpagon"]))))
            + _unplanned(runs[name]),
        )
        for name, paper in ABLATIONS.items()
    ]


def _unplanned(run: Run) -> str:
    missing = float(np.mean(np.isnan(run.cost)))
    return f" ({100 * missing:.1f} % without a plan)" if missing else ""


def figure_7(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Worst cases of harp-2d's machines under each dispatch; throughput of three modules."""
    ratios: dict[Reading, list[float]] = {"twice": [], "group": []}
    for found in runs["harp-2d"].modules:
        for schedule in found or ():
            ours = _worst(schedule, "remaining")
            for reading, values in ratios.items():
                values.append(_worst(schedule, reading) / ours - 1)
    rows = [
        ("7a 2d: extra worst case", "+90.4 %", percent(float(np.mean(ratios["twice"])))),
        ("7a dt: extra worst case", "+42.8 %", percent(float(np.mean(ratios["group"])))),
    ]
    for module in ("detect", "vehicle", "pedestrian"):
        for name, paper in (("harp-2d", "-40.7 to -45.6 %"), ("harp-dt", "-22.7 to -28.0 %")):
            what = f"7b {name}: throughput of traffic/{module}"
            rows.append((what, paper, _lower(runs, name, "traffic", module, workloads)))
    return rows


def _worst(schedule: Schedule, reading: Reading) -> int:
    left = remaining_rps(schedule.entries)
    return max(
        worst_case_us(reading, entry.candidate, w, entry.machines)
        for entry, w in zip(schedule.entries, left, strict=True)
    )


def _lower(runs: Runs, name: str, app: str, module: str, workloads: Sequence[Workload]) -> str:
    ours = throughput_per_price(runs["harpagon"], app, module, workloads)
    theirs = throughput_per_price(runs[name], app, module, workloads)
    return percent(float(np.nanmean(theirs / ours) - 1))


def figure_8(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """One and two configurations per module."""
    one, two = (extra(runs[name], runs["harpagon"]) for name in ("harp-1c", "harp-2c"))
    more = [any(configurations(s) > 2 for s in found or ()) for found in runs["harpagon"].modules]
    return [
        ("8a harp-1c: most extra", "+178.6 %", percent(float(np.nanmax(one)))),
        ("8a harp-1c: 10th, 50th, 90th percentile", "(curve)", quantiles(one)),
        ("8a harp-2c: as cheap as harpagon", "67.6 %", share(two < SAME)),
        ("8a harp-2c: most extra", "+29.0 %", percent(float(np.nanmax(two)))),
        ("8  workloads with more than two configurations", "32.4 %", share(np.array(more))),
        (
            "8b harp-1c: throughput of traffic/detect",
            "-45.0 %",
            _lower(runs, "harp-1c", "traffic", "detect", workloads),
        ),
        (
            "8b harp-2c: throughput of traffic/detect",
            "second configuration -26.1 %",
            _lower(runs, "harp-2c", "traffic", "detect", workloads),
        ),
    ]


def configurations(schedule: Schedule) -> int:
    return len({id(entry.candidate) for entry in schedule.entries})


def figure_9(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Without batching; on the cheapest, on the dearest devices alone."""
    papers = (("harp-nb", "-68.0 %"), ("harp-nhc", "-31.2 %"), ("harp-nhe", "-7.2 %"))
    return [
        (
            f"9  {name}: throughput of traffic/detect",
            paper,
            _lower(runs, name, "traffic", "detect", workloads),
        )
        for name, paper in papers
    ]


def figure_10(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Budget that is left over, against harpagon's."""
    left = {name: _left(runs[name], workloads) for name in ("harpagon", "harp-0re", "harp-1re")}
    rows = [
        (
            f"10 {name}: remaining budget, of harpagon's",
            paper,
            f"{np.nanmean(left[name]) / np.nanmean(left['harpagon']):.2f} x",
        )
        for name, paper in (("harp-0re", "2.93 x"), ("harp-1re", "1.14 x"))
    ]
    times = [detail.reassigned > 0 for detail in runs["harpagon"].details if detail]
    rows.append(("10 workloads whose budget is reassigned", "23.0 %", share(np.array(times))))
    dummies = [any(s.dummy_rps for s in found or ()) for found in runs["harpagon"].modules]
    rows.append(("6  workloads with dummy load", "15.8 %", share(np.array(dummies))))
    return rows


def _left(run: Run, workloads: Sequence[Workload]) -> Floats:
    return np.array(
        [
            w.slo_us - detail.path_us(w.case) if detail else np.nan
            for w, detail in zip(workloads, run.details, strict=True)
        ]
    )


def figure_11(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """A three-module app split by throughput."""
    rows = [
        (
            f"11 harp-tb: throughput of pose/{module}",
            "(bars)",
            _lower(runs, "harp-tb", "pose", module, workloads),
        )
        for module in ("detect", "pose", "activity")
    ]
    for name, paper in (("harpagon", "10.9"), ("harp-tb", "3.2")):
        moves = [detail.iterations for detail in runs[name].details if detail]
        rows.append((f"11 {name}: moves of the split, mean", paper, f"{np.mean(moves):.1f}"))
    return rows


def figure_12(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Quantised splitting."""
    fine, coarse = (extra(runs[name], runs["harpagon"]) for name in ("harp-q0.01", "harp-q0.1"))
    return [
        ("12 harp-q0.01: most extra", "+24.4 %", percent(float(np.nanmax(fine)))),
        ("12 harp-q0.01: cheaper than harpagon", "7.3 %", share(fine < -SAME)),
        ("12 harp-q0.01: dearer than harpagon", "23.3 %", share(fine > SAME)),
        ("12 harp-q0.1: most extra", "+65.5 %", percent(float(np.nanmax(coarse)))),
        ("12 harp-q0.01: 10th, 50th, 90th percentile", "(curve)", quantiles(fine)),
        ("12 harp-q0.1: 10th, 50th, 90th percentile", "(curve)", quantiles(coarse)),
        (
            "12 harp-q0.01: mean runtime",
            "2,839 ms",
            f"{runs['harp-q0.01'].runtime_ms.mean():.1f} ms",
        ),
    ]


def quantiles(values: Floats) -> str:
    return ", ".join(percent(float(q)) for q in np.nanpercentile(values, [10, 50, 90]))


FIGURES = (
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_9,
    figure_10,
    figure_11,
    figure_12,
)
