"""The plan document from what the search chose. All numbers come from the integer counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.domain.interference import Interference
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Stopped, Tenant
from headrace.domain.problem import MINIMISED, Demand, Problem
from headrace.planning.common.allotments import Allotments
from headrace.planning.common.candidates import CostTables, budget_us
from headrace.planning.common.models import Model
from headrace.planning.common.packing import SlotSize
from headrace.planning.common.placement import Pool, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the planner proves of a plan."""

    bound: float | None
    stopped: Stopped
    binding: str
    runtime_s: float


def assemble(
    problem: Problem, models: Sequence[Model], chosen: Sequence[Allotments], claim: Claim
) -> Plan:
    """Place the chosen pipelines and write everything down."""
    pipelines = [_pipelines(model, a) for model, a in zip(models, chosen, strict=True)]
    pools = [
        pool
        for model, members in zip(models, pipelines, strict=True)
        for name, member in members
        for pool in _pools(problem, model, name, member)
    ]
    slots, names = place(problem.cluster, pools)
    pool_names = iter(names)
    deployments = tuple(
        _deployment(problem, model, members, pool_names)
        for model, members in zip(models, pipelines, strict=True)
    )
    return written(problem, slots, deployments, claim)


def written(
    problem: Problem,
    slots: tuple[Slot, ...],
    deployments: tuple[Deployment, ...],
    claim: Claim,
    interference: Sequence[Interference] = (),
) -> Plan:
    """The plan document of what was placed.

    The objective is recomputed here; the bound is widened to it where rounding in the solver left
    it a hair on the wrong side.
    """
    cost = cost_per_hour(problem, slots)
    objective = objective_of(problem, deployments, slots, cost)
    bound = claim.bound
    if bound is not None:
        loosest = min if problem.options.objective in MINIMISED else max
        bound = loosest(bound, objective)
    return Plan(
        planner=problem.options.planner,
        options=problem.options,
        cluster=problem.cluster,
        demands=problem.demands,
        profiles=problem.profile_refs,
        slots=slots,
        deployments=deployments,
        objective=objective,
        bound=bound,
        gap=None if bound is None else abs(bound - objective) / objective if objective else 0.0,
        stopped=claim.stopped,
        binding=claim.binding,
        cost_per_hour=cost,
        runtime_s=claim.runtime_s,
        interference=tuple(interference),
    )


@dataclass(frozen=True, slots=True)
class _Member:
    """One chosen pipeline: its row, and slots per stage."""

    row: int
    slots: tuple[int, ...]
    throughput_rps: float


def _pipelines(model: Model, chosen: Allotments) -> list[tuple[str, _Member]]:
    """Largest throughput first; equal pipelines that were chosen in parts become one."""
    counts: dict[int, np.ndarray] = {}
    for row, slots in zip(chosen.pipeline, chosen.slots, strict=True):
        counts[int(row)] = counts.get(int(row), 0) + slots
    members = []
    for row, slots in counts.items():
        depth = int((model.pipelines.kinds[row] >= 0).sum())
        rates = model.pipelines.rates_rps[row, :depth]
        throughput = float((slots[:depth] * rates).min())
        members.append(_Member(row, tuple(int(n) for n in slots[:depth]), throughput))
    members.sort(key=lambda m: (-m.throughput_rps, m.row))
    return [(f"p{i}", member) for i, member in enumerate(members)]


def _pools(problem: Problem, model: Model, name: str, member: _Member) -> list[Pool]:
    pools = []
    for stage, count in enumerate(member.slots):
        kind = model.tables.kinds[int(model.pipelines.kinds[member.row, stage])]
        known = problem.cluster.device_type(kind.device).memory_bytes is not None
        weights = int(model.pipelines.weights_bytes[member.row, stage]) if known else 0
        pools.append(
            Pool(
                tenant=Tenant(model=model.demand.model, pipeline=name, stage=stage),
                device=kind.device,
                size=SlotSize(kind.share, weights),
                count=count,
            )
        )
    return pools


def _deployment(
    problem: Problem,
    model: Model,
    members: Sequence[tuple[str, _Member]],
    pool_names: Iterator[list[str]],
) -> Deployment:
    pipelines = tuple(
        _pipeline(model, name, member, [next(pool_names) for _ in member.slots])
        for name, member in members
    )
    return deployment_of(problem, model.demand, pipelines)


def deployment_of(problem: Problem, demand: Demand, pipelines: tuple[Pipeline, ...]) -> Deployment:
    return Deployment(
        model=demand.model,
        slo_us=demand.slo_us,
        budget_us=budget_us(demand.slo_us, problem.options.margin_of(demand.model)),
        pipelines=pipelines,
        throughput_rps=sum(pipeline.throughput_rps for pipeline in pipelines),
    )


def _pipeline(model: Model, name: str, member: _Member, pools: Sequence[Sequence[str]]) -> Pipeline:
    pipelines, depth = model.pipelines, len(member.slots)
    kinds = pipelines.kinds[member.row, :depth].tolist()
    ends = pipelines.ends[member.row, :depth].tolist()
    stages = list(zip(kinds, [0, *ends], ends, strict=False))
    return pipeline_of(name, model.tables, int(pipelines.batch[member.row]), stages, pools)


def pipeline_of(
    name: str,
    tables: CostTables,
    batch: int,
    places: Sequence[tuple[int, int, int]],
    pools: Sequence[Sequence[str]],
) -> Pipeline:
    """The document of a pipeline.

    Args:
        places: per stage its kind of slot, first block and end block.
        pools: per stage the names of its slots.
    """
    stages = []
    for at, ((kind, first, end), pool) in enumerate(zip(places, pools, strict=True)):
        candidate = (batch - 1, kind, first, end)
        transfer = 0
        if at + 1 < len(places):
            transfer = int(tables.transfer_us[batch - 1, kind, places[at + 1][0], end])
        stages.append(
            Stage(
                first_block=first,
                end_block=end,
                device=tables.kinds[kind].device,
                share=tables.kinds[kind].share,
                pool=tuple(pool),
                latency_us=int(tables.p99_us[candidate]),
                transfer_us=transfer,
                throughput_rps=len(pool) * float(tables.rate_rps[candidate]),
            )
        )
    return Pipeline(
        name=name,
        batch_size=batch,
        stages=tuple(stages),
        latency_us=sum(stage.latency_us + stage.transfer_us for stage in stages),
        throughput_rps=min(stage.throughput_rps for stage in stages),
    )


def cost_per_hour(problem: Problem, slots: Sequence[Slot]) -> float | None:
    """Price of every device that has a slot; None where one's price is unknown."""
    used = devices_used(slots)
    prices = [problem.cluster.device_type(device).price_per_hour for _, device, _ in sorted(used)]
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None


def devices_used(slots: Sequence[Slot]) -> set[tuple[str, str, int]]:
    """Node, device type and index of every device that has a slot."""
    return {(slot.node, slot.device, slot.device_index) for slot in slots}


def objective_of(
    problem: Problem, deployments: Sequence[Deployment], slots: Sequence[Slot], cost: float | None
) -> float:
    """Value of `problem.options.objective`. `cost`: of these slots, by `cost_per_hour`."""
    match problem.options.objective:
        case "throughput":
            return sum(deployment.throughput_rps for deployment in deployments)
        case "max-min":
            return min(
                deployment.throughput_rps / demand.weight
                for deployment, demand in zip(deployments, problem.demands, strict=True)
            )
        case "least-cost":
            assert cost is not None, "checked before planning"
            return cost
        case "least-devices":
            return float(len(devices_used(slots)))
