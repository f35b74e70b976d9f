"""How long requests were on their way to the dispatcher, from a server's event log.

A profile has the processor time that one request takes of the gateway. In service the gateway
shares its cores with workers and clients and waits for its turn, which is most of that way. The log
has when the dispatcher heard of a request, and when it reached the machine, as deadline - SLO.
A stall holds up whatever came meanwhile, so simulated requests of a model have the waits of the
log's in their order, from a random one on, and nobody overtakes:

    d_i = max(d_{i-1}, a_i + wait of the (first + i)-th)

The way back needs nothing more: a batch's time in `MeasuredDurations` ends with the gateway hearing
of its end, and the deadlines in the log are earlier by what answers take from there. Requests with
a timeout of their own do not say when they arrived; a model with such is passed by the gateway as
its profile says (`simulation.gateway`), and so are all where there is no log.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent, Arrived
from headrace.simulation.gateway import through_gateway

LEAST_REQUESTS = 30
PLAUSIBLE_US = 5_000
"""The quickest way in takes no longer, else deadlines are not the SLO's."""


def behind_served_gateway(
    topology: Topology,
    events: Sequence[AnyEvent],
    arrived_at_us: Ints,
    model: Ints,
    rng: np.random.Generator,
) -> Ints:
    """When the dispatcher has the requests that reach the machine at `arrived_at_us`.

    Args:
        events: of a server's log of the same plan.
        arrived_at_us: shape (N,), in order, as the result.
        model: shape (N,), indices among the topology's models.
    """
    ways = _ways_in(topology, events)
    taken_us = [0 if i in ways else each.gateway_us for i, each in enumerate(topology.models)]
    passed = through_gateway(arrived_at_us, np.array(taken_us, dtype=np.int64)[model])
    for index, waits_us in ways.items():
        mine = np.flatnonzero(model == index)
        first = int(rng.integers(len(waits_us)))
        passed[mine] += waits_us[(first + np.arange(len(mine))) % len(waits_us)]
    found: Ints = np.maximum.accumulate(passed)
    return found


def _ways_in(topology: Topology, events: Sequence[AnyEvent]) -> Mapping[int, Ints]:
    """Model, by index -> its requests' waits, where the log says them."""
    arrived: defaultdict[int, list[Arrived]] = defaultdict(list)
    for event in events:
        if isinstance(event, Arrived):
            arrived[event.model].append(event)
    known = {i: ways_in_us(arrived[i], each.slo_us) for i, each in enumerate(topology.models)}
    return {i: np.array(waits_us) for i, waits_us in known.items() if waits_us is not None}


def ways_in_us(arrived: Sequence[Arrived], slo_us: int) -> list[int] | None:
    """How long each request was on its way to the dispatcher; None: the log does not say."""
    waits_us = [event.at_us - (event.deadline_at_us - slo_us) for event in arrived]
    if len(waits_us) < LEAST_REQUESTS or not 0 <= min(waits_us) <= PLAUSIBLE_US:
        return None
    return waits_us
