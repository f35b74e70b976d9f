"""Figure 7: attainment over load factor, first group of models, four clusters.

    python -m benchmarks.ppipe.fig7 [--group G1] [--seeds 5] [--models estimated] [--json]
        [--jobs 2] [--resume FILE]

The mean of the group's three models; lateness counts. The table says up to which load factor the
curve stays at 99 %; "artifact" is its own simulator's, which counts no lateness.
"""

from dataclasses import dataclass
from typing import Any

from benchmarks.command_line import new_parser
from benchmarks.ppipe import paper
from benchmarks.ppipe.artifact.capacity import TARGET
from benchmarks.ppipe.experiment import (
    CaseName,
    case_named,
    cases,
    mean,
    name_of,
    options,
    report,
)
from benchmarks.ppipe.plots import draw, lines
from benchmarks.ppipe.systems import Load, runner
from benchmarks.studies import studied

STEPS = tuple(range(5, 105, 5))
"""Load factors in percent."""

Curve = list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One system on one cluster."""

    cases: tuple[CaseName, ...]
    estimated: bool
    system: str
    load: Load
    seeds: int


def curve(asked: Asked) -> Curve:
    """Percent attained per step; None where a model has no plan."""
    members = [case_named(asked.estimated, name) for name in asked.cases]
    runs = [(case, runner(case, asked.system, asked.load)) for case in members]
    points: Curve = []
    for percent in STEPS:
        attained = []
        for case, run in runs:
            rate = percent * case.load_at_1_rps // 100
            if run is None or rate < 1:
                continue
            for seed in range(asked.seeds):
                outcome = run(asked.load.draw(rate, seed, case.model))
                attained.append(100 * outcome.attainment(lateness_counted=True))
        points.append(mean(attained))
    return points


def reaches(points: Curve) -> float | None:
    """The largest load factor that attains 99 %."""
    good = [
        percent / 100
        for percent, value in zip(STEPS, points, strict=True)
        if value is not None and value >= 100 * TARGET
    ]
    return max(good, default=None)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--group", help="of models, G1 to G6, or E1 to E3 estimated [the first]")
    chosen = options(__doc__, "fig7", estimates=True, in_parallel=True, parser=parser)
    group = chosen.own.group or ("E1" if chosen.estimated else "G1")
    todo = [case for case in cases(chosen) if case.group == group]
    clusters = list(dict.fromkeys(case.cluster for case in todo))
    asked = [
        Asked(
            cases=tuple(name_of(case) for case in todo if case.cluster == cluster),
            estimated=chosen.estimated,
            system=system,
            load=chosen.load,
            seeds=chosen.seeds,
        )
        for cluster in clusters
        for system in chosen.systems
    ]
    found = iter(studied(chosen.running, "curves", curve, asked))
    curves = {cluster: {system: next(found) for system in chosen.systems} for cluster in clusters}
    compared = group == "G1" and chosen.load.arrivals == "poisson"
    rows = [
        {
            "cluster": cluster,
            "system": system,
            "paper": _text(paper.REACHES_99.get(system) if compared and cluster == "HC1" else None),
            "artifact": _text(paper.ARTIFACT_REACHES_99[cluster].get(system) if compared else None),
            "ours": _text(reaches(points)),
            "attainment at 1.0": points[-1],
        }
        for cluster, systems in curves.items()
        for system, points in systems.items()
    ]
    title = f"load factor up to which {group} attains 99 %, {chosen.load.arrivals} arrivals"
    report(chosen, title, rows, {"curves": curves} if chosen.json else {})

    def paint(axes: Any) -> None:
        for axis, (cluster, systems) in zip(axes, curves.items(), strict=True):
            lines(axis, [percent / 100 for percent in STEPS], systems)
            axis.axhline(100 * TARGET, color="black", linewidth=0.5, linestyle=":")
            axis.set(title=cluster, xlabel="load factor", ylim=(50, 101))
        axes[0].set_ylabel("SLO attainment, percent")

    draw(chosen.plot, len(curves), paint)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
