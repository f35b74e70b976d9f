"""Slots and links in virtual time: the simulator's side of the dispatcher."""

from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple, Protocol

import numpy as np

from headrace.dispatch.protocols import Batch, Clock, CompletionReports, Load, LoadReports
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.request import DropReason, Request
from headrace.start_times import Start

Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


NORMALS_AT_ONCE = 4096
"""One draw at a time costs more than the rest of the event."""


def table_of_loads(start: Start) -> StageTable:
    """Times of a model's loads, as those of a stage."""
    p99_us = max(start.load_us, start.load99_us)
    return StageTable(0, 0, (), p50_us=(start.load_us,), p99_us=(p99_us,), input_bytes=0)


def sigma_of(stage: StageTable, batch_size: int) -> float:
    """Of the logarithm of the time: log-normal with the profile's p50 and p99."""
    p50_us = stage.p50_us[batch_size - 1]
    return log(stage.p99_us[batch_size - 1] / p50_us) / Z99 if p50_us else 0.0


class Durations(Protocol):
    """How long a stage, or a load, really takes, microseconds."""

    def __call__(self, stage: StageTable, batch_size: int) -> int: ...


class Span(NamedTuple):
    """Of a batch on its slot, microseconds."""

    before_us: int
    """From the order until it starts."""
    ran_us: int
    after_us: int
    """From its end until the dispatcher hears of it."""

    @property
    def whole_us(self) -> int:
        return self.before_us + self.ran_us + self.after_us


class Spans:
    """How long stages take with the ways to the worker and back; durations know no ways."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations

    def span(self, stage: StageTable, batch_size: int) -> Span:
        return Span(0, self._durations(stage, batch_size), 0)

    def first_span(self, stage: StageTable, batch_size: int, more_us: int) -> Span:
        """Of a batch that starts while its model is loaded, as if nothing made it wait.

        Args:
            more_us: what the profile says it takes more than one in memory.
        """
        before_us, ran_us, after_us = self.span(stage, batch_size)
        return Span(before_us, ran_us + more_us, after_us)

    def load_us(self, start: Start) -> int:
        """Of a model's load, until the dispatcher hears of it."""
        return self._durations(table_of_loads(start), 1)


def exact_durations(stage: StageTable, batch_size: int) -> int:
    """Every batch, and every load, takes the profile's median."""
    return stage.p50_us[batch_size - 1]


class JitteredDurations:
    """Log-normal with the profile's median and 99th percentile, at least 1 us."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._normals: list[float] = []

    def __call__(self, stage: StageTable, batch_size: int) -> int:
        if not self._normals:
            self._normals = self._rng.standard_normal(NORMALS_AT_ONCE).tolist()
        p50_us = stage.p50_us[batch_size - 1]
        return max(1, round(p50_us * exp(sigma_of(stage, batch_size) * self._normals.pop())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """How much longer batches really take than the profile says, from an instant on."""

    stages: tuple[float, ...]
    """Of the topology's stages, all routes one after the other: a factor of each."""
    slots: tuple[float, ...]
    """Of its slots; a batch takes both factors."""
    delay_us: int = 0
    """Of every batch on top."""
    from_us: int = 0

    def took_us(self, took_us: int, stage: int, slot: int, now_us: int) -> int:
        """Of a batch that starts now and by the profile would take `took_us`."""
        if now_us < self.from_us:
            return took_us
        return round(took_us * (self.stages[stage] * self.slots[slot])) + self.delay_us


def first_stages(topology: Topology) -> list[list[int]]:
    """Per model and route, the number of its first stage among all."""
    stages = 0
    numbers: list[list[int]] = []
    for model in topology.models:
        numbers.append([])
        for route in model.routes:
            numbers[-1].append(stages)
            stages += len(route.stages)
    return numbers


class SimDriver:
    """Holds each slot and link for the profiled time. Set `reports` before the first arrival, and
    `load_reports` where models come and go."""

    reports: CompletionReports
    load_reports: LoadReports

    def __init__(
        self,
        topology: Topology,
        clock: Clock,
        durations: Durations | Spans,
        slower: Slower | None = None,
    ) -> None:
        self._topology = topology
        self._slower = slower
        self._first_stage = first_stages(topology)
        self._clock = clock
        self._spans = durations if isinstance(durations, Spans) else Spans(durations)
        self._loading: dict[int, tuple[Load, int]] = {}
        """Slot -> what is being brought there, and when it is there."""

    def start_transfer(self, batch: Batch, stage: int) -> None:
        attempt, started_at_us = batch.attempt, self._clock.now_us()
        self._clock.call_at(
            started_at_us + batch.transfer_us,
            lambda: self.reports.on_transferred(batch, stage, attempt, started_at_us),
        )

    def start_stage(self, batch: Batch, stage: int) -> None:
        attempt = batch.attempt
        table = self._topology.models[batch.model].routes[batch.pipeline].stages[stage]
        started_at_us = self._clock.now_us()
        loading = self._loading.get(batch.slot)
        if loading and loading[0].model == batch.model:
            start = self._start_of(batch.model)
            more_us = start.exec_us - table.p50_us[0]
            span = self._spans.first_span(table, batch.size, more_us)
            warm_us = self._took_us(span.ran_us - more_us, batch, stage, started_at_us)
            took_us = max(1, warm_us + more_us)
            not_before_us = loading[1] + start.behind_us(took_us)
            ended_at_us = span.before_us + max(started_at_us + took_us, not_before_us)
        else:
            span = self._spans.span(table, batch.size)
            started_at_us += span.before_us
            ended_at_us = started_at_us + self._took_us(span.ran_us, batch, stage, started_at_us)
        self._clock.call_at(
            ended_at_us + span.after_us,
            lambda: self.reports.on_ran(batch, stage, attempt, started_at_us, ended_at_us),
        )

    def _took_us(self, took_us: int, batch: Batch, stage: int, now_us: int) -> int:
        """Of a batch that by the profile would take `took_us`."""
        if self._slower is None:
            return took_us
        number = self._first_stage[batch.model][batch.pipeline] + stage
        return self._slower.took_us(took_us, number, batch.slot, now_us)

    def _start_of(self, model: int) -> Start:
        start = self._topology.models[model].start
        assert start is not None, "only models with starts are loaded"
        return start

    def load(self, load: Load) -> None:
        started_at_us = self._clock.now_us()
        ended_at_us = started_at_us + self._spans.load_us(self._start_of(load.model))
        self._loading[load.slot] = (load, ended_at_us)

        def report() -> None:
            if self._loading.get(load.slot, (None,))[0] is load:
                del self._loading[load.slot]
            self.load_reports.on_loaded(load, started_at_us)

        self._clock.call_at(ended_at_us, report)

    def evict(self, slot: int, model: int) -> None:
        """Memory is the dispatcher's to count."""

    def answer(self, batch: Batch) -> None:
        """Nobody waits for the tensors: the event log has it all."""

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        """Nobody waits for the refusal: the event log has it all."""
