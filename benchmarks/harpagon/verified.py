"""A study's plans as plan documents, so that `headrace.verify` can recompute them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from benchmarks.harpagon.workloads import APPS, Workload

from headrace.domain.app import App, FanOut, Module
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Plan, Reading
from headrace.domain.problem import PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.planning.apps.assembly import Planned, assemble_apps, slot_count
from headrace.planning.apps.candidates import ModuleCase
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.solve import AppSolution
from headrace.verify import Violation, verify


def violations(
    workload: Workload, modules: Sequence[Schedule], reading: Reading, planner: str
) -> list[Violation]:
    """What `verify` finds wrong with a planner's machines, by the planner's own latency model."""
    plan, profiles = document(workload, modules, reading, planner)
    return verify(plan, profiles)


def document(
    workload: Workload,
    modules: Sequence[Schedule],
    reading: Reading,
    planner: str,
    options: PlanOptions | None = None,
) -> tuple[Plan, dict[str, Profile]]:
    """A planner's machines as a plan, with the profiles that it names.

    Args:
        options: None: without margin and head-room.
    """
    needed: Counter[str] = Counter()
    for schedule in modules:
        for entry in schedule.entries:
            needed[entry.candidate.device] += slot_count(entry)
    options = options or PlanOptions(
        planner=planner, objective="least-cost", margin=0.0, max_stages=1
    )
    problem = problem_of(workload, needed, options)
    solution = AppSolution(modules=tuple(modules), reading=reading, bound=None, stopped="heuristic")
    plan = assemble_apps(
        problem,
        [Planned(app=problem.apps[0], case=workload.case, solution=solution)],
        binding="not asked",
        runtime_s=0.0,
    )
    return plan, problem.profiles


def problem_of(workload: Workload, needed: Counter[str], options: PlanOptions) -> Problem:
    """A workload as a problem, on a cluster of just these devices."""
    prices = {c.device: c.price for m in workload.case.modules for c in m.candidates}
    profiles = {f"{m.name}-model": _profile(f"{m.name}-model", m) for m in workload.case.modules}
    return Problem(
        cluster=Cluster(
            device_types=tuple(
                DeviceType(name=name, price_per_hour=price) for name, price in prices.items()
            ),
            nodes=(Node(name="n", devices=dict(needed)),),
        ),
        demands=(),
        profiles=profiles,
        profile_refs=tuple(
            ProfileRef(model=model, path=model, sha256="0" * 64) for model in profiles
        ),
        options=options,
        apps=(
            App(
                name=workload.app,
                modules=tuple(
                    Module(name=name, model=f"{name}-model", fan_out=FanOut(mean=fan_out))
                    for name, _, fan_out, _ in APPS[workload.app]
                ),
                edges=tuple(
                    (before, name) for name, *_, waits in APPS[workload.app] for before in waits
                ),
                slo_us=workload.slo_us,
                rate_rps=workload.rate_rps,
            ),
        ),
    )


def _profile(model: str, module: ModuleCase) -> Profile:
    """The candidates as a profile. Batch sizes between them are interpolated and never used."""
    points: dict[str, dict[int, int]] = defaultdict(dict)
    for candidate in module.candidates:
        points[candidate.device][candidate.batch] = candidate.duration_us
    times = []
    for device, durations in points.items():
        known = sorted(durations)
        row = np.interp(range(1, known[-1] + 1), known, [durations[b] for b in known])
        us = tuple(round(x) for x in row)
        times.append(BlockTimes(device=device, share=Fraction(1), p50_us=(us,), p99_us=(us,)))
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(1,))
    return Profile(
        model=model,
        provenance=Provenance(kind="imported", date="1970-01-01T00:00:00Z"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=(Block(name="all", node_count=1, weights_bytes=1, cut=(), cut_bytes=0),),
        block_times=tuple(times),
    )
