"""Models on one type of device: which part of requests finds its model absent, and what rates as
the weights need of the devices.

    execution   sum of r_i (absent_i exec_i + (1 - absent_i) batch_i)  <=  slots x max_utilisation
    copies      sum of r_i absent_i load_i (twice with a helper)       <=  links x max_utilisation

with absent_i as for LRU and random arrivals (`residents`), which the dispatcher's own eviction is
meant to improve on, and times by medians. Where a device has no copy stream, a start takes it
whole.

A model is on as many slots at once as its batches alone keep busy,

    copies_i = ceil(f r_i batch_i / max_utilisation)               f of the rates carried,

and as copies take memory, absent_i grows with f. The largest f is looked for that keeps both
limits, by halving: what is carried with more copies is with fewer.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from headrace.domain.problem import Demand, Problem
from headrace.planning.provisioning.placing import Placed
from headrace.planning.provisioning.residents import absent_on_slots

US_PER_S = 1e6

SAME = 1e-9
"""Relative. A slot is full of a model only beyond this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Models on devices of one type."""

    device: str
    share: Fraction
    placed: tuple[Placed, ...]
    absent: tuple[float, ...]
    """Of each model, the part of requests."""
    need: float
    """What rates as the weights are of those carried; at most 1 where they are carried."""
    filling: tuple[str, ...]
    """Models of which no more is carried, although there is time: they fill their slots, and on one
    more each would take the memory of others. Empty: time is what is short."""
    total_us: float
    """What requests take alone, times their weights: at stated rates where these are carried, else
    at those that are."""


def weight_of(demand: Demand) -> float:
    """What a model's rate is in proportion to."""
    return demand.weight if demand.rate_rps is None else demand.rate_rps


def carried(problem: Problem, placed: Sequence[Placed], devices: int | None = None) -> Carried:
    """
    Args:
        placed: at least one, all on one type and share.
        devices: so many; None: all that the cluster has. More than it has are thought to be alike.
    """
    load = _load(problem, placed, devices)
    factor = load.most_carried()
    stated = all(each.demand.rate_rps is not None for each in placed)
    here, more = load.copies_at(factor), load.copies_at(factor * (1 + 4 * SAME))
    return Carried(
        device=placed[0].device,
        share=placed[0].share,
        placed=tuple(placed),
        absent=tuple(load.absent_at(factor)),
        need=1 / factor,
        filling=tuple(
            each.demand.model
            for each, some, others in zip(placed, here, more, strict=True)
            if some < others and factor * load.need_at(factor) < 1 - SAME
        ),
        total_us=load.total_us(min(factor, 1.0) if stated else factor),
    )


class _Load:
    """Models on slots, by factors of their rates (or weights)."""

    def __init__(
        self, *, placed: Sequence[Placed], slots: int, slot_bytes: int, links: int, there_us: float
    ) -> None:
        self._placed, self.slots, self._links = placed, slots, links
        self._slot_bytes, self._there_us = slot_bytes, there_us
        self._weights = [weight_of(each.demand) for each in placed]
        self._slots_busy = [
            weight * each.batch_us[0] / there_us
            for weight, each in zip(self._weights, placed, strict=True)
        ]
        """By batches of each model alone."""
        self._absent: dict[tuple[int, ...], list[float]] = {}

    def least_slots(self) -> float:
        """That execution alone keeps busy, at a factor of 1."""
        return self._least_us() / self._there_us

    def _least_us(self) -> float:
        """Of requests of models that are there, or that are not, whichever takes less."""
        return sum(
            weight * max(1, min(each.exec_us, each.batch_us[0]))
            for weight, each in zip(self._weights, self._placed, strict=True)
        )

    def most_carried(self) -> float:
        """The largest factor that is found to be carried, and none just above it is."""
        most = self.slots * self._there_us / self._least_us()
        ends = {
            full / busy
            for busy in self._slots_busy
            for full in range(1, ceil(min(self.slots, most * busy)))
        }
        rising = [*sorted(end for end in ends if end < most), most]
        first = bisect_left(rising[:-1], 1.0, key=lambda end: end * self.need_at(end))
        return max(rising[first - 1] if first else 0.0, 1 / self.need_at(rising[first]))

    def copies_at(self, factor: float) -> tuple[int, ...]:
        """Of each model."""
        return tuple(
            min(self.slots, max(1, ceil(factor * busy * (1 - SAME)))) for busy in self._slots_busy
        )

    def absent_at(self, factor: float) -> list[float]:
        copies = self.copies_at(factor)
        if copies not in self._absent:
            sizes = [each.held_bytes for each in self._placed]
            absent = absent_on_slots(self._weights, sizes, copies, self.slots, self._slot_bytes)
            self._absent[copies] = absent.tolist()
        return self._absent[copies]

    def total_us(self, factor: float) -> float:
        """Of requests alone, times their weights."""
        return sum(
            weight * (part * each.residency.start_us + (1 - part) * each.batch_us[1])
            for weight, each, part in zip(
                self._weights, self._placed, self.absent_at(factor), strict=True
            )
        )

    def need_at(self, factor: float) -> float:
        """Of the time, for a factor of 1, with as many copies as this one takes."""
        exec_us = copy_us = 0.0
        for weight, each, part in zip(
            self._weights, self._placed, self.absent_at(factor), strict=True
        ):
            exec_us += weight * (part * each.exec_us + (1 - part) * each.batch_us[0])
            copy_us += weight * part * each.load_us * each.links
        return max(exec_us / self.slots, copy_us / self._links) / self._there_us


def _load(problem: Problem, placed: Sequence[Placed], devices: int | None) -> _Load:
    """On so many devices; None: on all that the cluster has."""
    device, share = placed[0].device, placed[0].share
    kind = problem.cluster.device_type(device)
    room = int((kind.memory_bytes or 0) * share)
    return _Load(
        placed=placed,
        slots=(problem.cluster.count(device) if devices is None else devices) * int(1 / share),
        slot_bytes=max(0, room - max(each.working_bytes for each in placed)),
        links=max(1, _link_count(problem, device, devices)),
        there_us=US_PER_S * kind.max_utilisation,
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
    """Devices that carry the stated rates, and that help each other where starts need that.

    As many copies of each model on more devices are no more absent, so that more carry no less; and
    none carry more than execution alone leaves time for, which is where to begin.
    """

    def carry(devices: int) -> bool:
        return _load(problem, placed, devices).need_at(1.0) <= 1

    one = _load(problem, placed, 1)
    least = most = max(1, ceil(one.least_slots() / one.slots * (1 - SAME)))
    while not carry(most):
        most *= 2
    devices = bisect_left(range(most), True, lo=most if most == least else most // 2 + 1, key=carry)
    while not _help_enough(problem, placed, devices):
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
