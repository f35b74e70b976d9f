"""The shortest that a model in stages takes, with all devices to itself and few requests.

Stages on devices of their own each take what they take alone. Where more of them are on one type
than it has devices, some share one: in parts of it side by side, or in turns on one part, where
each waits for a cycle of all. How they are grouped is tried; stages are few.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

from headrace.domain.problem import Demand
from headrace.planning.common.candidates import NEVER_US
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_times import SharedTimes, TenantTimes
from headrace.planning.together.cuts import fewest_requests
from headrace.planning.together.steps import Costs, Step


def least_cut_us(costs: Costs, demand: Demand, deadline: Deadline, *, max_stages: int) -> int:
    """The shortest waits, batches of 1 and transfers of the model in stages; NEVER_US: no parts run
    such stages.

    Raises:
        OutOfTime: the deadline passed before all cuts were looked at.
    """
    least_us = NEVER_US
    for cut in fewest_requests(costs, demand, max_stages=max_stages):
        deadline.check()
        apart_us = cut.transfers_us + sum(map(costs.least_us, cut.steps))
        if apart_us < least_us:
            least_us = min(least_us, cut.transfers_us + _on_devices(costs, cut.steps))
    return least_us


def _on_devices(costs: Costs, steps: Sequence[Step]) -> int:
    """What the steps take on the devices that there are of their types; NEVER_US, or more."""
    total_us = 0
    for device in {step.device for step in steps if step.device is not None}:
        here = [step for step in steps if step.device == device]
        count = costs.problem.cluster.count(device)
        total_us += min(
            sum(_on_one(costs, group, device) for group in groups)
            for groups in _groupings(here)
            if len(groups) <= count
        )
    return total_us


def _on_one(costs: Costs, steps: Sequence[Step], device: str) -> int:
    """On one device."""
    if len(steps) == 1:
        return costs.least_us(steps[0])
    kind = costs.problem.cluster.device_type(device)
    [times] = (each for each in costs.times(steps, [0] * len(steps)) if each.device is kind)
    tenants = dict(zip(steps, times.models, strict=True))
    return min(
        (
            sum(
                _in_turns(times, [tenants[step] for step in group], share)
                for group, share in zip(groups, shares, strict=True)
            )
            for groups in _groupings(steps)
            for shares in product(kind.part_shares, repeat=len(groups))
            if kind.allows(shares)
        ),
        default=NEVER_US,
    )


def _in_turns(times: SharedTimes, tenants: Sequence[TenantTimes], share: Fraction) -> int:
    """On one part, batches of 1: each waits for a cycle, then runs."""
    if any(share not in tenant.latency_us for tenant in tenants):
        return NEVER_US
    alone_us = [tenant.latency_us[share][0] for tenant in tenants]
    busy_us = sum(tenant.busy_us(us, 1) for tenant, us in zip(tenants, alone_us, strict=True))
    cycle_us = times.least_cycle_us(busy_us)
    if cycle_us > min(tenant.longest_cycle_us for tenant in tenants):
        return NEVER_US
    return sum(alone_us) + len(tenants) * cycle_us


def _groupings(steps: Sequence[Step]) -> Iterator[list[list[Step]]]:
    """All ways to put them into groups."""
    if not steps:
        yield []
        return
    first, *others = steps
    for groups in _groupings(others):
        yield [[first], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [first, *group], *groups[at + 1 :]]
