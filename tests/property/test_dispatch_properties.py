"""Whatever the topology, the arrivals, the jitter and the faults."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dispatch.policies import POLICIES
from headrace.domain.events import Answered, Dispatched, Ran
from helpers.sim import Sim
from helpers.topologies import (
    assert_each_request_ended_once,
    assert_exclusive,
    random_requests,
    random_topology,
)

seeds = st.integers(min_value=0, max_value=2**32 - 1)
loads = st.sampled_from([0.3, 0.9, 2.0])


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60)
@given(seed=seeds, load=loads, jitter=st.booleans())
def test_each_request_ends_once_and_nothing_is_used_twice(
    policy: str, seed: int, load: float, jitter: bool
) -> None:
    rng = np.random.default_rng(seed)
    topology = random_topology(rng)
    sim = Sim(topology, policy=policy, jitter_seed=seed if jitter else None)
    events = sim.run(random_requests(topology, rng, load=load))
    assert_each_request_ended_once(events)
    assert_exclusive(events, topology)
    assert sim.dispatcher.in_flight == 0


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60)
@given(seed=seeds, load=loads)
def test_faults_lose_no_request(policy: str, seed: int, load: float) -> None:
    rng = np.random.default_rng(seed)
    topology = random_topology(rng)
    requests = random_requests(topology, rng, load=load)
    sim = Sim(topology, policy=policy, jitter_seed=seed)
    for _ in range(3):
        slot = int(rng.integers(len(topology.slots)))
        lost_at_us = int(rng.integers(requests[-1].arrived_at_us + 1))
        back_at_us = lost_at_us + int(rng.integers(1, 100_000))
        sim.clock.call_at(lost_at_us, partial(sim.dispatcher.on_slot_lost, slot))
        sim.clock.call_at(back_at_us, partial(sim.dispatcher.on_slot_gained, slot))
    events = sim.run(requests)
    assert_each_request_ended_once(events)
    assert sim.dispatcher.in_flight == 0


@pytest.mark.parametrize("policy", ["reservation", "reservation-fill"])
@given(seed=seeds, load=loads)
def test_without_jitter_every_promise_is_kept(policy: str, seed: int, load: float) -> None:
    rng = np.random.default_rng(seed)
    topology = random_topology(rng)
    requests = random_requests(topology, rng, load=load)
    events = Sim(topology, policy=policy).run(requests)
    deadline = {request.id: request.deadline_at_us for request in requests}
    for event in events:
        if isinstance(event, Answered):
            assert event.at_us <= deadline[event.request]
    promised = {
        (event.batch, stage): hop
        for event in events
        if isinstance(event, Dispatched)
        for stage, hop in enumerate(event.path, start=event.first_stage)
    }
    for event in events:
        if isinstance(event, Ran):
            hop = promised[event.batch, event.stage]
            assert event.started_at_us <= hop.start_at_us


@given(seed=seeds)
def test_a_batch_never_exceeds_the_planned_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_topology(rng)
    for event in Sim(topology).run(random_requests(topology, rng, load=2.0)):
        if isinstance(event, Dispatched):
            route = topology.models[event.model].routes[event.pipeline]
            assert 1 <= len(event.requests) <= route.batch_size
