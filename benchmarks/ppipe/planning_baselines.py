"""Baselines: PPipe's published plans | ours, for the 24 problems of its main experiment.

    python -m benchmarks.ppipe.planning_baselines [--json]

NP        no partitioning: published | by the same rule, exactly | `--planner no-partitioning`
DART-r    replicated pairs: published | `--planner dart-r`
PPipe     pooled pipelines: published | `--planner pooled`

Objectives are min throughput / weight, all recomputed from the profiles. "By the same rule" is the
paper's accounting (a charge for building batches, one pipeline per device type); our planners
charge nothing for that and allow any number of pipelines, and every plan of theirs is verified.
The published DART-r divides devices by its own NP plan, of which there may be several equally good
ones, so ours need not have the same division.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks.ppipe.artifact.planner import plan_by_artifact_rule
from benchmarks.ppipe.planning_rows import problem_of, profiles_of, short_name
from benchmarks.ppipe.reference import reference_plans, required_reference
from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.catalog.ppipe.rule import evaluate
from headrace.domain.cluster import WHOLE
from headrace.domain.problem import Problem
from headrace.domain.profile import Profile
from headrace.planning import PLANNERS
from headrace.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Objectives of one problem."""

    name: str
    np_published: float
    np_same_rule: float
    """Of the best plan by the published plan's rule."""
    np_ours: float
    dart_published: float
    dart_ours: float
    ppipe_published: float
    ppipe_ours: float


def rows(folder: Path) -> list[Row]:
    """All 24, in the order of their files."""
    published = {
        algorithm: {short_name(task): task for task in reference_plans(folder, "maf19", algorithm)}
        for algorithm in ("bl", "dart-r", "v4")
    }
    return [_row(folder, name, published) for name in published["v4"]]


def _row(folder: Path, name: str, published: dict[str, dict[str, ReferencePlan]]) -> Row:
    whole, pairs, pooled = (published[algorithm][name] for algorithm in ("bl", "dart-r", "v4"))
    profiles = profiles_of(folder, pooled)
    problem = problem_of(pooled, profiles)
    return Row(
        name=name,
        np_published=evaluate(whole, profiles).objective,
        np_same_rule=_same_rule(whole, profiles),
        np_ours=_objective(problem, "no-partitioning"),
        dart_published=evaluate(pairs, profiles).objective,
        dart_ours=_objective(problem, "dart-r"),
        ppipe_published=evaluate(pooled, profiles).objective,
        ppipe_ours=_objective(problem, "pooled"),
    )


def _same_rule(task: ReferencePlan, profiles: dict[str, Profile]) -> float:
    devices = tuple(replace(device, shares=(WHOLE,)) for device in task.devices)
    answer = plan_by_artifact_rule(replace(task, devices=devices, max_stages=1), profiles)
    assert answer.plan is not None, task.name
    return evaluate(answer.plan, profiles).objective


def _objective(problem: Problem, planner: str) -> float:
    plan = PLANNERS[planner](problem).plan
    assert plan is not None, planner
    faults = verify(plan, problem.profiles)
    assert not faults, faults
    return plan.objective


def show(table: list[Row]) -> None:
    print(f"{'':42} | {'NP':^33} | {'DART-r':^21} | {'PPipe':^21}")
    print(
        f"{'instance':42} | {'published':>10} {'same rule':>10} {'ours':>11}"
        f" | {'published':>10} {'ours':>10} | {'published':>10} {'ours':>10}"
    )
    for row in table:
        print(
            f"{row.name:42} | {row.np_published:10.2f} {row.np_same_rule:10.2f} {row.np_ours:11.2f}"
            f" | {row.dart_published:10.2f} {row.dart_ours:10.2f}"
            f" | {row.ppipe_published:10.2f} {row.ppipe_ours:10.2f}"
        )
    print()
    for what, ours, theirs in (
        ("NP, same rule / published (target: least >= 1 - 1e-6)", "np_same_rule", "np_published"),
        ("NP, ours / published", "np_ours", "np_published"),
        ("DART-r, ours / published", "dart_ours", "dart_published"),
        ("PPipe, ours / published", "ppipe_ours", "ppipe_published"),
        ("PPipe / NP, both published", "ppipe_published", "np_published"),
        ("PPipe / NP, both ours", "ppipe_ours", "np_ours"),
        ("PPipe / DART-r, both published", "ppipe_published", "dart_published"),
        ("PPipe / DART-r, both ours", "ppipe_ours", "dart_ours"),
    ):
        ratios = [getattr(row, ours) / getattr(row, theirs) for row in table]
        spread = f"mean {mean(ratios):.4f}, least {min(ratios):.4f}, most {max(ratios):.4f}"
        print(f"{what:56} {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    arguments = parser.parse_args()
    table = rows(required_reference())
    if arguments.json:
        print(json.dumps([asdict(row) for row in table], indent=2))
    else:
        show(table)


if __name__ == "__main__":
    main()
