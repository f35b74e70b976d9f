"""One model of a plan, served by our dispatcher on the servers and links of PPipe's artifact.

`outcomes` is the one function through which the experiments reach it. Servers and links are those
that the artifact simulates (`artifact_mode.hardware`), so that only the dispatcher differs; unlike
there, downlinks take one transfer at a time, too. `ours.session_log` has the stricter servers of
our own placement.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from benchmarks.ppipe.artifact import build_hardware
from benchmarks.ppipe.artifact.hardware import Hardware

from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.domain.profile import Profile
from headrace.simulation.compiled import SessionOutcomes, offer, run

Ints = npt.NDArray[np.int64]
POLICY = "reservation"

_KEPT: dict[tuple[int, int], tuple[ReferencePlan, Topology]] = {}
"""(Identity of a plan, model) -> the plan itself, which keeps it alive, and its topology."""


def outcomes(
    task: ReferencePlan,
    profiles: Mapping[str, Profile],
    model: int,
    arrived_at_us: Ints,
    policy: str = POLICY,
) -> SessionOutcomes:
    """What becomes of every request of one model; execution takes the profile's times.

    Args:
        arrived_at_us: shape (N,), non-decreasing.
    """
    kept = _KEPT.get((id(task), model))
    if kept is None or kept[0] is not task:
        deployment = task.deployments[model]
        hardware = build_hardware(task, deployment, profiles[deployment.model])
        kept = (task, topology_of(deployment.model, hardware))
        _KEPT[id(task), model] = kept
    return run(kept[1], policy, offer(kept[1], arrived_at_us))


def topology_of(model: str, hardware: Hardware) -> Topology:
    """A node per network interface. Sizes are in microseconds of transfer, links carry 1 per us."""
    routes = tuple(_route(hardware, pipeline) for pipeline in range(len(hardware.batch)))
    return Topology(
        models=(ModelRoutes(model, hardware.slo_us, routes),),
        slots=tuple(f"s{slot}" for slot in range(len(hardware.link))),
        slot_node=tuple(hardware.link.tolist()),
        nodes=tuple(f"n{link}" for link in range(hardware.link_count)),
        node_bytes_per_us=(1.0,) * hardware.link_count,
    )


def _route(hardware: Hardware, pipeline: int) -> Route:
    size = int(hardware.batch[pipeline])
    first, end = hardware.stage_at[pipeline : pipeline + 2].tolist()
    return Route(
        name=f"p{pipeline}",
        batch_size=size,
        stages=tuple(_stage(hardware, stage, first, size) for stage in range(first, end)),
        slack_us=(0,) * size,
    )


def _stage(hardware: Hardware, stage: int, first: int, size: int) -> StageTable:
    times_us = tuple(hardware.latency_us[stage, 1 : size + 1].tolist())
    slots = range(*hardware.slot_at[stage : stage + 2].tolist())
    enters = int(hardware.item_transfer_us[stage - 1]) if stage > first else 0
    return StageTable(stage - first, stage - first + 1, tuple(slots), times_us, times_us, enters)
