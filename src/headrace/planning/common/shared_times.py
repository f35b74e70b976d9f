"""What batches of whole models take of parts of devices: what a promise to a tenant is made of.

Of one device type. A part with duty cycle D runs one batch of each tenant in each D:

    latency   the cost model's p99, what the server takes between batches included: the largest
              of all batch sizes up to the tenant's, since it runs what waits; beside neighbours
              what the device takes is `slowdown` times as long, rounded up. Of a model of several
              sizes, whose requests share no batch: of all that come in one D, in the split into
              batches that takes longest
    busy      latency, and where the gateway has the same cores what it takes for the batch
    turns     sum of busy over the tenants <= D x max_utilisation
    links     sum of what the tenants' batches take of the slot's link part <= D, of several tenants
              that cross links; a single one is carried as far as that part goes
    wait      D + latency + gateway <= SLO x (1 - margin), of each tenant
    rate      batch / D >= the tenant's rate on this part

`headrace.verify.shared` restates these in its own code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, inf

from headrace.cost import cost_model, shares_gateway_cores
from headrace.domain.cluster import DeviceType
from headrace.domain.problem import Demand, Problem
from headrace.interference import slowed_us
from headrace.planning.common.candidates import NEVER_US, budget_us, cost_tables
from headrace.planning.common.weights import Blocks

US_PER_S = 1_000_000


@dataclass(frozen=True)
class TenantTimes:
    """One model on the parts of one device type."""

    demand: Demand
    latency_us: dict[Fraction, tuple[int, ...]]
    """Share -> p99 of at most 1, 2, … requests, with nothing beside it; shares that were not
    profiled, that no split has, or whose device cannot hold the weights, are missing."""
    overhead_us: int
    """Part of every latency that no neighbour slows."""
    gateway_batch_us: int
    """What the gateway takes of the slot's time for one request; 0: it has cores of its own."""
    budget_us: int
    """What D + latency may use: SLO x (1 - margin), less the gateway's time."""
    blocks: Blocks
    """Whose weights it needs."""
    longest_cycle_us: int = NEVER_US
    """Of the parts that it may be a tenant of."""
    link_rps: Mapping[Fraction, float] = field(default_factory=dict)
    """Share -> what the link part of such a slot carries; without: no link is crossed."""

    @property
    def weights_bytes(self) -> int:
        """Of a slot with this tenant alone."""
        return self.blocks.weights_bytes

    def slowed_us(self, share: Fraction, batch_size: int, slowdown: float) -> int:
        """Latency beside neighbours."""
        alone_us = self.latency_us[share][batch_size - 1]
        if slowdown == 1.0:
            return alone_us
        return slowed_us(alone_us - self.overhead_us, slowdown) + self.overhead_us

    def busy_us(self, latency_us: int, batch_size: int) -> int:
        """What a batch of this latency takes of its slot."""
        return latency_us + self.gateway_batch_us * batch_size

    def sent_us(self, share: Fraction, batch_size: int) -> int:
        """What a batch takes of the time of its slot's link part."""
        return ceil(batch_size * US_PER_S / self.link_rps.get(share, inf))


@dataclass(frozen=True)
class SharedTimes:
    """All models of a problem on the parts of one device type."""

    device: DeviceType
    models: tuple[TenantTimes, ...]
    """One per demand."""

    @classmethod
    def of(cls, problem: Problem, device: str) -> "SharedTimes":
        kind = problem.cluster.device_type(device)
        return cls(kind, tuple(_tenant(problem, kind, demand) for demand in problem.demands))

    @cached_property
    def _usable(self) -> Fraction:
        return Fraction(str(self.device.max_utilisation))

    def least_cycle_us(self, busy_us: int) -> int:
        """The shortest duty cycle that has time for so much."""
        return busy_us if self._usable == 1 else ceil(busy_us / self._usable)

    def room_us(self, duty_us: int) -> int:
        """What the batches of a duty cycle may take together."""
        return duty_us if self._usable == 1 else floor(duty_us * self._usable)


def longest_cycle_us(batch_size: int, rate_rps: float) -> int:
    """The longest duty cycle, in whole microseconds, in which one batch carries the rate.

    >>> longest_cycle_us(2, 300.0), longest_cycle_us(1, 1000.0)
    (6666, 1000)
    """
    cycle_us = floor(batch_size * US_PER_S / rate_rps)
    while batch_size * US_PER_S / (cycle_us + 1) >= rate_rps:
        cycle_us += 1
    while cycle_us > 1 and batch_size * US_PER_S / cycle_us < rate_rps:
        cycle_us -= 1
    return cycle_us


def parts_beside(device: DeviceType, share: Fraction) -> Sequence[tuple[Fraction, ...]]:
    """What the rest of a device may be cut into once one part of this share is taken: of each
    split that has it the other parts; without splits, every single share that fits."""
    if not device.splits:
        rest = [(other,) for other in sorted(device.shares, reverse=True) if other + share <= 1]
        return rest or [()]
    found = []
    for split in device.splits:
        if share in split:
            others = list(split)
            others.remove(share)
            found.append(tuple(others))
    return found


def _tenant(problem: Problem, kind: DeviceType, demand: Demand) -> TenantTimes:
    tables = cost_tables(problem, demand, in_turns=True)
    costs = cost_model(problem.profiles)
    latency_us = {}
    for k, (device, share) in enumerate(tables.kinds):
        here = device == kind.name and share in kind.part_shares
        column = tables.p99_us[:, k, 0, -1].tolist() if here else []
        known = [us for us in column if us < NEVER_US]
        if known:
            latency_us[share] = tuple(int(us) for us in known)
    shared_cores = shares_gateway_cores(problem.cluster, kind.name)
    return TenantTimes(
        demand=demand,
        latency_us=latency_us,
        overhead_us=costs.between_batches_us(demand.model),
        gateway_batch_us=costs.gateway_on_slot_us(demand.model) if shared_cores else 0,
        budget_us=budget_us(demand.slo_us, problem.options.margin_of(demand.model))
        - tables.gateway_us,
        blocks=Blocks.of(demand.model, problem.profiles[demand.model]),
    )
