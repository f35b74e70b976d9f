"""Models that take turns on common slots run alike in the loop, the dispatcher and the server."""

import numpy as np
import pytest

from headrace.domain.events import Answered, Dropped
from headrace.simulation.driver import exact_durations
from helpers.four_ways import Trace, by_dispatcher, by_loop
from helpers.topologies import (
    random_cut_topology,
    random_requests,
    random_rounds_topology,
    random_shared_topology,
)
from parity.test_simulated_equals_live import run_live


@pytest.mark.parametrize("policy", ["reservation", "duty-cycle", "rounds"])
def test_turns_are_the_same_in_simulator_and_server(policy: str) -> None:
    answered = dropped = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        kind = random_rounds_topology if policy == "rounds" else random_shared_topology
        topology = kind(rng) if policy != "reservation" or seed % 2 else random_cut_topology(rng)
        requests = random_requests(topology, rng, load=float(rng.choice([0.5, 1.0, 2.0])))
        trace = Trace(
            topology=topology,
            policy=policy,
            requests=tuple(requests),
            changes=(),
            jitter_seed=None,
        )
        events = by_dispatcher(trace)
        assert by_loop(trace) == events, f"seed {seed}"
        assert run_live(topology, policy, requests, exact_durations, ()) == events, f"seed {seed}"
        answered += sum(isinstance(event, Answered) for event in events)
        dropped += sum(isinstance(event, Dropped) for event in events)
    assert answered > 1_000
    assert dropped > 100
