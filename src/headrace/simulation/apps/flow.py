"""Apps in virtual time without Python in the loop, a module at a time.

Apps share no machine and calls go one way, so that all calls of a module are known once the modules
before it have been simulated. For requests i = 1..N and modules m in topological order:

    ready(m, i)  latest of the arrival of i and ended(b, i) of all modules b that m waits for
    calls(m, i)  drawn fan-out, where ready(m, i) is within the deadline of i; made after the app's
                 own code before m, and passed by the gateway one after the other
    due(m, i)    `AppTable.deadline_at_us`: the deadline less the budgets behind m, but at least m's
                 own part of the time that is left
    ended(m, i)  latest of ready(m, i) and the answers to its calls; REFUSED where one was refused

Each module is one compiled session over its calls in the order of ready(m, i); a request ends when
its last module does. Cost: the sessions, and O(M N) in numpy besides; about fifty times as fast as
`simulation.apps.session`, with the same deadlines and fan-outs. Two things differ: where a request
is refused in one of two parallel modules, its calls in the other are not taken back, so that this
simulates a little more load; and calls queue at the gateway behind those of their own module only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.dispatch.apps.app_dispatcher import AppTable
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.app import App
from headrace.simulation.apps.fan_out import app_calls
from headrace.simulation.compiled import Offered, run
from headrace.simulation.gateway import through_gateway

REFUSED = -1
"""In place of the instant at which a request, or its part in a module, ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What became of N requests of an app, and of the calls of its M modules."""

    arrived_at_us: Ints
    """Shape (N,)."""
    ended_at_us: Ints
    """Shape (N,): when all calls were answered; or REFUSED."""
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
    calls = app_calls(app, len(arrived_at_us), seed)
    deadline_at_us = arrived_at_us + table.slo_us
    ended: list[Ints] = []
    for index, module in enumerate(table.modules):
        ready_at_us = _latest([arrived_at_us, *(ended[before] for before in module.before)])
        alive = (ready_at_us >= 0) & (ready_at_us <= deadline_at_us)
        owner = _callers(ready_at_us, np.where(alive, calls[module.name], 0))
        gateway_us = np.full(len(owner), topology.models[module.model].gateway_us)
        sent_at_us = through_gateway(ready_at_us[owner] + module.code_us, gateway_us)
        offered = Offered(
            arrived_at_us=sent_at_us,
            model=np.full(len(owner), module.model, dtype=np.int64),
            deadline_at_us=_deadlines(table, index, deadline_at_us[owner], sent_at_us),
            priority=np.full(len(owner), table.priority, dtype=np.int64),
        )
        answered_at_us = run(topology, policy, offered, rng=rng(index) if rng else None).ended_at_us
        ended_at_us = np.where(alive, ready_at_us, REFUSED)
        np.maximum.at(ended_at_us, owner, answered_at_us)
        ended_at_us[owner[answered_at_us < 0]] = REFUSED
        ended.append(ended_at_us)
    last_at_us = _latest(ended)
    return Flow(
        arrived_at_us=arrived_at_us,
        ended_at_us=np.where(last_at_us < 0, REFUSED, last_at_us + table.code_us),
        calls=tuple(int(calls[module.name].sum()) for module in table.modules),
    )


def _latest(instants: Sequence[Ints]) -> Ints:
    """Of several instants of every request; REFUSED where one of them is."""
    stacked = np.stack(instants)
    found: Ints = np.where((stacked < 0).any(axis=0), REFUSED, stacked.max(axis=0))
    return found


def _callers(ready_at_us: Ints, counts: Ints) -> Ints:
    """The request of each call, in the order in which calls are made.

    >>> _callers(np.array([30, 10, 20]), np.array([1, 2, 0])).tolist()
    [1, 1, 0]
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner[np.argsort(ready_at_us[owner], kind="stable")]


def _deadlines(table: AppTable, module: int, deadline_at_us: Ints, ready: Ints) -> Ints:
    """`AppTable.deadline_at_us` of many requests at once."""
    mine = table.modules[module]
    left_us = np.maximum(0, deadline_at_us - ready)
    path_us = mine.budget_us + mine.behind_us
    own_part_us = left_us * mine.budget_us // path_us if path_us else 0 * left_us
    found: Ints = np.maximum(deadline_at_us - mine.behind_us, ready + own_part_us)
    return found
