"""Starts of the models of a plan: each on the device that its first stage runs on."""

from fractions import Fraction
from typing import NamedTuple

from msgspec.structs import replace

from headrace.domain.errors import DocumentError
from headrace.domain.plan import Deployment, Plan
from headrace.domain.problem import Problem
from headrace.domain.profile import Profile
from headrace.planning.provisioning.residency import plan_residency, saved_by_host

BATCH_SIZE = 1
"""A start answers the request that it was made for; others wait for its weights."""


class HostLayer(NamedTuple):
    """A layer that a start leaves in host memory."""

    model: str
    name: str
    kind: str
    weights_bytes: int
    saves_us: int
    """How much later the start would be, were the layer copied."""


def with_starts(plan: Plan, problem: Problem) -> Plan:
    """The plan with the start of every model, by the planner that the options name.

    Raises:
        DocumentError: the plan is one of apps or of depths, a model is cut over several stages, or
            its profile has no layer times where it runs.
        ProfileError: the planner needs a second device, and the profile knows none.
    """
    planner = problem.options.provision
    assert planner is not None
    if plan.apps:
        raise DocumentError(
            "--provision: plans starts of models, and the plan is one of apps\n"
            "  try    leave it out, or plan the models alone"
        )
    deployments = tuple(
        _started(each, problem.profiles[each.model], planner) for each in plan.deployments
    )
    return replace(plan, deployments=deployments, options=problem.options)


def _started(deployment: Deployment, profile: Profile, planner: str) -> Deployment:
    device, share = _place(deployment)
    times = profile.timed_layers(device, share, BATCH_SIZE)
    if times is None:
        known = sorted({f"{each.share} of a {each.device}" for each in profile.layer_times})
        raise DocumentError(
            f"--provision: model {deployment.model!r} runs on {share} of a {device!r}, and its"
            f" profile has layer times for {', '.join(known) or 'none'} at batch size"
            f" {BATCH_SIZE}\n  try    a profile with `layers` and `layer_times`, or leave"
            " --provision out"
        )
    return replace(deployment, start=plan_residency(profile, times, planner))


def _place(deployment: Deployment) -> tuple[str, Fraction]:
    """
    Raises:
        DocumentError: it has no pipeline of one stage.
    """
    for pipeline in deployment.pipelines:
        if len(pipeline.stages) == 1:
            return pipeline.stages[0].device, pipeline.stages[0].share
    raise DocumentError(
        f"--provision: model {deployment.model!r} is cut over several stages, and starts are"
        " planned of whole models\n  try    --max-stages 1"
    )


def explain_starts(plan: Plan, problem: Problem) -> list[HostLayer]:
    """Of every start, the layers left in host memory, and what each of them saves."""
    found = []
    for deployment in plan.deployments:
        start, profile = deployment.start, problem.profiles[deployment.model]
        times = start and profile.timed_layers(start.device, start.share, start.batch_size)
        if not start or not times:
            continue
        for index, saves_us in saved_by_host(times, start).items():
            layer = profile.layers[index]
            found.append(
                HostLayer(deployment.model, layer.name, layer.kind, layer.weights_bytes, saves_us)
            )
    return found
