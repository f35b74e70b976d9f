"""Models on one type of device: which part of requests finds its model absent, and what rates as
the weights need of the devices.

    execution   sum of r_i (absent_i exec_i + (1 - absent_i) batch_i)  <=  slots x max_utilisation
    copies      sum of r_i absent_i load_i (twice with a helper)       <=  links x max_utilisation

with absent_i as for LRU and random arrivals (`residents`), which the dispatcher's own eviction is
meant to improve on, and times by medians. Where a device has no copy stream, a start takes it
whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.domain.problem import Demand, Problem
from headrace.planning.provisioning.placing import Placed
from headrace.planning.provisioning.residents import absent_on_slots

US_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Models on devices of one type."""

    device: str
    share: Fraction
    placed: tuple[Placed, ...]
    absent: tuple[float, ...]
    """Of each model, the part of requests."""
    need: float
    """Of the slots' time, or of their links', by rates as the weights; at most 1 where they carry
    them."""

    @property
    def total_us(self) -> float:
        """What requests take alone, times their weights."""
        return sum(
            weight_of(each.demand)
            * (part * each.residency.start_us + (1 - part) * each.batch_us[1])
            for each, part in zip(self.placed, self.absent, strict=True)
        )


def weight_of(demand: Demand) -> float:
    """What a model's rate is in proportion to."""
    return demand.weight if demand.rate_rps is None else demand.rate_rps


def carried(problem: Problem, placed: Sequence[Placed], devices: int | None = None) -> Carried:
    """
    Args:
        placed: at least one, all on one type and share.
        devices: so many; None: all that the cluster has. More than it has are thought to be alike.
    """
    device, share = placed[0].device, placed[0].share
    kind = problem.cluster.device_type(device)
    slots = (problem.cluster.count(device) if devices is None else devices) * int(1 / share)
    room = int((kind.memory_bytes or 0) * share)
    memory = max(0, room - max(each.working_bytes for each in placed))
    weights = [weight_of(each.demand) for each in placed]
    sizes = [each.held_bytes for each in placed]
    absent = absent_on_slots(weights, sizes, slots, memory).tolist()
    exec_us = copy_us = 0.0
    for weight, each, part in zip(weights, placed, absent, strict=True):
        exec_us += weight * (part * each.exec_us + (1 - part) * each.batch_us[0])
        copy_us += weight * part * each.load_us * each.links
    links = _link_count(problem, device, devices)
    part = max(exec_us / slots, copy_us / max(1, links))
    return Carried(
        device=device,
        share=share,
        placed=tuple(placed),
        absent=tuple(absent),
        need=part / US_PER_S / kind.max_utilisation,
    )


def _link_count(problem: Problem, device: str, devices: int | None) -> int:
    """Of so many devices; None: of all."""
    per = problem.cluster.device_type(device).devices_per_link
    count = problem.cluster.count(device) if devices is None else devices
    on_nodes = _on_nodes(problem, device, count)
    return sum(-(-here // per) for here in on_nodes) + (count - sum(on_nodes)) // per


def _on_nodes(problem: Problem, device: str, devices: int) -> list[int]:
    """How many of so many devices each node has: the first ones of the first nodes."""
    found, left = [], devices
    for node in problem.cluster.nodes:
        found.append(min(node.devices.get(device, 0), left))
        left -= found[-1]
    return found


def devices_enough(problem: Problem, placed: Sequence[Placed]) -> int:
    """Devices that carry the stated rates, and that help each other where starts need that."""
    devices = 1
    while not _help_enough(problem, placed, devices) or carried(problem, placed, devices).need > 1:
        devices += 1
    return devices


def _help_enough(problem: Problem, placed: Sequence[Placed], devices: int) -> bool:
    """Whether each of so many devices has one behind another link of its node, if it needs one."""
    if all(each.links == 1 for each in placed):
        return True
    per = problem.cluster.device_type(placed[0].device).devices_per_link
    return not any(0 < here <= per for here in _on_nodes(problem, placed[0].device, devices))


def without_room(problem: Problem, placed: Sequence[Placed]) -> str:
    """A model that does not fit beside the largest run of another; empty: there is none.

    Args:
        placed: all on one type and share.
    """
    largest = max(placed, key=lambda it: it.working_bytes)
    for each in placed:
        kind = problem.cluster.device_type(each.device)
        memory = int((kind.memory_bytes or 0) * each.share)
        if each.held_bytes + largest.working_bytes > memory:
            return (
                f"model {each.demand.model!r}: needs {each.held_bytes:,} bytes of a"
                f" {each.device!r}, beside {largest.working_bytes:,} to load and run"
                f" {largest.demand.model!r}, and share {each.share} of one has {memory:,}\n"
                "  try    devices with more memory, or fewer models"
            )
    return ""
