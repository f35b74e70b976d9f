"""The paper's planners, solved by ours: PPipe, no partitioning, DART-r; and our own rule.

All answer in the artifact's form, so that every plan runs in its simulator and in ours.
"""

from collections.abc import Callable, Mapping

from benchmarks.ppipe.artifact.planner import plan_by_artifact_rule, with_expected_rates
from benchmarks.ppipe.planning_rows import problem_of
from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import (
    ReferenceDeployment,
    ReferencePartition,
    ReferencePipeline,
    ReferencePlan,
)
from headrace.catalog.ppipe.rule import devices_used, pipeline_rps
from headrace.domain.cluster import WHOLE
from headrace.domain.plan import Deployment, Plan
from headrace.domain.profile import Profile
from headrace.planning.pooled.planner import plan_pooled

TIME_LIMIT_S = 30.0

Profiles = Mapping[str, Profile]
Planner = Callable[[ReferencePlan, Profiles], ReferencePlan | None]
"""A problem (its own pipelines are not looked at) -> a plan, or None where there is none."""


def priced(task: ReferencePlan, profiles: Profiles) -> ReferencePlan:
    """`task` with the rates at which batches fill; without them where no model runs whole."""
    try:
        return with_expected_rates(task, profiles)
    except ValueError:
        return task


def plan_ppipe(task: ReferencePlan, profiles: Profiles) -> ReferencePlan | None:
    """The artifact's integer program, solved exactly."""
    return plan_by_artifact_rule(task, profiles, time_limit_s=TIME_LIMIT_S).plan


def plan_np(task: ReferencePlan, profiles: Profiles) -> ReferencePlan | None:
    """Whole models on whole devices."""
    plan = plan_by_artifact_rule(_whole(task, 1), profiles, time_limit_s=TIME_LIMIT_S).plan
    return None if plan is None else replace(plan, algorithm="bl")


def plan_dart_r(task: ReferencePlan, profiles: Profiles) -> ReferencePlan | None:
    """Pairs of one high-class and one low-class device, replicated; the rest alone.

    Devices are divided among the models as no partitioning divides them, those it leaves unused
    evenly and rounded down. (Source: the artifact; vanilla DART chains all devices.)
    """
    whole = plan_np(task, profiles)
    if whole is None:
        return None
    deployments = []
    for at, deployment in enumerate(task.deployments):
        # Charged for building batches as in the whole plan, so its rates are the task's.
        alone = replace(task, deployments=(deployment,))
        counts = _share_of_devices(whole, at)
        pairs = min(counts.values())
        pipelines = _replicated(alone, dict.fromkeys(counts, 1), 2, pairs, profiles)
        for name, count in counts.items():
            if count > pairs:
                only = {other: int(other == name) for other in counts}
                pipelines += _replicated(alone, only, 1, count - pairs, profiles)
        if not pipelines:
            return None
        mine = tuple(pipelines)
        rate_rps = sum(pipeline_rps(task, p, profiles[deployment.model]) for p in mine)
        deployments.append(replace(deployment, pipelines=mine, stated_rps=rate_rps))
    return replace(task, algorithm="dart-r", deployments=tuple(deployments))


PLANNERS: dict[str, Planner] = {"np": plan_np, "dart-r": plan_dart_r, "ppipe": plan_ppipe}


def plan_free(
    task: ReferencePlan, profiles: Profiles, margin: float | None = None
) -> ReferencePlan | None:
    """By our own rule, in which slots really fit their devices; any number of pipelines.

    Args:
        margin: fraction of the SLO kept free; None: the task's.
    """
    asked = task
    if margin is not None:
        asked = replace(
            task, deployments=tuple(replace(d, margin=margin) for d in task.deployments)
        )
    plan = plan_pooled(problem_of(asked, dict(profiles))).plan
    return None if plan is None else as_reference(plan, task)


def as_reference(plan: Plan, task: ReferencePlan) -> ReferencePlan:
    """A plan of ours for the problem of `task`, in the artifact's form."""
    return replace(
        task,
        deployments=tuple(
            _as_reference(mine, theirs)
            for mine, theirs in zip(plan.deployments, task.deployments, strict=True)
        ),
    )


def plan_artifact(
    task: ReferencePlan, profiles: Profiles, margin: float, *, charged: bool = True
) -> ReferencePlan | None:
    """The artifact's integer program at another margin; None where it has no plan.

    Args:
        charged: for building batches, as the artifact does and the paper does not say.
    """
    deployments = tuple(
        replace(
            deployment,
            margin=margin,
            margin_us=round(margin * deployment.slo_us),
            build_factor=deployment.build_factor if charged else 0.0,
        )
        for deployment in task.deployments
    )
    return plan_ppipe(priced(replace(task, deployments=deployments), profiles), profiles)


def _whole(task: ReferencePlan, stages: int) -> ReferencePlan:
    devices = tuple(replace(device, shares=(WHOLE,)) for device in task.devices)
    return replace(task, max_stages=stages, devices=devices)


def _share_of_devices(whole: ReferencePlan, at: int) -> dict[str, int]:
    used = devices_used(whole)
    mine = devices_used(replace(whole, deployments=(whole.deployments[at],)))
    return {
        device.name: mine[device.name]
        + (device.count - used[device.name]) // len(whole.deployments)
        for device in whole.devices
    }


def _replicated(
    task: ReferencePlan, counts: dict[str, int], stages: int, times: int, profiles: Profiles
) -> list[ReferencePipeline]:
    """The best plan of so few devices, so many times."""
    devices = tuple(
        replace(device, count=counts[device.name]) for device in task.devices if counts[device.name]
    )
    small = replace(_whole(task, stages), devices=devices)
    plan = plan_by_artifact_rule(small, profiles, time_limit_s=TIME_LIMIT_S).plan
    if plan is None or not times:
        return []
    return [
        replace(
            pipeline,
            partitions=tuple(replace(p, slots=p.slots * times) for p in pipeline.partitions),
        )
        for pipeline in plan.deployments[0].pipelines
    ]


def _as_reference(mine: Deployment, theirs: ReferenceDeployment) -> ReferenceDeployment:
    pipelines = tuple(
        ReferencePipeline(
            batch_size=pipeline.batch_size,
            partitions=tuple(
                ReferencePartition(
                    first_block=stage.first_block,
                    end_block=stage.end_block,
                    device=stage.device,
                    share=stage.share,
                    slots=len(stage.pool),
                    stated_latency_us=stage.latency_us,
                    stated_transfer_us=stage.transfer_us,
                )
                for stage in pipeline.stages
            ),
        )
        for pipeline in mine.pipelines
    )
    return replace(theirs, pipelines=pipelines, stated_rps=mine.throughput_rps)
