"""The counting problem by the artifact's rule (`catalog.ppipe.rule`): latencies, pools, templates.

Templates: with K device types and P stages there are K^P sequences of types, and each gives a
model at most one pipeline. A pipeline shorter than P may use any template that begins with its own
types. Templates are the leaves of a tree, so pipelines find their templates exactly when no node
of the tree has more pipelines below it than leaves.
"""

from collections.abc import Mapping

import numpy as np

from headrace.catalog.ppipe.artifact import ReferenceDeployment, ReferencePlan
from headrace.catalog.ppipe.rule import transfer_us
from headrace.domain.profile import Profile
from headrace.planning.common.candidates import (
    NEVER_US,
    CostTables,
    Floats,
    Ints,
    Pipelines,
    SlotKind,
    feasible_pipelines,
)
from headrace.planning.exact.columns import (
    Columns,
    PoolStock,
    make_columns,
    slot_types,
    slot_units,
    units_per_device,
)

_SLACK_US = 1e-6
"""Sums of unrounded times may be off by less."""


def artifact_kinds(task: ReferencePlan) -> tuple[SlotKind, ...]:
    """Every share of every device type."""
    return tuple(SlotKind(device.name, share) for device in task.devices for share in device.shares)


def artifact_stock(task: ReferencePlan) -> PoolStock:
    """One pool per (stage position, device type), of whole devices."""
    types = len(task.devices)
    return PoolStock(
        pool_type=np.tile(np.arange(types), task.max_stages),
        increment=units_per_device(artifact_kinds(task)),
        increments=np.array([device.count for device in task.devices], dtype=np.int64),
        room=_template_room(types, task.max_stages),
    )


def artifact_pipelines(
    task: ReferencePlan, deployment: ReferenceDeployment, profile: Profile
) -> Pipelines:
    """Every pipeline of one model within its budget."""
    tables = _tables(task, deployment, profile)
    budget_us = deployment.slo_us - deployment.margin_us + _SLACK_US
    return feasible_pipelines(tables, budget_us, min_stages=1, max_stages=task.max_stages)


def artifact_columns(task: ReferencePlan, pipelines: Pipelines) -> Columns:
    kinds = artifact_kinds(task)
    names = [device.name for device in task.devices]
    used = pipelines.kinds >= 0
    types = np.where(used, slot_types(kinds, names)[pipelines.kinds], -1)
    positions = np.arange(types.shape[1])
    return make_columns(
        pipelines,
        pools=np.where(used, types + len(names) * positions, -1),
        units=slot_units(kinds),
        groups=_template_nodes(types, len(names)),
    )


def _template_room(types: int, stages: int) -> Ints:
    """Leaves below every node of the tree of type sequences, breadth first."""
    levels = [np.full(types**length, types ** (stages - length)) for length in range(stages + 1)]
    return np.concatenate(levels).astype(np.int64)


def _template_nodes(types: Ints, type_count: int) -> Ints:
    """Shape (C, P) -> (C, P + 1): the nodes on the way to each pipeline's own; -1 after it."""
    nodes = np.zeros((len(types), types.shape[1] + 1), dtype=np.int64)
    for stage in range(types.shape[1]):
        # Breadth first, the children of node n are types x n + 1, + 2, ...
        child = type_count * nodes[:, stage] + types[:, stage] + 1
        nodes[:, stage + 1] = np.where(types[:, stage] >= 0, child, -1)
    return nodes


def _tables(task: ReferencePlan, deployment: ReferenceDeployment, profile: Profile) -> CostTables:
    kinds, blocks = artifact_kinds(task), len(profile.blocks)
    latency_us = _latencies(kinds, profile)
    batch = np.arange(1, len(latency_us) + 1)
    cuts = [profile.output_cut_bytes(end) for end in range(1, blocks + 1)]
    cut_us = np.array([0.0, *(transfer_us(size, task.bandwidth_gbps) for size in cuts)])
    rate_rps = batch.reshape(-1, 1, 1, 1) * 1e6 / latency_us
    rate_rps = np.minimum(rate_rps, _link_limits(task, kinds, cut_us))
    rate_rps[latency_us >= NEVER_US] = 0.0
    # The first stage stands for the charge for building a batch: every pipeline has one.
    build_us = deployment.build_factor * 1e6 * (batch - 1) / deployment.expected_rps
    latency_us[:, :, 0, :] += build_us.reshape(-1, 1, 1)
    shape = (len(batch), len(kinds), len(kinds), blocks + 1)
    return CostTables(
        model=deployment.model,
        kinds=kinds,
        p99_us=latency_us,
        rate_rps=rate_rps,
        transfer_us=np.broadcast_to(np.outer(batch, cut_us)[:, None, None, :], shape),
        weights_bytes=np.zeros((blocks, blocks + 1), dtype=np.int64),
    )


def _latencies(kinds: tuple[SlotKind, ...], profile: Profile) -> Floats:
    """Shape (B, K, N, N + 1): of blocks [i, j); NEVER_US where not profiled or j <= i."""
    times: Mapping[SlotKind, Ints] = {
        SlotKind(t.device, t.share): np.array(t.p50_us, dtype=np.int64).T
        for t in profile.block_times
    }
    depth, blocks = max(len(rows) for rows in times.values()), len(profile.blocks)
    upper = np.triu(np.ones((blocks, blocks + 1), dtype=bool), k=1)
    latency_us = np.full((depth, len(kinds), blocks, blocks + 1), float(NEVER_US))
    for k, kind in enumerate(kinds):
        if kind in times:
            rows = times[kind]
            sums = np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
            ranges = sums[:, None, :] - sums[:, :-1, None]
            latency_us[: len(rows), k] = np.where(upper, ranges, NEVER_US)
    return latency_us


def _link_limits(task: ReferencePlan, kinds: tuple[SlotKind, ...], cut_us: Floats) -> Floats:
    """Shape (K, N, N + 1): throughput that a slot's part of its server's link allows."""
    parts = np.array([float(k.share) / task.device(k.device).per_server for k in kinds])
    widest_us = np.maximum(cut_us[:-1, None], cut_us[None, :])
    with np.errstate(divide="ignore"):
        limits: Floats = parts.reshape(-1, 1, 1) * 1e6 / widest_us
    return limits
