"""Every metric of a report, defined once, with its denominator.

Simulated sessions, the load generator's and event logs, a server's among them, are summed up here.
What a running server counts for `/metrics` is in `headrace.serving.core.counters`, with endings
besides that no log has: of requests that no plan could be asked about.

A request is *arrived* once it was offered. It is *answered* when its result was ready, in time or
late; otherwise it is *dropped*, for a reason. A server withholds a result that is late and says so
(`late`, 504): it was computed, and its client does not get it. One that became late on its way to
the client arrives. One of many items is answered when all are back, and dropped when one is. So
arrived = answered + dropped, and answered = in_time + late. A dropped request misses its SLO.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from headrace.domain.base import Record
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Dispatched,
    Dropped,
    EventLogHeader,
    Evicted,
    Loaded,
    LoadFailed,
    Loading,
    Opened,
    Ran,
    SlotLost,
)
from headrace.domain.percentiles import percentile
from headrace.domain.request import Outcome

UNFINISHED: Final = "unfinished"
"""Reason of requests that were neither answered nor dropped when the log ends."""


class Distribution(Record, frozen=True, kw_only=True):
    """Of the answered requests only, so the drop rate must always stand beside it.

    Percentiles are nearest-rank (numpy's `inverted_cdf`): the smallest observed value that at
    least that share of the observations do not exceed. Nothing is interpolated; each is a latency
    that a request really had.
    """

    p50_us: int
    p90_us: int
    p99_us: int
    p999_us: int
    max_us: int
    mean_us: float


class Summary(Record, frozen=True, kw_only=True):
    """All metrics of a set of requests. Ratios and rates are None where their base is empty."""

    arrived: int
    """Requests offered, whatever became of them."""
    answered: int
    """Requests whose result was ready, in time or late; a server withholds a late one."""
    in_time: int
    """Answered at or before their deadline."""
    late: int
    """answered - in_time."""
    dropped: dict[str, int]
    """Reason -> requests without a result. Sums to arrived - answered."""
    offer_span_us: int
    """How long requests were offered; see `offer_span_us`."""
    answer_span_us: int
    """How long it took to answer them; see `answer_span_us`."""
    offered_rps: float | None
    """arrived / offer span."""
    throughput_rps: float | None
    """answered / answer span."""
    goodput_rps: float | None
    """in_time / answer span."""
    slo_attainment: float | None
    """in_time / arrived."""
    latency: Distribution | None
    """answered instant - arrival instant, over answered requests."""
    slack_p50_us: int | None
    """Deadline - answered instant, over answered requests; negative: late."""
    slack_p1_us: int | None
    """One answered request in a hundred had this slack or less."""

    @property
    def dropped_total(self) -> int:
        return self.arrived - self.answered


class SlotUse(Record, frozen=True, kw_only=True):
    """What one slot did."""

    slot: str
    node: str
    batches: int
    """Stage runs that ended; a run that a lost slot cut short is not among them."""
    requests: int
    """Sum of their batch sizes."""
    busy_us: int
    """Sum of their run times."""
    utilisation: float | None
    """busy_us / (last event - first arrival)."""
    mean_batch_size: float | None
    """requests / batches."""


class WeightsUse(Record, frozen=True, kw_only=True):
    """How models came and went, of a plan that has them do so."""

    cold: int
    """Requests whose model was not all in its slot's memory when they were promised that slot."""
    cold_share: float | None
    """cold / requests that were promised a slot."""
    loads: int
    """That came about."""
    failed: int
    """Loads that did not, or whose slot was lost before they had."""
    evictions: int
    moved_bytes: int
    """Brought to slots by the loads that came about."""
    load: Distribution | None
    """How long these took."""


class Report(Record, frozen=True, kw_only=True):
    """`headrace.report/1`: all that one run has to say; simulated and measured runs share it."""

    schema: Literal["headrace.report/1"] = "headrace.report/1"
    source: Literal["simulated", "measured"]
    models: dict[str, Summary]
    total: Summary
    slots: tuple[SlotUse, ...] = ()
    """Empty where the slots could not be seen, as by a load generator."""
    lateness: Distribution | None = None
    """How far behind schedule the load generator itself sent; None: simulated."""
    connections: int | None = None
    """The most that the load generator had open at once; None: simulated."""
    error_samples: dict[str, str] = msgspec.field(default_factory=dict)
    """Drop reason, or "late" -> the first message that came with it, where there was one."""
    weights: WeightsUse | None = None
    """None: all weights are in memory, or they could not be seen."""


def distribution(values_us: Iterable[int]) -> Distribution | None:
    """None where there are no values."""
    ordered = sorted(values_us)
    if not ordered:
        return None
    return Distribution(
        p50_us=percentile(ordered, 500),
        p90_us=percentile(ordered, 900),
        p99_us=percentile(ordered, 990),
        p999_us=percentile(ordered, 999),
        max_us=ordered[-1],
        mean_us=sum(ordered) / len(ordered),
    )


def outcomes(header: EventLogHeader, events: Iterable[AnyEvent]) -> dict[str, list[Outcome]]:
    """How every request of an event log ended, per model, in order of arrival.

    The first end counts. A request without one ended the log `unfinished`.
    """
    arrived: dict[int, Arrived] = {}
    ended: dict[int, tuple[int | None, str]] = {}
    whole: dict[int, int] = {}  # item -> its request, known by its first item
    unanswered: dict[int, int] = {}
    for event in events:
        if isinstance(event, Arrived):
            if whole.get(event.request, event.request) == event.request:
                arrived[event.request] = event
        elif isinstance(event, Answered):
            request = whole.get(event.request, event.request)
            unanswered[request] = unanswered.get(request, 1) - 1
            if unanswered[request] <= 0:
                ended.setdefault(request, (event.at_us, ""))
        elif isinstance(event, Dropped):
            ended.setdefault(whole.get(event.request, event.request), (None, event.reason))
        elif isinstance(event, Opened) and event.items > 1:
            items = range(event.request, event.request + event.items)
            whole.update(dict.fromkeys(items, event.request))
            unanswered[event.request] = event.items
    result: dict[str, list[Outcome]] = {model: [] for model in header.models}
    for request, arrival in arrived.items():
        ended_at_us, reason = ended.get(request, (None, UNFINISHED))
        result[header.models[arrival.model]].append(
            Outcome(
                arrived_at_us=arrival.at_us,
                deadline_at_us=arrival.deadline_at_us,
                ended_at_us=ended_at_us,
                reason=reason,
            )
        )
    return result


def offer_span_us(requests: Sequence[Outcome]) -> int:
    """How long N requests were being offered: N mean gaps between first and last arrival.

    N arrivals enclose only N - 1 gaps; without the factor N / (N - 1) ten requests at 10 rps
    would count as 11 rps. 0 where no two instants differ.
    """
    return _gaps_us([request.arrived_at_us for request in requests])


def answer_span_us(requests: Sequence[Outcome], offered_us: int) -> int:
    """How long answering took: the offer span, or first to last answer where that is longer.

    A server that keeps up answers in a window as long as the offer span, shifted by its latency;
    counting that shift as time would understate short runs. One that falls behind answers long
    after the last arrival; leaving that out would credit it with the offered rate.
    """
    ends = [request.ended_at_us for request in requests if request.ended_at_us is not None]
    return max(offered_us, _gaps_us(ends))


def summarise(requests: Sequence[Outcome], span_us: int | None = None) -> Summary:
    """Compute all metrics of these requests.

    Args:
        span_us: how long requests were offered, where the caller knows it; None: estimated from
            the arrivals.
    """
    arrived = len(requests)
    answered = [
        (request, request.ended_at_us) for request in requests if request.ended_at_us is not None
    ]
    in_time = sum(request.in_time for request in requests)
    reasons = Counter(request.reason for request in requests if request.ended_at_us is None)
    slack = sorted(request.deadline_at_us - ended for request, ended in answered)
    offered_us = offer_span_us(requests) if span_us is None else span_us
    answered_us = answer_span_us(requests, offered_us)
    return Summary(
        arrived=arrived,
        answered=len(answered),
        in_time=in_time,
        late=len(answered) - in_time,
        dropped=dict(sorted(reasons.items())),
        offer_span_us=offered_us,
        answer_span_us=answered_us,
        offered_rps=_rate_rps(arrived, offered_us),
        throughput_rps=_rate_rps(len(answered), answered_us),
        goodput_rps=_rate_rps(in_time, answered_us),
        slo_attainment=attainment(requests),
        latency=distribution(ended - request.arrived_at_us for request, ended in answered),
        slack_p50_us=percentile(slack, 500) if slack else None,
        slack_p1_us=percentile(slack, 10) if slack else None,
    )


def attainment(requests: Sequence[Outcome]) -> float | None:
    """`slo_attainment`: answered within the deadline / arrived; None where nothing arrived."""
    if not requests:
        return None
    return sum(request.in_time for request in requests) / len(requests)


def slot_utilisation(header: EventLogHeader, events: Iterable[AnyEvent]) -> list[SlotUse]:
    """What every slot of the log did, in the order of the header."""
    sizes: dict[int, int] = {}
    busy_us, batches, requests = Counter[int](), Counter[int](), Counter[int]()
    first_us: int | None = None
    last_us = 0
    for event in events:
        last_us = max(last_us, event.at_us)
        if isinstance(event, Arrived) and first_us is None:
            first_us = event.at_us
        elif isinstance(event, Dispatched):
            sizes[event.batch] = len(event.requests)
        elif isinstance(event, Ran):
            busy_us[event.slot] += event.at_us - event.started_at_us
            batches[event.slot] += 1
            requests[event.slot] += sizes.get(event.batch, 0)
    span_us = last_us - first_us if first_us is not None else 0
    return [
        SlotUse(
            slot=slot,
            node=header.nodes[i],
            batches=batches[i],
            requests=requests[i],
            busy_us=busy_us[i],
            utilisation=busy_us[i] / span_us if span_us else None,
            mean_batch_size=requests[i] / batches[i] if batches[i] else None,
        )
        for i, slot in enumerate(header.slots)
    ]


def run_report(
    source: Literal["simulated", "measured"],
    header: EventLogHeader,
    events: Sequence[AnyEvent],
    span_us: int | None = None,
) -> Report:
    """Everything that an event log tells; `span_us` as in `summarise`."""
    by_model = outcomes(header, events)
    return Report(
        source=source,
        models={model: summarise(requests, span_us) for model, requests in by_model.items()},
        total=summarise([r for requests in by_model.values() for r in requests], span_us),
        slots=tuple(slot_utilisation(header, events)),
        weights=weights_use(header, events) if header.resident_bytes else None,
    )


def weights_use(header: EventLogHeader, events: Sequence[AnyEvent]) -> WeightsUse:
    """Of a log whose header has `resident_bytes`."""
    there: set[tuple[int, int]] = set()
    loading: set[int] = set()  # slots, which have one load at a time
    cold: dict[int, bool] = {}
    took_us: list[int] = []
    failed = evictions = moved_bytes = 0
    for event in events:
        match event:
            case Dispatched():
                absent = (event.path[0].slot, event.model) not in there
                cold.update(dict.fromkeys(event.requests, absent))
            case Loading():
                loading.add(event.slot)
            case Loaded():
                loading.discard(event.slot)
                there.add((event.slot, event.model))
                took_us.append(event.at_us - event.started_at_us)
                moved_bytes += header.resident_bytes[event.model]
            case LoadFailed():
                loading.discard(event.slot)
                failed += 1
            case Evicted():
                there.discard((event.slot, event.model))
                evictions += 1
            case SlotLost():
                failed += event.slot in loading
                loading.discard(event.slot)
                there = {(slot, model) for slot, model in there if slot != event.slot}
    return WeightsUse(
        cold=sum(cold.values()),
        cold_share=sum(cold.values()) / len(cold) if cold else None,
        loads=len(took_us),
        failed=failed,
        evictions=evictions,
        moved_bytes=moved_bytes,
        load=distribution(took_us),
    )


def _gaps_us(instants: Sequence[int]) -> int:
    if len(instants) < 2:
        return 0
    spread = max(instants) - min(instants)
    return round(spread * len(instants) / (len(instants) - 1))


def _rate_rps(count: int, span_us: int) -> float | None:
    return count / (span_us / 1e6) if span_us > 0 else None
