"""DART-r (PPipe, 7.1): pipelines of one fast and one slow device, replicated.

DART (Xiang and Kim, RTSS 2019) splits a model over the processors of one machine; PPipe's baseline
replicates its best plan for a pair of devices over a cluster:

1. devices are divided between models: for max-min so that the pairs carry most (`division`); else
   as in the plan without partitioning, what that leaves unused in equal parts, rounded down;
2. each model's best use of one device of each type: cut once over both, or whole on either;
3. as many such pairs as there are, the rest whole.

The paper's artifact divides always as its plan without partitioning does. Of such plans there may
be several equally good ones, with pairs up to a tenth apart, and none need be best for pairs: a
baseline should not hang on which one a solver happens to return.

At run time the pairs of a model form one pipeline of two pools (NOTES of PPipe's artifact). The
paper's rule is for two device types, and so is this one.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from headrace.domain.apart import apart
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import Problem
from headrace.planning.baselines.division import Replicas, divide_best
from headrace.planning.baselines.no_partitioning import on_whole_devices, plan_without_partitioning
from headrace.planning.common.allotments import Allotments
from headrace.planning.common.assembly import Claim, assemble
from headrace.planning.common.binding import binding_constraint
from headrace.planning.common.candidates import Ints, Pipelines
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Wanted
from headrace.planning.common.models import model_of


def plan_replicated_pairs(problem: Problem) -> PlanResult:
    """Pairs of unlike devices, replicated; nothing is proven of the plan.

    `min_stages` is overridden. With a `max_stages` of 1 pairs are apart: each device runs all.

    Raises:
        DocumentError: more than two device types, or objective least-cost.
    """
    deadline = Deadline(problem.options.time_limit_s)
    stages = min(2, problem.options.max_stages)
    options = replace(problem.options, planner="dart-r", min_stages=1, max_stages=stages)
    problem = replace(problem, options=options)
    whole = on_whole_devices(problem)
    hardware = Hardware.of(whole.cluster)
    _check(problem, hardware)
    models = [model_of(whole, hardware, demand) for demand in problem.demands]
    shares = None
    if problem.options.objective == "max-min":
        replicas = [_replicas(model.pipelines, len(hardware.devices)) for model in models]
        # Least rates are those asked for: a model need not have a whole pipeline of its own.
        wanted = [Wanted.of(model.demand, 0.0) for model in models]
        shares = divide_best(replicas, wanted, hardware.owned)
    if shares is None:
        divided = plan_without_partitioning(problem)
        if divided.plan is None:
            return divided
        shares = divide(divided.plan, hardware)
    chosen = [_pair_up(model.pipelines, mine) for model, mine in zip(models, shares, strict=True)]
    for demand, allotments in zip(problem.demands, chosen, strict=True):
        carried = float(allotments.throughput_rps.sum())
        if carried < (demand.rate_rps or 0.0):
            has, needs = apart(carried, demand.rate_rps or 0.0)
            return PlanResult(
                plan=None,
                stopped="heuristic",
                bound=None,
                runtime_s=deadline.spent_s,
                refusal=f"dart-r carries {has} rps of model {demand.model!r}\n"
                f"  needs  {needs} rps\n"
                "  try    --planner pooled, which looks at every plan",
            )
    claim = Claim(
        bound=None,
        stopped="heuristic",
        binding=binding_constraint(whole, models, chosen, "heuristic"),
        runtime_s=deadline.spent_s,
    )
    plan = replace(assemble(whole, models, chosen, claim), cluster=problem.cluster)
    return PlanResult(plan=plan, stopped="heuristic", bound=None, runtime_s=plan.runtime_s)


def _check(problem: Problem, hardware: Hardware) -> None:
    if len(hardware.devices) > 2:
        raise DocumentError(
            f"planner dart-r: pairs two device types, and the cluster has"
            f" {', '.join(hardware.devices)}; use --planner pooled"
        )
    if problem.options.objective == "least-cost":
        raise DocumentError(
            "planner dart-r: uses all devices, so it cannot minimise cost;"
            " use --planner pooled, or objective max-min"
        )


def divide(plan: Plan, hardware: Hardware) -> list[Ints]:
    """Devices of each type for every model, shape (D,) each: as `plan` has them, and of those it
    leaves unused an equal part, rounded down."""
    held = {deployment.model: Counter[str]() for deployment in plan.deployments}
    for slot in plan.slots:
        held[slot.tenants[0].model][slot.device] += 1
    counts = [
        np.array([mine[device] for device in hardware.devices], dtype=np.int64)
        for mine in held.values()
    ]
    unused = hardware.owned - np.sum(counts, axis=0)
    return [mine + unused // len(counts) for mine in counts]


@dataclass(frozen=True, slots=True)
class _Best:
    """A pipeline with one device per stage."""

    row: int
    rps: float


def _replicas(pipelines: Pipelines, devices: int) -> Replicas:
    """What `_pair_up` makes of one device, and of one of each type."""
    alone = [_best(pipelines, np.array([kind])) for kind in range(devices)]
    alone_rps = tuple(0.0 if best is None else best.rps for best in alone)
    together = _best(pipelines, np.array([0, 1])) if devices == 2 else None
    better = together is not None and together.rps > sum(alone_rps)
    return Replicas(alone_rps=alone_rps, pair_rps=together.rps if together and better else 0.0)


def _pair_up(pipelines: Pipelines, devices: Ints) -> Allotments:
    """The pipelines of one model on its devices, shape (D,)."""
    alone = [_best(pipelines, np.array([kind])) for kind in range(len(devices))]
    pairs = int(devices.min()) if len(devices) == 2 else 0
    together = _best(pipelines, np.array([0, 1])) if pairs else None
    apart_rps = sum(best.rps for best in alone if best is not None)
    chosen: list[tuple[int, int]] = []
    if together is not None and together.rps > apart_rps:
        chosen.append((together.row, pairs))
    else:
        pairs = 0
    for best, count in zip(alone, devices - pairs, strict=True):
        if best is not None and count:
            chosen.append((best.row, int(count)))
    rows = np.array([row for row, _ in chosen], dtype=np.int64)
    counts = np.array([count for _, count in chosen], dtype=np.int64)
    slots = np.where(pipelines.kinds[rows] >= 0, counts[:, None], 0)
    return Allotments.of(pipelines, rows, slots, len(devices))


def _best(pipelines: Pipelines, kinds: Ints) -> _Best | None:
    """The fastest pipeline with one stage on each of `kinds`, in any order."""
    padded = np.full(pipelines.kinds.shape[1], -1, dtype=np.int64)
    padded[: len(kinds)] = kinds[: len(padded)]
    mine = (np.sort(pipelines.kinds, axis=1) == np.sort(padded)).all(axis=1)
    if len(kinds) > len(padded) or not mine.any():
        return None
    rates = np.where(mine, pipelines.rates_rps.min(axis=1), -np.inf)
    return _Best(row=int(rates.argmax()), rps=float(rates.max()))
