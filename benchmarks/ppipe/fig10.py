"""Figure 10: does reserving help? The same plans under reservation and reactive dispatch.

    python -m benchmarks.ppipe.fig10 [--seeds 3] [--json] [--jobs 2]

18 models, each alone on HC2 (25 L4, 75 T4), PPipe's published plans with a margin of 10 % and up to
three partitions. The reactive scheduler as shipped lists the slots of one network link after the
other; shuffled and in rounds over the links (fair) it is a stronger baseline. The plans of four
models need more than the links carry in the published simulator; the means are with and without
them. Lateness counts; the reactive scheduler is never late, it drops. `fluid` is no dispatcher: it
is an estimate of what the plan's capacity allows on the same arrivals.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.ppipe import paper
from benchmarks.ppipe.cases import ALGORITHMS, Case, short
from benchmarks.ppipe.experiment import Options, mean, options, reference_or_skip, report
from benchmarks.ppipe.fluid import capacity_rps
from benchmarks.ppipe.planning_rows import profiles_of
from benchmarks.ppipe.plots import bars, draw
from benchmarks.ppipe.reference import reference_plans
from benchmarks.ppipe.systems import REACTIVE, Load, hardware_of, largest_load
from benchmarks.studies import studied

FITS = 0.98
"""Of the planned throughput, at least, that links must carry."""

COMPARED = ("np", *REACTIVE, "ours-reactive", "ppipe", "ours", "fluid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One system on one model."""

    index: int
    """Of the case."""
    system: str
    load: Load
    seeds: int


@cache
def ablation_cases(folder: Path) -> list[Case]:
    plans = {
        name: reference_plans(folder, "ablation", ALGORITHMS[name]) for name in ("np", "ppipe")
    }
    return [
        Case(
            group="ablation",
            cluster="HC2",
            index=0,
            load_at_1_rps=int(ppipe.deployments[0].stated_rps),
            plans={"np": whole, "ppipe": ppipe},
            profiles=profiles_of(folder, ppipe),
        )
        for whole, ppipe in zip(plans["np"], plans["ppipe"], strict=True)
    ]


def artifact_figures(folder: Path) -> dict[tuple[str, str], float]:
    """(Model, algorithm) -> percent, of one run; lateness counted."""
    with (folder / "anchor.csv").open(newline="") as file:
        return {
            (row["dnn"], row["algo"]): 100 * float(row["max_lf_99_true"])
            for row in csv.DictReader(file)
            if row["experiment"] == "ablation"
        }


def load_percent(asked: Asked) -> float:
    """The mean over seeds."""
    case = ablation_cases(reference_or_skip())[asked.index]
    loads = [
        load.lateness_counted.load_factor
        for seed in range(asked.seeds)
        if (load := largest_load(case, asked.system, asked.load, seed)) is not None
    ]
    return 100 * sum(loads) / max(1, len(loads))


def measure(chosen: Options, todo: list[Case]) -> dict[tuple[str, str], float]:
    """(Model, system) -> percent, the mean over seeds."""
    asked = [
        Asked(index=index, system=system, load=chosen.load, seeds=chosen.seeds)
        for index in range(len(todo))
        for system in chosen.systems
    ]
    results = studied(chosen.running, "searches", load_percent, asked)
    return {
        (todo[task.index].model, task.system): percent
        for task, percent in zip(asked, results, strict=True)
    }


def table(
    chosen: Options,
    todo: list[Case],
    found: Mapping[tuple[str, str], float],
    artifact: Mapping[tuple[str, str], float],
) -> list[dict[str, Any]]:
    fitting = {
        case.model: capacity_rps(hardware_of(case, "ppipe")) >= FITS * case.load_at_1_rps
        for case in todo
    }
    rows = [
        {
            "model": short(case.model),
            "fits links": "yes" if fitting[case.model] else "no",
            "system": system,
            "paper": None,
            "artifact": artifact.get((case.model, system)),
            "ours": found[case.model, system],
        }
        for case in todo
        for system in chosen.systems
    ]
    for label, members in (
        (f"mean of {len(todo)}", list(fitting)),
        (f"mean of {sum(fitting.values())}", [model for model, fits in fitting.items() if fits]),
    ):
        whole = len(members) == len(todo)
        for system in chosen.systems:
            stated = mean(v for m in members if (v := artifact.get((m, system))) is not None)
            if system == "reactive-shuffled":
                stated = paper.ARTIFACT_SHUFFLED["18" if whole else "14"]
            rows.append(
                {
                    "model": label,
                    "fits links": "" if whole else "yes",
                    "system": system,
                    "paper": paper.ABLATION.get(system) if whole else None,
                    "artifact": stated,
                    "ours": mean(found[model, system] for model in members),
                }
            )
    return rows


def main() -> None:
    chosen = options(__doc__, "fig10", systems=COMPARED, in_parallel=True)
    folder = reference_or_skip()
    todo = ablation_cases(folder)
    found = measure(chosen, todo)
    rows = table(chosen, todo, found, artifact_figures(folder))
    title = f"largest load factor at 99 % (percent), HC2, {chosen.load.arrivals} arrivals"
    report(chosen, title, rows, {})

    def paint(axes: Any) -> None:
        models = [short(case.model) for case in todo]
        heights = {s: [found[case.model, s] for case in todo] for s in chosen.systems}
        bars(axes[0], models, heights)
        axes[0].tick_params(axis="x", labelrotation=60, labelsize="x-small")
        axes[0].set_ylabel("load factor at 99 %, percent")

    draw(chosen.plot, 1, paint, width=11.0)


if __name__ == "__main__":
    main()
