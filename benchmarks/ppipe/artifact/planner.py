"""Plans by the paper's artifact accounting, solved exactly: what its integer program means.

For benchmarks and tests. It answers the artifact's question, so that plans can be compared with
the published ones; `pooled` answers ours, in which slots really fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.ppipe.artifact.columns import (
    artifact_columns,
    artifact_kinds,
    artifact_pipelines,
    artifact_stock,
)
from benchmarks.ppipe.artifact.repair import search
from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import (
    ReferenceDeployment,
    ReferencePartition,
    ReferencePipeline,
    ReferencePlan,
)
from headrace.catalog.ppipe.rule import pipeline_rps, transfer_us
from headrace.cost import TimedStage, cost_model
from headrace.domain.cluster import WHOLE
from headrace.domain.plan import OPTIMAL_GAP
from headrace.domain.profile import Profile
from headrace.planning.common.candidates import Pipelines
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.master import Wanted
from headrace.planning.exact.columns import Columns
from headrace.planning.exact.sets import PipelineSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactAnswer:
    """A plan by the artifact's rule, and what is proven of it."""

    plan: ReferencePlan | None
    """None: there is none, or none was found in time."""
    objective: float
    """min throughput / weight; 0 without a plan."""
    bound: float
    """No plan is better; 0: there is none."""
    runtime_s: float

    @property
    def proven(self) -> bool:
        return self.bound <= self.objective * (1 + OPTIMAL_GAP)


def plan_by_artifact_rule(
    task: ReferencePlan, profiles: Mapping[str, Profile], *, time_limit_s: float = 60.0
) -> ArtifactAnswer:
    """The best plan for the devices and models of `task`, whose own pipelines are not looked at."""
    deadline = Deadline(time_limit_s)
    pipelines = [
        artifact_pipelines(task, deployment, profiles[deployment.model])
        for deployment in task.deployments
    ]
    if not all(map(len, pipelines)):
        return ArtifactAnswer(plan=None, objective=0.0, bound=0.0, runtime_s=deadline.spent_s)
    columns = [artifact_columns(task, mine) for mine in pipelines]
    wanted = [Wanted(weight=deployment.weight, least_rps=0.0) for deployment in task.deployments]
    answer = search(artifact_stock(task), wanted, columns, deadline)
    plan = None
    if answer.chosen is not None:
        deployments = tuple(
            _deployment(task, deployment, profiles[deployment.model], rows, mine, chosen)
            for deployment, rows, mine, chosen in zip(
                task.deployments, pipelines, columns, answer.chosen, strict=True
            )
        )
        plan = replace(task, deployments=deployments, stated_runtime_s=None)
    return ArtifactAnswer(
        plan=plan, objective=answer.objective, bound=answer.bound, runtime_s=deadline.spent_s
    )


def with_expected_rates(task: ReferencePlan, profiles: Mapping[str, Profile]) -> ReferencePlan:
    """`task` with the rates at which batches are thought to fill, as the artifact gets them.

    They are those of the best plan that serves every model whole on whole devices, without a
    charge for building batches: its objective x the weight of each model.

    Raises:
        ValueError: there is no such plan.
    """
    whole = replace(
        task,
        max_stages=1,
        devices=tuple(replace(device, shares=(WHOLE,)) for device in task.devices),
        deployments=tuple(replace(d, build_factor=0.0) for d in task.deployments),
    )
    answer = plan_by_artifact_rule(whole, profiles)
    if answer.plan is None:
        raise ValueError(f"{task.name}: no plan without partitioning")
    deployments = tuple(
        replace(d, expected_rps=answer.objective * d.weight) for d in task.deployments
    )
    return replace(task, deployments=deployments)


def _deployment(
    task: ReferencePlan,
    deployment: ReferenceDeployment,
    profile: Profile,
    pipelines: Pipelines,
    columns: Columns,
    chosen: PipelineSet,
) -> ReferenceDeployment:
    members = tuple(
        _pipeline(task, profile, pipelines, int(columns.source[column]), slots)
        for column, slots in zip(chosen.columns, chosen.slots.tolist(), strict=True)
    )
    stated_rps = sum(pipeline_rps(task, member, profile) for member in members)
    return replace(deployment, pipelines=members, stated_rps=stated_rps)


def _pipeline(
    task: ReferencePlan, profile: Profile, pipelines: Pipelines, row: int, slots: list[int]
) -> ReferencePipeline:
    kinds, batch, first = artifact_kinds(task), int(pipelines.batch[row]), 0
    partitions = []
    stages = zip(pipelines.kinds[row].tolist(), pipelines.ends[row].tolist(), slots, strict=True)
    for kind, end, count in stages:
        if kind >= 0:
            device, share = kinds[kind]
            stage = TimedStage(profile.model, device, share, first, end)
            latency = cost_model({profile.model: profile}).latency(stage, batch)
            item_us = transfer_us(profile.output_cut_bytes(end), task.bandwidth_gbps)
            partitions.append(
                ReferencePartition(
                    first_block=first,
                    end_block=end,
                    device=device,
                    share=share,
                    slots=count,
                    stated_latency_us=latency.p50_us,
                    stated_transfer_us=batch * item_us,
                )
            )
            first = end
    return ReferencePipeline(batch_size=batch, partitions=tuple(partitions))
