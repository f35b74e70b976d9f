"""A dispatcher under virtual time for tests."""

from collections.abc import Sequence

import numpy as np

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.policies import Policy
from headrace.dispatch.protocols import BatchCounts
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent
from headrace.domain.request import DropReason, Request
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import (
    Durations,
    JitteredDurations,
    SimDriver,
    Slower,
    Spans,
    exact_durations,
)
from headrace.simulation.session import replay, replay_items


class RecordingDriver(SimDriver):
    """SimDriver that also keeps what clients were told."""

    def __init__(
        self,
        topology: Topology,
        clock: SimClock,
        durations: Durations | Spans,
        slower: Slower | None = None,
    ) -> None:
        super().__init__(topology, clock, durations, slower)
        self.refused: list[tuple[Request, DropReason, int]] = []

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        self.refused.append((request, reason, retry_after_us))


class Sim:
    """Clock, driver, dispatcher and log, wired."""

    def __init__(
        self,
        topology: Topology,
        *,
        policy: str | Policy = "reservation",
        jitter_seed: int | None = None,
        durations: Durations | Spans = exact_durations,
        queue_limit: int = QUEUE_LIMIT,
        slower: Slower | None = None,
    ) -> None:
        if jitter_seed is not None:
            durations = JitteredDurations(np.random.default_rng(jitter_seed))
        self.topology = topology
        self.clock = SimClock()
        self.events: list[AnyEvent] = []
        self.counts = [BatchCounts() for _ in topology.models]
        self.driver = RecordingDriver(topology, self.clock, durations, slower)
        self.dispatcher = Dispatcher(
            topology,
            policy,
            self.clock,
            self.driver,
            self.events.append,
            queue_limit,
            self.counts,
            weights=self.driver,
        )
        self.driver.reports = self.driver.load_reports = self.dispatcher

    def run_items(self, requests: Sequence[Sequence[Request]]) -> list[AnyEvent]:
        """Of requests of many items."""
        replay_items(iter(requests), self.clock, self.dispatcher.on_items)
        self.clock.run()
        return self.events

    def run(self, requests: Sequence[Request] = ()) -> list[AnyEvent]:
        replay(iter(requests), self.clock, self.dispatcher.on_arrival)
        self.clock.run()
        return self.events


def request(
    number: int, at_us: int, deadline_at_us: int, *, model: int = 0, priority: int = 0
) -> Request:
    return Request(
        id=number,
        model=model,
        arrived_at_us=at_us,
        deadline_at_us=deadline_at_us,
        priority=priority,
    )
