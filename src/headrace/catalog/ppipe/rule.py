"""What PPipe's public artifact counts, where it differs from our planner.

transfers   not rounded, over an idle link
batch       building one is charged build_factor x (batch - 1) / expected rate
devices     per model, stage position and GPU type the fractions are added and rounded up;
            whether the slices pack into whole GPUs is not asked

Everything else is as in `candidates`: a slot gives min(batch / latency, link share in and out).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf

from headrace.catalog.ppipe.artifact import (
    ReferenceDeployment,
    ReferencePartition,
    ReferencePipeline,
    ReferencePlan,
)
from headrace.cost import TimedStage, cost_model
from headrace.domain.profile import Profile

BITS_PER_US_AT_1_GBPS = 1000

_SLACK_US = 0.01
"""Of the solver that made the plans: it keeps its constraints to a relative 1e-6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFigures:
    """A reference plan, recomputed from the profiles by the artifact's rule."""

    objective: float
    """min over models of throughput / weight, requests per second."""
    throughput_rps: dict[str, float]
    devices: dict[str, int]
    """Device type -> whole GPUs."""
    faults: tuple[str, ...]
    """Constraints that do not hold, in words; empty for a plan that keeps them."""


def transfer_us(size_bytes: int, bandwidth_gbps: float) -> float:
    """Of one item over an idle link, not rounded.

    >>> transfer_us(3_000_000, 6)
    4000.0
    """
    return size_bytes * 8 / (bandwidth_gbps * BITS_PER_US_AT_1_GBPS)


def evaluate(plan: ReferencePlan, profiles: Mapping[str, Profile]) -> ArtifactFigures:
    """Recompute throughput, latency and GPU counts of a reference plan.

    Raises:
        ProfileError: a latency that the plan needs was not profiled.
    """
    faults: list[str] = []
    throughput: dict[str, float] = {}
    for deployment in plan.deployments:
        profile = profiles[deployment.model]
        throughput[deployment.model] = sum(
            pipeline_rps(plan, pipeline, profile) for pipeline in deployment.pipelines
        )
        for pipeline in deployment.pipelines:
            latency = pipeline_latency_us(plan, deployment, pipeline, profile)
            budget = deployment.slo_us - deployment.margin_us
            if latency > budget + _SLACK_US:
                faults.append(f"{deployment.model}: {latency:.2f} us exceed {budget:.2f} us")
    devices = devices_used(plan)
    for device in plan.devices:
        if devices[device.name] > device.count:
            faults.append(f"{devices[device.name]} {device.name}, but {device.count} there")
    return ArtifactFigures(
        objective=min(throughput[d.model] / d.weight for d in plan.deployments),
        throughput_rps=throughput,
        devices=devices,
        faults=tuple(faults),
    )


def pipeline_rps(plan: ReferencePlan, pipeline: ReferencePipeline, profile: Profile) -> float:
    """The slowest partition's: slots x what one slot gives."""
    return min(
        partition.slots * slot_rps(plan, pipeline.batch_size, partition, profile)
        for partition in pipeline.partitions
    )


def slot_rps(
    plan: ReferencePlan, batch_size: int, partition: ReferencePartition, profile: Profile
) -> float:
    """min(batch / latency, link share in, link share out); the model's ends are free."""
    share = float(partition.share) / plan.device(partition.device).per_server
    end = min(partition.end_block, len(profile.blocks))
    rate = batch_size * 1e6 / latency_us(batch_size, partition, profile)
    for size in (profile.input_cut_bytes(partition.first_block), profile.output_cut_bytes(end)):
        us = transfer_us(size, plan.bandwidth_gbps)
        rate = min(rate, share * 1e6 / us if us else inf)
    return rate


def latency_us(batch_size: int, partition: ReferencePartition, profile: Profile) -> int:
    """Of one batch; blocks past the model's end are none."""
    end = min(partition.end_block, len(profile.blocks))
    stage = TimedStage(profile.model, partition.device, partition.share, partition.first_block, end)
    return cost_model({profile.model: profile}).latency(stage, batch_size).p50_us


def pipeline_latency_us(
    plan: ReferencePlan,
    deployment: ReferenceDeployment,
    pipeline: ReferencePipeline,
    profile: Profile,
) -> float:
    """Stages, transfers and the charge for building a batch; the margin is not in it."""
    batch = pipeline.batch_size
    build_us = deployment.build_factor * 1e6 * (batch - 1) / deployment.expected_rps
    stages_us = sum(latency_us(batch, partition, profile) for partition in pipeline.partitions)
    cuts = (
        profile.output_cut_bytes(min(partition.end_block, len(profile.blocks)))
        for partition in pipeline.partitions
    )
    return build_us + stages_us + sum(batch * transfer_us(c, plan.bandwidth_gbps) for c in cuts)


def devices_used(plan: ReferencePlan) -> dict[str, int]:
    """Whole GPUs per type: fractions added per model and position, each sum rounded up."""
    used = {device.name: 0 for device in plan.devices}
    for deployment in plan.deployments:
        fractions: dict[tuple[int, str], Fraction] = defaultdict(Fraction)
        for pipeline in deployment.pipelines:
            for position, partition in enumerate(pipeline.partitions):
                fractions[position, partition.device] += partition.slots * partition.share
        for (_, device), total in fractions.items():
            used[device] += ceil(total)
    return used
