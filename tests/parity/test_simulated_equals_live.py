"""One dispatch code under two clocks: identical batches, paths and microseconds.

The live side is the server's own: LiveClock on an asyncio loop whose time is virtual, LiveDriver,
PendingRequests and Arena. Only the workers are fakes, which take exactly as long as the simulated
ones.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.policies import POLICIES
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Dispatched, Dropped
from headrace.domain.plan import Stage
from headrace.domain.request import Request
from headrace.domain.tensors import TensorSpec
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Finished, Run
from headrace.serving.workers.stage_io import HERE, StageIndex, StageIO, TensorGroup
from headrace.serving.workers.transport import SharedMemory, TimedLinks
from headrace.simulation.compiled import SlotChange
from headrace.simulation.driver import Durations, JitteredDurations
from headrace.simulation.session import replay_items
from helpers.four_ways import random_fault
from helpers.sim import Sim
from helpers.topologies import random_requests, random_topology
from helpers.virtual_loop import VirtualTimeLoop

TRACES = 100
"""Per policy; the promise is 100 or more."""

TENSORS = TensorGroup.of((TensorSpec(name="x", dtype="float32", item_shape=(16,)),))


class FakeWorker:
    """Runs each batch for as long as the simulator would."""

    home = HERE

    def __init__(
        self, slot: int, topology: Topology, clock: LiveClock, durations: Durations
    ) -> None:
        self._slot = slot
        self._clock = clock
        self._durations = durations
        self._tables = [
            stage for model in topology.models for route in model.routes for stage in route.stages
        ]
        self.driver: LiveDriver | None = None

    def restart(self, why: str) -> None:
        raise AssertionError("no worker here says that it is broken")

    def run(self, frame: Run) -> None:
        started_at_us = self._clock.now_us()
        ended_at_us = started_at_us + self._durations(self._tables[frame.stage], frame.size)
        report = Finished(frame.batch, frame.attempt, frame.stage, started_at_us, ended_at_us)
        assert self.driver is not None
        self._clock.call_at(ended_at_us, partial(self.driver.on_ran, self._slot, report))


def live_stages(topology: Topology) -> StageIndex:
    planned = Stage(
        first_block=0,
        end_block=1,
        device="a",
        share=1,  # type: ignore[arg-type]
        pool=(),
        latency_us=1,
        transfer_us=0,
        throughput_rps=1.0,
    )
    keys = iter(range(1_000))
    return tuple(
        tuple(
            tuple(
                StageIO(next(keys), "s", TENSORS, TENSORS, planned, route.batch_size)
                for _ in route.stages
            )
            for route in model.routes
        )
        for model in topology.models
    )


def run_live(
    topology: Topology,
    policy: str,
    requests: list[Request],
    durations: Durations,
    changes: Sequence[SlotChange],
) -> list[AnyEvent]:
    return run_live_items(topology, policy, [(each,) for each in requests], durations, changes)


def run_live_items(
    topology: Topology,
    policy: str,
    requests: Sequence[Sequence[Request]],
    durations: Durations,
    changes: Sequence[SlotChange],
) -> list[AnyEvent]:
    """Of a plan without depths, each entry is one request."""
    loop = VirtualTimeLoop()
    clock = LiveClock(loop)
    events: list[AnyEvent] = []
    workers = [FakeWorker(i, topology, clock, durations) for i in range(len(topology.slots))]
    with closing(Arena(1 << 22)) as arena:
        pending = PendingRequests(clock.now_us, loop.call_soon)
        links = TimedLinks(SharedMemory(arena), clock)
        driver = LiveDriver(live_stages(topology), clock, workers, links, pending)
        dispatcher = Dispatcher(topology, policy, clock, driver, events.append)
        driver.reports = dispatcher
        for worker in workers:
            worker.driver = driver
        for change in changes:
            report = driver.on_slot_gained if change.gained else driver.on_slot_lost
            clock.call_at(change.at_us, partial(report, change.slot))
        take = dispatcher.on_items if topology.is_malleable else _one_by_one(dispatcher)
        replay_items(iter(requests), clock, take)
        loop.run_until_idle()
        assert dispatcher.in_flight == 0
        assert driver.running_batches == 0
        assert arena.used_bytes == 0, "every region is given back"
    loop.close()
    return events


def _one_by_one(dispatcher: Dispatcher) -> Callable[[Sequence[Request]], None]:
    return lambda requests: dispatcher.on_arrival(requests[0])


def run_simulated(
    topology: Topology,
    policy: str,
    requests: list[Request],
    durations: Durations,
    changes: Sequence[SlotChange],
) -> list[AnyEvent]:
    sim = Sim(topology, policy=policy, durations=durations)
    for change in changes:
        report = sim.dispatcher.on_slot_gained if change.gained else sim.dispatcher.on_slot_lost
        sim.clock.call_at(change.at_us, partial(report, change.slot))
    return sim.run(requests)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("with_faults", [False, True])
def test_the_same_trace_gives_the_same_events_in_both_worlds(
    policy: str, with_faults: bool
) -> None:
    answered = dropped = 0
    for seed in range(TRACES):
        rng = np.random.default_rng(seed)
        topology = random_topology(rng)
        requests = random_requests(topology, rng, load=float(rng.choice([0.4, 0.9, 1.8])))
        changes = [
            change
            for _ in range(2 * with_faults)
            for change in random_fault(topology, requests[-1].arrived_at_us + 1, 100_000, rng)
        ]
        logs = [
            run(
                topology,
                policy,
                requests,
                JitteredDurations(np.random.default_rng(seed)),
                changes,
            )
            for run in (run_simulated, run_live)
        ]
        assert logs[0] == logs[1], f"seed {seed}"
        answered += sum(isinstance(event, Answered) for event in logs[0])
        dropped += sum(isinstance(event, Dropped) for event in logs[0])
        assert any(isinstance(event, Dispatched) for event in logs[0])
    # The comparison means something only if both kinds of ending occur often.
    assert answered > 1_000
    assert dropped > 100
