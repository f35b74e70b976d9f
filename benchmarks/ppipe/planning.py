"""Planning: published plan | rule artifact | rule free, for every published problem of PPipe.

    python -m benchmarks.ppipe.planning [--rule both|artifact|free] [--set maf19 ...] [--json]
    python -m benchmarks.ppipe.planning --scaling [--rule ...] [--only large|types] [--json]

The published plans are Gurobi's, found on their authors' machine, some stopped after 1,800 s.
Ours are solved on one thread, profiles in memory: by the same accounting with rule `artifact`
(`artifact.planner`), both objectives recomputed from the profiles; with rule `free` by
`--planner pooled` on the imported problem, slots placed and the plan verified.

`--scaling` plans the six groups of models of the main experiment instead, weights 0.3 / 0.33 /
0.37, 10 Gbps: two device types from 1,000 to 100,000 GPUs, three and four types with 100 GPUs (the
paper's figure 14 does not state its counts, so it is like it, not the same).
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.ppipe.planning_rows import Instance, Row, instances, scaling
from benchmarks.ppipe.planning_verdicts import verdicts
from benchmarks.ppipe.reference import required_reference

WIDTH = 58


def main() -> None:
    arguments = _arguments()
    folder = required_reference()
    rules = ["artifact", "free"] if arguments.rule == "both" else [arguments.rule]
    # Compiled code is loaded, or compiled for the first time, before the clock runs.
    warm = next(instances(folder, "maf19"))
    for rule in rules:
        warm.solve(rule)
    rows: list[Row] = []
    if not arguments.json:
        print(_header(rules))
    for instance in _asked(arguments):
        mine = [instance.solve(rule) for rule in rules]
        rows += mine
        if not arguments.json:
            print(_line(mine), flush=True)
    if arguments.json:
        entries = {
            "rows": [asdict(row) for row in rows],
            "verdicts": [asdict(verdict) for verdict in verdicts(rows)],
        }
        print(json.dumps(entries, indent=2))
        return
    print()
    for verdict in verdicts(rows):
        word = "kept  " if verdict.held else "MISSED"
        print(f"{word} {verdict.what}\n         target {verdict.target}: {verdict.measured}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", dest="sets", help="maf19, ablation [both]")
    parser.add_argument("--rule", choices=["both", "artifact", "free"], default="both")
    parser.add_argument("--scaling", action="store_true", help="more devices and more types")
    parser.add_argument("--only", choices=["large", "types"], help="of --scaling")
    parser.add_argument("--match", default="", help="only instances whose name has this")
    parser.add_argument("--json", action="store_true", help="rows and verdicts on stdout")
    return parser.parse_args()


def _asked(arguments: argparse.Namespace) -> list[Instance]:
    folder = required_reference()
    if arguments.scaling:
        found = [i for i in scaling(folder) if arguments.only in (None, i.plan_set)]
    else:
        sets = arguments.sets or ["maf19", "ablation"]
        found = [i for name in sets for i in instances(folder, name)]
    return [instance for instance in found if arguments.match in instance.name]


def _header(rules: Sequence[str]) -> str:
    ours = " | ".join(f"{f'rule {rule}':>15} {'':>9} {'CPU s':>6}" for rule in rules)
    ratio = " | free / artifact" if len(rules) == 2 else ""
    return f"{'instance':{WIDTH}} {'published':>10} {'Gurobi s':>8} | {ours}{ratio}"


def _line(rows: Sequence[Row]) -> str:
    first = rows[0]
    reference = f"{first.reference:10.3f}" if first.reference is not None else f"{'':10}"
    seconds = f"{first.reference_s:8.1f}" if first.reference_s is not None else f"{'':8}"
    ours = " | ".join(
        f"{row.ours:15.3f} {'proven' if row.proven else f'+{row.gap:.3%}':>9} {row.cpu_s:6.3f}"
        for row in rows
    )
    ratio = f" | {rows[1].ours / rows[0].ours:.4f}" if len(rows) == 2 and rows[0].ours else ""
    return f"{first.name:{WIDTH}} {reference} {seconds} | {ours}{ratio}"


if __name__ == "__main__":
    main()
