"""Figure 6: the largest load factor at 99 % attainment, per cluster and group of models.

    python -m benchmarks.ppipe.fig6 [--arrivals gamma:2] [--seeds 5] [--models estimated] [--capped]
        [--json] [--clusters HC1,HC2] [--groups G1] [--jobs 2] [--resume FILE]

Lateness counts everywhere. Load factor 100 % is PPipe's planned throughput of each model; the
paper stops there (`--capped`), and here nobody is stopped without it. np, dart-r and ppipe run as
in the published simulator; `ours` is our dispatcher on PPipe's plans, `ours-plan` our dispatcher on
our plans. All plans keep one margin here; `best` has every system at its best. The paper's bursty
trace is not public in a form that can be replayed: gamma, mmpp or a trace's file stand for it.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from benchmarks.command_line import new_parser
from benchmarks.ppipe import paper
from benchmarks.ppipe.cases import CLUSTERS, GROUPS, Case
from benchmarks.ppipe.experiment import (
    CaseName,
    Options,
    case_named,
    cases,
    mean,
    name_of,
    options,
    report,
)
from benchmarks.ppipe.plots import bars, draw
from benchmarks.ppipe.reference import anchor_means, reference_folder
from benchmarks.ppipe.systems import EXACT_POISSON, POISSON, Load, largest_load
from benchmarks.studies import studied

Found = dict[tuple[str, str, str, int], list[float]]
"""(cluster, group, system, model's index) -> percent, one per seed."""

PAIRS = (("ppipe", "np"), ("ppipe", "dart-r"), ("ours", "ppipe"), ("ours-plan", "ppipe"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """One system on the models of one cluster and group, which share a plan: made once, then."""

    cases: tuple[CaseName, ...]
    estimated: bool
    system: str
    load: Load
    seeds: int


def loads(asked: Searches) -> list[list[float]]:
    """Percent, per case one for each seed; none where the system has no plan."""
    found = []
    for name in asked.cases:
        case = case_named(asked.estimated, name)
        loads = (largest_load(case, asked.system, asked.load, seed) for seed in range(asked.seeds))
        found.append([100 * load.lateness_counted.load_factor for load in loads if load])
    return found


def measure(chosen: Options, todo: list[Case]) -> Found:
    together: dict[tuple[str, str], list[CaseName]] = defaultdict(list)
    for case in todo:
        together[case.cluster, case.group].append(name_of(case))
    tasks = [
        Searches(
            cases=tuple(names),
            estimated=chosen.estimated,
            system=system,
            load=chosen.load,
            seeds=chosen.seeds,
        )
        for names in together.values()
        for system in chosen.systems
    ]
    results = studied(chosen.running, "searches", loads, tasks)
    found: Found = defaultdict(list)
    for task, result in zip(tasks, results, strict=True):
        for (cluster, group, index), percents in zip(task.cases, result, strict=True):
            if percents:
                found[cluster, group, task.system, index] = percents
    return found


def table(chosen: Options, found: Found) -> list[dict[str, Any]]:
    """Per cluster and group, then per cluster, then all: paper | artifact | ours."""
    folder = None if chosen.estimated else reference_folder()
    poisson = chosen.load.arrivals in (POISSON, EXACT_POISSON)
    drawn_alike = chosen.load.arrivals == POISSON
    artifact = anchor_means(folder, lateness_counted=True) if folder and drawn_alike else {}
    stated = paper.LOAD_FACTOR if poisson else paper.LOAD_FACTOR_BURSTY
    clusters = list(dict.fromkeys(key[0] for key in found))
    groups = sorted({key[1] for key in found})
    rows = []
    for cluster, group in [
        *((c, g) for c in clusters for g in groups),
        *((c, "all") for c in clusters),
        ("all", "all"),
    ]:
        for system in chosen.systems:
            values = matching(found, cluster, group, system)
            # The paper's figure is of all clusters and groups.
            whole = (cluster, group) == ("all", "all") and not chosen.estimated
            whole &= (len(clusters), len(groups)) == (len(CLUSTERS), len(GROUPS))
            rows.append(
                {
                    "cluster": cluster,
                    "group": group,
                    "system": system,
                    "paper": stated.get(system) if whole else None,
                    "artifact": artifact.get((cluster, group, system)),
                    "ours": mean(values.values()),
                }
            )
    return rows


def matching(found: Found, cluster: str, group: str, system: str) -> dict[tuple[Any, ...], float]:
    """Means over seeds, by (cluster, group, model)."""
    return {
        (c, g, i): sum(values) / len(values)
        for (c, g, s, i), values in found.items()
        if s == system and cluster in (c, "all") and group in (g, "all")
    }


def ratios(found: Found) -> dict[str, float]:
    """Means over models of the ratio of two systems' load factors, which is one of throughputs."""
    gains = {}
    for better, worse in PAIRS:
        high, low = (matching(found, "all", "all", system) for system in (better, worse))
        ratio = mean(high[key] / low[key] for key in high.keys() & low.keys() if low[key] > 0)
        if ratio is not None:
            gains[f"{better} / {worse}"] = round(ratio, 4)
    return gains


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--clusters", help="comma-separated, such as HC1 [all]")
    parser.add_argument("--groups", help="of models, G1 to G6, or E1 to E3 estimated [all]")
    chosen = options(__doc__, "fig6", estimates=True, in_parallel=True, parser=parser)
    picked = chosen.own
    todo = [
        case
        for case in cases(chosen)
        if case.cluster in (picked.clusters or case.cluster).split(",")
        and case.group in (picked.groups or case.group).split(",")
    ]
    if not todo:
        parser.error(f"--clusters {picked.clusters}, --groups {picked.groups}: no such models")
    found = measure(chosen, todo)
    rows = table(chosen, found)
    what = "estimated models" if chosen.estimated else "published profiles"
    title = (
        f"largest load factor at 99 % (percent), {chosen.load.arrivals} arrivals,"
        f" {chosen.seeds} seeds of {chosen.load.seconds:g} s, {what}"
    )
    report(chosen, title, rows, {"mean of ratios": ratios(found)})

    def paint(axes: Any) -> None:
        for axis, cluster in zip(axes, dict.fromkeys(key[0] for key in found), strict=True):
            groups = sorted({key[1] for key in found if key[0] == cluster})
            heights = {
                system: [mean(matching(found, cluster, g, system).values()) for g in groups]
                for system in chosen.systems
            }
            bars(axis, groups, heights)
            axis.set_title(cluster)
        axes[0].set_ylabel("load factor at 99 %, percent")

    draw(chosen.plot, len({key[0] for key in found}), paint)


if __name__ == "__main__":
    main()
