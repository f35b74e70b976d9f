"""Everything that is counted, and every measure that a front may show, each defined once.

On the hot path plain integers are added to; a measure is made from them when somebody asks.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

from headrace.dispatch.protocols import BatchCounts
from headrace.domain.request import DropReason
from headrace.serving.engine.load_counts import LOAD_BOUNDS_US
from headrace.serving.workers.status import AppsStatus, EngineStatus, LoadStatus

LATENCY_BOUNDS_US = (
    *(round(base * 10**power) for power in range(2, 7) for base in (1, 2, 3.5, 5, 7.5)),
    10_000_000,
)
"""100 us to 10 s, five steps a decade: an SLO attainment can be read off within 20 %."""

REASONS = (*get_args(DropReason), "bad-request", "not-representable")
"""All reasons that an inference may have no answer for."""


class ModelCounters(BatchCounts):
    """What happened to one model's inferences. Fields are added to directly: it is the hot path."""

    __slots__ = (
        "answered",
        "by_size",
        "compute_sum_us",
        "items",
        "last_at_ms",
        "late",
        "latency_counts",
        "latency_sum_us",
        "refused",
        "sequences_given_up",
        "sequences_open",
    )

    def __init__(self) -> None:
        super().__init__()
        self.answered = 0
        """In time."""
        self.late = 0
        self.items = 0
        self.by_size: dict[str, int] = {}
        """What the engine calls it, which is a bucket's name where the model has several sizes ->
        items that were answered, and inferences that it refused or that were cancelled."""
        self.refused: dict[str, int] = {}
        """Reason, of `REASONS` -> inferences."""
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_US) + 1)
        self.latency_sum_us = 0
        self.compute_sum_us = 0
        """Over answered inferences: how long slots ran for each, as a mean over its items, which
        may travel in several batches."""
        self.sequences_open: int | None = None
        """None: the model is not asked in sequences."""
        self.sequences_given_up = 0
        """After they were idle."""
        self.last_at_ms = 0
        """Wall clock of the last answer, milliseconds since 1970."""

    @property
    def queue_sum_us(self) -> int:
        """Over answered inferences: what of their latency no slot ran for them: waiting for a batch
        and for slots, and the way between stages."""
        return self.latency_sum_us - self.compute_sum_us

    def count_answer(self, items: int, latency_us: int, late: bool, run_us: int = 0) -> None:
        if late:
            self.late += 1
        else:
            self.answered += 1
        self.items += items
        self.latency_sum_us += latency_us
        self.compute_sum_us += run_us
        self.latency_counts[bisect_left(LATENCY_BOUNDS_US, latency_us)] += 1
        self.last_at_ms = int(time.time() * 1000)

    def recount_as_refused(self, items: int, latency_us: int, run_us: int, reason: str) -> None:
        """An answer that was counted and cannot be told: before anyone reads what is counted."""
        self.answered -= 1
        self.items -= items
        self.latency_sum_us -= latency_us
        self.compute_sum_us -= run_us
        self.latency_counts[bisect_left(LATENCY_BOUNDS_US, latency_us)] -= 1
        self.count_refusal(reason)

    def count_size(self, name: str, count: int = 1) -> None:
        self.by_size[name] = self.by_size.get(name, 0) + count

    def count_refusal(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """`counts[i]` values lie between bounds i - 1 and i; the last have no bound above."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float
    """Of all values."""


Value = float | Histogram
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A name, what it means, and its value now for each combination of labels."""

    name: str
    what: str
    kind: Kind
    labels: tuple[str, ...] = ()
    samples: Sequence[tuple[tuple[str, ...], Value]]
    """(values of the labels, value)."""


def measures(counters: Mapping[str, ModelCounters], status: EngineStatus) -> Iterator[Measure]:
    """All there are, of a server whose models were counted here.

    Their order, and that of their samples, is the same whenever one asks: samples go by model (in
    the order of `counters`), slot (of the plan) or reason (`answered`, `late`, then by name).
    """
    yield _requests(counters)
    yield _latencies(counters)
    yield _batches(counters)
    yield from _sequences(counters)
    yield from _gauges(status)
    yield from _slots(status)
    if status.loads:
        yield from _loads(status.loads)
    if status.apps is not None:
        yield from _apps(status.apps)


def _requests(counters: Mapping[str, ModelCounters]) -> Measure:
    return Measure(
        name="requests",
        what="finished requests by outcome",
        kind="counter",
        labels=("model", "outcome"),
        samples=[
            ((name, outcome), count)
            for name, model in counters.items()
            for outcome, count in (
                ("answered", model.answered),
                ("late", model.late),
                # Those of 0 too: what a series begins with is no increase to Prometheus.
                *sorted((dict.fromkeys(REASONS, 0) | model.refused).items()),
            )
        ],
    )


def _latencies(counters: Mapping[str, ModelCounters]) -> Measure:
    bounds_s = [bound * 1e-6 for bound in LATENCY_BOUNDS_US]
    found = {
        name: Histogram(
            bounds=bounds_s,
            counts=tuple(model.latency_counts),
            total=model.latency_sum_us * 1e-6,
        )
        for name, model in counters.items()
    }
    what = "arrival at this machine to answer, answered requests, late ones too"
    return _by("model", "request_latency_seconds", what, "histogram", found)


def _batches(counters: Mapping[str, ModelCounters]) -> Measure:
    return Measure(
        name="batches",
        what="batches that were started, by size",
        kind="counter",
        labels=("model", "size"),
        samples=[
            ((name, str(size)), count)
            for name, model in counters.items()
            for size, count in sorted(model.batches.items())
        ],
    )


def _sequences(counters: Mapping[str, ModelCounters]) -> Iterator[Measure]:
    known = [
        (name, model.sequences_open, model.sequences_given_up)
        for name, model in counters.items()
        if model.sequences_open is not None
    ]
    if not known:
        return
    opened = {name: count for name, count, _ in known}
    given_up = {name: count for name, _, count in known}
    yield _by("model", "sequences_open", "sequences whose state is kept", "gauge", opened)
    what = "sequences whose state was dropped after they were idle"
    yield _by("model", "sequences_given_up", what, "counter", given_up)


def _by(label: str, name: str, what: str, kind: Kind, values: Mapping[Any, Value]) -> Measure:
    """A measure with one label; values by the label's."""
    samples = [((key,), value) for key, value in values.items()]
    return Measure(name=name, what=what, kind=kind, labels=(label,), samples=samples)


def _gauges(status: EngineStatus) -> Iterator[Measure]:
    for name, what, value in (
        ("open_inferences", "accepted, not yet answered", status.open_inferences),
        ("open_requests", "items of open inferences", status.open_requests),
        ("running_batches", "batches on their way through the slots", status.running_batches),
        ("arena_used_bytes", "shared memory in use", status.arena_used_bytes),
        ("arena_size_bytes", "shared memory reserved", status.arena_size_bytes),
        ("plan_number", "the plan in service is this server's so many-th", status.plans_served),
        ("migrating", "1 while another plan is taking over", int(status.migrating)),
        ("held_requests", "wait for slots of the new plan", status.held_requests),
        ("outside_requests", "items with time that wait outside", status.outside_requests),
        (
            "answer_tail_seconds",
            "last stage's report to answer written",
            status.answer_tail_us / 1e6,
        ),
        ("loop_lag_seconds", "how late the loop calls what is due", status.loop_lag_us / 1e6),
    ):
        yield Measure(name=name, what=what, kind="gauge", samples=[((), value)])


def _slots(status: EngineStatus) -> Iterator[Measure]:
    up = {slot.name: float(slot.up) for slot in status.slots}
    restarts = {slot.name: slot.restarts for slot in status.slots}
    yield _by("slot", "slot_up", "1 while the slot's worker runs", "gauge", up)
    what = "workers started again for a slot that is out"
    yield _by("slot", "worker_restarts", what, "counter", restarts)
    what = "slots without a worker: it is being brought back, or refused for good"
    yield _by("why", "slots_out", what, "gauge", status.outages)
    yield Measure(
        name="stage_time_ratio",
        what="how many times its profile a stage takes on a slot while it runs, start to report",
        kind="gauge",
        labels=("slot", "stage"),
        samples=[
            ((slot.name, stage), ratio)
            for slot in status.slots
            for stage, ratio in slot.time_ratios
        ],
    )


def _loads(loads: Sequence[LoadStatus]) -> Iterator[Measure]:
    for name, what, kind, value in _LOADS:
        yield _by("model", name, what, kind, {each.model: value(each) for each in loads})
    bounds_s = [bound * 1e-6 for bound in LOAD_BOUNDS_US]
    took = {
        each.model: Histogram(
            bounds=bounds_s, counts=each.took_counts, total=each.took_sum_us * 1e-6
        )
        for each in loads
    }
    what = "a load's beginning to the weights in memory"
    yield _by("model", "load_seconds", what, "histogram", took)


_LOADS: tuple[tuple[str, str, Kind, Callable[[LoadStatus], float]], ...] = (
    ("cold_starts", "loads begun for a request", "counter", lambda each: each.begun),
    ("load_failures", "loads that failed", "counter", lambda each: each.failed),
    ("loaded_bytes", "moved by loads, by the plan", "counter", lambda each: each.moved_bytes),
    ("evictions", "times that a slot gave its weights up", "counter", lambda each: each.evictions),
    (
        "host_layers",
        "layers executed from host memory, by the plan",
        "counter",
        lambda each: each.host_layers,
    ),
    ("model_slots", "slots that hold it", "gauge", lambda each: each.held_by),
)


def _apps(apps: AppsStatus) -> Iterator[Measure]:
    for name, what, kind, value in _APPS:
        yield Measure(name=f"apps_{name}", what=what, kind=kind, samples=[((), value(apps))])


_APPS: tuple[tuple[str, str, Kind, Callable[[AppsStatus], float]], ...] = (
    ("up", "1 while the apps' process runs", "gauge", lambda apps: float(apps.up)),
    ("restarts", "apps' processes started again", "counter", lambda apps: apps.restarts),
    ("cpu_seconds", "CPU time of the apps' process", "counter", lambda apps: apps.cpu_us * 1e-6),
    ("loop_lag_seconds", "how late its loop was last", "gauge", lambda apps: apps.lag_us * 1e-6),
    (
        "held_seconds",
        "functions held up its loop for more than 0.25 s, in all",
        "counter",
        lambda apps: apps.held_us * 1e-6,
    ),
    (
        "left_threads",
        "threads held for more than 1 s by work aside whose requests have ended",
        "gauge",
        lambda apps: apps.left_threads,
    ),
)


def at_most(histogram: Histogram) -> list[int]:
    """How many values are at most each bound, and how many there are."""
    return list(accumulate(histogram.counts))
