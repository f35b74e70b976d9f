"""Figures 5 to 12 of the paper as tables: (what, the paper's figure, ours).

Means over harpagon's cost count workloads without a plan as `fit` does.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from benchmarks.harpagon.fit import ABLATIONS, BASELINES, one_by_one, ratios
from benchmarks.harpagon.runs import Floats, Run, extra, throughput_per_price
from benchmarks.harpagon.workloads import Workload

from headrace.domain.plan import Reading
from headrace.planning.apps.candidates import worst_case_us
from headrace.planning.apps.heuristics.schemes import SCHEMES
from headrace.planning.apps.machines import Schedule, remaining_rps

Row = tuple[str, str, str]
"""(what, paper, ours), as text."""

Runs = Mapping[str, Run]

SAME = 1e-9


def percent(value: float) -> str:
    return "none" if np.isnan(value) else f"{100 * value:+.1f} %"


def share(mask: "np.ndarray") -> str:
    return f"{100 * np.mean(mask):.1f} %"


def figure_5(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Baselines and the optimum against harpagon."""
    harpagon, least = runs["harpagon"], runs["least-cost"]
    gap = extra(harpagon, runs["harpagon-optimal"])
    fallback = one_by_one(workloads)
    rows = []
    for name in BASELINES:
        over = ratios(runs[name], harpagon, fallback) - 1
        mean, most = percent(_mean(over)), percent(_most(over))
        rows.append((f"5a {name}: extra over harpagon, mean", "+49.3 to +137.2 %", mean))
        rows.append((f"5a {name}: most", "+91.3 to +220.0 %", most))
        rows.append((f"5b {name}: 10th, 50th, 90th percentile", "(curve)", quantiles(over)))
        rows.append(
            (
                f"5  {name}: extra over least-cost, mean",
                "not given",
                percent(_mean(extra(runs[name], least))),
            )
        )
        rows.append((f"5  {name}: finds no plan", "0.0 %", share(np.isnan(runs[name].cost))))
    rows.append(("5a harpagon at the optimum", "91.5 %", share(gap < SAME)))
    rows.append(("5a harpagon over the optimum, most", "+12.1 %", percent(_most(gap))))
    rows.append(("5a harpagon over the optimum, mean", "not given", percent(_mean(gap))))
    rows.append(("5  harpagon, mean runtime", "5 ms", f"{harpagon.runtime_ms.mean():.2f} ms"))
    optimum = runs["harpagon-optimal"]
    rows.append(("5  optimum, mean runtime", "35,900 ms", f"{optimum.runtime_ms.mean():.2f} ms"))
    even = extra(least, harpagon)
    rows.append(
        ("5  least-cost (even load) over harpagon, mean", "not there", percent(_mean(even)))
    )
    return rows


def figure_6(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Every ablation against harpagon."""
    fallback = one_by_one(workloads)
    return [
        (
            f"6  {name}: extra over harpagon, mean",
            f"{paper:+.1f} %",
            percent(_mean(ratios(runs[name], runs["harpagon"], fallback) - 1))
            + _remarks(runs, name),
        )
        for name, paper in ABLATIONS.items()
    ]


def _mean(values: Floats) -> float:
    """Of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else float("nan")


def _most(values: Floats) -> float:
    """Of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(np.max(known)) if len(known) else float("nan")


def _remarks(runs: Runs, name: str) -> str:
    """How often an ablation is cheaper all the same, and finds no plan."""
    over = extra(runs[name], runs["harpagon"])
    parts = {"cheaper": np.mean(over < -SAME), "without a plan": np.mean(np.isnan(runs[name].cost))}
    said = [f"{100 * part:.1f} % {what}" for what, part in parts.items() if part]
    return f" ({', '.join(said)})" if said else ""


LATENCY_7A = {"harp-2d": 90.4, "harp-dt": 42.8}
"""The paper's extra worst case of both policies on the same machines, percent."""

MODULES_7B = ("detect", "vehicle", "pedestrian")


def figure_7(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Worst cases of harp-2d's machines under each dispatch; throughput of three modules."""
    rows = [
        (f"7a {name[5:]}: extra worst case", f"+{paper} %", percent(extra_latency(runs, name)))
        for name, paper in LATENCY_7A.items()
    ]
    for module in MODULES_7B:
        for name, paper_range in (("harp-2d", "-40.7 to -45.6 %"), ("harp-dt", "-22.7 to -28.0 %")):
            found = percent(lower(runs, name, "traffic", module, workloads))
            rows.append((f"7b {name}: throughput of traffic/{module}", paper_range, found))
    return rows


def extra_latency(runs: Runs, name: str) -> float:
    """Of harp-2d's machines under a scheme's dispatch, over that under harpagon's; a fraction."""
    reading = SCHEMES[name].reading
    schedules = [schedule for found in runs["harp-2d"].modules for schedule in found or ()]
    return float(np.mean([_worst(s, reading) / _worst(s, "remaining") - 1 for s in schedules]))


def _worst(schedule: Schedule, reading: Reading) -> int:
    left = remaining_rps(schedule.entries)
    return max(
        worst_case_us(reading, entry.candidate, w, entry.machines)
        for entry, w in zip(schedule.entries, left, strict=True)
    )


def lower(runs: Runs, name: str, app: str, module: str, workloads: Sequence[Workload]) -> float:
    """Mean throughput per price of a module against harpagon's, as a fraction below or above."""
    ours = throughput_per_price(runs["harpagon"], app, module, workloads)
    theirs = throughput_per_price(runs[name], app, module, workloads)
    return _mean(theirs / ours) - 1


def figure_8(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """One and two configurations per module."""
    one, two = (extra(runs[name], runs["harpagon"]) for name in ("harp-1c", "harp-2c"))
    more = [any(configurations(s) > 2 for s in found or ()) for found in runs["harpagon"].modules]
    return [
        ("8a harp-1c: most extra", "+178.6 %", percent(_most(one))),
        ("8a harp-1c: 10th, 50th, 90th percentile", "(curve)", quantiles(one)),
        ("8a harp-2c: as cheap as harpagon", "67.6 %", share(two < SAME)),
        ("8a harp-2c: most extra", "+29.0 %", percent(_most(two))),
        ("8  workloads with more than two configurations", "32.4 %", share(np.array(more))),
        (
            "8b harp-1c: throughput of traffic/detect",
            "-45.0 %",
            percent(lower(runs, "harp-1c", "traffic", "detect", workloads)),
        ),
        (
            "8b harp-2c: throughput of traffic/detect",
            "second configuration -26.1 %",
            percent(lower(runs, "harp-2c", "traffic", "detect", workloads)),
        ),
    ]


def configurations(schedule: Schedule) -> int:
    return len({id(entry.candidate) for entry in schedule.entries})


THROUGHPUT_9 = {"harp-nb": -68.0, "harp-nhc": -31.2, "harp-nhe": -7.2}
"""The paper's throughput of a module below harpagon's, percent."""


def figure_9(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Without batching; on the cheapest, on the dearest devices alone."""
    return [
        (
            f"9  {name}: throughput of traffic/detect",
            f"{paper} %",
            percent(lower(runs, name, "traffic", "detect", workloads)),
        )
        for name, paper in THROUGHPUT_9.items()
    ]


LEFT_10 = {"harp-0re": 2.93, "harp-1re": 1.14}
"""The paper's remaining budget, times harpagon's."""


def figure_10(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Budget that is left over, against harpagon's."""
    rows = [
        (
            f"10 {name}: remaining budget, of harpagon's",
            f"{paper} x",
            f"{left_over(runs, name, workloads):.2f} x",
        )
        for name, paper in LEFT_10.items()
    ]
    times = [detail.reassigned > 0 for detail in runs["harpagon"].details if detail]
    rows.append(("10 workloads whose budget is reassigned", "23.0 %", share(np.array(times))))
    dummies = [any(s.dummy_rps for s in found or ()) for found in runs["harpagon"].modules]
    rows.append(("6  workloads with dummy load", "15.8 %", share(np.array(dummies))))
    return rows


def left_over(runs: Runs, name: str, workloads: Sequence[Workload]) -> float:
    """Mean remaining budget, as a multiple of harpagon's."""
    return _mean(_left(runs[name], workloads)) / _mean(_left(runs["harpagon"], workloads))


def _left(run: Run, workloads: Sequence[Workload]) -> Floats:
    return np.array(
        [
            w.slo_us - detail.path_us(w.case) if detail else np.nan
            for w, detail in zip(workloads, run.details, strict=True)
        ]
    )


MODULES_11 = ("detect", "pose", "activity")


def figure_11(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """A three-module app split by throughput."""
    rows = [
        (
            f"11 harp-tb: throughput of pose/{module}",
            "(bars)",
            percent(lower(runs, "harp-tb", "pose", module, workloads)),
        )
        for module in MODULES_11
    ]
    for name, paper in (("harpagon", "10.9"), ("harp-tb", "3.2")):
        moves = [detail.iterations for detail in runs[name].details if detail]
        rows.append((f"11 {name}: moves of the split, mean", paper, f"{np.mean(moves):.1f}"))
    return rows


def figure_12(runs: Runs, workloads: Sequence[Workload]) -> list[Row]:
    """Quantised splitting."""
    fine, coarse = (extra(runs[name], runs["harpagon"]) for name in ("harp-q0.01", "harp-q0.1"))
    return [
        ("12 harp-q0.01: most extra", "+24.4 %", percent(_most(fine))),
        ("12 harp-q0.01: cheaper than harpagon", "7.3 %", share(fine < -SAME)),
        ("12 harp-q0.01: dearer than harpagon", "23.3 %", share(fine > SAME)),
        ("12 harp-q0.1: most extra", "+65.5 %", percent(_most(coarse))),
        ("12 harp-q0.01: 10th, 50th, 90th percentile", "(curve)", quantiles(fine)),
        ("12 harp-q0.1: 10th, 50th, 90th percentile", "(curve)", quantiles(coarse)),
        (
            "12 harp-q0.01: mean runtime",
            "2,839 ms",
            f"{runs['harp-q0.01'].runtime_ms.mean():.1f} ms",
        ),
    ]


def quantiles(values: Floats) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return "none"
    return ", ".join(percent(float(q)) for q in np.percentile(known, [10, 50, 90]))


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
