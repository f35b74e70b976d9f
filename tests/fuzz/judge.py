"""Is a plan that `verify` accepted as good as it says? By code that verifier and planner lack.

Figures are read off the profiles by `helpers.problems.profiled_us`, and what they do not show is
run: a batch on a slot must take no longer than the plan says of its stage.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from headrace.domain.events import AnyEvent, Dispatched, EventLogHeader, Ran
from headrace.domain.plan import Deployment, Pipeline, Plan
from headrace.domain.profile import Profile
from helpers.problems import profiled_us


class Unkept(AssertionError):
    """A plan says what is not so, and was accepted."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Unkept(what)


def judge_figures(plan: Plan, profiles: Mapping[str, Profile]) -> None:
    """
    Raises:
        Unkept: a claimed figure is better than what the profiles give.
    """
    slots = {slot.name: slot for slot in plan.slots}
    devices: Counter[tuple[str, str, int]] = Counter()
    for slot in plan.slots:
        place = (slot.node, slot.device, slot.device_index)
        devices[place] += slot.share  # type: ignore[assignment]  # fractions add up as well
        require(
            slot.device_index < plan.cluster.node(slot.node).devices.get(slot.device, 0),
            f"slot {slot.name} on a device that is not there",
        )
    require(max(devices.values(), default=0) <= 1, "a device is used more than whole")
    for deployment in plan.deployments:
        for pipeline in deployment.pipelines:
            for name in (name for stage in pipeline.stages for name in stage.pool):
                require(name in slots, f"pool names slot {name!r}, which is not there")
            _judge_pipeline(plan, profiles[deployment.model], deployment, pipeline)
    if all(kind.price_per_hour is not None for kind in plan.cluster.device_types):
        cost = sum(plan.cluster.device_type(d).price_per_hour or 0.0 for _, d, _ in devices)
        require(_close(cost, plan.cost_per_hour), f"cost {plan.cost_per_hour}, not {cost}")
    if plan.bound is not None:
        worse = plan.bound if plan.options.objective == "least-cost" else plan.objective
        better = plan.objective if plan.options.objective == "least-cost" else plan.bound
        require(worse <= better * (1 + 1e-9), "the objective is beyond its bound")
    if not plan.apps:
        _judge_models(plan)


def _close(a: float, b: float | None) -> bool:
    return b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _judge_models(plan: Plan) -> None:
    carried = {d.model: d.throughput_rps for d in plan.deployments}
    require(set(carried) == {d.model for d in plan.demands}, "not every demand is deployed")
    for demand in plan.demands:
        least = demand.rate_rps or 0.0
        require(carried[demand.model] * (1 + 1e-9) >= least, f"{demand.model}: rate not carried")
    by_weight = [carried[d.model] / d.weight for d in plan.demands]
    objective = {
        "throughput": sum(carried.values()),
        "max-min": min(by_weight),
        "least-cost": plan.cost_per_hour,
    }[plan.options.objective]
    require(_close(plan.objective, objective), f"objective {plan.objective}, not {objective}")
    for deployment in plan.deployments:
        stray = (deployment.rate_rps, deployment.worst_case_us, deployment.cost_per_hour)
        require(stray == (None, None, None), f"figures that nothing gives: {stray}")


def _judge_pipeline(
    plan: Plan, profile: Profile, deployment: Deployment, pipeline: Pipeline
) -> None:
    at, total_us = 0, 0
    for stage in pipeline.stages:
        require(stage.first_block == at, "blocks are not covered in order")
        at = stage.end_block
        place = (stage.device, stage.share, stage.first_block, stage.end_block)
        p50_us, p99_us = profiled_us(profile, *place, pipeline.batch_size)
        require(stage.latency_us == p99_us, f"latency {stage.latency_us}, profiled {p99_us}")
        most = len(set(stage.pool)) * pipeline.batch_size * 1e6 / p50_us
        for rps in (stage.throughput_rps, pipeline.throughput_rps):
            require(rps <= most * (1 + 1e-9), f"throughput {rps}, at most {most}")
        total_us += p99_us + stage.transfer_us
    require(at == len(profile.blocks), "not all blocks are covered")
    require(pipeline.latency_us == total_us, f"latency {pipeline.latency_us}, not {total_us}")
    allowed = deployment.slo_us * (1 - Fraction(str(plan.options.margin)))
    require(total_us <= allowed, f"latency {total_us} exceeds the budget {float(allowed)}")


def judge_run(plan: Plan, header: EventLogHeader, events: Sequence[AnyEvent]) -> None:
    """
    Raises:
        Unkept: a batch ran longer, or elsewhere, than the plan says of its stage.
    """
    by_name = {d.name: d for d in plan.deployments}
    running: dict[int, Pipeline] = {}
    for event in events:
        if isinstance(event, Dispatched):
            deployment = by_name[header.models[event.model]]
            name = header.pipelines[event.model][event.pipeline]
            running[event.batch] = next(p for p in deployment.pipelines if p.name == name)
        elif isinstance(event, Ran):
            slot = header.slots[event.slot]
            stages = [s for s in running[event.batch].stages if slot in s.pool]
            require(bool(stages), f"slot {slot} ran what its plan does not give it")
            took_us, most_us = event.at_us - event.started_at_us, max(s.latency_us for s in stages)
            require(took_us <= most_us, f"a batch took {took_us} us, the plan says {most_us}")
