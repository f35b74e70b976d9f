"""Small planning tasks by the artifact's rule, from seeds, and two other ways to solve them.

brute_force   tries every set of pipelines, one per template, straight from the definitions
by_highs      the whole integer program, over all pipelines, none left out as dominated
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import inf, lcm
from operator import add, gt

import numpy as np
from benchmarks.ppipe.artifact.columns import (
    artifact_kinds,
    artifact_pipelines,
    artifact_stock,
)

from headrace.catalog.ppipe.artifact import (
    ReferenceDeployment,
    ReferenceDevice,
    ReferencePartition,
    ReferencePipeline,
    ReferencePlan,
)
from headrace.catalog.ppipe.rule import pipeline_latency_us, slot_rps
from headrace.domain.errors import ProfileError
from headrace.domain.profile import Profile
from headrace.planning.common.solver import LinearModel
from headrace.planning.exact.columns import slot_types, slot_units
from helpers.problems import make_profile, whole_model_us

Profiles = Mapping[str, Profile]
Pool = tuple[int, str]


def make_task(
    seed: int,
    *,
    models: int,
    devices: Mapping[str, int],
    shares: Sequence[Fraction],
    blocks: int = 3,
    max_batch: int = 2,
    max_stages: int = 2,
) -> tuple[ReferencePlan, dict[str, Profile]]:
    """Device "a" is the fastest, every further one half as fast."""
    rng = np.random.default_rng(seed)
    speeds = {name: 0.5**i for i, name in enumerate(devices)}
    profiles = [
        make_profile(
            f"m{i}",
            blocks=blocks,
            devices=speeds,
            max_batch=max_batch,
            shares=shares,
            cut_bytes=int(rng.choice([20_000, 400_000])),
            fixed_fraction=float(rng.choice([0.0, 0.6])),
            spread=1.0,
            seed=1000 * seed + i,
        )
        for i in range(models)
    ]
    task = ReferencePlan(
        name=f"seed-{seed}",
        algorithm="v4",
        bandwidth_gbps=1.0,
        max_stages=max_stages,
        devices=tuple(
            ReferenceDevice(name=name, count=count, per_server=2, shares=tuple(shares))
            for name, count in devices.items()
        ),
        deployments=tuple(
            ReferenceDeployment(
                model=profile.model,
                weight=float(rng.choice([0.3, 0.5, 1.0])),
                slo_us=float(whole_model_us(profile) * rng.choice([2.5, 3.5, 5.0])),
                margin=0.4,
                margin_us=0,
                expected_rps=200.0,
                build_factor=1.3,
                stated_rps=0.0,
                pipelines=(),
            )
            for profile in profiles
        ),
        stated_runtime_s=None,
    )
    return task, {profile.model: profile for profile in profiles}


@dataclass(frozen=True)
class Piece:
    """One pipeline with slot counts."""

    types: tuple[str, ...]
    use: tuple[tuple[Pool, Fraction], ...]
    rps: float


def brute_force(task: ReferencePlan, profiles: Profiles) -> float:
    """The best objective; 0 if some model cannot be served."""
    most = {device.name: device.count for device in task.devices}
    tables = [_table(task, d, profiles[d.model]) for d in task.deployments]

    def split(at: int, left: dict[str, int]) -> float:
        if at == len(tables):
            return inf
        best = 0.0
        for need, rps in tables[at].items():
            after = {name: left[name] - n for name, n in zip(left, need, strict=True)}
            if min(after.values()) >= 0:
                best = max(best, min(rps / task.deployments[at].weight, split(at + 1, after)))
        return best

    return split(0, most)


def most_rps_by_needs(task: ReferencePlan, profiles: Profiles) -> dict[tuple[int, ...], float]:
    """Of the only model: whole devices of each type -> most throughput that takes just these."""
    return _table(task, task.deployments[0], profiles[task.deployments[0].model])


def _table(
    task: ReferencePlan, deployment: ReferenceDeployment, profile: Profile
) -> dict[tuple[int, ...], float]:
    """Whole devices of each type -> most throughput, over sets of one pipeline per template.

    Template by template; of all sets that use the same of every pool only the fastest goes on. Uses
    are counted in whole parts of a device, which add up faster than fractions.
    """
    most = {device.name: device.count for device in task.devices}
    pieces = list(_pieces(task, deployment, profile, most))
    pools = sorted({pool for piece in pieces for pool, _ in piece.use})
    parts = lcm(*(share.denominator for piece in pieces for _, share in piece.use))
    devices = [list(most).index(name) for _, name in pools]

    def needs(use: tuple[int, ...]) -> tuple[int, ...]:
        whole = [0] * len(most)
        for part, device in zip(use, devices, strict=True):
            whole[device] += -(-part // parts)
        return tuple(whole)

    best = {(0,) * len(pools): 0.0}
    for template in product(most, repeat=task.max_stages):
        mine = [
            (tuple(int(dict(piece.use).get(pool, 0) * parts) for pool in pools), piece.rps)
            for piece in pieces
            if template[: len(piece.types)] == piece.types
        ]
        for (before, rps), (piece, more_rps) in product(list(best.items()), mine):
            use = tuple(map(add, before, piece))
            if use not in best and any(map(gt, needs(use), most.values())):
                continue
            best[use] = max(best.get(use, 0.0), rps + more_rps)
    table: dict[tuple[int, ...], float] = defaultdict(float)
    for use, rps in best.items():
        table[needs(use)] = max(table[needs(use)], rps)
    return {need: rps for need, rps in table.items() if rps > 0}


def _pieces(
    task: ReferencePlan,
    deployment: ReferenceDeployment,
    profile: Profile,
    most: Mapping[str, int],
) -> Iterator[Piece]:
    """Of equal use only the fastest; nothing with a slot that could be left out."""
    best: dict[tuple[tuple[str, ...], tuple[tuple[Pool, Fraction], ...]], float] = {}
    for pipeline in _pipelines(task, deployment, profile):
        rates = [
            slot_rps(task, pipeline.batch_size, partition, profile)
            for partition in pipeline.partitions
        ]
        counts = [range(1, int(most[p.device] / p.share) + 1) for p in pipeline.partitions]
        for slots in product(*counts):
            rps = min(n * rate for n, rate in zip(slots, rates, strict=True))
            if any((n - 1) * rate >= rps for n, rate in zip(slots, rates, strict=True)):
                continue
            types = tuple(partition.device for partition in pipeline.partitions)
            use = tuple(
                ((position, partition.device), n * partition.share)
                for position, (partition, n) in enumerate(
                    zip(pipeline.partitions, slots, strict=True)
                )
            )
            best[types, use] = max(best.get((types, use), 0.0), rps)
    for (types, use), rps in best.items():
        yield Piece(types, use, rps)


def _pipelines(
    task: ReferencePlan, deployment: ReferenceDeployment, profile: Profile
) -> Iterator[ReferencePipeline]:
    """Every pipeline within the budget, with one slot per partition."""
    blocks = len(profile.blocks)
    kinds = [(device.name, share) for device in task.devices for share in device.shares]
    largest = max(times.max_batch for times in profile.block_times)
    for depth in range(1, task.max_stages + 1):
        for cuts in combinations(range(1, blocks), depth - 1):
            edges = (0, *cuts, blocks)
            for batch, chosen in product(range(1, largest + 1), product(kinds, repeat=depth)):
                pipeline = ReferencePipeline(
                    batch_size=batch,
                    partitions=tuple(
                        ReferencePartition(
                            first_block=edges[at],
                            end_block=edges[at + 1],
                            device=device,
                            share=share,
                            slots=1,
                            stated_latency_us=0.0,
                            stated_transfer_us=0.0,
                        )
                        for at, (device, share) in enumerate(chosen)
                    ),
                )
                try:
                    latency_us = pipeline_latency_us(task, deployment, pipeline, profile)
                except ProfileError:
                    continue
                if latency_us <= deployment.slo_us - deployment.margin_us:
                    yield pipeline


def by_highs(task: ReferencePlan, profiles: Profiles, *, time_limit_s: float) -> tuple[float, bool]:
    """The objective that HiGHS finds, and whether it proved it to about 1e-7."""
    kinds, stock = artifact_kinds(task), artifact_stock(task)
    names = [device.name for device in task.devices]
    types, units = slot_types(kinds, names), slot_units(kinds)
    model = LinearModel(maximise=True)
    smallest = model.add_columns(1, gain=1.0)
    there = model.add_rows(len(names), upper=stock.increments.astype(float))
    for deployment in task.deployments:
        rows = artifact_pipelines(task, deployment, profiles[deployment.model])
        carried = model.add_columns(len(rows))
        chosen = model.add_columns(len(rows), upper=1.0, integer=True)
        share = model.add_rows(1, lower=0.0)
        model.add_entries(share, carried, 1.0)
        model.add_entries(share, smallest, -deployment.weight)
        devices = model.add_columns(len(stock.pool_type), integer=True)
        pools = model.add_rows(len(stock.pool_type), upper=0.0)
        model.add_entries(there[stock.pool_type], devices, 1.0)
        model.add_entries(pools, devices, -float(stock.increment))
        for stage in range(rows.kinds.shape[1]):
            used = np.flatnonzero(rows.kinds[:, stage] >= 0)
            kind = rows.kinds[used, stage]
            most = (stock.units[types[kind]] // units[kind]).astype(float)
            slots = model.add_columns(len(used), upper=most, integer=True)
            model.add_entries(pools[len(names) * stage + types[kind]], slots, units[kind])
            enough = model.add_rows(len(used), upper=0.0)
            model.add_entries(enough, carried[used], 1.0)
            model.add_entries(enough, slots, -rows.rates_rps[used, stage])
            if stage == 0:
                only_chosen = model.add_rows(len(used), upper=0.0)
                model.add_entries(only_chosen, slots, 1.0)
                model.add_entries(only_chosen, chosen[used], -most)
        for prefix, members in _by_prefix(rows.kinds, types).items():
            leaves = len(names) ** (task.max_stages - len(prefix))
            model.add_entries(
                model.add_rows(1, upper=float(leaves)), chosen[np.array(members)], 1.0
            )
    solution = model.solve(time_limit_s=time_limit_s)
    return solution.objective or 0.0, solution.status == "optimal"


def _by_prefix(kinds: np.ndarray, types: np.ndarray) -> dict[tuple[int, ...], list[int]]:
    """Every beginning of a pipeline's sequence of types -> pipelines that begin so."""
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, stages in enumerate(kinds):
        sequence = tuple(int(types[kind]) for kind in stages if kind >= 0)
        for length in range(len(sequence) + 1):
            members[sequence[:length]].append(row)
    return members
