"""The rings of requests that wait: in order however they move, and no larger than what may wait."""

from itertools import pairwise

import numpy as np
import pytest

from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import POLICIES
from headrace.domain.events import Dispatched
from headrace.domain.request import Request
from helpers.sim import Sim
from helpers.topologies import assert_each_request_ended_once, make_route, make_stage, make_topology

MODELS = 30
WAVE_US = 300_000
"""In which some 100 requests are served."""


def waves(rng: np.random.Generator, count: int) -> list[Request]:
    """Of a few models at one instant, of others at the next one, in no order of urgency."""
    requests: list[Request] = []
    for wave in range(count):
        busy = rng.integers(MODELS, size=3)
        for model in rng.choice(busy, size=int(rng.integers(200))).tolist():
            requests.append(
                Request(
                    id=len(requests),
                    model=model,
                    arrived_at_us=wave * WAVE_US,
                    deadline_at_us=1_000_000_000 + int(rng.integers(1_000_000)),
                    priority=int(rng.integers(3)),
                )
            )
    return requests


@pytest.mark.parametrize("seed", range(3))
def test_all_models_are_served_in_order_of_urgency_while_rings_grow_and_move(seed: int) -> None:
    topology = make_topology(
        *([make_route(make_stage([0], [3_000]))] for _ in range(MODELS)), slo_us=2_000_000_000
    )
    requests = waves(np.random.default_rng(seed), 60)
    sim = Sim(topology)
    sim.run(requests)

    assert_each_request_ended_once(sim.events)
    asked = {request.id: request for request in requests}
    served: list[list[tuple[int, Request]]] = [[] for _ in topology.models]
    for event in sim.events:
        if isinstance(event, Dispatched):
            (number,) = event.requests
            served[event.model].append((event.at_us, asked[number]))
    for (at_us, first), (_, then) in (pair for each in served for pair in pairwise(each)):
        urgencies = [(each.priority, each.deadline_at_us, each.id) for each in (first, then)]
        assert urgencies == sorted(urgencies) or then.arrived_at_us >= at_us


@pytest.mark.parametrize("policy", ["reservation", "reactive"])
def test_what_a_request_needs_does_not_depend_on_how_many_models_there_are(policy: str) -> None:
    def more_bytes(models: int) -> int:
        topology = make_topology(*([make_route(make_stage([0], [10]))] for _ in range(models)))
        store = Store(topology, POLICIES[policy], queue_max=10)
        before = sum(table.nbytes for table in store.arrays.values())
        store.grow(64 * store.rows)
        return sum(table.nbytes for table in store.arrays.values()) - before

    assert more_bytes(100) == more_bytes(1)
