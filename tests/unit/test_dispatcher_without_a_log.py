"""A dispatcher whose events nobody reads decides the same, and counts its batches."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.policies import POLICIES
from headrace.dispatch.protocols import Batch, BatchCounts
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent, Dispatched, Ran
from headrace.domain.request import DropReason, Request
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import JitteredDurations, SimDriver, exact_durations
from headrace.simulation.session import replay
from helpers.four_ways import random_fault
from helpers.sim import Sim, request
from helpers.topologies import (
    make_route,
    make_stage,
    make_topology,
    random_requests,
    random_topology,
)


class OrderedDriver(SimDriver):
    """SimDriver that keeps the orders it gets."""

    def __init__(self, topology: Topology, clock: SimClock, seed: int) -> None:
        super().__init__(topology, clock, JitteredDurations(np.random.default_rng(seed)))
        self.clock = clock
        self.orders: list[tuple[Any, ...]] = []

    def _note(self, what: str, *about: object) -> None:
        self.orders.append((self.clock.now_us(), what, *about))

    def start_transfer(self, batch: Batch, stage: int) -> None:
        self._note("transfer", batch.id, stage, batch.slot, batch.attempt, batch.transfer_us)
        super().start_transfer(batch, stage)

    def start_stage(self, batch: Batch, stage: int) -> None:
        self._note("run", batch.id, stage, batch.slot, batch.attempt, batch.requests)
        super().start_stage(batch, stage)

    def answer(self, batch: Batch) -> None:
        self._note("answer", batch.id, batch.requests)

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        self._note("refuse", request, reason, retry_after_us)


def orders(policy: str, seed: int, *, logged: bool) -> list[tuple[Any, ...]]:
    """Of a random session in which a slot fails."""
    rng = np.random.default_rng(seed)
    topology = random_topology(rng)
    requests = random_requests(topology, rng)
    changes = random_fault(topology, requests[-1].arrived_at_us, 50_000, rng)
    clock = SimClock()
    driver = OrderedDriver(topology, clock, seed)
    events: list[AnyEvent] = []
    sink = events.append if logged else None
    driver.reports = dispatcher = Dispatcher(topology, policy, clock, driver, sink)
    for change in changes:
        report = dispatcher.on_slot_gained if change.gained else dispatcher.on_slot_lost
        clock.call_at(change.at_us, partial(report, change.slot))
    replay(iter(requests), clock, dispatcher.on_arrival)
    clock.run()
    assert dispatcher.in_flight == 0
    assert bool(events) == logged
    return driver.orders


@pytest.mark.parametrize("policy", POLICIES)
def test_whether_anybody_reads_the_log_changes_no_order_to_the_driver(policy: str) -> None:
    for seed in range(10):
        assert orders(policy, seed, logged=False) == orders(policy, seed, logged=True)


def counted(sim: Sim) -> BatchCounts:
    """What the log says that the dispatcher must have counted, where every batch is answered."""
    counts, members = BatchCounts(), dict[int, int]()
    for event in sim.events:
        if isinstance(event, Dispatched) and event.batch not in members:
            members[event.batch] = len(event.requests)
            counts.batches[len(event.requests)] += 1
        elif isinstance(event, Ran):
            run_us, size = event.at_us - event.started_at_us, members[event.batch]
            counts.run_us[size] += run_us
    return counts


def fields(counts: BatchCounts) -> tuple[object, ...]:
    return counts.batches, counts.run_us


def two_stages() -> Topology:
    stages = make_stage((0,), (5_000, 7_000)), make_stage((1, 2), (4_000, 6_000))
    return make_topology([make_route(*stages)])


def test_batches_are_counted_by_size_with_the_time_that_slots_ran_for_them() -> None:
    sim = Sim(two_stages(), jitter_seed=1)
    sim.run([request(i, 1_500 * i, 1_500 * i + 200_000) for i in range(20)])
    [counts] = sim.counts
    assert set(counts.batches) == {1, 2}
    assert fields(counts) == fields(counted(sim))


def test_a_batch_that_is_sent_again_counts_once() -> None:
    sim = Sim(two_stages(), durations=exact_durations)
    sim.clock.call_at(6_000, partial(sim.dispatcher.on_slot_lost, 1))
    sim.run([request(0, 0, 200_000)])
    assert sum(isinstance(event, Dispatched) for event in sim.events) == 2, "it had a new path"
    assert sim.counts[0].batches == {1: 1}


def test_the_time_that_slots_ran_for_a_batch_which_is_given_up_counts_too() -> None:
    sim = Sim(two_stages(), durations=exact_durations)
    for slot in (1, 2):
        sim.clock.call_at(6_000, partial(sim.dispatcher.on_slot_lost, slot))
    sim.run([request(0, 0, 200_000)])
    assert fields(sim.counts[0]) == ({1: 1}, {1: 5_000})
