"""Figure 14: how planning time grows with devices and device types; and Gurobi's times beside ours.

    python -m benchmarks.ppipe.fig14 [--rule artifact|free] [--only solve|large|types] [--json]

Problems and timing are those of `benchmarks.ppipe.planning`; the paper does not state the counts of
its figure 14, so clusters are like its own, not the same. Its times are Gurobi's, on its authors'
machine; ours are CPU seconds of one thread, profiles in memory.
"""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.command_line import new_parser
from benchmarks.ppipe import paper
from benchmarks.ppipe.experiment import note, reference_or_skip, show
from benchmarks.ppipe.planning_rows import Row, instances, scaling
from benchmarks.ppipe.plots import COLOURS, draw

from headrace.commands.progress import counting

PARTS = ("solve", "large", "types")


def rows_of(folder: Path, parts: list[str], rule: str) -> list[Row]:
    """Every instance of these parts, solved once the compiled code is loaded."""
    published = [i for name in ("maf19", "ablation") for i in instances(folder, name)]
    todo = published if "solve" in parts else []
    todo += [instance for instance in scaling(folder) if instance.plan_set in parts]
    published[0].solve(rule)
    rows = []
    with counting("plans", len(todo), redraws_per_s=2.0) as progress:
        for instance in todo:
            rows.append(instance.solve(rule))
            progress(len(rows))
    return rows


def summary(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """One line per kind of problem; seconds."""
    for label, kind, members in _kinds(rows):
        gurobi = [row.reference_s for row in members if row.reference_s is not None]
        yield {
            "problems": label,
            "count": len(members),
            "paper s": paper.SOLVER_S.get(kind) if kind else None,
            "artifact s, median": _seconds(median(gurobi) if gurobi else None),
            "artifact s, most": _seconds(max(gurobi, default=None)),
            "ours s, median": _seconds(median(row.cpu_s for row in members)),
            "ours s, most": _seconds(max(row.cpu_s for row in members)),
            "proven": f"{sum(row.proven for row in members)}/{len(members)}",
            "largest gap": f"{max(row.gap for row in members):.2%}",
        }


def _kinds(rows: list[Row]) -> Iterator[tuple[str, int, list[Row]]]:
    """(Label, device types if the paper states a time for them or 0, members)."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        sized = re.match(r"\s*([\d,]+) GPUs", row.name)
        typed = re.match(r"(\d) types, (\d) stages", row.name)
        if sized:
            key = f"{sized[1]} GPUs, 2 types", 0
        elif typed:
            key = f"100 GPUs, {typed[1]} types, {typed[2]} stages", int(typed[1])
        else:
            key = (
                {"maf19": "100 GPUs, 2 types, 2 stages", "ablation": "ablation, 3 stages"}.get(
                    row.plan_set, row.plan_set
                ),
                2 * (row.plan_set == "maf19"),
            )
        groups.setdefault(key, []).append(row)
    for (label, kind), members in groups.items():
        yield label, kind, members


def paint(axes: Any, rows: list[Row], parts: list[str]) -> None:
    for axis, part in zip(axes, parts, strict=True):
        axis.set_yscale("log")
        axis.set_ylabel("seconds")
        if part == "solve":
            known = [row for row in rows if row.reference_s is not None]
            axis.scatter(
                [row.reference_s for row in known],
                [row.cpu_s for row in known],
                s=12,
                color=COLOURS["ours"],
            )
            axis.plot([1, 2000], [1, 2000], color="black", linewidth=0.5)
            axis.set(xscale="log", xlabel="Gurobi, as published: seconds", ylabel="ours: seconds")
            continue
        mine = [(label, kind, m) for label, kind, m in _kinds(rows) if m[0].plan_set == part]
        for at, (_, kind, members) in enumerate(mine):
            times = [row.cpu_s for row in members]
            axis.scatter([at] * len(times), times, s=12, color=COLOURS["ours"])
            if kind in paper.SOLVER_S:
                axis.scatter([at], [paper.SOLVER_S[kind]], marker="x", color=COLOURS["ppipe"])
        labels = [label.replace(", ", "\n") for label, _, _ in mine]
        axis.set_xticks(range(len(mine)), labels, fontsize="x-small")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rule", choices=["artifact", "free"], default="artifact")
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--plot", default="fig14.svg", help="where to draw; `none`: nowhere")
    arguments: argparse.Namespace = parser.parse_args()
    parts = arguments.only or list(PARTS)
    rows = rows_of(reference_or_skip(), parts, arguments.rule)
    table = list(summary(rows))
    if arguments.json:
        print(json.dumps({"summary": table, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"planning time, rule {arguments.rule}: paper | artifact (Gurobi) | ours")
        show(table)
    path = None if arguments.plot == "none" else Path(arguments.plot)
    draw(path, len(parts), lambda axes: paint(axes, rows, parts))
    note("crosses in the plot: what the paper states for as many device types")


if __name__ == "__main__":
    main()
