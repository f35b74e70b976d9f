"""Are the numbers those of the profiles: latency, transfer, throughput."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf

from headrace.domain.cluster import is_cores
from headrace.domain.plan import DepthStage, Slot, Stage
from headrace.domain.profile import Bucket, Profile
from headrace.verify.case import Case, PlannedPipeline, at_most

OF_ALL_PIPELINES = "throughput (rps) of all pipelines"

US_PER_S = 1e6
"""Time that the one gateway has."""


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Recomputed requests per second; 0 where the plan is too broken to tell."""

    pipelines: dict[tuple[str, str], float]
    deployments: dict[str, float]


@dataclass(frozen=True, slots=True)
class StageRates:
    """Recomputed figures of one stage."""

    p99_us: int
    running_rps: float
    """Of one slot with any link."""
    slots_rps: dict[str, float]
    """Slot -> its throughput."""

    @property
    def total_rps(self) -> float:
        return sum(self.slots_rps.values())


def check_figures(case: Case) -> Throughputs:
    """Recompute every stage, pipeline and deployment, and compare."""
    pipelines: dict[tuple[str, str], float] = {}
    for planned in case.pipelines:
        pipelines[planned.model, planned.pipeline.name] = _check_pipeline(case, planned)
    return Throughputs(pipelines=pipelines, deployments=check_deployments(case, pipelines))


def check_deployments(case: Case, pipelines: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Of pipelines with these throughputs; what the gateway passes on of them, where it limits.
    Returns requests per second of each deployment, by label."""
    deployments = {case.label(deployment): 0.0 for deployment in case.plan.deployments}
    for deployment, own in zip(case.plan.deployments, _own(case, pipelines), strict=True):
        deployments[case.label(deployment)] += own
    if _gateway_us(case, deployments) > US_PER_S:
        deployments = _check_gateway(case, deployments)
    else:
        for deployment, own in zip(case.plan.deployments, _own(case, pipelines), strict=True):
            claimed = deployment.throughput_rps
            case.expect("throughput", deployment.model, OF_ALL_PIPELINES, own, claimed)
    return deployments


def _gateway_us(case: Case, rates_rps: Mapping[str, float]) -> float:
    """What it needs of every second to pass on so many requests of each model."""
    if case.plan.apps:
        return 0.0
    known = ((case.profiles.get(model), rps) for model, rps in rates_rps.items())
    return sum(profile.gateway_us * rps for profile, rps in known if profile is not None)


def _check_gateway(case: Case, own_rps: dict[str, float]) -> dict[str, float]:
    """Slots could do more than the gateway passes on: who gets how much of it is the plan's to say.

    Returns the rates that the plan states, none above what its slots can do.
    """
    passed = {}
    for deployment in case.plan.deployments:
        own, claimed = own_rps[deployment.model], deployment.throughput_rps
        if not (claimed >= 0 and at_most(claimed, own)):
            case.report("throughput", deployment.model, OF_ALL_PIPELINES, f"0..{own}", claimed)
        passed[deployment.model] = min(own, claimed)
    limit_gateway(case, passed)
    return passed


def limit_gateway(case: Case, rates_rps: Mapping[str, float]) -> None:
    """It can pass on so many requests of each model."""
    what = "time of the gateway (us of every second) for all requests"
    case.limit("gateway", "plan", what, _gateway_us(case, rates_rps), US_PER_S)


def _own(case: Case, pipelines: Mapping[tuple[str, str], float]) -> list[float]:
    """Of each deployment. Two modules of apps may run one model: each is summed up on its own."""
    return [
        sum(pipelines.get((deployment.model, p.name), 0.0) for p in deployment.pipelines)
        for deployment in case.plan.deployments
    ]


def _check_pipeline(case: Case, planned: PlannedPipeline) -> float:
    """Returns the pipeline's recomputed throughput."""
    profile = case.profiles.get(planned.model)
    if profile is None or not planned.stages:
        return 0.0
    slowest, total_us = inf, 0
    for index, stage in enumerate(planned.stages):
        where = planned.stage_where(index)
        rates = stage_rates(case, planned, index)
        if rates is None:
            return 0.0
        after = planned.stages[index + 1] if index + 1 < len(planned.stages) else None
        hop_us = transfer_us(case, profile, stage, after, planned.pipeline.batch_size)
        case.expect("latency", where, "p99 latency (us)", rates.p99_us, stage.latency_us)
        case.expect("transfer", where, "transfer (us)", hop_us, stage.transfer_us)
        total_rps, claimed_rps = rates.total_rps, stage.throughput_rps
        case.expect("throughput", where, "throughput (rps) of the pool", total_rps, claimed_rps)
        slowest = min(slowest, total_rps)
        total_us += rates.p99_us + hop_us
    _check_totals(case, planned, total_us, slowest)
    return slowest


def _check_totals(case: Case, planned: PlannedPipeline, total_us: int, slowest_rps: float) -> None:
    claimed = planned.pipeline
    where, what = planned.where, "throughput (rps) of the slowest stage"
    case.expect("latency", where, "latency (us) of stages and hops", total_us, claimed.latency_us)
    case.expect("throughput", where, what, slowest_rps, claimed.throughput_rps)
    demand = case.demand_of(planned)
    if demand is not None:
        margin = Fraction(str(case.plan.options.margin_of(planned.model)))
        budget_us = floor(demand.slo_us * (1 - margin))
        profile = case.profiles.get(planned.model)
        if profile is not None:
            total_us += profile.gateway_us
        total_us += sum(_turn_us(case, stage) for stage in planned.stages)
        if total_us > budget_us:
            what = f"exceeds the latency budget of an SLO of {demand.slo_us} us"
            case.report("slo", planned.where, what, f"{total_us} us", f"{budget_us} us")


def _turn_us(case: Case, stage: Stage) -> int:
    """The longest wait for a turn on its slots: their duty cycle."""
    held = [case.slots[name].duty_us for name in stage.pool if name in case.slots]
    return max([duty_us for duty_us in held if duty_us is not None], default=0)


def latency_us(
    profile: Profile,
    stage: Stage | DepthStage,
    batch_size: int,
    shapes: Mapping[str, float] | None = None,
    slowdown: float = 1.0,
    *,
    at_most: bool = False,
) -> tuple[float, int] | None:
    """p50 and p99 of a batch, the cost model's rule restated.

    Those of the stage where it was measured whole at this batch size, else sums over its blocks,
    times what neighbours slow it, p99 rounded up; the server's own part once on top. Of a model of
    several sizes the mean p50, weighted by `shapes` or else evenly, and the largest p99: a batch
    holds one size only. None where it was not profiled; the structure checks say so.

    Args:
        at_most: p99 is what so many requests or fewer take at most, those of each size in batches
            of its own.
    """
    own = _timed_us(profile, len(profile.blocks), stage, batch_size)
    overhead_us = profile.batch_overhead_us
    if own is None:
        return None
    longest_us = own[1]
    if at_most:
        longest_us = _longest_turn_us(profile, stage, batch_size) - overhead_us
    if not profile.buckets:
        return own[0] * slowdown + overhead_us, ceil(longest_us * slowdown) + overhead_us
    total = weights = 0.0
    everything: tuple[Profile | Bucket, ...] = (profile, *profile.buckets)
    for timed in everything:
        took_us = _timed_us(timed, len(profile.blocks), stage, batch_size)
        if took_us is None:
            return None
        weight = shapes.get("x".join(map(str, timed.sizes)), 0.0) if shapes else 1.0
        weights += weight
        total += weight * took_us[0]
        longest_us = max(longest_us, took_us[1])
    p50_us = total / weights * slowdown + overhead_us if weights else inf
    return p50_us, ceil(longest_us * slowdown) + overhead_us


def _longest_turn_us(profile: Profile, stage: Stage | DepthStage, requests: int) -> int:
    """Of all ways to split them, or fewer, among the sizes; the server's part for each batch."""
    most = {0: 0}
    everything: tuple[Profile | Bucket, ...] = (profile, *profile.buckets)
    for timed in everything:
        before = dict(most)
        for size in range(1, requests + 1):
            took_us = _timed_us(timed, len(profile.blocks), stage, size)
            if took_us is None:
                continue
            for others, others_us in before.items():
                if others + size <= requests:
                    together = others_us + took_us[1] + profile.batch_overhead_us
                    most[others + size] = max(most.get(others + size, 0), together)
    return max(most.values())


def _timed_us(
    timed: Profile | Bucket, block_count: int, stage: Stage | DepthStage, batch_size: int
) -> tuple[int, int] | None:
    """What the device takes at one size."""
    if batch_size < 1 or not 0 <= stage.first_block < stage.end_block <= block_count:
        return None
    column = batch_size - 1
    place = (stage.device, stage.share, stage.first_block, stage.end_block)
    for whole in timed.stage_times:
        if (whole.device, whole.share, whole.first_block, whole.end_block) == place:
            if column < len(whole.p50_us):
                return whole.p50_us[column], whole.p99_us[column]
            break
    for times in timed.block_times:
        if (times.device, times.share) == place[:2]:
            if column >= times.max_batch:
                return None
            p50_us = p99_us = 0
            for block in range(stage.first_block, stage.end_block):
                p50_us += times.p50_us[block][column]
                p99_us += times.p99_us[block][column]
            return p50_us, p99_us
    return None


def transfer_us(
    case: Case,
    profile: Profile,
    stage: Stage | DepthStage,
    after: Stage | DepthStage | None,
    batch_size: int,
) -> int:
    """Of one batch over an idle link between the slowest nodes of both device types."""
    if after is None or len(case.nodes) < 2:
        return 0
    speeds = [
        node.bandwidth_gbps
        for node in case.nodes.values()
        if node.bandwidth_gbps is not None
        and (node.devices.get(stage.device) or node.devices.get(after.device))
    ]
    if not speeds:
        return 0
    size_bytes = batch_size * profile.blocks[stage.end_block - 1].cut_bytes
    # 10^9 bits per second are 125 bytes per microsecond.
    return round(size_bytes / (min(speeds) * 125))


def stage_rates(case: Case, planned: PlannedPipeline, index: int) -> StageRates | None:
    """A slot's throughput is batch / p50 x utilisation, or its link share; with a duty cycle D it
    is at most batch / D.

    Slots with a duty cycle, and machines of apps, run what they have been given: their latency is
    that of the slowest batch of at most the planned size. None where the plan names what does not
    exist or was not profiled.
    """
    stage, batch = planned.stages[index], planned.pipeline.batch_size
    profile, kind = case.profiles.get(planned.model), case.types.get(stage.device)
    demand = case.demand_of(planned)
    shapes = None if demand is None else demand.shapes
    slowdown = case.slowdown(planned, index)
    in_turns = any(case.slots[name].duty_us for name in stage.pool if name in case.slots)
    at_most = in_turns or planned.pipeline.load is not None
    latency = None
    if profile is not None:
        latency = latency_us(profile, stage, batch, shapes, slowdown, at_most=at_most)
    if profile is None or kind is None or latency is None:
        return None
    p50_us, p99_us = latency
    taken_us = p50_us + gateway_part_us(case, planned, index)
    running_rps = batch * 1e6 / taken_us * kind.max_utilisation
    link_rps = _link_share_rps(case, profile, stage)
    return StageRates(
        p99_us=p99_us,
        running_rps=running_rps,
        slots_rps={
            name: min(_turns_rps(case.slots[name], batch) or running_rps, link_rps)
            for name in stage.pool
            if name in case.slots
        },
    )


def _turns_rps(slot: Slot, batch_size: int) -> float | None:
    """One batch in each duty cycle; None of a slot without one."""
    if slot.duty_us is None:
        return None
    return batch_size * US_PER_S / slot.duty_us if slot.duty_us > 0 else 0.0


def gateway_part_us(case: Case, planned: PlannedPipeline, index: int) -> int:
    """What the gateway takes of a slot's time for one batch, where they have the same cores: the
    first slot of a request pays it."""
    profile = case.profiles.get(planned.model)
    here = is_cores(planned.stages[index].device) and len(case.nodes) == 1 and index == 0
    if profile is None or not here:
        return 0
    return planned.pipeline.batch_size * (profile.gateway_shared_us or profile.gateway_us)


def _link_share_rps(case: Case, profile: Profile, stage: Stage) -> float:
    """What a slot's even part of its node's link carries; on the narrowest node of its type. Of it
    the part that the model is planned to use."""
    entering = 0 if stage.first_block == 0 else profile.blocks[stage.first_block - 1].cut_bytes
    last = stage.end_block == len(profile.blocks)
    leaving = 0 if last else profile.blocks[stage.end_block - 1].cut_bytes
    widest = max(entering, leaving)
    if widest == 0 or len(case.nodes) < 2:
        return inf
    part = case.plan.options.link_parts.get(profile.model, 1.0)
    return min(
        (
            node.bandwidth_gbps * 1e9 / 8 * part * float(stage.share) / node.device_count / widest
            for node in case.nodes.values()
            if node.bandwidth_gbps is not None and node.devices.get(stage.device)
        ),
        default=inf,
    )
