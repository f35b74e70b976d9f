"""Slots and links in virtual time: the simulator's side of the dispatcher."""

from math import exp, log
from typing import Protocol

import numpy as np

from headrace.dispatch.protocols import Batch, Clock
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.request import DropReason, Request

Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


NORMALS_AT_ONCE = 4096
"""One draw at a time costs more than the rest of the event."""


def sigma_of(stage: StageTable, batch_size: int) -> float:
    """Of the logarithm of the execution time: log-normal with the profile's p50 and p99."""
    return log(stage.p99_us[batch_size - 1] / stage.p50_us[batch_size - 1]) / Z99


class Durations(Protocol):
    """How long a stage really takes, microseconds."""

    def __call__(self, stage: StageTable, batch_size: int) -> int: ...


def exact_durations(stage: StageTable, batch_size: int) -> int:
    """Every batch takes the profile's median."""
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


class CompletionReports(Protocol):
    """The part of the dispatcher that a driver reports to."""

    def on_transferred(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int
    ) -> None: ...

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None: ...


class SimDriver:
    """Holds each slot and link for the profiled time. Set `reports` before the first arrival."""

    reports: CompletionReports

    def __init__(self, topology: Topology, clock: Clock, durations: Durations) -> None:
        self._topology = topology
        self._clock = clock
        self._durations = durations

    def start_transfer(self, batch: Batch, stage: int) -> None:
        attempt, started_at_us = batch.attempt, self._clock.now_us()
        self._clock.call_at(
            started_at_us + batch.transfer_us,
            lambda: self.reports.on_transferred(batch, stage, attempt, started_at_us),
        )

    def start_stage(self, batch: Batch, stage: int) -> None:
        attempt, started_at_us = batch.attempt, self._clock.now_us()
        table = self._topology.models[batch.model].routes[batch.pipeline].stages[stage]
        ended_at_us = started_at_us + self._durations(table, batch.size)
        self._clock.call_at(
            ended_at_us,
            lambda: self.reports.on_ran(batch, stage, attempt, started_at_us, ended_at_us),
        )

    def answer(self, batch: Batch) -> None:
        """Nobody waits for the tensors: the event log has it all."""

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        """Nobody waits for the refusal: the event log has it all."""
