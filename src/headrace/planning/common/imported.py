"""A plan of PPipe's artifact as one of ours: same pipelines and slot counts, our accounting.

The artifact adds up fractions of GPUs without asking whether they pack into whole ones, and counts
transfers unrounded; what it calls a plan may not be one here. `place_reference` says which device
types lack room; the latency budgets and links are for `headrace.verify`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import ReferencePipeline, ReferencePlan
from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import Pipeline, Plan, Tenant
from headrace.domain.problem import Problem
from headrace.planning.common.assembly import deployment_of, pipeline_of
from headrace.planning.common.candidates import CostTables, SlotKind, cost_tables
from headrace.planning.common.packing import SlotSize, pack
from headrace.planning.common.placement import Pool, place

PLANNER = "ppipe-artifact"


def place_reference(reference: ReferencePlan, problem: Problem) -> Plan:
    """Put the reference plan's slots on the problem's devices and write down our figures of it.

    Raises:
        InfeasibleError: its slots do not pack into the devices.
    """
    pools = list(_pools(reference))
    _check_room(pools, problem)
    slots, names = place(problem.cluster, pools)
    pool_names = iter(names)
    deployments = []
    for demand, entry in zip(problem.demands, reference.deployments, strict=True):
        tables = cost_tables(problem, demand)
        pipelines = tuple(
            _pipeline(f"p{i}", pipeline, tables, [next(pool_names) for _ in pipeline.partitions])
            for i, pipeline in enumerate(entry.pipelines)
        )
        deployments.append(deployment_of(problem, demand, pipelines))
    return Plan(
        planner=PLANNER,
        options=replace(problem.options, planner=PLANNER),
        cluster=problem.cluster,
        demands=problem.demands,
        profiles=problem.profile_refs,
        slots=slots,
        deployments=tuple(deployments),
        objective=min(
            deployment.throughput_rps / demand.weight
            for deployment, demand in zip(deployments, problem.demands, strict=True)
        ),
        bound=None,
        gap=None,
        stopped="heuristic",
        binding="unknown: the plan was imported, and its proof is of the artifact's own rule",
        cost_per_hour=None,
        runtime_s=reference.stated_runtime_s or 0.0,
    )


def _pools(reference: ReferencePlan) -> Iterator[Pool]:
    for deployment in reference.deployments:
        for i, pipeline in enumerate(deployment.pipelines):
            for stage, partition in enumerate(pipeline.partitions):
                yield Pool(
                    tenant=Tenant(model=deployment.model, pipeline=f"p{i}", stage=stage),
                    device=partition.device,
                    size=SlotSize(partition.share, 0),
                    count=partition.slots,
                )


def _check_room(pools: Sequence[Pool], problem: Problem) -> None:
    lacking = []
    for kind in problem.cluster.device_types:
        sizes: Counter[SlotSize] = Counter()
        for pool in pools:
            if pool.device == kind.name:
                sizes[pool.size] += pool.count
        needed, there = len(pack(sizes, device=kind.name)), problem.cluster.count(kind.name)
        if needed > there:
            lacking.append(f"its slots need {needed} whole {kind.name}, and there are {there}")
    if lacking:
        raise InfeasibleError("; ".join(lacking))


def _pipeline(
    name: str, reference: ReferencePipeline, tables: CostTables, pools: Sequence[Sequence[str]]
) -> Pipeline:
    places = [
        (
            tables.kinds.index(SlotKind(partition.device, partition.share)),
            partition.first_block,
            min(partition.end_block, tables.block_count),
        )
        for partition in reference.partitions
    ]
    return pipeline_of(name, tables, reference.batch_size, places, pools)
