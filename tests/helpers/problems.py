"""Synthetic profiles, clusters, problems and plans, all from stated seeds.

profile = make_profile(blocks=6, devices={"a": 1.0, "b": 0.4}, max_batch=4)
problem = make_problem(profiles=[profile], nodes={"n0": {"a": 2, "b": 3}}, slo_us=60_000)
plan = make_plan(profiles=[profile])
"""

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec
import numpy as np

from headrace.domain.base import encode_fraction
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.errors import ProfileError
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance, StageTimes
from headrace.domain.tensors import TensorSpec

WHOLE = (Fraction(1),)
QUARTERS = (Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(1, 4))
"""The shares of the paper's virtual GPUs (PPipe, 5.3)."""

HANG_S = 600.0
"""Far more than any search of the tests takes, compiling included; only a hang reaches it."""

DEFAULT_DEVICES: Mapping[str, float] = {"a": 1.0, "b": 0.5}


def unhurried(options: PlanOptions) -> PlanOptions:
    """The same without the usual time limit, which a busy machine may reach; another one stays."""
    if options.time_limit_s != PlanOptions().time_limit_s:
        return options
    return msgspec.structs.replace(options, time_limit_s=HANG_S)


def make_profile(
    model: str = "m",
    *,
    blocks: int = 4,
    devices: Mapping[str, float] = DEFAULT_DEVICES,
    max_batch: int = 4,
    shares: Sequence[Fraction] | Mapping[str, Sequence[Fraction]] = WHOLE,
    block_us: int = 4_000,
    cut_bytes: int = 40_000,
    weights_bytes: int = 1_000_000,
    spread: float = 1.1,
    fixed_fraction: float = 0.5,
    seed: int = 0,
    measured_stages: bool = False,
) -> Profile:
    """A model of `blocks` blocks, about `block_us` each on a device of speed 1 at batch size 1.

    A batch of b takes `fixed_fraction + (1 - fixed_fraction) b` times as long; a share s takes
    s ** -0.8 times as long; p99 is `spread` times p50. Cut sizes and weights vary by +-50 %.
    With `measured_stages` every block range is also "measured whole", 5 % below its sum.
    """
    rng = np.random.default_rng(seed)
    base_us = block_us * rng.uniform(0.5, 1.5, size=blocks)
    # The devices differ by layer, too: that is what pipelines across them live on (PPipe, 2).
    affinity = {name: rng.uniform(0.7, 1.3, size=blocks) for name in devices}
    cuts = (cut_bytes * rng.uniform(0.5, 1.5, size=blocks)).astype(int)
    weights = (weights_bytes * rng.uniform(0.5, 1.5, size=blocks)).astype(int)
    batches = np.arange(1, max_batch + 1)
    growth = fixed_fraction + (1 - fixed_fraction) * batches
    times = []
    for name, speed in devices.items():
        for share in shares[name] if isinstance(shares, Mapping) else shares:
            p50 = base_us * affinity[name] / speed * float(share) ** -0.8
            table = np.maximum(1, np.rint(np.outer(p50, growth))).astype(int)
            times.append(
                BlockTimes(
                    device=name,
                    share=share,
                    p50_us=_rows(table),
                    p99_us=_rows(np.ceil(table * spread).astype(int)),
                )
            )
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(4,))
    return Profile(
        model=model,
        provenance=Provenance(kind="synthetic", date="2026-01-01T00:00:00Z"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=tuple(
            Block(
                name=f"block{i}",
                node_count=1,
                weights_bytes=int(weights[i]),
                cut=(TensorSpec(name=f"t{i}", dtype="float32", item_shape=(1,)),),
                cut_bytes=int(cuts[i]),
            )
            for i in range(blocks)
        ),
        block_times=tuple(times),
        stage_times=_whole_stages(times, blocks) if measured_stages else (),
    )


def with_uneven_times(profile: Profile, seed: int, spread: float = 1.0) -> Profile:
    """The same with up to `spread` more time, at random, for batches of each size: some take longer
    than larger ones, as measured ones may."""
    rng = np.random.default_rng(seed)

    def uneven(times: BlockTimes) -> BlockTimes:
        factors = 1 + spread * rng.random(times.max_batch)
        p50, p99 = (
            np.ceil(np.array(t) * factors).astype(int) for t in (times.p50_us, times.p99_us)
        )
        return msgspec.structs.replace(times, p50_us=_rows(p50), p99_us=_rows(p99))

    return msgspec.structs.replace(profile, block_times=tuple(map(uneven, profile.block_times)))


def _rows(table: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(value) for value in row) for row in table)


def _whole_stages(times: Sequence[BlockTimes], blocks: int) -> tuple[StageTimes, ...]:
    def summed(rows: tuple[tuple[int, ...], ...], i: int, j: int) -> tuple[int, ...]:
        return tuple(max(1, sum(column) * 95 // 100) for column in zip(*rows[i:j], strict=True))

    return tuple(
        StageTimes(
            device=t.device,
            share=t.share,
            first_block=i,
            end_block=j,
            p50_us=summed(t.p50_us, i, j),
            p99_us=summed(t.p99_us, i, j),
        )
        for t in times
        for i in range(blocks)
        for j in range(i + 1, blocks + 1)
    )


def make_cluster(
    nodes: Mapping[str, Mapping[str, int]],
    *,
    shares: Sequence[Fraction] | Mapping[str, Sequence[Fraction]] = WHOLE,
    gbps: float | Mapping[str, float | None] | None = None,
    prices: Mapping[str, float] | None = None,
    memory_bytes: Mapping[str, int] | None = None,
    max_utilisation: float = 1.0,
) -> Cluster:
    """`nodes`: node -> device type -> count. `gbps`: one for all nodes, or node -> speed."""
    names = sorted({device for devices in nodes.values() for device in devices})
    return Cluster(
        device_types=tuple(
            DeviceType(
                name=name,
                shares=tuple(shares[name] if isinstance(shares, Mapping) else shares),
                price_per_hour=prices.get(name) if prices else None,
                memory_bytes=memory_bytes.get(name) if memory_bytes else None,
                max_utilisation=max_utilisation,
            )
            for name in names
        ),
        nodes=tuple(
            Node(
                name=name,
                devices=dict(devices),
                bandwidth_gbps=gbps.get(name) if isinstance(gbps, Mapping) else gbps,
            )
            for name, devices in nodes.items()
        ),
    )


def profile_ref(profile: Profile) -> ProfileRef:
    encoded = msgspec.json.encode(profile, enc_hook=encode_fraction)
    return ProfileRef(
        model=profile.model,
        path=f"{profile.model}.profile.json",
        sha256=hashlib.sha256(encoded).hexdigest(),
    )


def whole_model_us(profile: Profile) -> int:
    """p99 of batch size 1 on the fastest whole device."""
    blocks = len(profile.blocks)
    return min(
        profiled_us(profile, t.device, t.share, 0, blocks, 1)[1]
        for t in profile.block_times
        if t.share == 1
    )


def profiled_us(
    profile: Profile, device: str, share: Fraction, first: int, end: int, batch: int
) -> tuple[int, int]:
    """p50 and p99 of a stage, read off the profile; shares no code with the cost model."""
    place = (device, share, first, end)
    for whole in profile.stage_times:
        here = (whole.device, whole.share, whole.first_block, whole.end_block) == place
        if here and batch <= len(whole.p50_us):
            extra = profile.batch_overhead_us
            return whole.p50_us[batch - 1] + extra, whole.p99_us[batch - 1] + extra
    times = profile.times(device, share)
    if times is None or batch > times.max_batch:
        raise ProfileError(f"batch size {batch} was not profiled on {share} of {device}")
    p50_us = sum(row[batch - 1] for row in times.p50_us[first:end])
    p99_us = sum(row[batch - 1] for row in times.p99_us[first:end])
    return p50_us + profile.batch_overhead_us, p99_us + profile.batch_overhead_us


def make_problem(
    profiles: Sequence[Profile] | None = None,
    *,
    nodes: Mapping[str, Mapping[str, int]] | None = None,
    cluster: Cluster | None = None,
    slo_us: int | Mapping[str, int] | None = None,
    weights: Mapping[str, float] | None = None,
    rates: Mapping[str, float] | None = None,
    options: PlanOptions | None = None,
    gbps: float | None = None,
    shares: Sequence[Fraction] = WHOLE,
) -> Problem:
    """One demand per profile. Defaults: one node with two of each device; SLO five times the
    whole model's latency on the fastest device (the paper's 7.1)."""
    profiles = [make_profile(shares=shares)] if profiles is None else profiles
    if cluster is None:
        devices = sorted({t.device for profile in profiles for t in profile.block_times})
        nodes = nodes or {"local": dict.fromkeys(devices, 2)}
        cluster = make_cluster(nodes, gbps=gbps, shares=shares)

    def slo_of(profile: Profile) -> int:
        if slo_us is None:
            return 5 * whole_model_us(profile)
        return slo_us if isinstance(slo_us, int) else slo_us[profile.model]

    return Problem(
        cluster=cluster,
        demands=tuple(
            Demand(
                model=profile.model,
                slo_us=slo_of(profile),
                weight=(weights or {}).get(profile.model, 1.0),
                rate_rps=(rates or {}).get(profile.model),
            )
            for profile in profiles
        ),
        profiles={profile.model: profile for profile in profiles},
        profile_refs=tuple(profile_ref(profile) for profile in profiles),
        options=unhurried(options or PlanOptions()),
    )


def make_plan(problem: Problem | None = None) -> Plan:
    """The plan of `problem` (default: `make_problem()`); fails if there is none."""
    from headrace.planning import solve

    result = solve(problem or make_problem())
    assert result.plan is not None, result.refusal
    return result.plan
