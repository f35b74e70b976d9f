"""Apps in virtual time without Python in the loop, a module at a time.

Apps share no machine and calls go one way, so that all calls of a module are known once the modules
before it have been simulated. The same deadlines and fan-outs as in `simulation.apps`, about fifty
times as fast. One thing differs: where a request is refused in one of two parallel modules, its
calls in the other are not taken back, so that this simulates a little more load.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.dispatch.apps.app_dispatcher import AppTable
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.app import App
from headrace.simulation.apps.fan_out import app_calls
from headrace.simulation.compiled import Offered, run

NEVER_US = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What became of N requests of an app, and of the calls of its M modules."""

    arrived_at_us: Ints
    """Shape (N,)."""
    ended_at_us: Ints
    """Shape (N,): when all calls were answered; -1: refused."""
    call_us: tuple[Ints, ...]
    """Per module, how long each answered call took."""
    calls: tuple[int, ...]
    """Per module, how many calls were made."""

    def attainment(self, slo_us: int) -> float:
        """Answered within `slo_us` / arrived."""
        in_time = (self.ended_at_us >= 0) & (self.ended_at_us - self.arrived_at_us <= slo_us)
        return float(in_time.mean())


def flow(
    topology: Topology,
    app: App,
    table: AppTable,
    arrived_at_us: Ints,
    *,
    policy: str,
    seed: int,
    rng: Callable[[int], np.random.Generator] | None = None,
) -> Flow:
    """Run requests, which arrive at `arrived_at_us` in rising order, through one app.

    Args:
        seed: of the fan-outs.
        rng: module -> generator for execution times with the profile's spread; None: medians.
    """
    count = len(arrived_at_us)
    calls = app_calls(app, count, seed)
    deadline_at_us = arrived_at_us + table.slo_us
    ended: list[Ints] = []
    call_us: list[Ints] = []
    for index, module in enumerate(table.modules):
        ready = arrived_at_us.copy()
        for before in module.before:
            ready = np.where(
                (ready < 0) | (ended[before] < 0), NEVER_US, np.maximum(ready, ended[before])
            )
        due = _deadlines(table, index, deadline_at_us, ready)
        counts = np.where((ready >= 0) & (ready <= deadline_at_us), calls[module.name], 0)
        owner = np.repeat(np.arange(count), counts)
        order = np.argsort(ready[owner], kind="stable")
        owner = owner[order]
        outcomes = run(
            topology,
            policy,
            Offered(
                arrived_at_us=ready[owner],
                model=np.full(len(owner), module.model, dtype=np.int64),
                deadline_at_us=due[owner],
                priority=np.full(len(owner), table.priority, dtype=np.int64),
            ),
            rng=rng(index) if rng else None,
        )
        mine = np.where(ready <= deadline_at_us, ready, NEVER_US)
        np.maximum.at(mine, owner, outcomes.ended_at_us)
        mine[owner[outcomes.ended_at_us < 0]] = NEVER_US
        ended.append(mine)
        answered = outcomes.ended_at_us >= 0
        call_us.append((outcomes.ended_at_us - ready[owner])[answered])
    whole = ended[0].copy()
    for mine in ended[1:]:
        whole = np.where((whole < 0) | (mine < 0), NEVER_US, np.maximum(whole, mine))
    return Flow(
        arrived_at_us=arrived_at_us,
        ended_at_us=whole,
        call_us=tuple(call_us),
        calls=tuple(int(calls[module.name].sum()) for module in table.modules),
    )


def _deadlines(table: AppTable, module: int, deadline_at_us: Ints, ready: Ints) -> Ints:
    """`AppTable.deadline_at_us` of many requests at once."""
    mine = table.modules[module]
    left_us = np.maximum(0, deadline_at_us - ready)
    path_us = mine.budget_us + mine.behind_us
    own_part_us = left_us * mine.budget_us // path_us if path_us else 0 * left_us
    found: Ints = np.maximum(deadline_at_us - mine.behind_us, ready + own_part_us)
    return found
