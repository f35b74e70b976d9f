"""A migration under two clocks: the same batches of both plans at the same microseconds.

The live side is LiveClock on a loop of virtual time, LiveDriver, PendingRequests and an Arena per
plan; only the workers are fakes.
"""

from contextlib import ExitStack, closing

import numpy as np
import pytest

from headrace.dispatch.changes.draining import DrainingDriver
from headrace.dispatch.changes.epoch import Epoch
from headrace.dispatch.changes.handover import Device, PlacedTopology
from headrace.dispatch.changes.migration import How
from headrace.dispatch.dispatcher import Dispatcher
from headrace.domain.events import Answered, AnyEvent
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.transport import SharedMemory, TimedLinks
from headrace.simulation.driver import Durations, exact_durations
from headrace.simulation.migration import MigrationSession, SimulatedMigration
from headrace.simulation.offered.arrivals import Arrival
from helpers.topologies import random_requests, random_topology
from helpers.virtual_loop import VirtualTimeLoop
from parity.test_simulated_equals_live import FakeWorker, live_stages

SEEDS = range(40)
POLICY = "reservation"


def placements_and_arrivals(seed: int) -> tuple[PlacedTopology, PlacedTopology, list[Arrival], int]:
    """The same plan on other devices, so that every device changes hands."""
    rng = np.random.default_rng(seed)
    topology = random_topology(rng)
    devices: tuple[Device, ...] = tuple(("n", "d", i) for i in range(len(topology.slots)))
    requests = random_requests(topology, rng, count=60, load=float(rng.choice([0.4, 0.8])))
    arrivals = [
        Arrival(
            at_us=request.arrived_at_us,
            model=topology.models[request.model].name,
            timeout_us=request.deadline_at_us - request.arrived_at_us,
        )
        for request in requests
    ]
    old, new = PlacedTopology(topology, devices), PlacedTopology(topology, devices[::-1])
    return old, new, arrivals, requests[20].arrived_at_us + 1


def run_live(
    old: PlacedTopology,
    new: PlacedTopology,
    arrivals: list[Arrival],
    at_us: int,
    how: How,
    durations: Durations,
) -> list[list[AnyEvent]]:
    loop = VirtualTimeLoop()
    clock = LiveClock(loop)
    logs: list[list[AnyEvent]] = [[], []]
    with ExitStack() as stack:
        pending = PendingRequests(clock.now_us, loop.call_soon)
        epochs = []
        for placed, log in zip((old, new), logs, strict=True):
            arena = stack.enter_context(closing(Arena(1 << 22)))
            topology = placed.topology
            workers = [
                FakeWorker(i, topology, clock, durations) for i in range(len(placed.devices))
            ]
            links = TimedLinks(SharedMemory(arena), clock)
            driver = LiveDriver(live_stages(topology), clock, workers, links, pending)
            draining = DrainingDriver(topology, clock, driver)
            draining.dispatcher = Dispatcher(topology, POLICY, clock, draining, log.append)
            driver.reports = draining
            for worker in workers:
                worker.driver = driver
            epochs.append(Epoch(placed, draining))

        session = MigrationSession(epochs[0], epochs[1], clock)
        session.schedule(arrivals, at_us, how)
        loop.run_until_idle()
        assert session.done_at_us is not None
    loop.close()
    return logs


@pytest.mark.parametrize("how", ["drain", "flush"])
def test_a_migration_gives_the_same_events_in_both_worlds(how: How) -> None:
    answered = 0
    for seed in SEEDS:
        old, new, arrivals, at_us = placements_and_arrivals(seed)
        session = SimulatedMigration(old, new, (POLICY, POLICY), exact_durations)
        session.run(arrivals, at_us, how)
        simulated = [list(log.events) for log in session.logs()]
        live = run_live(old, new, arrivals, at_us, how, exact_durations)
        assert simulated == live, f"seed {seed}"
        answered += sum(isinstance(event, Answered) for log in live for event in log)
    assert answered > 500
