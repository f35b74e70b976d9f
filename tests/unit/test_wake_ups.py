"""A dispatcher asks to be woken, and what it has asked for does not become more and more."""

import pytest

from helpers.sim import Sim, request
from helpers.topologies import make_route, make_stage, make_topology

REQUESTS = 400
SLO_US = 60_000


@pytest.mark.parametrize("policy", ["batch-aware", "reservation", "reservation-fill", "reactive"])
@pytest.mark.parametrize("gap_us", [2_500, 3_000])
def test_wake_ups_are_as_many_as_requests_at_most(
    policy: str, gap_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage([0, 1], [10_000, 12_000, 14_000, 16_000])
    sim = Sim(make_topology([make_route(stage)], slo_us=SLO_US), policy=policy)
    woken: list[int] = []
    wake = sim.dispatcher._wake

    def counted(what: int, which: int) -> None:
        woken.append(which)
        wake(what, which)

    monkeypatch.setattr(sim.dispatcher, "_wake", counted)
    sim.run([request(i, i * gap_us, i * gap_us + SLO_US) for i in range(REQUESTS)])
    assert 0 < len(woken) <= REQUESTS
