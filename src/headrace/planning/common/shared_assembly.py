"""Chosen parts of devices -> the plan document. The one way for all planners that share devices.

A planner says which devices it takes, how each is cut, and for each part its duty cycle and its
tenants with their batch sizes. Everything else follows: places on nodes, slowdowns beside the
neighbours that are really there, pipelines (one per model and class of part that serves alike),
latencies, throughputs, objective and cost.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from msgspec.structs import replace

from headrace.cost import TimedStage, cost_model
from headrace.domain.interference import Interference
from headrace.domain.plan import Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import Problem
from headrace.interference import slowdown_of, slowed_us, uses_of
from headrace.planning.common.assembly import Claim, deployment_of, written
from headrace.planning.common.candidates import longest_turn
from headrace.planning.common.placement import device_order

US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class ChosenTenant:
    """One model of a part, whole."""

    model: str
    batch_size: int


@dataclass(frozen=True, slots=True)
class ChosenPart:
    """One slot: what it is promised to, in turns."""

    share: Fraction
    duty_us: int
    tenants: tuple[ChosenTenant, ...]


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """One device of a type, and its parts that are used."""

    device: str
    parts: tuple[ChosenPart, ...]


@dataclass(frozen=True, slots=True)
class TenantClass:
    """Tenants that are served alike share a pipeline."""

    model: str
    device: str
    share: Fraction
    batch_size: int
    duty_us: int
    slowdown: float


def assemble_shared(
    problem: Problem,
    devices: Sequence[ChosenDevice],
    claim: Claim,
    interference: Sequence[Interference] = (),
) -> Plan:
    """Place the devices, spread over the nodes, and write everything down.

    Args:
        interference: what slowdowns are functions of; none: neighbours are said to cost nothing.
    """
    slots, classes = placed_slots(problem, devices, {each.device: each for each in interference})
    pools: dict[TenantClass, list[str]] = defaultdict(list)
    for slot, alike in zip(slots, classes, strict=True):
        for one in alike:
            pools[one].append(slot.name)
    names = class_names(problem, pools)
    named = tuple(
        replace(
            slot,
            tenants=tuple(
                Tenant(model=one.model, pipeline=names[one], stage=0, slowdown=one.slowdown)
                for one in alike
            ),
        )
        for slot, alike in zip(slots, classes, strict=True)
    )
    deployments = tuple(
        deployment_of(
            problem,
            demand,
            tuple(
                class_pipeline(problem, one, name, pools[one])
                for one, name in names.items()
                if one.model == demand.model
            ),
        )
        for demand in problem.demands
    )
    return written(problem, named, deployments, claim, interference)


def placed_slots(
    problem: Problem, devices: Sequence[ChosenDevice], documents: dict[str, Interference]
) -> tuple[list[Slot], list[list[TenantClass]]]:
    """Every slot, by node, device type, device and position, without its tenants; and these."""
    node_order = {node.name: i for i, node in enumerate(problem.cluster.nodes)}
    placed: list[tuple[tuple[int, int, int, int], Slot, list[TenantClass]]] = []
    for order, kind in enumerate(problem.cluster.device_types):
        mine = [chosen for chosen in devices if chosen.device == kind.name]
        homes = device_order(problem.cluster, kind.name)
        assert len(mine) <= len(homes), f"{len(mine)} {kind.name} taken, {len(homes)} there"
        for (node, index), chosen in zip(homes, mine, strict=False):
            classes = _beside_each_other(problem, chosen, documents.get(kind.name))
            for position, (part, alike) in enumerate(zip(chosen.parts, classes, strict=True)):
                name = f"{node}/{kind.name}-{index}"
                slot = Slot(
                    name=name if part.share == 1 else f"{name}/{position}",
                    node=node,
                    device=kind.name,
                    device_index=index,
                    share=part.share,
                    tenants=(),
                    duty_us=part.duty_us,
                )
                placed.append(((node_order[node], order, index, position), slot, alike))
    placed.sort(key=lambda each: each[0])
    return [slot for _, slot, _ in placed], [alike for _, _, alike in placed]


def _beside_each_other(
    problem: Problem, chosen: ChosenDevice, document: Interference | None
) -> Iterator[list[TenantClass]]:
    """Per part its tenants' classes, slowed by those of all other parts."""
    uses = [
        [
            uses_of(problem.profiles[tenant.model], chosen.device, part.share, tenant.batch_size)
            for tenant in part.tenants
        ]
        if document is not None and len(chosen.parts) > 1
        else []
        for part in chosen.parts
    ]
    for i, part in enumerate(chosen.parts):
        others = [use for j, row in enumerate(uses) if j != i for use in row]
        yield [
            TenantClass(
                model=tenant.model,
                device=chosen.device,
                share=part.share,
                batch_size=tenant.batch_size,
                duty_us=part.duty_us,
                slowdown=slowdown_of(document, uses[i][at], others)
                if document is not None and others
                else 1.0,
            )
            for at, tenant in enumerate(part.tenants)
        ]


def class_names(problem: Problem, pools: dict[TenantClass, list[str]]) -> dict[TenantClass, str]:
    """Pipelines of each model p0, p1, …: the one that carries most first."""
    names = {}
    for demand in problem.demands:
        mine = [one for one in pools if one.model == demand.model]
        mine.sort(key=lambda one: -len(pools[one]) * one.batch_size / one.duty_us)
        names.update({one: f"p{i}" for i, one in enumerate(mine)})
    return names


def class_pipeline(problem: Problem, one: TenantClass, name: str, pool: Sequence[str]) -> Pipeline:
    latency_us = class_latency_us(problem, one)
    throughput_rps = len(pool) * one.batch_size * US_PER_S / one.duty_us
    stage = Stage(
        first_block=0,
        end_block=len(problem.profiles[one.model].blocks),
        device=one.device,
        share=one.share,
        pool=tuple(pool),
        latency_us=latency_us,
        transfer_us=0,
        throughput_rps=throughput_rps,
    )
    return Pipeline(
        name=name,
        batch_size=one.batch_size,
        stages=(stage,),
        latency_us=latency_us,
        throughput_rps=throughput_rps,
    )


def class_latency_us(problem: Problem, one: TenantClass) -> int:
    """The cost model's, of all that a duty cycle may bring (`shared_times`), with the neighbours'
    part."""
    profile = problem.profiles[one.model]
    flat = {each.model: each for each in profile.flat()}
    costs = cost_model(flat)
    stages = [TimedStage.whole_model(each, one.device, one.share) for each in flat.values()]
    sizes = range(1, one.batch_size + 1)
    alone_us = longest_turn(
        [np.array([costs.latency(stage, size).p99_us for size in sizes]) for stage in stages]
    )[-1]
    between_us = max(map(costs.between_batches_us, flat))
    return slowed_us(int(alone_us) - between_us, one.slowdown) + between_us
