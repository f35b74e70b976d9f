"""Planning: published plan | ours | proven | seconds, for every published plan of PPipe.

    python -m benchmarks.ppipe.planning [--rule artifact|free] [--set maf19 ...] [--json]
    python -m benchmarks.ppipe.planning --scaling [--json]

The published plans are Gurobi's, found on their authors' machine, some stopped after 1,800 s.
Ours are solved on one thread, profiles in memory: by the same accounting with `--rule artifact`
(`planning.artifact_planner`), both objectives recomputed from the profiles; with `--rule free` by
`--planner pooled` on the imported problem, slots placed and the plan verified.

`--scaling` plans the six groups of models of the main experiment instead, weights 0.3 / 0.33 /
0.37, 10 Gbps: two device types from 1,000 to 100,000 GPUs, three and four types with 100 GPUs (the
paper's figure 14 does not state its counts, so it is like it, not the same).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median

from benchmarks.ppipe.reference import profile_of, reference_plans, required_reference
from msgspec.structs import replace

from headrace.catalog.documents import read_problem, write_document
from headrace.catalog.ppipe_artifact import ReferenceDevice, ReferencePlan
from headrace.catalog.ppipe_problem import write_problem
from headrace.domain.profile import Profile
from headrace.planning.artifact_planner import plan_by_artifact_rule, with_expected_rates
from headrace.planning.artifact_rule import evaluate
from headrace.planning.pooled import plan_pooled
from headrace.verify import verify

TIME_LIMIT_S = 30.0
QUARTERS = tuple(Fraction(1, k) for k in (1, 2, 3, 4))
PER_SERVER = {"L4": 4, "V100": 4, "T4": 2, "P4": 1}
LARGE = (1_000, 10_000, 100_000)
CLUSTERS = {
    3: {"L4": 20, "V100": 20, "T4": 60},
    4: {"L4": 13, "V100": 12, "T4": 37, "P4": 38},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One instance."""

    name: str
    reference: float | None
    """Objective of the published plan."""
    reference_s: float | None
    """What its solver took."""
    ours: float
    gap: float
    """Proven distance from the best plan, relative."""
    proven: bool
    cpu_s: float
    wall_s: float


def solve(name: str, task: ReferencePlan, profiles: dict[str, Profile], *, known: bool) -> Row:
    cpu_at_s, wall_at_s = time.process_time(), time.perf_counter()
    answer = plan_by_artifact_rule(task, profiles, time_limit_s=TIME_LIMIT_S)
    cpu_s, wall_s = time.process_time() - cpu_at_s, time.perf_counter() - wall_at_s
    ours = 0.0
    if answer.plan is not None:
        figures = evaluate(answer.plan, profiles)
        assert not figures.faults, figures.faults
        ours = figures.objective
    return Row(
        name=name,
        reference=evaluate(task, profiles).objective if known else None,
        reference_s=task.stated_runtime_s if known else None,
        ours=ours,
        gap=answer.bound / ours - 1 if ours else float("inf"),
        proven=answer.proven,
        cpu_s=cpu_s,
        wall_s=wall_s,
    )


def solve_freely(task: ReferencePlan, profiles: dict[str, Profile]) -> Row:
    """By our own rule: slots really fit, and the plan passes `headrace verify`."""
    with tempfile.TemporaryDirectory() as name:
        for model, profile in profiles.items():
            write_document(profile, Path(name) / "profiles" / f"{model}.json")
        write_problem(task, Path(name) / "problem.yaml")
        problem = read_problem(Path(name) / "problem.yaml")
    cpu_at_s, wall_at_s = time.process_time(), time.perf_counter()
    plan = plan_pooled(problem).plan
    cpu_s, wall_s = time.process_time() - cpu_at_s, time.perf_counter() - wall_at_s
    assert plan is not None, task.name
    faults = verify(plan, problem.profiles)
    assert not faults, faults
    return Row(
        name=_short(task),
        reference=evaluate(task, profiles).objective,
        reference_s=task.stated_runtime_s,
        ours=plan.objective,
        gap=float("inf") if plan.gap is None else plan.gap,
        proven=plan.stopped == "optimal",
        cpu_s=cpu_s,
        wall_s=wall_s,
    )


def published(folder: Path, plan_set: str, rule: str) -> Iterator[Row]:
    """Every published plan of a set, solved again."""
    for task in reference_plans(folder, plan_set, "v4"):
        profiles = _profiles(folder, task)
        if rule == "free":
            yield solve_freely(task, profiles)
        else:
            yield solve(_short(task), task, profiles, known=True)


def scaling(folder: Path) -> Iterator[Row]:
    """Six groups of models on ever more devices, then on more types of them."""
    bases = [
        task
        for task in reference_plans(folder, "maf19", "v4")
        if [device.name for device in task.devices] == ["L4", "T4"]
    ]
    for gpus in LARGE:
        counts = {"L4": gpus // 4, "T4": gpus - gpus // 4}
        for base in bases:
            yield _scaled(folder, f"{gpus:7,} GPUs,", base, counts, stages=2)
    for types, counts in CLUSTERS.items():
        for stages in (2, 3):
            for base in bases:
                yield _scaled(folder, f"{types} types, {stages} stages,", base, counts, stages)


def _scaled(
    folder: Path, name: str, base: ReferencePlan, counts: dict[str, int], stages: int
) -> Row:
    devices = tuple(
        ReferenceDevice(
            name=device,
            count=count,
            per_server=PER_SERVER[device],
            shares=QUARTERS if device != "P4" else QUARTERS[:1],
        )
        for device, count in counts.items()
    )
    task = replace(base, devices=devices, max_stages=stages, bandwidth_gbps=10.0)
    profiles = _profiles(folder, task)
    task = with_expected_rates(task, profiles)
    return solve(f"{name} {_short(task)}", task, profiles, known=False)


def _profiles(folder: Path, task: ReferencePlan) -> dict[str, Profile]:
    return {d.model: profile_of(folder, d.model) for d in task.deployments}


def _short(task: ReferencePlan) -> str:
    models = "+".join(d.model.split("_")[0].split("-")[0] for d in task.deployments)
    return f"{models} on {'-'.join(device.name for device in task.devices)}"


def show(row: Row) -> None:
    reference = f"{row.reference:10.3f}" if row.reference is not None else f"{'':10}"
    seconds = f"{row.reference_s:8.1f}" if row.reference_s is not None else f"{'':8}"
    proven = "proven" if row.proven else f"gap {row.gap:.3%}"
    print(
        f"{row.name:64} {reference} {seconds} | {row.ours:10.3f} {proven:>10} {row.cpu_s:7.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", dest="sets", help="maf19, ablation [both]")
    parser.add_argument("--rule", choices=["artifact", "free"], default="artifact")
    parser.add_argument("--scaling", action="store_true", help="more devices and more types")
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    arguments = parser.parse_args()
    folder = required_reference()
    # Compiled code is loaded, or compiled for the first time, before the clock runs.
    warm = reference_plans(folder, "maf19", "v4")[0]
    plan_by_artifact_rule(warm, _profiles(folder, warm))
    solve_freely(warm, _profiles(folder, warm))
    rows: list[Row] = []
    if not arguments.json:
        print(f"{'instance':64} {'published':>10} {'Gurobi s':>8} | {'ours':>21} {'CPU s':>7}")
    sources = (
        [scaling(folder)]
        if arguments.scaling
        else [
            published(folder, name, arguments.rule)
            for name in arguments.sets or ["maf19", "ablation"]
        ]
    )
    for source in sources:
        for row in source:
            rows.append(row)
            if not arguments.json:
                show(row)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        summary(rows)


def summary(rows: list[Row]) -> None:
    compared = [row for row in rows if row.reference is not None]
    if compared:
        kept = sum(row.ours >= (row.reference or 0.0) * (1 - 1e-6) for row in compared)
        print(f"\nat least the published plan x (1 - 1e-6): {kept} of {len(compared)}")
    seconds = [row.cpu_s for row in rows]
    print(f"proven to 1e-6: {sum(row.proven for row in rows)} of {len(rows)}")
    print(f"CPU seconds: median {median(seconds):.3f}, most {max(seconds):.3f}")


if __name__ == "__main__":
    main()
