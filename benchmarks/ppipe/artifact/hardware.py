"""From a reference plan to what is simulated: slots in pools, and which of them share a link.

Slots and links are numbered as they are created, pipeline by pipeline and stage by stage; those
numbers decide ties. Nothing is shared between pools, as in the artifact.
"""

from math import floor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.catalog.ppipe.artifact import (
    ReferenceDeployment,
    ReferencePartition,
    ReferencePipeline,
    ReferencePlan,
)
from headrace.catalog.ppipe.rule import latency_us, transfer_us
from headrace.domain.errors import DocumentError
from headrace.domain.profile import Profile

Ints = npt.NDArray[np.int64]


class Hardware(NamedTuple):
    """One model's pipelines, as the compiled kernels read them.

    P pipelines, S stages, G slots, L links, B the largest planned batch size.
    """

    slo_us: int
    """Cut to an integer; at run time the planner's margin is not kept."""
    stage_at: Ints
    """Shape (P + 1,): pipeline p has the stages stage_at[p]..stage_at[p + 1] - 1."""
    slot_at: Ints
    """Shape (S + 1,): stage s has the slots slot_at[s]..slot_at[s + 1] - 1."""
    batch: Ints
    """Shape (P,): planned batch size."""
    latency_us: Ints
    """Shape (S, B + 1): of a batch of b; column 0 and what was not planned are 0."""
    item_transfer_us: Ints
    """Shape (S,): out of the stage, per item; 0 after a last stage."""
    rest_us: Ints
    """Shape (S,): what the plan states for later stages, and transfers out of them, each cut to
    an integer."""
    link: Ints
    """Shape (G,): the slot's network interface, in 0..L-1."""
    link_count: int


def build_hardware(
    plan: ReferencePlan, deployment: ReferenceDeployment, profile: Profile
) -> Hardware:
    """
    Raises:
        DocumentError: the deployment has no pipeline.
        ProfileError: a latency that the plan needs was not profiled.
    """
    pipelines = deployment.pipelines
    if not pipelines:
        raise DocumentError(f"{plan.name}: {deployment.model} has no pipeline")
    stages = [
        (pipeline, index) for pipeline in pipelines for index in range(len(pipeline.partitions))
    ]
    sizes = [pipeline.partitions[index].slots for pipeline, index in stages]
    links: list[int] = []
    for pipeline, index in stages:
        first = links[-1] + 1 if links else 0
        links += [first + link for link in stage_links(plan, pipeline.partitions, index)]
    return Hardware(
        slo_us=int(deployment.slo_us),
        stage_at=_offsets([len(pipeline.partitions) for pipeline in pipelines]),
        slot_at=_offsets(sizes),
        batch=np.array([pipeline.batch_size for pipeline in pipelines], dtype=np.int64),
        latency_us=_latencies(stages, profile),
        item_transfer_us=np.array(
            [_item_transfer_us(plan, pipeline.partitions[i], profile) for pipeline, i in stages],
            dtype=np.int64,
        ),
        rest_us=np.array(
            [_rest_us(pipeline.partitions[index + 1 :]) for pipeline, index in stages],
            dtype=np.int64,
        ),
        link=np.array(links, dtype=np.int64),
        link_count=links[-1] + 1,
    )


def stage_links(
    plan: ReferencePlan, partitions: tuple[ReferencePartition, ...], index: int
) -> list[int]:
    """Which link each slot of a stage is on, from 0.

    Consecutive slots share one, as many as fill a server of this stage's or of the next stage's
    GPU type, whichever is larger. In the last stage every slot has its own.
    """
    mine = partitions[index]
    if index + 1 == len(partitions):
        return list(range(mine.slots))
    per_server = max(
        plan.device(mine.device).per_server, plan.device(partitions[index + 1].device).per_server
    )
    return [slot // int(per_server / mine.share) for slot in range(mine.slots)]


def _item_transfer_us(plan: ReferencePlan, partition: ReferencePartition, profile: Profile) -> int:
    end = min(partition.end_block, len(profile.blocks))
    # Halves up; Python's round would go to even.
    return floor(transfer_us(profile.output_cut_bytes(end), plan.bandwidth_gbps) + 0.5)


def _rest_us(later: tuple[ReferencePartition, ...]) -> int:
    return sum(int(p.stated_latency_us) + int(p.stated_transfer_us) for p in later)


def _latencies(stages: list[tuple[ReferencePipeline, int]], profile: Profile) -> Ints:
    largest = max(pipeline.batch_size for pipeline, _ in stages)
    table = np.zeros((len(stages), largest + 1), dtype=np.int64)
    for row, (pipeline, index) in zip(table, stages, strict=True):
        for size in range(1, pipeline.batch_size + 1):
            row[size] = latency_us(size, pipeline.partitions[index], profile)
    return table


def _offsets(sizes: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
