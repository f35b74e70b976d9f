"""Whatever the topology and the mix of priorities and deadlines: what is accepted stays in time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Dispatched, Dropped, Ran
from headrace.domain.request import Request
from helpers.sim import Sim
from helpers.topologies import (
    assert_each_request_ended_once,
    assert_exclusive,
    random_requests,
    random_topology,
)

seeds = st.integers(min_value=0, max_value=2**32 - 1)
loads = st.sampled_from([0.5, 1.0, 2.0, 5.0])
HOUR_US = 3_600_000_000


def mixed(topology: Topology, seed: int, load: float, count: int = 60) -> list[Request]:
    """Three priorities, and deadlines between half an SLO and an hour."""
    rng = np.random.default_rng(seed)
    requests = []
    for asked in random_requests(topology, rng, count=count, load=load):
        slo_us = topology.models[asked.model].slo_us
        time_us = rng.choice([0.5, 1.0, 1.0, 1.5, 3.0, HOUR_US / slo_us]) * slo_us
        requests.append(
            replace(
                asked,
                deadline_at_us=asked.arrived_at_us + int(time_us),
                priority=int(rng.integers(3)),
            )
        )
    return requests


def late_though_accepted(events: list[AnyEvent], requests: list[Request]) -> set[int]:
    """Requests that were in a batch with a path in time, and were not answered in time."""
    accepted = {r for e in events if isinstance(e, Dispatched) for r in e.requests}
    ended = {e.request: e.at_us for e in events if isinstance(e, Answered)}
    return {
        r.id
        for r in requests
        if r.id in accepted and ended.get(r.id, HOUR_US * 9) > r.deadline_at_us
    }


@pytest.mark.parametrize("policy", ["reservation", "reservation-fill"])
@given(seed=seeds, load=loads)
def test_an_accepted_request_is_made_late_only_for_a_more_important_one(
    policy: str, seed: int, load: float
) -> None:
    topology = random_topology(np.random.default_rng(seed))
    requests = mixed(topology, seed, load)
    sim = Sim(topology, policy=policy)
    events = sim.run(requests)
    assert_each_request_ended_once(events)
    assert_exclusive(events, topology)
    assert sim.dispatcher.in_flight == 0
    priority = {request.id: request.priority for request in requests}
    assert not [r for r in late_though_accepted(events, requests) if priority[r] == 0]


@given(seed=seeds, load=loads, jitter=st.booleans())
def test_among_equally_important_ones_nobody_who_was_accepted_is_given_up(
    seed: int, load: float, jitter: bool
) -> None:
    topology = random_topology(np.random.default_rng(seed))
    requests = [replace(request, priority=0) for request in mixed(topology, seed, load)]
    sim = Sim(topology, jitter_seed=seed if jitter else None)
    events = sim.run(requests)
    assert_each_request_ended_once(events)
    assert_exclusive(events, topology)
    if not jitter:
        assert not late_though_accepted(events, requests)


@given(seed=seeds)
def test_patient_requests_are_all_answered_beside_those_with_an_slo(seed: int) -> None:
    topology = random_topology(np.random.default_rng(seed))
    requests = random_requests(topology, np.random.default_rng(seed), load=1.5)
    patient = {request.id for request in requests if request.id % 2}
    offered = [
        replace(r, deadline_at_us=r.arrived_at_us + HOUR_US) if r.id in patient else r
        for r in requests
    ]
    events = Sim(topology).run(offered)
    ended = {e.request for e in events if isinstance(e, Answered)}
    assert patient <= ended


@given(seed=seeds, load=loads)
def test_one_slo_and_one_priority_never_take_back(seed: int, load: float) -> None:
    topology = random_topology(np.random.default_rng(seed))
    requests = [
        replace(r, deadline_at_us=r.arrived_at_us + topology.models[r.model].slo_us, priority=0)
        for r in random_requests(topology, np.random.default_rng(seed), load=load)
    ]
    paths = [e.batch for e in Sim(topology).run(requests) if isinstance(e, Dispatched)]
    assert len(paths) == len(set(paths)), "every batch keeps the path that it was given"


@given(seed=seeds, load=loads)
def test_who_is_dropped_could_not_have_had_the_place_of_a_less_important_one(
    seed: int, load: float
) -> None:
    topology = random_topology(np.random.default_rng(seed))
    requests = {r.id: r for r in mixed(topology, seed, load)}
    events = Sim(topology).run(list(requests.values()))
    begun_at_us = {e.batch: e.started_at_us for e in events if isinstance(e, Ran) and e.stage == 0}
    ended_at_us = {e.batch: e.at_us for e in events if isinstance(e, Answered)}
    batch_of: dict[int, Dispatched] = {}
    for event in events:
        match event:
            case Dispatched():
                batch_of |= dict.fromkeys(event.requests, event)
            case Answered():
                del batch_of[event.request]
            case Dropped(reason="deadline"):
                batch_of.pop(event.request, None)
                mine = requests[event.request]
                for other, batch in batch_of.items():
                    waits = begun_at_us.get(batch.batch, 0) > event.at_us
                    less = requests[other].priority > mine.priority
                    if batch.model == mine.model and waits and less:
                        end_at_us = max(promised_us(batch), ended_at_us.get(batch.batch, HOUR_US))
                        spread_us = slack_us(batch, topology)
                        assert end_at_us + spread_us > mine.deadline_at_us
            case _:
                pass


def promised_us(batch: Dispatched) -> int:
    """When it ends; what it waits for may have been late since."""
    return batch.path[-1].start_at_us + batch.path[-1].latency_us


def slack_us(batch: Dispatched, topology: Topology) -> float:
    route = topology.models[batch.model].routes[batch.pipeline]
    return route.slack_us[len(batch.requests) - 1]
