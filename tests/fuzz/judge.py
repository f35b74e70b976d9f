"""Is a plan that `verify` accepted as good as it says? By code that verifier and planner lack.

Figures are read off the profiles by `helpers.problems.profiled_us`, and what they do not show is
run: a batch on a slot must take no longer than the plan says of its stage.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from headrace.domain.events import AnyEvent, Dispatched, EventLogHeader, Ran
from headrace.domain.plan import Deployment, Depth, Pipeline, Plan, Slot, Tenant
from headrace.domain.profile import Profile
from headrace.interference import DeviceUse, slowdown_of, uses_of
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
        for number, depth in enumerate(deployment.depths, start=1):
            require(len(depth.stages) == number, f"depth {number} has {len(depth.stages)} stages")
            _judge_depth(plan, profiles[deployment.model], depth)
    if plan.is_malleable:
        _judge_work(plan, profiles)
    if all(kind.price_per_hour is not None for kind in plan.cluster.device_types):
        cost = sum(plan.cluster.device_type(d).price_per_hour or 0.0 for _, d, _ in devices)
        require(_close(cost, plan.cost_per_hour), f"cost {plan.cost_per_hour}, not {cost}")
    if plan.bound is not None:
        least = plan.options.objective.startswith("least-")
        worse, better = plan.bound, plan.objective
        if not least:
            worse, better = better, worse
        require(worse <= better * (1 + 1e-9), "the objective is beyond its bound")
    judge_turns(plan)
    judge_slowdowns(plan, profiles)
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
        "least-devices": float(len({(s.node, s.device, s.device_index) for s in plan.slots})),
    }[plan.options.objective]
    require(_close(plan.objective, objective), f"objective {plan.objective}, not {objective}")
    for deployment in plan.deployments:
        stray = (deployment.rate_rps, deployment.worst_case_us, deployment.cost_per_hour)
        require(stray == (None, None, None), f"figures that nothing gives: {stray}")


def _judge_pipeline(
    plan: Plan, profile: Profile, deployment: Deployment, pipeline: Pipeline
) -> None:
    at, total_us, waits_us = 0, 0, 0
    for stage in pipeline.stages:
        require(stage.first_block == at, "blocks are not covered in order")
        at = stage.end_block
        place = (stage.device, stage.share, stage.first_block, stage.end_block)
        p50_us, p99_us = profiled_us(profile, *place, pipeline.batch_size)
        cycles = {slot.duty_us for slot in plan.slots if slot.name in stage.pool}
        if any(cycles) or pipeline.load is not None:
            # Such slots run what they have been given, and fewer may take longer.
            sizes = range(1, pipeline.batch_size + 1)
            p99_us = max(profiled_us(profile, *place, size)[1] for size in sizes)
        slowest, extra_us = _stated_slowdown(plan, deployment, pipeline), profile.batch_overhead_us
        p99_us = math.ceil((p99_us - extra_us) * slowest) + extra_us
        require(stage.latency_us == p99_us, f"latency {stage.latency_us}, profiled {p99_us}")
        turn_us = max((cycle or 0 for cycle in cycles), default=0)
        waits_us += turn_us
        most = len(set(stage.pool)) * pipeline.batch_size * 1e6 / max(p50_us, turn_us)
        for rps in (stage.throughput_rps, pipeline.throughput_rps):
            require(rps <= most * (1 + 1e-9), f"throughput {rps}, at most {most}")
        total_us += p99_us + stage.transfer_us
    require(at == len(profile.blocks), "not all blocks are covered")
    require(pipeline.latency_us == total_us, f"latency {pipeline.latency_us}, not {total_us}")
    allowed = deployment.slo_us * (1 - Fraction(str(plan.options.margin)))
    worst_us = total_us + waits_us
    require(worst_us <= allowed, f"turns and latency {worst_us} exceed {float(allowed)}")


def _judge_depth(plan: Plan, profile: Profile, depth: Depth) -> None:
    at, parts = 0, []
    used = Counter((stage.device, stage.share) for stage in depth.stages)
    there = Counter((slot.device, slot.share) for slot in plan.slots)
    require(used <= there, f"a request needs {used}, there are {there}")
    for stage in depth.stages:
        require(stage.first_block == at, "blocks are not covered in order")
        at = stage.end_block
        place = (stage.device, stage.share, stage.first_block, stage.end_block)
        _, p99_us = profiled_us(profile, *place, depth.batch_size)
        require(stage.latency_us == p99_us, f"latency {stage.latency_us}, profiled {p99_us}")
        parts += [p99_us, stage.transfer_us]
    require(at == len(profile.blocks), "not all blocks are covered")
    figures = (sum(parts), max(parts))
    require((depth.fill_us, depth.pace_us) == figures, f"fill and pace are {figures}")


def _judge_work(plan: Plan, profiles: Mapping[str, Profile]) -> None:
    """All slots have time at least for every block of every item where it is quickest."""
    kinds = {(slot.device, slot.share) for slot in plan.slots}
    work_us = 0.0
    demands = {demand.model: demand for demand in plan.demands}
    for deployment in plan.deployments:
        demand = demands[deployment.model]
        profile, batch = profiles[demand.model], plan.options.item_batch
        known = [t for t in profile.block_times if (t.device, t.share) in kinds]
        if profile.stage_times:
            continue  # A range measured whole may be quicker than its blocks.
        least_us = sum(
            min(times.p50_us[block][batch - 1] for times in known if times.max_batch >= batch)
            for block in range(len(profile.blocks))
        )
        work_us += deployment.throughput_rps * math.ceil(demand.items.mean / batch) * least_us
        most = demand.items.most if plan.options.max_items is None else plan.options.max_items
        require(deployment.max_items == most, f"max_items {deployment.max_items}, not {most}")
    require(work_us <= len(plan.slots) * 1e6 * (1 + 1e-7), "more work than the slots have time")


def _stated_slowdown(plan: Plan, deployment: Deployment, pipeline: Pipeline) -> float:
    """Slots whose models come and go name no tenants."""
    stated = (
        tenant.slowdown
        for slot in plan.slots
        for tenant in slot.tenants
        if (tenant.model, tenant.pipeline) == (deployment.model, pipeline.name)
    )
    return max(stated, default=1.0)


def _pipeline_of(plan: Plan, model: str, name: str) -> Pipeline:
    named = [d for d in plan.deployments if d.model == model]
    return next(p for d in named for p in d.pipelines if p.name == name)


def judge_turns(plan: Plan) -> None:
    """
    Raises:
        Unkept: tenants of a slot do not all have their turn, or a device is cut as it may not be.
    """
    parts: dict[tuple[str, str, int], list[Fraction]] = {}
    for slot in plan.slots:
        parts.setdefault((slot.node, slot.device, slot.device_index), []).append(slot.share)
        if slot.duty_us is not None:
            stages = [_pipeline_of(plan, t.model, t.pipeline).stages[t.stage] for t in slot.tenants]
            usable = Fraction(str(plan.cluster.device_type(slot.device).max_utilisation))
            taken_us = sum(stage.latency_us for stage in stages)
            require(taken_us <= slot.duty_us * usable, f"{slot.name}: turns of {taken_us} us")
    for (_, device, _), shares in parts.items():
        legal = plan.cluster.device_type(device).allows(shares)
        require(legal, f"a {device} cut into {shares}")


def judge_slowdowns(plan: Plan, profiles: Mapping[str, Profile]) -> None:
    """
    Raises:
        Unkept: a tenant is slowed by a neighbour more than the plan says.
    """
    for document in plan.interference:
        here = [slot for slot in plan.slots if slot.device == document.device]
        for slot in here:
            place = (slot.node, slot.device_index)
            others = [s for s in here if s is not slot and (s.node, s.device_index) == place]
            for tenant in slot.tenants:
                own = _used(plan, profiles, slot, tenant)
                beside = [_used(plan, profiles, s, t) for s in others for t in s.tenants]
                pairs = ((mine, its) for use in beside for its in use for mine in own)
                needed = max(
                    (slowdown_of(document, [mine], [[its]]) for mine, its in pairs), default=1.0
                )
                require(
                    needed <= tenant.slowdown * (1 + 1e-9),
                    f"{slot.name}: slowed {needed}, {tenant.slowdown} stated",
                )


def _used(
    plan: Plan, profiles: Mapping[str, Profile], slot: Slot, tenant: Tenant
) -> Sequence[DeviceUse]:
    batch = _pipeline_of(plan, tenant.model, tenant.pipeline).batch_size
    return uses_of(profiles[tenant.model], slot.device, slot.share, batch)


def judge_run(plan: Plan, header: EventLogHeader, events: Sequence[AnyEvent]) -> None:
    """
    Raises:
        Unkept: a batch ran longer, or elsewhere, than the plan says of its stage.
    """
    by_name = {d.name: d for d in plan.deployments}
    slots = {slot.name: slot for slot in plan.slots}
    running: dict[int, Pipeline | Depth] = {}
    start_us: dict[int, int] = {}
    for event in events:
        if isinstance(event, Dispatched):
            deployment = by_name[header.models[event.model]]
            ways = deployment.depths or deployment.pipelines
            running[event.batch] = ways[event.pipeline]
            start_us[event.batch] = deployment.start.start_us if deployment.start else 0
        elif isinstance(event, Ran):
            slot = slots[header.slots[event.slot]]
            most_us = _most_us(running[event.batch], slot)
            require(most_us >= 0, f"slot {slot.name} ran what its plan does not give it")
            # Layers that are still on their way are waited for.
            most_us = max(most_us, start_us[event.batch])
            took_us = event.at_us - event.started_at_us
            require(took_us <= most_us, f"a batch took {took_us} us, the plan says {most_us}")


def _most_us(way: Pipeline | Depth, slot: Slot) -> int:
    """The longest that a stage takes which that slot may run; -1: it may run none."""
    if isinstance(way, Depth):
        kind = (slot.device, slot.share)
        stages = [s.latency_us for s in way.stages if (s.device, s.share) == kind]
    else:
        stages = [s.latency_us for s in way.stages if slot.name in s.pool]
    return max(stages, default=-1)
