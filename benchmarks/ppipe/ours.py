"""One model of a plan on servers of its own, in virtual time: the whole event log.

Slots are placed as our planner places them, and pools on one server share its link; `dispatch`
has the artifact's servers instead, and only what became of requests.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from benchmarks.ppipe.planning_rows import problem_of
from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.planning.common.imported import place_reference
from headrace.planning.common.packing import SlotSize, pack
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate

Ints = npt.NDArray[np.int64]
POLICY = "reservation"

_KEPT: dict[tuple[int, int], tuple[ReferencePlan, Plan]] = {}
"""(Identity of a plan, model) -> the plan itself, which keeps it alive, and where it is placed."""


def session_log(
    task: ReferencePlan,
    profiles: Mapping[str, Profile],
    model: int,
    arrived_at_us: Ints,
    policy: str = POLICY,
) -> tuple[EventLogHeader, Sequence[AnyEvent]]:
    """Everything that happens in such a session; execution takes the profile's times."""
    name = task.deployments[model].model
    arrivals = [Arrival(at_us=at_us, model=name) for at_us in arrived_at_us.tolist()]
    plan = _placed(task, profiles[name], model)
    return simulate(plan, {name: profiles[name]}, arrivals, policy=policy, jitter=False)


def alone(task: ReferencePlan, model: int) -> ReferencePlan:
    """The plan of one model on servers of its own, as many as its slots fill.

    So the artifact simulates it; here slots really pack, and pools on one server share its link.
    """
    deployment = task.deployments[model]
    slots: dict[str, Counter[SlotSize]] = {}
    for pipeline in deployment.pipelines:
        for partition in pipeline.partitions:
            sizes = slots.setdefault(partition.device, Counter())
            sizes[SlotSize(partition.share, 0)] += partition.slots
    devices = tuple(
        replace(device, count=len(pack(slots[device.name], device=device.name)))
        for device in task.devices
        if device.name in slots
    )
    return replace(task, devices=devices, deployments=(deployment,))


def _placed(task: ReferencePlan, profile: Profile, model: int) -> Plan:
    """Placed once per plan and model: a search runs many sessions of it."""
    kept = _KEPT.get((id(task), model))
    if kept is None or kept[0] is not task:
        mine = alone(task, model)
        kept = (task, place_reference(mine, problem_of(mine, {profile.model: profile})))
        _KEPT[id(task), model] = kept
    return kept[1]
