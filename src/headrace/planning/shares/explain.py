"""Why a plan of shared devices is as it is: what sharing saves, and what each model's wait leaves.

Saving is told by planning the same problem again with less sharing: every model with whole devices
of its own, and models in turns on whole devices. For prices and devices as many as that takes are
assumed to be there.
"""

from fractions import Fraction

from msgspec.structs import replace

from headrace.domain.base import Record
from headrace.domain.cluster import WHOLE
from headrace.domain.plan import Plan, PlanResult, Slot
from headrace.domain.problem import Problem
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.headroom import with_headroom
from headrace.planning.shares.planner import plan_shares

AGAIN_S = 10.0
"""At most, for both plans with less sharing together; nor more than planning itself may take."""

LEAST_S = 1e-3
"""A search that has no time left is given so much, and says that it had none."""

DEVICES_PER_MODEL = 64
"""Devices of each type that are assumed to be there for every model."""


class ModelWait(Record, frozen=True, kw_only=True):
    """The part on which a model waits longest."""

    model: str
    rate_rps: float | None
    throughput_rps: float
    device: str
    share: Fraction
    batch_size: int
    beside: int
    """Models that it takes turns with there."""
    wait_us: int
    """A duty cycle, and its batch."""
    budget_us: int


class SharingReason(Record, frozen=True, kw_only=True):
    """What `headrace plan --explain` says of a plan of shared devices."""

    objective: str
    reached: float
    in_turns: float | None
    """The same objective with whole devices that models take turns on; None: no plan."""
    alone: float | None
    """With whole devices for each model; None: no plan."""
    in_time: bool
    """Whether no search for these ran out of time: where one did, it is None, and there may be a
    plan."""
    binding: str
    waits: tuple[ModelWait, ...]


def explain_sharing(plan: Plan, problem: Problem) -> SharingReason:
    """Takes as long as planning itself may, and AGAIN_S at most."""
    deadline = Deadline(min(AGAIN_S, plan.options.time_limit_s))
    alone = _with_less(problem, plan, deadline.part(0.5), max_tenants=1)
    in_turns = _with_less(problem, plan, deadline, max_tenants=plan.options.max_tenants)
    found = (in_turns, alone)
    return SharingReason(
        objective=plan.options.objective,
        reached=plan.objective,
        in_turns=_objective(in_turns),
        alone=_objective(alone),
        in_time=all(each.plan is not None or each.stopped != "time-limit" for each in found),
        binding=plan.binding,
        waits=tuple(_longest_wait(plan, demand.model) for demand in plan.demands),
    )


def _objective(found: PlanResult) -> float | None:
    return None if found.plan is None else found.plan.objective


def _with_less(
    problem: Problem, plan: Plan, deadline: Deadline, *, max_tenants: int | None
) -> PlanResult:
    """With whole devices only."""
    cluster = problem.cluster
    minimised = plan.options.objective != "max-min"
    many = DEVICES_PER_MODEL * len(problem.demands)
    nodes = cluster.nodes
    if minimised:
        nodes = tuple(
            replace(node, devices={kind: max(n, many) for kind, n in node.devices.items()})
            for node in nodes
        )
    types = tuple(replace(kind, shares=(WHOLE,), splits=()) for kind in cluster.device_types)
    options = replace(
        plan.options, max_tenants=max_tenants, time_limit_s=max(LEAST_S, deadline.left_s)
    )
    again = replace(
        problem, cluster=replace(cluster, device_types=types, nodes=nodes), options=options
    )
    return plan_shares(with_headroom(again))


def _longest_wait(plan: Plan, model: str) -> ModelWait:
    deployment = next(each for each in plan.deployments if each.model == model)
    demand = next(each for each in plan.demands if each.model == model)
    slots = {slot.name: slot for slot in plan.slots}

    def waits(slot: Slot, latency_us: int) -> int:
        return (slot.duty_us or 0) + latency_us

    found = [
        (waits(slots[name], stage.latency_us), pipeline.batch_size, slots[name])
        for pipeline in deployment.pipelines
        for stage in pipeline.stages
        for name in stage.pool
    ]
    wait_us, batch_size, slot = max(found, key=lambda each: each[0])
    return ModelWait(
        model=model,
        rate_rps=demand.rate_rps,
        throughput_rps=deployment.throughput_rps,
        device=slot.device,
        share=slot.share,
        batch_size=batch_size,
        beside=len(slot.tenants) - 1,
        wait_us=wait_us,
        budget_us=deployment.budget_us,
    )
