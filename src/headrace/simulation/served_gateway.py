"""Requests on their way through a gateway whose log there is, and answers on their way back.

Of a request that a client was to send at t, sent at s, had its answer of at h, and that the
dispatcher heard of at d, with deadline D, and answered at e, a rehearsal's log has

    before  s - t          the client's own delay, on the same cores; latency counts from t
    in      d - s
    early   s + SLO - D    what the gateway takes off the deadline for the way back (`LoopDelays`),
                           which is more than that takes in most cases
    back    h - e

What comes at a simulated instant is put off as what came about the like moment of the log
(`simulation.moments`, `.attention`), by the client first and then by the gateway; nobody overtakes,
and the gateway reads what is there whenever it takes a report (`.inbox`). Answers are on their way
as long as those of a batch of as many were (`.answers`).

A server's own log does not know its clients. There `in` is d - (D - SLO), with `early` in it, and
the rest is 0: the slack that is left is right, latencies are a little too long. Requests with a
timeout of their own do not say when they arrived; a model with such is passed by the gateway as
its profile says (`simulation.gateway`), and so are all where there is no log, or where the client
was behind its schedule all the time (`simulation.left_out`): no lower rate waits as that did.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Arrived, Opened, Seen
from headrace.simulation.answers import Answers
from headrace.simulation.attention import Attention
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
    ready_at_us: Ints
    """From when on the dispatcher has them as soon as the gateway takes anything."""


@dataclass(frozen=True, slots=True)
class _Early:
    """Of a model's M requests in the log, in the order in which they were sent; each of shape
    (M,)."""

    sent_at_us: Ints
    early_us: Ints

    def at_us(self, sent_at_us: Ints) -> Ints:
        """How early the deadlines of requests are that are sent then; same shape."""
        near = np.searchsorted(self.sent_at_us, sent_at_us)
        found: Ints = self.early_us[np.minimum(near, len(self.early_us) - 1)]
        return found


class ServedGateway:
    """The gateway of a log, and the clients where they have told what they saw."""

    def __init__(
        self, topology: Topology, events: Sequence[AnyEvent], moments: Moments | None
    ) -> None:
        """
        Args:
            moments: of the log; None: it has no requests. Where nothing is left of them, nothing of
                the log is known here.
        """
        if moments is not None and moments.nothing_left:
            moments = None
        self._moments = moments
        arrived: defaultdict[int, list[Arrived]] = defaultdict(list)
        seen: dict[int, Seen] = {}
        answered: dict[int, Answered] = {}
        for event in events:
            match event:
                case Arrived():
                    arrived[event.model].append(event)
                case Seen():
                    seen[event.request] = event
                case Answered():
                    answered[event.request] = event
                case _:
                    pass
        requests: list[tuple[int, int]] = []
        self._known: dict[int, _Early | None] = {}
        """Model, by index, of whose ways the log tells -> how early its deadlines are, where that
        is not part of the way in."""
        for index, each in enumerate(topology.models if moments is not None else ()):
            own = arrived[index]
            if len(own) >= LEAST_REQUESTS and all(event.request in seen for event in own):
                self._known[index] = _early(own, seen, each.slo_us)
                requests += [(seen[event.request].sent_at_us, event.at_us) for event in own]
            elif (waits_us := ways_in_us(own, each.slo_us)) is not None:
                self._known[index] = None
                requests += [(e.at_us - w, e.at_us) for e, w in zip(own, waits_us, strict=True)]
        self._gateway = _attention(requests)
        self._client = _attention([(e.scheduled_at_us, e.sent_at_us) for e in seen.values()])
        self._answers = _answers(answered, seen)

    def ways(
        self, topology: Topology, arrived_at_us: Ints, model: Ints, deadline_at_us: Ints
    ) -> Ways:
        """The ways of requests that arrive at `arrived_at_us`, in order.

        Args:
            arrived_at_us: shape (N,)
            model: shape (N,), indices among the topology's models.
            deadline_at_us: shape (N,)
        """
        taken_us = [
            0 if index in self._known else each.gateway_us
            for index, each in enumerate(topology.models)
        ]
        passed = through_gateway(arrived_at_us, np.array(taken_us, dtype=np.int64)[model])
        told, ready = deadline_at_us.copy(), passed.copy()
        mine = np.flatnonzero(np.isin(model, list(self._known)))
        if len(mine):
            assert self._moments is not None, "nothing is known without a moment"
            assert self._gateway is not None
            like = self._moments.all_at(arrived_at_us)
            held_us = self._held_us(like, arrived_at_us, model)
            for index, early in self._known.items():
                own = np.flatnonzero(model == index)
                if early is not None:
                    most_us = (deadline_at_us - arrived_at_us)[own] >> EARLY_SHIFT
                    early_us = early.at_us((like + held_us)[own])
                    told[own] += np.maximum(held_us[own] - early_us, -most_us)
            sent = (arrived_at_us + held_us)[mine]
            passed[mine] = sent + self._gateway.took_us((like + held_us)[mine], sent)
            ready[mine] = sent + self._gateway.quick_us
        return Ways(
            passed_at_us=np.maximum.accumulate(passed),
            told_at_us=told,
            ready_at_us=np.maximum.accumulate(ready),
        )

    def _held_us(self, like_us: Ints, arrived_at_us: Ints, model: Ints) -> Ints:
        """How long clients put off each request, where the log has them; all of shape (N,)."""
        found = np.zeros_like(arrived_at_us)
        seen = [index for index, early in self._known.items() if early is not None]
        mine = np.flatnonzero(np.isin(model, seen))
        if len(mine):
            assert self._client is not None, "no deadline is known to be early without its client"
            found[mine] = self._client.took_us(like_us[mine], arrived_at_us[mine])
        return found

    def seen(
        self, events: Sequence[AnyEvent], arrived_at_us: Ints, deadline_at_us: Ints
    ) -> list[AnyEvent]:
        """Arrivals and answers as clients have them, from which latency counts.

        Args:
            arrived_at_us, deadline_at_us: of the requests, both of shape (N,).
        """
        found: list[AnyEvent] = []
        together = Counter(event.batch for event in events if isinstance(event, Answered))
        waits_us: dict[int, list[int]] = {}
        """Batch -> of its answers that are not on their way yet, longest first."""
        for event in events:
            if isinstance(event, Arrived | Opened):
                i = event.request
                at_us, deadline_us = int(arrived_at_us[i]), int(deadline_at_us[i])
                found.append(structs.replace(event, at_us=at_us, deadline_at_us=deadline_us))
            elif isinstance(event, Answered) and self._answers and self._moments:
                if event.batch not in waits_us:
                    at_us, size = self._moments.at(event.at_us), together[event.batch]
                    waits_us[event.batch] = self._answers.waits_us(at_us, size)[::-1]
                back_us = waits_us[event.batch].pop()
                found.append(structs.replace(event, at_us=event.at_us + back_us))
            else:
                found.append(event)
        found.sort(key=lambda event: event.at_us)
        return found


def _attention(messages: Sequence[tuple[int, int]]) -> Attention | None:
    """None: there are no messages."""
    return Attention(messages) if messages else None


def _answers(answered: Mapping[int, Answered], seen: Mapping[int, Seen]) -> Answers | None:
    """None: no client has told of any."""
    at_us: dict[int, int] = {}
    seen_at_us: defaultdict[int, list[int]] = defaultdict(list)
    for request in answered.keys() & seen.keys():
        batch = answered[request].batch
        at_us[batch] = answered[request].at_us
        seen_at_us[batch].append(seen[request].at_us)
    batches = [(at_us[batch], seen_us) for batch, seen_us in seen_at_us.items()]
    return Answers(batches) if batches else None


def _early(own: Sequence[Arrived], seen: Mapping[int, Seen], slo_us: int) -> _Early:
    sent = [(seen[event.request].sent_at_us, event.deadline_at_us) for event in own]
    sent.sort()
    sent_at_us = np.array([at_us for at_us, _ in sent])
    early = np.array([max(0, at_us + slo_us - deadline) for at_us, deadline in sent])
    return _Early(sent_at_us, early)


def ways_in_us(arrived: Sequence[Arrived], slo_us: int) -> list[int] | None:
    """How long each request was on its way to the dispatcher; None: the log does not say."""
    waits_us = [event.at_us - (event.deadline_at_us - slo_us) for event in arrived]
    if len(waits_us) < LEAST_REQUESTS or not 0 <= min(waits_us) <= PLAUSIBLE_US:
        return None
    return waits_us
