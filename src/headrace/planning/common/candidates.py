"""Candidates and feasible pipelines of one model: the columns that a planner counts.

A candidate is (slot kind, batch size, blocks [i, j)) with its p99 latency and the throughput of
one slot. A pipeline is 1..max_stages candidates with one batch size (batch size unification,
PPipe 5.3) that cover all blocks in order, whose latencies and transfers fit the budget
(equations 16-20, 24, 26 and 27 of appendix A.2). The paper lets the solver pick them; there are
so few that fit an SLO (some thousand) that naming them first leaves it only the counting.

The rules, which `headrace.verify` restates in its own code:

latency     of a stage: the cost model's p99
transfer    of a hop: batch x bytes / the slower of both device types' slowest nodes, charged as
            soon as the cluster has two nodes, since slots are placed later
throughput  of a slot: min(batch / p50 x max_utilisation, link share in, link share out); of one
            that has a first stage and shares cores with the gateway, p50 + batch x
            gateway_on_slot_us in place of p50
link share  the node's bandwidth / (bytes per item x devices on the node / share), on the
            narrowest node that has the device type; a node's slots together then never exceed
            its link, wherever they are placed. The model's own input and output are free. Times
            the model's link part, if one is stated
budget      SLO x (1 - margin), rounded down (PPipe 5.4)
sizes       of a model of several: p99 is the largest of any bucket, p50 the mean over buckets by
            their parts of the requests (batches hold one bucket each), bytes those of the largest

Nothing is charged for building a batch, as in the paper: the margin pays for it. The paper's
artifact charges (batch - 1) / expected rate; it would be added in
`_pipelines_of_batch`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from math import floor
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from headrace import cost
from headrace.cost import cost_model, link_bytes_per_us, range_sums
from headrace.domain.cluster import Cluster
from headrace.domain.errors import DocumentError
from headrace.domain.problem import Demand, Problem, bucket_shares
from headrace.domain.profile import Profile

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64 | np.float64]
"""Whole microseconds by our rules; the artifact's (`artifact_columns`) are not rounded."""

NEVER_US = cost.NEVER_US

PIPELINES_MAX = 3_000_000
"""Bound on what is held in memory at once, about 1 GB."""


class SlotKind(NamedTuple):
    """What a slot is made of; all slots of a kind are interchangeable."""

    device: str
    share: Fraction


@dataclass(frozen=True, slots=True)
class CostTables:
    """All candidates of one model on one cluster. B batch sizes, K slot kinds, N blocks."""

    model: str
    kinds: tuple[SlotKind, ...]
    p99_us: Times
    """Shape (B, K, N, N + 1): batch b + 1 on kind k of blocks [i, j); NEVER_US where impossible."""
    rate_rps: Floats
    """Same shape: throughput of one slot; 0 where impossible."""
    transfer_us: Times
    """Shape (B, K, K, N + 1): from kind to kind over the cut before block j."""
    weights_bytes: Ints
    """Shape (N, N + 1): of blocks [i, j)."""
    gateway_us: int = 0
    """Of every request's budget, whatever pipeline it takes."""

    @property
    def block_count(self) -> int:
        return int(self.p99_us.shape[2])


@dataclass(frozen=True, slots=True)
class Rows:
    """Base of tables whose fields are arrays with a row per entry."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Self:
        return type(self)(*(getattr(self, table.name)[rows] for table in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all, at least one, in order."""
        names = [table.name for table in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class Pipelines(Rows):
    """Feasible pipelines of one model, one per row; P is the largest number of stages."""

    kinds: Ints
    """Shape (C, P): index into `CostTables.kinds` per stage; -1 after the last."""
    ends: Ints
    """Shape (C, P): exclusive end block per stage; N after the last."""
    batch: Ints
    """Shape (C,)."""
    latency_us: Times
    """Shape (C,): all stages and transfers."""
    rates_rps: Floats
    """Shape (C, P): of one slot per stage; infinite after the last."""
    weights_bytes: Ints
    """Shape (C, P): of one slot per stage; 0 after the last."""


def budget_us(slo_us: int, margin: float) -> int:
    """SLO x (1 - margin), rounded down; exact, so that 0.4 means two fifths.

    >>> budget_us(300_000, 0.4), budget_us(100, 0.42)
    (180000, 58)
    """
    budget: int = floor(slo_us * (1 - Fraction(str(margin))))
    return budget


def usable_kinds(cluster: Cluster) -> tuple[SlotKind, ...]:
    """Every legal share of every device type that the cluster has, in the cluster's order."""
    return tuple(
        SlotKind(kind.name, share)
        for kind in cluster.device_types
        if cluster.count(kind.name)
        for share in sorted(set(kind.shares), reverse=True)
    )


def cost_tables(problem: Problem, demand: Demand, *, in_turns: bool = False) -> CostTables:
    """Look up or add up every candidate of `demand.model`; mark the impossible ones.

    A stage whose weights exceed the device's memory is impossible.

    Args:
        in_turns: p99 is of all that a duty cycle may bring of the model (`longest_turn`).
    """
    profile, cluster = problem.profiles[demand.model], problem.cluster
    kinds = usable_kinds(cluster)
    costs = cost_model(problem.profiles)
    p50, p99 = _times(problem, demand, kinds, in_turns=in_turns)
    weights = range_sums(np.array([block.weights_bytes for block in profile.blocks]))
    for k, kind in enumerate(kinds):
        memory = cluster.device_type(kind.device).memory_bytes
        if memory is not None:
            p99[:, k][:, weights > memory] = NEVER_US
    batches = np.arange(1, len(p99) + 1).reshape(-1, 1, 1, 1)
    utilisation = np.array([cluster.device_type(kind.device).max_utilisation for kind in kinds])
    taken_us = p50.copy()
    shared_us = costs.gateway_on_slot_us(demand.model)
    for k, kind in enumerate(kinds):
        if cost.shares_gateway_cores(cluster, kind.device):
            taken_us[:, k, :1] += shared_us * batches[:, 0]
    rate = batches / (taken_us / 1e6) * utilisation.reshape(1, -1, 1, 1)
    part = problem.options.link_parts.get(demand.model, 1.0)
    links = {
        device: _link_part(cluster, device) * part for device in {kind.device for kind in kinds}
    }
    limit = np.stack(
        [_link_limits(profile, links[kind.device] * float(kind.share)) for kind in kinds]
    )
    rate = np.minimum(rate, limit)
    rate[p99 >= NEVER_US] = 0.0
    return CostTables(
        model=demand.model,
        kinds=kinds,
        p99_us=p99,
        rate_rps=rate,
        transfer_us=transfer_tables(profile, cluster, kinds, len(p99)),
        weights_bytes=weights,
        gateway_us=costs.gateway_us(demand.model),
    )


def _times(
    problem: Problem, demand: Demand, kinds: Sequence[SlotKind], *, in_turns: bool
) -> tuple[Times, Ints]:
    """What a batch takes of a slot, on average over the sizes that come; and at worst."""
    profile, most = problem.profiles[demand.model], problem.options.max_batch
    if not profile.dimensions:
        p50, p99 = cost_model(problem.profiles).tables(demand.model, kinds, most)
        return p50, longest_turn([p99]) if in_turns else p99
    flat = profile.flat()
    costs = cost_model({each.model: each for each in flat})
    tables = [costs.tables(each.model, kinds, most) for each in flat]
    parts = bucket_shares(profile, demand.shapes)
    p50 = np.average([p50 for p50, _ in tables], axis=0, weights=parts)
    longest = [p99 for _, p99 in tables]
    return p50, longest_turn(longest) if in_turns else np.maximum.reduce(longest)


def longest_turn(sizes: Sequence[Ints]) -> Ints:
    """What at most 1, 2, … requests of any sizes take at most, where each batch is of one size.

    A slot runs what waits, and fewer may take longer: one is an outlier of the profile, or a kernel
    that suits two.

    Args:
        sizes: of each size, a batch of 1, 2, … requests along the first axis.

    >>> longest_turn([np.array([5, 6, 7]), np.array([4, 8, 9])]).tolist()
    [5, 9, 13]
    >>> longest_turn([np.array([5300, 5100, 6000])]).tolist()
    [5300, 5300, 6000]
    """
    from_none_on = [np.concatenate([np.zeros_like(own[:1]), own]) for own in sizes]
    total = from_none_on[0]
    for own in from_none_on[1:]:
        total = np.stack(
            [(total[n::-1] + own[: n + 1]).max(axis=0) for n in range(len(own))], axis=0
        )
    longest: Ints = np.minimum(np.maximum.accumulate(total[1:], axis=0), NEVER_US)
    return longest


def _link_part(cluster: Cluster, device: str) -> float:
    """Bytes per second that one device of this type has of its node's link at least."""
    if len(cluster.nodes) == 1:
        return np.inf
    parts = [
        node.bandwidth_gbps * 1e9 / 8 / node.device_count
        for node in cluster.nodes
        if node.devices.get(device) and node.bandwidth_gbps is not None
    ]
    return min(parts, default=np.inf)


def _link_limits(profile: Profile, bytes_per_s: float) -> Floats:
    """Throughput that one slot's link share allows; shape (N, N + 1), infinite where free."""
    blocks = len(profile.blocks)
    limits = np.full((blocks, blocks + 1), np.inf)
    entering = np.array([profile.input_cut_bytes(i) for i in range(blocks)], dtype=float)
    leaving = np.array([0, *(profile.output_cut_bytes(j) for j in range(1, blocks + 1))], float)
    widest = np.maximum(entering[:, None], leaving[None, :])
    np.divide(bytes_per_s, widest, out=limits, where=widest > 0)
    return limits


def link_limits_rps(profile: Profile, cluster: Cluster, device: str, share: Fraction) -> Floats:
    """What the link part of one slot carries of blocks [i, j); shape (N, N + 1)."""
    return _link_limits(profile, _link_part(cluster, device) * float(share))


def transfer_tables(
    profile: Profile, cluster: Cluster, kinds: Sequence[SlotKind], depth: int
) -> Ints:
    blocks = len(profile.blocks)
    shape = (depth, len(kinds), len(kinds), blocks + 1)
    transfers = np.zeros(shape, dtype=np.int64)
    if len(cluster.nodes) == 1:
        return transfers
    crossing = np.array([profile.input_cut_bytes(j) for j in range(blocks)] + [0])
    sizes = np.outer(np.arange(1, depth + 1), crossing)
    known = {device: cluster.link_bandwidth_gbps(device) for device in {k.device for k in kinds}}
    speeds = [known[kind.device] for kind in kinds]
    for a, speed_a in enumerate(speeds):
        for b, speed_b in enumerate(speeds):
            both = [speed for speed in (speed_a, speed_b) if speed is not None]
            if both:
                # Half to even, as `cost.transfer_us`.
                transfers[:, a, b] = np.rint(sizes / link_bytes_per_us(min(both)))
    return transfers


def feasible_pipelines(
    tables: CostTables, budget: float, *, min_stages: int, max_stages: int
) -> Pipelines:
    """Every pipeline whose stages and transfers together take at most `budget` microseconds.

    Raises:
        DocumentError: there are more than PIPELINES_MAX.
    """
    depth = min(max_stages, tables.block_count)
    budget = min(budget - tables.gateway_us, NEVER_US - 1)
    found: list[Pipelines] = []
    count = 0
    for b in range(len(tables.p99_us)):
        for pipelines in _pipelines_of_batch(tables, b, budget, min_stages, depth):
            found.append(pipelines)
            count += len(pipelines)
            if count > PIPELINES_MAX:
                raise DocumentError(
                    f"model {tables.model!r}: more than {PIPELINES_MAX:,} pipelines fit its"
                    f" budget; lower max_stages (now {max_stages}), max_batch or the SLO,"
                    " or profile fewer blocks"
                )
    if not found:
        none = np.empty((0, depth), int)
        return _rows(tables, 0, none, none, np.empty(0, int))
    return Pipelines.joined(found)


def _pipelines_of_batch(
    tables: CostTables, b: int, budget: float, min_stages: int, depth: int
) -> list[Pipelines]:
    """Grow partial pipelines stage by stage; drop one as soon as it cannot end in time."""
    blocks = tables.block_count
    rest_us = least_rest_us(tables.p99_us[b])
    # All (kind, end block) of a first stage.
    pairs = np.meshgrid(np.arange(len(tables.kinds)), np.arange(1, blocks + 1), indexing="ij")
    kinds, ends = (axis.reshape(-1, 1) for axis in pairs)
    # A charge for building the batch would start here instead of at 0.
    latency = tables.p99_us[b][kinds[:, 0], 0, ends[:, 0]]
    found = []
    for stages in range(1, depth + 1):
        alive = latency + rest_us[ends[:, -1]] <= budget
        kinds, ends, latency = kinds[alive], ends[alive], latency[alive]
        whole = ends[:, -1] == blocks
        if stages >= min_stages and whole.any():
            padded = (_pad(kinds[whole], depth, -1), _pad(ends[whole], depth, blocks))
            found.append(_rows(tables, b, *padded, latency[whole]))
        if stages == depth or whole.all():
            break
        kinds, ends, latency = _extend(
            tables, b, kinds[~whole], ends[~whole], latency[~whole], budget, rest_us
        )
    return found


def least_rest_us(p99_us: Times) -> Ints:
    """Shape (K, N, N + 1) -> (N + 1,): a lower bound on the time that blocks [j, N) still need."""
    best = p99_us.min(axis=0)
    blocks = len(best)
    rest = np.zeros(blocks + 1, dtype=np.int64)
    for i in range(blocks - 1, -1, -1):
        rest[i] = min(NEVER_US, int((best[i, i + 1 :] + rest[i + 1 :]).min()))
    return rest


def _extend(
    tables: CostTables,
    b: int,
    kinds: Ints,
    ends: Ints,
    latency: Times,
    budget: float,
    rest_us: Ints,
) -> tuple[Ints, Ints, Times]:
    """Append every next stage that can still end in time to every partial pipeline."""
    grown: list[tuple[Ints, Ints, Times]] = []
    for block in sorted(set(ends[:, -1].tolist())):  # np.unique would import numpy.ma
        rows = np.flatnonzero(ends[:, -1] == block)
        # (kind, end) of the next stage, then its cost after each kind of predecessor.
        stage_us = tables.p99_us[b][:, block, block + 1 :] + rest_us[block + 1 :]
        next_kind, next_end = np.nonzero(stage_us <= budget)
        next_end = next_end + block + 1
        hop_us = tables.transfer_us[b][kinds[rows, -1]][:, next_kind, block]
        total = latency[rows, None] + hop_us + tables.p99_us[b][next_kind, block, next_end]
        row, column = np.nonzero(total + rest_us[next_end] <= budget)
        more_kinds = np.column_stack([kinds[rows[row]], next_kind[column]])
        more_ends = np.column_stack([ends[rows[row]], next_end[column]])
        grown.append((more_kinds, more_ends, total[row, column]))
    all_kinds, all_ends, all_latencies = zip(*grown, strict=True)
    return np.concatenate(all_kinds), np.concatenate(all_ends), np.concatenate(all_latencies)


def _pad(table: Ints, width: int, value: int) -> Ints:
    return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=value)


def _rows(tables: CostTables, b: int, kinds: Ints, ends: Ints, latency: Times) -> Pipelines:
    starts = np.column_stack([np.zeros(len(ends), dtype=np.int64), ends[:, :-1]])
    used = kinds >= 0
    first = np.where(used, starts, 0)
    return Pipelines(
        kinds=kinds,
        ends=ends,
        batch=np.full(len(kinds), b + 1),
        latency_us=latency,
        rates_rps=np.where(used, tables.rate_rps[b][kinds, first, ends], np.inf),
        weights_bytes=np.where(used, tables.weights_bytes[first, ends], 0),
    )
