"""Which slots can hold what they may be asked to run: any range of any model.

The workers of a machine's cores map weights from one file, so that a node holds them once for all
its slots (`host`). Slots of any other device type are processes with a copy each.
"""

from headrace.domain.cluster import is_cores
from headrace.domain.problem import Problem
from headrace.planning.common.candidates import SlotKind


def weights_needed(problem: Problem, kind: SlotKind) -> int:
    """Bytes that a device holds, or a node's cores together, for its slots to run every model that
    was profiled on them."""
    weights = sum(
        problem.profiles[demand.model].weights_bytes(0, len(problem.profiles[demand.model].blocks))
        for demand in problem.demands
        if problem.profiles[demand.model].times(*kind) is not None
    )
    return weights if is_cores(kind.device) else weights * int(1 / kind.share)


def weights_room(problem: Problem, kind: SlotKind) -> int | None:
    """Bytes that there are for them, on the smallest node; None: not known."""
    memory = problem.cluster.device_type(kind.device).memory_bytes
    if memory is None or not is_cores(kind.device):
        return memory
    counts = [node.devices.get(kind.device, 0) for node in problem.cluster.nodes]
    return memory * min(count for count in counts if count)


def holds(problem: Problem, kind: SlotKind) -> bool:
    room = weights_room(problem, kind)
    return room is None or weights_needed(problem, kind) <= room
