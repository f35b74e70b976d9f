"""The linear relaxation: a bound in a millisecond, and what slots and requests are worth."""

from dataclasses import dataclass

import numpy as np

from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import OutOfTime
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Goal, Master


@dataclass(frozen=True, slots=True)
class SlotPrices:
    """Duals of the relaxation, all >= 0, in units of the objective."""

    slot: Floats
    """Shape (K,): of one slot of each kind."""
    request: Floats
    """Shape (demands,): of one request per second."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    bound: float
    """No plan's objective is better."""
    prices: SlotPrices
    active: tuple[Ints, ...]
    """Per demand, rows of the pipelines that the relaxation uses."""


def relax(asked: Counting, *, time_limit_s: float) -> Relaxation | None:
    """Solve with fractional slots and devices; None if even that is infeasible.

    Then n = throughput / rate, so a request per second of a pipeline costs 1 / rate slots per
    stage, and only the throughputs are left as unknowns.

    Raises:
        OutOfTime: not solved within `time_limit_s`.
    """
    goal = asked.goal
    master = Master(asked.hardware, asked.wanted, goal, integer=False)
    carried = []
    for demand, pipelines in enumerate(asked.columns):
        at, stage = np.nonzero(pipelines.kinds >= 0)
        slots = (at, pipelines.kinds[at, stage], 1 / pipelines.rates_rps[at, stage])
        carried.append(master.add_work(demand, np.ones(len(pipelines)), slots))
    solution = master.model.solve(time_limit_s=time_limit_s, relaxed=True)
    if solution.status == "limit":
        raise OutOfTime
    if solution.values is None or solution.objective is None or solution.prices is None:
        return None
    duals = np.abs(solution.prices)
    request = duals[master.rate_rows]
    if master.weight_rows is not None:
        request = request + duals[master.weight_rows]
    if goal == "throughput":
        request = request + 1.0
    slot = _raised(asked.hardware, goal, duals[master.device_rows], duals[master.kind_rows])
    return Relaxation(
        bound=solution.objective,
        prices=SlotPrices(slot=slot, request=request),
        active=tuple(np.flatnonzero(solution.values[mine] > 1e-9) for mine in carried),
    )


def _raised(hardware: Hardware, goal: Goal, device_duals: Floats, slot_duals: Floats) -> Floats:
    """The dearest slot prices that belong to the same bound.

    The solver may price a kind that no optimal pipeline uses at 0. Any prices do for which no
    pattern is worth more than its device; share x price of the device is such a choice, since
    the shares of a pattern sum to at most 1. Dearer slots rule more pipelines out.
    """
    device = device_duals.copy()
    if goal == "least-cost":
        assert hardware.prices is not None
        device += hardware.prices
    by_share = hardware.shares * device[hardware.kind_device]
    raised = slot_duals.copy()
    for i in range(len(hardware.devices)):
        mine = hardware.kind_device == i
        if (slot_duals[mine] <= by_share[mine] + 1e-9).all():
            raised[mine] = by_share[mine]
    return raised
