"""/metrics: plain integers on the hot path, turned into Prometheus families at a scrape."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from headrace.domain.events import AnyEvent, Dispatched, Ran
from headrace.serving.engine.engine import EngineStatus
from headrace.serving.front.http_messages import Response

LATENCY_BOUNDS_US = (
    *(round(base * 10**power) for power in range(2, 7) for base in (1, 2, 3.5, 5, 7.5)),
    10_000_000,
)
"""100 us to 10 s, five steps a decade: an SLO attainment can be read off within 20 %."""

MICROSECONDS = 1e-6


class ModelCounters:
    """What happened to one model's requests. Fields are added to directly: it is the hot path."""

    __slots__ = (
        "answered",
        "batches",
        "items",
        "last_at_ms",
        "late",
        "latency_counts",
        "latency_sum_us",
        "refused",
        "run_us",
    )

    def __init__(self) -> None:
        self.answered = 0
        """In time."""
        self.late = 0
        self.items = 0
        self.refused: dict[str, int] = {}
        """Reason -> requests."""
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_US) + 1)
        self.latency_sum_us = 0
        self.last_at_ms = 0
        """Wall clock of the last answer, milliseconds since 1970."""
        self.batches: dict[int, int] = {}
        """Batch size -> batches dispatched."""
        self.run_us: dict[int, int] = {}
        """Batch size -> microseconds that slots ran for it, all stages."""

    def count_answer(self, items: int, latency_us: int, late: bool) -> None:
        if late:
            self.late += 1
        else:
            self.answered += 1
        self.items += items
        self.latency_sum_us += latency_us
        self.latency_counts[bisect_left(LATENCY_BOUNDS_US, latency_us)] += 1

    def count_refusal(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1


class BatchCounter:
    """An event sink that counts batches by size and the time slots ran for them."""

    def __init__(self, models: list[ModelCounters]) -> None:
        """`models` in the order of the event log's header."""
        self._models = models
        self._open: dict[int, tuple[ModelCounters, int]] = {}

    def __call__(self, event: AnyEvent) -> None:
        kind = type(event)
        if kind is Ran:
            assert isinstance(event, Ran)
            known = self._open.get(event.batch)
            if known is not None:
                counters, size = known
                run_us = event.at_us - event.started_at_us
                counters.run_us[size] = counters.run_us.get(size, 0) + run_us
        elif kind is Dispatched:
            assert isinstance(event, Dispatched)
            if event.first_stage == 0 and event.batch not in self._open:
                counters, size = self._models[event.model], len(event.requests)
                counters.batches[size] = counters.batches.get(size, 0) + 1
                self._remember(event.batch, counters, size)

    def _remember(self, batch: int, counters: ModelCounters, size: int) -> None:
        # Batches end in about the order in which they began: the oldest can be forgotten.
        self._open[batch] = (counters, size)
        if len(self._open) > 1024:
            del self._open[next(iter(self._open))]


class GatewayCollector:
    """Builds the families at a scrape; the serving path never touches the registry."""

    def __init__(
        self, counters: Mapping[str, ModelCounters], status: Callable[[], EngineStatus]
    ) -> None:
        self._counters = counters
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield self._requests()
        yield self._latencies()
        yield self._batches()
        status = self._status()
        for name, what, value in (
            ("open_inferences", "accepted, not yet answered", status.open_inferences),
            ("open_requests", "items of open inferences", status.open_requests),
            ("running_batches", "batches on their way through the slots", status.running_batches),
            ("arena_used_bytes", "shared memory in use", status.arena_used_bytes),
            ("arena_size_bytes", "shared memory reserved", status.arena_size_bytes),
            ("plan_number", "the plan in service is this server's so many-th", status.plans_served),
            ("migrating", "1 while another plan is taking over", int(status.migrating)),
            ("held_requests", "wait for slots of the new plan", status.held_requests),
        ):
            yield GaugeMetricFamily(f"headrace_{name}", what, value=value)
        up = GaugeMetricFamily(
            "headrace_slot_up", "1 while the slot's worker runs", labels=["slot"]
        )
        restarts = CounterMetricFamily(
            "headrace_worker_restarts",
            "workers started again for a slot that is out",
            labels=["slot"],
        )
        out = GaugeMetricFamily(
            "headrace_slots_out",
            "slots out of service while workers are started for them again",
            labels=["why"],
        )
        for why, count in status.outages.items():
            out.add_metric([why], count)
        for slot in status.slots:
            up.add_metric([slot.name], float(slot.up))
            restarts.add_metric([slot.name], slot.restarts)
        yield up
        yield restarts
        yield out

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "headrace_requests", "finished requests by outcome", labels=["model", "outcome"]
        )
        for name, model in self._counters.items():
            outcomes = {"answered": model.answered, "late": model.late, **model.refused}
            for outcome, count in outcomes.items():
                family.add_metric([name, outcome], count)
        return family

    def _latencies(self) -> Metric:
        family = HistogramMetricFamily(
            "headrace_request_latency_seconds",
            "arrival at the dispatcher to answer, answered requests, late ones too",
            labels=["model"],
        )
        for name, model in self._counters.items():
            bounds = [f"{bound * MICROSECONDS:g}" for bound in LATENCY_BOUNDS_US] + ["+Inf"]
            family.add_metric(
                [name],
                list(zip(bounds, _running_sums(model.latency_counts), strict=True)),
                model.latency_sum_us * MICROSECONDS,
            )
        return family

    def _batches(self) -> Metric:
        family = CounterMetricFamily(
            "headrace_batches", "batches dispatched, by size", labels=["model", "size"]
        )
        for name, model in self._counters.items():
            for size, count in sorted(model.batches.items()):
                family.add_metric([name, str(size)], count)
        return family


class Exposition:
    """Answers a scrape."""

    def __init__(self, collector: GatewayCollector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def response(self, accept: bytes) -> Response:
        encode, content_type = choose_encoder(accept.decode("latin-1"))
        return Response(200, encode(self._registry), content_type=content_type.encode())


def _running_sums(counts: list[int]) -> Iterator[float]:
    total = 0
    for count in counts:
        total += count
        yield float(total)
