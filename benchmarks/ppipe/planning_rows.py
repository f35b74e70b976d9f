"""Planning problems of PPipe, solved again: by the artifact's rule and by ours.

artifact   the same accounting as the published plans (`artifact.planner`)
free       `--planner pooled` on the imported problem: slots placed on devices, plan verified
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from benchmarks.ppipe.artifact.planner import plan_by_artifact_rule, with_expected_rates
from benchmarks.ppipe.reference import profile_of, reference_plans
from msgspec.structs import replace

from headrace.catalog.documents import read_problem, write_document
from headrace.catalog.ppipe.artifact import ReferenceDevice, ReferencePlan
from headrace.catalog.ppipe.problem import write_problem
from headrace.catalog.ppipe.rule import evaluate
from headrace.domain.problem import Problem
from headrace.domain.profile import Profile
from headrace.planning.pooled.planner import plan_pooled
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
    """One instance by one rule."""

    name: str
    plan_set: str
    """maf19, ablation, or what `scaling` varies: "large", "types"."""
    rule: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A planning problem; `known` if its published plan is one to compare with."""

    name: str
    plan_set: str
    task: ReferencePlan
    profiles: dict[str, Profile]
    known: bool

    def solve(self, rule: str) -> Row:
        return self._by_our_rule() if rule == "free" else self._by_artifact_rule()

    def _by_artifact_rule(self) -> Row:
        cpu_at_s, wall_at_s = time.process_time(), time.perf_counter()
        answer = plan_by_artifact_rule(self.task, self.profiles, time_limit_s=TIME_LIMIT_S)
        cpu_s, wall_s = time.process_time() - cpu_at_s, time.perf_counter() - wall_at_s
        ours = 0.0
        if answer.plan is not None:
            figures = evaluate(answer.plan, self.profiles)
            assert not figures.faults, figures.faults
            ours = figures.objective
        gap = answer.bound / ours - 1 if ours else float("inf")
        return self._row("artifact", ours, gap, answer.proven, cpu_s, wall_s)

    def _by_our_rule(self) -> Row:
        problem = problem_of(self.task, self.profiles)
        cpu_at_s, wall_at_s = time.process_time(), time.perf_counter()
        plan = plan_pooled(problem).plan
        cpu_s, wall_s = time.process_time() - cpu_at_s, time.perf_counter() - wall_at_s
        assert plan is not None, self.name
        faults = verify(plan, problem.profiles)
        assert not faults, faults
        gap = float("inf") if plan.gap is None else plan.gap
        return self._row("free", plan.objective, gap, plan.stopped == "optimal", cpu_s, wall_s)

    def _row(
        self, rule: str, ours: float, gap: float, proven: bool, cpu_s: float, wall_s: float
    ) -> Row:
        return Row(
            name=self.name,
            plan_set=self.plan_set,
            rule=rule,
            reference=evaluate(self.task, self.profiles).objective if self.known else None,
            reference_s=self.task.stated_runtime_s if self.known else None,
            ours=ours,
            gap=gap,
            proven=proven,
            cpu_s=cpu_s,
            wall_s=wall_s,
        )


def problem_of(task: ReferencePlan, profiles: dict[str, Profile]) -> Problem:
    """As `headrace import ppipe` would write it, then read."""
    with tempfile.TemporaryDirectory() as name:
        for model, profile in profiles.items():
            write_document(profile, Path(name) / "profiles" / f"{model}.json")
        write_problem(task, Path(name) / "problem.yaml")
        problem = read_problem(Path(name) / "problem.yaml")
    return replace(problem, options=replace(problem.options, time_limit_s=TIME_LIMIT_S))


def instances(folder: Path, plan_set: str) -> Iterator[Instance]:
    """Every published problem of a set."""
    for task in reference_plans(folder, plan_set, "v4"):
        yield Instance(
            name=short_name(task),
            plan_set=plan_set,
            task=task,
            profiles=profiles_of(folder, task),
            known=True,
        )


def published(folder: Path, plan_set: str, rule: str) -> Iterator[Row]:
    """Every published plan of a set, solved again."""
    for instance in instances(folder, plan_set):
        yield instance.solve(rule)


def scaling(folder: Path) -> Iterator[Instance]:
    """Six groups of models on ever more devices, then on more types of them."""
    bases = [
        task
        for task in reference_plans(folder, "maf19", "v4")
        if [device.name for device in task.devices] == ["L4", "T4"]
    ]
    for gpus in LARGE:
        counts = {"L4": gpus // 4, "T4": gpus - gpus // 4}
        for base in bases:
            yield _scaled(folder, f"{gpus:7,} GPUs,", "large", base, counts, stages=2)
    for types, counts in CLUSTERS.items():
        for stages in (2, 3):
            for base in bases:
                name = f"{types} types, {stages} stages,"
                yield _scaled(folder, name, "types", base, counts, stages)


def _scaled(
    folder: Path, name: str, plan_set: str, base: ReferencePlan, counts: dict[str, int], stages: int
) -> Instance:
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
    profiles = profiles_of(folder, task)
    task = with_expected_rates(task, profiles)
    return Instance(
        name=f"{name} {short_name(task)}",
        plan_set=plan_set,
        task=task,
        profiles=profiles,
        known=False,
    )


def profiles_of(folder: Path, task: ReferencePlan) -> dict[str, Profile]:
    return {d.model: profile_of(folder, d.model) for d in task.deployments}


def short_name(task: ReferencePlan) -> str:
    models = "+".join(d.model.split("_")[0].split("-")[0] for d in task.deployments)
    return f"{models} on {'-'.join(device.name for device in task.devices)}"
