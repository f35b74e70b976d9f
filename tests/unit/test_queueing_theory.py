"""The simulator agrees with what is known in closed form."""

import numpy as np
import pytest

from headrace.domain.events import Ran
from helpers.lengthy import with_lengthy
from helpers.sim import Sim, request
from helpers.topologies import make_route, make_stage, make_topology


@pytest.mark.parametrize("utilisation", with_lengthy([0.3, 0.6, 0.8], lengthy=[0.3, 0.6]))
@pytest.mark.parametrize("policy", ["reservation", "reactive"])
def test_waiting_on_one_slot_is_that_of_an_m_d_1_queue(policy: str, utilisation: float) -> None:
    service_us, count = 10_000, 40_000
    rng = np.random.default_rng(7)
    gaps = rng.exponential(service_us / utilisation, size=count)
    at_us = np.cumsum(gaps).astype(int).tolist()
    forever = 10**15
    sim = Sim(make_topology([make_route(make_stage([0], [service_us]))]), policy=policy)
    sim.run([request(i, at, forever + at) for i, at in enumerate(at_us)])
    starts = [e.started_at_us for e in sim.events if isinstance(e, Ran)]
    waited_us = float(np.mean(np.array(starts) - np.array(at_us)))
    # Pollaczek-Khinchine for deterministic service.
    expected_us = service_us * utilisation / (2 * (1 - utilisation))
    assert waited_us == pytest.approx(expected_us, rel=0.06)
