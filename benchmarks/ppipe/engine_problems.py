"""The problems on which the engines of `pooled` are measured (`engines`): the same in every run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
from benchmarks.ppipe.planning_cost import PRICES
from benchmarks.ppipe.planning_rows import instances, problem_of, profiles_of, scaling
from benchmarks.ppipe.reference import reference_plans
from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import ReferenceDevice
from headrace.domain.problem import Problem
from headrace.domain.profile import Profile
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.models import model_of
from headrace.planning.pooled.relaxation import relax

RANDOM = 100
PART = 0.5
"""Of the largest load: what problems of least cost ask for."""

PER_SERVER = {"L4": 4, "V100": 4, "T4": 2}
HALVES = (Fraction(1), Fraction(1, 2))
QUARTERS = tuple(Fraction(1, k) for k in (1, 2, 3, 4))
TWO_THIRDS = {Fraction(1, 2): Fraction(2, 3)}
"""Shares that need not pack: what was profiled for a half stands for two thirds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem and where it comes from."""

    problem_set: str
    name: str
    problem: Problem


def published(folder: Path) -> Iterator[Case]:
    for instance in chain(instances(folder, "maf19"), instances(folder, "ablation")):
        problem = problem_of(instance.task, instance.profiles)
        yield Case(problem_set="published", name=instance.name, problem=problem)


def cost(folder: Path) -> Iterator[Case]:
    for case in published(folder):
        yield Case(problem_set="cost", name=case.name, problem=at_least_cost(case.problem, PART))


def scaled(folder: Path, plan_set: str) -> Iterator[Case]:
    for instance in scaling(folder):
        if instance.plan_set == plan_set:
            problem = problem_of(instance.task, instance.profiles)
            yield Case(problem_set=plan_set, name=instance.name.strip(), problem=problem)


def random(folder: Path) -> Iterator[Case]:
    for seed in range(RANDOM):
        yield Case(problem_set="random", name=f"seed {seed}", problem=random_problem(folder, seed))


def random_problem(folder: Path, seed: int) -> Problem:
    """Models of the main experiment, everything else drawn."""
    rng = np.random.default_rng(seed)
    bases = reference_plans(folder, "maf19", "v4")
    known = {d.model: d for base in bases for d in base.deployments}
    models = rng.choice(sorted(known), size=int(rng.integers(1, 6)), replace=False).tolist()
    types = list(PER_SERVER)[: int(rng.choice([1, 2, 2, 3]))]
    total, margin = int(rng.integers(20, 201)), float(rng.choice([0.2, 0.4]))
    parts = rng.dirichlet(np.full(len(types), 3.0))
    shares = (HALVES, QUARTERS, QUARTERS)[kind := int(rng.integers(3))]
    task = replace(
        bases[0],
        name=f"seed-{seed}",
        bandwidth_gbps=10.0,
        max_stages=int(rng.choice([2, 2, 3])),
        devices=tuple(
            ReferenceDevice(
                name=name,
                count=max(1, int(part * total)),
                per_server=PER_SERVER[name],
                shares=shares,
            )
            for name, part in zip(types, parts, strict=True)
        ),
        deployments=tuple(
            replace(
                known[model],
                weight=float(rng.choice([0.3, 0.5, 1.0])),
                slo_us=float(int(known[model].slo_us * rng.uniform(0.6, 2.0))),
                margin=margin,
            )
            for model in models
        ),
    )
    problem = problem_of(task, profiles_of(folder, task))
    if kind == 2:
        problem = with_two_thirds(problem)
    objective = str(rng.choice(["max-min", "max-min", "throughput", "least-cost"]))
    if objective == "least-cost":
        return at_least_cost(problem, float(rng.uniform(0.1, 0.9)))
    return replace(problem, options=replace(problem.options, objective=objective))


def with_two_thirds(problem: Problem) -> Problem:
    """The same with 2/3 in place of 1/2: shares that may add up and not pack."""
    cluster = replace(
        problem.cluster,
        device_types=tuple(
            replace(kind, shares=tuple(TWO_THIRDS.get(share, share) for share in kind.shares))
            for kind in problem.cluster.device_types
        ),
    )
    profiles = {model: _with_two_thirds(profile) for model, profile in problem.profiles.items()}
    return replace(problem, cluster=cluster, profiles=profiles)


def _with_two_thirds(profile: Profile) -> Profile:
    times = tuple(replace(t, share=TWO_THIRDS.get(t.share, t.share)) for t in profile.block_times)
    return replace(profile, block_times=times)


def at_least_cost(problem: Problem, part: float) -> Problem:
    """Least cost, at a part of what divisible slots carry at most; unchanged where nothing is."""
    hardware = Hardware.of(problem.cluster)
    models = [model_of(problem, hardware, demand) for demand in problem.demands]
    if not all(len(model.pipelines) for model in models):
        return problem
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    columns = [model.pipelines for model in models]
    most = relax(Counting(hardware, wanted, columns, "max-min"), time_limit_s=60.0)
    if most is None:
        return problem
    kinds = tuple(replace(k, price_per_hour=PRICES[k.name]) for k in problem.cluster.device_types)
    return replace(
        problem,
        cluster=replace(problem.cluster, device_types=kinds),
        demands=tuple(replace(d, rate_rps=part * most.bound * d.weight) for d in problem.demands),
        options=replace(problem.options, objective="least-cost"),
    )


SETS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "published": published,
    "cost": cost,
    "random": random,
    "types": lambda folder: scaled(folder, "types"),
    "large": lambda folder: scaled(folder, "large"),
}
