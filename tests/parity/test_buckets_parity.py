"""A mixture of sizes gives the same events in the loop, the dispatcher and the live driver."""

import numpy as np

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, Dispatched, Dropped
from headrace.planning import solve
from headrace.simulation.driver import exact_durations
from helpers.four_ways import Trace, by_dispatcher, by_loop
from helpers.problems import make_problem
from helpers.sized import sized_profile
from helpers.topologies import random_requests
from parity.test_simulated_equals_live import run_live

POLICIES = ("reservation", "reactive")


def bucket_topology() -> Topology:
    problem = make_problem([sized_profile()], nodes={"n0": {"a": 2}}, slo_us=120_000)
    plan = solve(problem).plan
    assert plan is not None
    return Topology.from_plan(*by_bucket(plan, problem.profiles))


def test_buckets_run_alike_in_simulator_and_server() -> None:
    topology = bucket_topology()
    answered = dropped = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        requests = random_requests(topology, rng, load=float(rng.choice([0.5, 1.0, 2.0])))
        for policy in POLICIES:
            trace = Trace(
                topology=topology,
                policy=policy,
                requests=tuple(requests),
                changes=(),
                jitter_seed=None,
            )
            events = by_dispatcher(trace)
            assert by_loop(trace) == events, f"seed {seed}, {policy}"
            assert run_live(topology, policy, requests, exact_durations, ()) == events
            answered += sum(isinstance(event, Answered) for event in events)
            dropped += sum(isinstance(event, Dropped) for event in events)
            _check_batches(requests, events)
    assert answered > 500
    assert dropped > 10


def _check_batches(requests: list, events: list) -> None:  # type: ignore[type-arg]
    """No batch holds requests of two buckets."""
    model_of = {request.id: request.model for request in requests}
    for event in events:
        if isinstance(event, Dispatched):
            assert {model_of[request] for request in event.requests} == {event.model}
