"""How long requests were on their way to the dispatcher and back, from a server's event log.

A profile has the processor time that one request takes of the gateway. In service the gateway
shares its cores with workers and clients and waits for its turn, which is most of that way. Of a
request that its client was to send at t, sent at s, had its answer of at h, and that the dispatcher
heard of at d, with deadline D, and answered at e, a rehearsal's log has

    before  s - t          the client's own delay, on the same cores; latency counts from t
    in      d - s
    early   s + SLO - D    what the gateway takes off the deadline for the way back (`LoopDelays`),
                           which is more than that takes in most cases
    back    h - e

A stall holds up whatever came meanwhile, so a simulated request has those of the request of the log
that arrived at the like moment (`simulation.moments`), and nobody overtakes:

    d_i = max(d_{i-1}, t_i + before + in),   D_i = t_i + before + SLO - early

A server's own log does not know its clients. There `in` is d - (D - SLO), with `early` in it, and
the rest is 0: the slack that is left is right, latencies are a little too long. Requests with a
timeout of their own do not say when they arrived; a model with such is passed by the gateway as
its profile says (`simulation.gateway`), and so are all where there is no log.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Arrived, Opened, Seen
from headrace.simulation.gateway import through_gateway
from headrace.simulation.moments import Moments

LEAST_REQUESTS = 30
PLAUSIBLE_US = 5_000
"""The quickest way in takes no longer, else deadlines are not the SLO's."""
EARLY_SHIFT = 3
"""Of no request's time is more than this part (an eighth) taken off, as in the gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Of N requests; each array of shape (N,)."""

    passed_at_us: Ints
    """When the dispatcher has them."""
    told_at_us: Ints
    """The deadlines that it is told."""
    back_us: Ints
    """From its answer until the client has it."""


@dataclass(frozen=True, slots=True)
class _Logged:
    """The ways of a model's M requests in the log, in order of arrival; each of shape (M,)."""

    at_us: Ints
    way_us: Ints
    """before + in"""
    later_us: Ints
    """before - early: what is added to the deadline."""
    back_us: Ints


def served_ways(
    topology: Topology,
    events: Sequence[AnyEvent],
    moments: Moments | None,
    arrived_at_us: Ints,
    model: Ints,
    deadline_at_us: Ints,
) -> Ways:
    """The ways of requests that arrive at `arrived_at_us`.

    Args:
        events: of a server's log of the same plan.
        moments: of the log; None: it has no requests.
        arrived_at_us: shape (N,), in order.
        model: shape (N,), indices among the topology's models.
        deadline_at_us: shape (N,).
    """
    logged = {} if moments is None else _logged(topology, events)
    taken_us = [0 if i in logged else each.gateway_us for i, each in enumerate(topology.models)]
    passed = through_gateway(arrived_at_us, np.array(taken_us, dtype=np.int64)[model])
    told, back = deadline_at_us.copy(), np.zeros_like(passed)
    for index, ways in logged.items():
        assert moments is not None, "no way is known without a moment"
        mine = np.flatnonzero(model == index)
        like = moments.all_at(arrived_at_us[mine])
        which = np.minimum(np.searchsorted(ways.at_us, like), len(ways.at_us) - 1)
        passed[mine] += ways.way_us[which]
        most_us = (deadline_at_us - arrived_at_us)[mine] >> EARLY_SHIFT
        told[mine] += np.maximum(ways.later_us[which], -most_us)
        back[mine] = ways.back_us[which]
    return Ways(passed_at_us=np.maximum.accumulate(passed), told_at_us=told, back_us=back)


def as_seen(
    events: Sequence[AnyEvent], arrived_at_us: Ints, deadline_at_us: Ints, back_us: Ints
) -> list[AnyEvent]:
    """Arrivals and answers as clients have them, from which latency counts. All of shape (N,)."""
    found: list[AnyEvent] = []
    for event in events:
        if isinstance(event, Arrived | Opened):
            i = event.request
            at_us, deadline_us = int(arrived_at_us[i]), int(deadline_at_us[i])
            found.append(structs.replace(event, at_us=at_us, deadline_at_us=deadline_us))
        elif isinstance(event, Answered) and back_us[event.request]:
            at_us = event.at_us + int(back_us[event.request])
            found.append(structs.replace(event, at_us=at_us))
        else:
            found.append(event)
    found.sort(key=lambda event: event.at_us)
    return found


def _logged(topology: Topology, events: Sequence[AnyEvent]) -> Mapping[int, _Logged]:
    """Model, by index -> its requests' ways, where the log says them."""
    arrived: defaultdict[int, list[Arrived]] = defaultdict(list)
    seen: dict[int, Seen] = {}
    answered_at_us: dict[int, int] = {}
    for event in events:
        match event:
            case Arrived():
                arrived[event.model].append(event)
            case Seen():
                seen[event.request] = event
            case Answered():
                answered_at_us[event.request] = event.at_us
            case _:
                pass
    found = {}
    for index, each in enumerate(topology.models):
        own = arrived[index]
        if len(own) >= LEAST_REQUESTS and all(event.request in seen for event in own):
            found[index] = _of_clients(own, seen, answered_at_us, each.slo_us)
        elif (waits_us := ways_in_us(own, each.slo_us)) is not None:
            nothing = np.zeros(len(own), dtype=np.int64)
            at_us = np.array([event.at_us for event in own])
            found[index] = _Logged(at_us, np.array(waits_us), nothing, nothing)
    return found


def _of_clients(
    own: Sequence[Arrived], seen: Mapping[int, Seen], answered_at_us: Mapping[int, int], slo_us: int
) -> _Logged:
    ways, later, back = [], [], []
    back_us = 0
    for event in own:
        told = seen[event.request]
        before_us = told.sent_at_us - told.scheduled_at_us
        ways.append(event.at_us - told.scheduled_at_us)
        early_us = max(0, told.sent_at_us + slo_us - event.deadline_at_us)
        later.append(before_us - early_us)
        # What was refused does not say: as long as for the answer before it.
        if event.request in answered_at_us:
            back_us = max(0, told.at_us - answered_at_us[event.request])
        back.append(back_us)
    at_us = np.array([event.at_us for event in own])
    return _Logged(at_us, np.array(ways), np.array(later), np.array(back))


def ways_in_us(arrived: Sequence[Arrived], slo_us: int) -> list[int] | None:
    """How long each request was on its way to the dispatcher; None: the log does not say."""
    waits_us = [event.at_us - (event.deadline_at_us - slo_us) for event in arrived]
    if len(waits_us) < LEAST_REQUESTS or not 0 <= min(waits_us) <= PLAUSIBLE_US:
        return None
    return waits_us
