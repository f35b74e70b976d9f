"""One stream of the study under one policy in virtual time, and what became of its queries.

A query is late unless it is answered within its SLO; dropped ones are. Those that no depth could
answer in time alone on an idle machine are counted apart: no policy can help them.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from benchmarks.accordion.networks import MAX_DEPTH, MODELS, PLACES, profiles
from benchmarks.accordion.streams import STREAMS, QueryStream
from benchmarks.accordion.table1 import study_cluster

from headrace.dispatch.policies import MALLEABLE, Policy
from headrace.dispatch.topology import Topology
from headrace.domain.errors import InfeasibleError
from headrace.domain.events import AnyEvent
from headrace.domain.problem import Demand, Items, PlanOptions, Problem
from headrace.planning import solve
from headrace.simulation.compiled import Offered, of_items, run

MOVE_MS = 5.0
"""To move blocks when a query changes depth (the paper's estimate, section 3.3)."""

MOST_ITEMS = 10_000

BASELINES = ("slo-conforming", "fastest", "buffer-based", "one-stage")
RULES = ("accordion", *BASELINES)
POLICIES = ("malleable", *RULES, *(f"{name}-all" for name in RULES))
"""Those with -all drop nothing by a predictor."""


def policy_of(name: str, *, window_percent: int | None = None) -> Policy:
    """
    Args:
        name: one of POLICIES.
        window_percent: of the dropout predictor, of a query's SLO; None: as Headrace sets it.
    """
    policy = MALLEABLE[name]
    if window_percent is None:
        return policy
    return Policy(policy.module, {**policy.parameters, "window_percent": window_percent})


@cache
def study_topology(mean_items: float = 20, places: int = PLACES) -> Topology:
    """The depths of the three networks, on one server.

    Raises:
        InfeasibleError: no plan was found.
    """
    networks = profiles()
    problem = Problem(
        cluster=study_cluster(places),
        demands=tuple(
            Demand(model=name, slo_us=10**10, items=Items(mean=max(1.0, mean_items)))
            for name in MODELS
        ),
        profiles=networks,
        options=PlanOptions(
            planner="malleable",
            margin=0.0,
            max_depth=MAX_DEPTH,
            max_items=MOST_ITEMS,
            move_ms=MOVE_MS,
        ),
    )
    result = solve(problem)
    if result.plan is None:
        raise InfeasibleError(f"no plan of the study's networks on {places} places")
    return Topology.from_plan(result.plan, networks)


def topology_of(stream: int) -> Topology:
    """`stream`: key of STREAMS."""
    return study_topology(STREAMS[stream].mean_items)


def alone_us(topology: Topology, stream: QueryStream) -> npt.NDArray[np.int64]:
    """Of each query, at its best depth on an idle machine; shape (queries,)."""
    least = np.full(len(stream), np.iinfo(np.int64).max)
    for index, model in enumerate(topology.models):
        mine = stream.model == index
        for route in model.routes:
            times = [stage.p50_us[0] for stage in route.stages]
            takes = sum(times) + (stream.items - 1) * max(times)
            least = np.where(mine, np.minimum(least, takes), least)
    return least


def offered_stream(stream: QueryStream, slo_us: int) -> Offered:
    """Every query with that SLO."""
    queries = Offered(
        arrived_at_us=stream.arrived_at_us,
        model=stream.model,
        deadline_at_us=stream.arrived_at_us + slo_us,
        priority=stream.priority,
    )
    return of_items(queries, stream.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """What became of N queries; all arrays have shape (N,)."""

    arrived_at_us: npt.NDArray[np.int64]
    ended_at_us: npt.NDArray[np.int64]
    """-1: it was dropped, whole or in part."""
    possible: npt.NDArray[np.bool_]
    """Alone it could be in time."""
    high: npt.NDArray[np.bool_]
    slo_us: int
    busy: float
    """Part of the places' time, first arrival to last answer, in which they worked."""

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        return self.ended_at_us >= 0

    @property
    def latency_us(self) -> npt.NDArray[np.int64]:
        """Of those that were answered."""
        return (self.ended_at_us - self.arrived_at_us)[self.answered]

    @property
    def late(self) -> npt.NDArray[np.bool_]:
        return ~self.answered | (self.ended_at_us > self.arrived_at_us + self.slo_us)

    @property
    def span_us(self) -> int:
        """First arrival to last answer."""
        return int(self.ended_at_us.max(initial=0) - self.arrived_at_us[0])


def simulate_stream(
    topology: Topology,
    stream: QueryStream,
    slo_us: int,
    policy: Policy,
    log: list[AnyEvent] | None = None,
) -> Queries:
    """Args: log: filled with everything that happened, if given."""
    found = run(topology, policy, offered_stream(stream, slo_us), log=log)
    first = np.cumsum(stream.items) - stream.items
    whole = np.minimum.reduceat(found.ended_at_us, first) >= 0
    ended_at_us = np.where(whole, np.maximum.reduceat(found.ended_at_us, first), -1)
    span_us = int(found.ended_at_us.max(initial=0) - stream.arrived_at_us[0])
    return Queries(
        arrived_at_us=stream.arrived_at_us,
        ended_at_us=ended_at_us,
        possible=alone_us(topology, stream) <= slo_us,
        high=stream.priority == 0,
        slo_us=slo_us,
        busy=float(found.busy_us.sum() / max(1, span_us) / len(topology.slots)),
    )
