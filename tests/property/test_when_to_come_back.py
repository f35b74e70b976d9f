"""What a refusal says of when to come back: sooner nobody has a chance, then somebody has."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent, Arrived, Dropped, Ran
from headrace.domain.request import Request
from helpers.sim import Sim, request
from helpers.topologies import make_route, make_stage, make_topology


def crowd(rng: np.random.Generator) -> tuple[Topology, list[Request]]:
    """One model on one to three slots, batches of up to six, and twice the load that they carry."""
    first_us, more_us = rng.integers(1_000, 10_000), rng.integers(100, 5_000)
    p50_us = [int(first_us + b * more_us) for b in range(rng.integers(1, 7))]
    p99_us = [us + us // 10 for us in p50_us]
    slots = int(rng.integers(1, 4))
    slo_us = int(rng.uniform(2, 12) * p99_us[-1])
    rate = 2 * slots * len(p50_us) / p50_us[-1]
    arrivals = np.cumsum(rng.exponential(1 / rate, size=300)).astype(int).tolist()
    route = make_route(make_stage(range(slots), p50_us, p99_us=p99_us))
    return (
        make_topology([route], slo_us=slo_us),
        [request(i, at_us, at_us + slo_us) for i, at_us in enumerate(arrivals)],
    )


def refusals(requests: Sequence[Request], events: Sequence[AnyEvent]) -> Iterator[tuple[int, int]]:
    """(Who was refused when it came, when to come back), where nothing else happens until then."""
    happens_at = [e.at_us for e in events if isinstance(e, Ran | Arrived)]
    for event in events:
        if isinstance(event, Dropped) and event.at_us == requests[event.request].arrived_at_us:
            back_at_us = event.at_us + event.retry_after_us
            if not any(event.at_us < at_us <= back_at_us for at_us in happens_at):
                yield event.request, back_at_us


def is_refused(topology: Topology, requests: Sequence[Request], at_us: int) -> bool:
    """Whether one more is, when it comes at that instant behind these."""
    one_more = len(requests)
    slo_us = topology.models[0].slo_us
    events = Sim(topology).run([*requests, request(one_more, at_us, at_us + slo_us)])
    return any(
        isinstance(e, Dropped) and e.request == one_more and e.at_us == at_us for e in events
    )


@pytest.mark.parametrize("seed", range(40))
def test_before_that_nobody_has_a_chance_and_then_somebody_has(seed: int) -> None:
    topology, requests = crowd(np.random.default_rng(seed))
    found = list(refusals(requests, Sim(topology).run(requests)))
    for number, back_at_us in found[:: max(1, len(found) // 3)]:
        so_far = requests[: number + 1]
        if back_at_us - 1 > so_far[-1].arrived_at_us:
            assert is_refused(topology, so_far, back_at_us - 1)
        assert not is_refused(topology, so_far, back_at_us)
