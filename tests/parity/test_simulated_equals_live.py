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
from headrace.dispatch.policies import POLICIES, PROVISIONING
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Dispatched, Dropped, Loading
from headrace.domain.plan import Stage
from headrace.domain.request import Request
from headrace.domain.tensors import TensorSpec
from headrace.serving.engine import model_weights
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.engine.model_weights import ModelWeights
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Finished, Load, Loaded, Run
from headrace.serving.workers.stage_io import HERE, StageIndex, StageIO, TensorGroup
from headrace.serving.workers.transport import SharedMemory, TimedLinks
from headrace.simulation.compiled import SlotChange
from headrace.simulation.driver import Durations, JitteredDurations, table_of_loads
from headrace.simulation.session import replay_items
from helpers.fake_workers import load_of
from helpers.four_ways import random_fault
from helpers.lengthy import with_lengthy
from helpers.provisioned import provisioned_trace
from helpers.sim import Sim
from helpers.topologies import random_requests, random_topology
from helpers.virtual_loop import VirtualTimeLoop

TRACES = 100
"""Per policy; the promise is 100 or more."""

PROVISIONED_TRACES = 30

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
        self._models = topology.models
        self._loading: tuple[Load, int] | None = None
        self.driver: LiveDriver | None = None

    def load(self, frame: Load) -> None:
        """Takes as long as the start of the model that has this one stage."""
        started_at_us = self._clock.now_us()
        start = self._models[frame.stage].start
        assert start is not None
        ended_at_us = started_at_us + self._durations(table_of_loads(start), 1)
        self._loading = loading = (frame, ended_at_us)

        def loaded() -> None:
            if self._loading is not loading:
                return  # the process that loaded it is gone
            self._loading = None
            now_us = self._clock.now_us()
            assert self.driver is not None
            report = Loaded(frame.stage, now_us - started_at_us, self._slot, now_us)
            self.driver.on_loaded(self._slot, report)

        self._clock.call_at(ended_at_us, loaded)

    def unload(self, stage: int) -> None:
        """Memory is the dispatcher's to count."""

    def lose(self) -> None:
        """Its process is gone: nothing is heard of what it loaded."""
        self._loading = None

    def restart(self, why: str) -> None:
        raise AssertionError("no worker here says that it is broken")

    def run(self, frame: Run) -> None:
        started_at_us = self._clock.now_us()
        took_us = self._durations(self._tables[frame.stage], frame.size)
        ended_at_us = started_at_us + took_us
        if self._loading is not None and self._loading[0].stage == frame.stage:
            start = self._models[frame.stage].start
            assert start is not None
            took_us = max(1, took_us + start.exec_us - self._tables[frame.stage].p50_us[0])
            not_before_us = self._loading[1] + start.behind_us(took_us)
            ended_at_us = max(started_at_us + took_us, not_before_us)
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
        weights = weights_of(topology, workers) if topology.is_provisioned else None
        driver = LiveDriver(live_stages(topology), clock, workers, links, pending, weights)
        dispatcher = Dispatcher(topology, policy, clock, driver, events.append, weights=weights)
        driver.reports = dispatcher
        if weights is not None:
            weights.gate = dispatcher
        for worker in workers:
            worker.driver = driver
        for change in changes:
            report = driver.on_slot_gained if change.gained else driver.on_slot_lost
            if not change.gained:
                clock.call_at(change.at_us, workers[change.slot].lose)
            clock.call_at(change.at_us, partial(report, change.slot))
        take = dispatcher.on_items if topology.is_malleable else _one_by_one(dispatcher)
        replay_items(iter(requests), clock, take)
        loop.run_until_idle()
        assert dispatcher.in_flight == 0
        assert driver.running_batches == 0
        assert arena.used_bytes == 0, "every region is given back"
    loop.close()
    return events


def weights_of(topology: Topology, workers: Sequence[FakeWorker]) -> ModelWeights:
    """Of models of one stage each, whose files nobody reads."""
    names = [model.name for model in topology.models]
    loads = {number: load_of(number) for number in range(len(names))}
    return ModelWeights(names, [None] * len(names), [loads] * len(workers), workers)


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


@pytest.mark.parametrize("policy", PROVISIONING)
def test_models_come_and_go_alike_in_both_worlds(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That a model is given up with which workers die is known of real workers only.
    monkeypatch.setattr(model_weights, "DEATHS", 1_000)
    loads = 0
    for seed in range(PROVISIONED_TRACES):
        trace = provisioned_trace(seed)
        logs = [
            run(
                trace.topology,
                policy,
                list(trace.requests),
                JitteredDurations(np.random.default_rng(seed)),
                trace.changes,
            )
            for run in (run_simulated, run_live)
        ]
        assert logs[0] == logs[1], f"seed {seed}"
        loads += sum(isinstance(event, Loading) for event in logs[0])
    assert loads > 5 * PROVISIONED_TRACES


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("with_faults", with_lengthy([False, True], lengthy=[False]))
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
