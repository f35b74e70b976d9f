"""Tensors get to the next stage's memory: at once, in the planned time, or as a copy elsewhere."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from headrace.domain.tensors import TensorSpec
from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Finished, Run
from headrace.serving.workers.stage_io import HERE, Home, Region, TensorGroup
from headrace.serving.workers.transport import OnMoved, SharedMemory, TimedLinks
from headrace.simulation.clock import SimClock
from helpers.served import WIDTH, plan_by_hand, profile_by_hand

GROUP = TensorGroup.of((TensorSpec(name="x", dtype="float32", item_shape=(WIDTH,)),))


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena(1 << 16)) as arena:
        yield arena


def test_within_one_memory_nothing_moves(arena: Arena) -> None:
    memory, moved = SharedMemory(arena), list[Region | None]()
    region = memory.allocate(GROUP, 2, HERE)
    memory.move(region, HERE, 5_000, 0, moved.append)
    assert moved == [region]
    memory.free(region)
    assert arena.used_bytes == 0


@pytest.mark.parametrize("planned_us", [0, 5_000])
def test_an_emulated_link_takes_the_planned_time_and_never_calls_back_from_inside(
    arena: Arena, planned_us: int
) -> None:
    clock, moved = SimClock(), list[tuple[int, Region | None]]()
    links = TimedLinks(SharedMemory(arena), clock)
    region = links.allocate(GROUP, 2, HERE)
    links.move(region, HERE, planned_us, 0, lambda there: moved.append((clock.now_us(), there)))
    assert moved == []
    clock.run()
    assert moved == [(planned_us, region)]


class CopyingTransport(SharedMemory):
    """Memory of several machines, played by parts of one arena: a move copies, and takes 1 ms."""

    def __init__(self, arena: Arena, clock: SimClock) -> None:
        super().__init__(arena)
        self._clock = clock
        self.moves: list[tuple[Home, Home]] = []

    def allocate(self, group: TensorGroup, size: int, home: Home) -> Region:
        region = super().allocate(group, size, home)
        return Region(region.offset, region.tensor_offsets, home)

    def move(
        self, region: Region, to: Home, planned_us: int, until_us: int, on_done: OnMoved
    ) -> None:
        self.moves.append((region.home, to))
        at_us = self._clock.now_us() + 1_000
        self._clock.call_at(at_us, partial(self._arrive, region, to, on_done))

    def _arrive(self, region: Region, to: Home, on_done: OnMoved) -> None:
        there = self.allocate(GROUP, 1, to)
        source, target = region.tensor_offsets[0], there.tensor_offsets[0]
        self.view[target : target + 4 * WIDTH] = self.view[source : source + 4 * WIDTH]
        on_done(there)


class AddingWorker:
    """Adds one, in its home's memory."""

    driver: LiveDriver

    def __init__(self, slot: int, home: Home, view: memoryview, clock: SimClock) -> None:
        self.home = home
        self._slot = slot
        self._view = view
        self._clock = clock

    def run(self, frame: Run) -> None:
        (source,), (target,) = frame.input_offsets, frame.output_offsets
        tensor = np.frombuffer(self._view[source : source + 4 * WIDTH], np.float32)
        self._view[target : target + 4 * WIDTH] = (tensor + 1).tobytes()
        now_us = self._clock.now_us()
        report = Finished(frame.batch, frame.attempt, frame.stage, now_us, now_us + 1_000)
        self._clock.call_at(now_us + 1_000, partial(self.driver.on_ran, self._slot, report))

    def restart(self, why: str) -> None:
        raise AssertionError("no worker here says that it is broken")


def test_a_stage_reads_what_was_moved_to_its_home_and_nothing_is_left_behind(arena: Arena) -> None:
    clock = SimClock()
    plan = plan_by_hand([1, 1], 1, 1_000_000, 1_000, "cpu", nodes=2, gbps=0.001)
    profile = profile_by_hand(["a", "y"], batch_size=1, stage_us=1_000, device="cpu")
    transport = CopyingTransport(arena, clock)
    workers = [AddingWorker(i, f"host{i}", arena.view, clock) for i in range(2)]
    plane = DataPlane(
        plan,
        {"m": profile},
        clock=clock,
        call_soon=lambda callback: clock.call_at(clock.now_us(), callback),
        links=workers,
        transport=transport,
        sink=lambda event: None,
    )
    for worker in workers:
        worker.driver = plane.driver
    results: list[Answer | Refusal] = []
    ones = np.ones(WIDTH, np.float32).tobytes()
    plane.submit(
        Inference(model="m", items=1, inputs=(ones,), on_done=results.append, timeout_us=None)
    )
    clock.run()

    assert transport.moves == [("host0", "host1")]
    [answer] = results
    assert isinstance(answer, Answer)
    assert set(np.frombuffer(answer.outputs[0], np.float32)) == {3.0}
    assert arena.used_bytes == 0
