"""Between workers that report failures and clients: what becomes of each inference."""

from contextlib import closing
from functools import partial

import numpy as np

from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Failed, Finished, Run
from headrace.serving.workers.stage_io import HERE
from headrace.serving.workers.transport import SharedMemory, TimedLinks
from headrace.simulation.clock import SimClock
from helpers.served import WIDTH, plan_by_hand, profile_by_hand

BAD = 99.0
SAID = "Fail: /opt/src/ops/gather.cc:12 idx=99 is out of range\nat 0x7f"


class Worker:
    """Adds one, refuses BAD, and is restarted as often as it is `broken`."""

    home = HERE
    driver: LiveDriver

    def __init__(self, slot: int, view: memoryview, clock: SimClock, broken: bool = False) -> None:
        self.slot, self.view, self.clock, self.broken = slot, view, clock, broken
        self.restarted: list[str] = []

    def run(self, frame: Run) -> None:
        (source,), (target,) = frame.input_offsets, frame.output_offsets
        size_bytes = 4 * WIDTH * frame.size
        tensor = np.frombuffer(self.view[source : source + size_bytes], np.float32)
        now_us, then_us = self.clock.now_us(), self.clock.now_us() + 1_000
        key = (frame.batch, frame.attempt, frame.stage)
        if self.broken or BAD in tensor:
            failed = Failed(*key, SAID, self.slot, self.broken and frame.size == 1)
            self.clock.call_at(then_us, partial(self.driver.on_failed, self.slot, failed))
            return
        self.view[target : target + size_bytes] = (tensor + 1).tobytes()
        report = Finished(*key, now_us, then_us)
        self.clock.call_at(then_us, partial(self.driver.on_ran, self.slot, report))

    def restart(self, why: str) -> None:
        self.restarted.append(why)
        self.clock.call_at(self.clock.now_us() + 10, partial(self.driver.on_slot_lost, self.slot))


def serve(
    values: list[float], broken: tuple[bool, ...]
) -> tuple[list[Answer | Refusal], list[Worker]]:
    """What a plane of two slots tells clients who ask for each value + 1 at once."""
    clock, told = SimClock(), dict[int, Answer | Refusal]()
    plan = plan_by_hand([len(broken)], 4, 1_000_000, 1_000, "cpu", nodes=1, gbps=None)
    profile = profile_by_hand(["y"], batch_size=4, stage_us=1_000, device="cpu")
    with closing(Arena(1 << 16)) as arena:
        workers = [Worker(i, arena.view, clock, is_broken) for i, is_broken in enumerate(broken)]
        plane = DataPlane(
            plan,
            {"m": profile},
            clock=clock,
            call_soon=lambda callback: clock.call_at(clock.now_us(), callback),
            links=workers,
            transport=TimedLinks(SharedMemory(arena), clock),
            sink=lambda event: None,
        )
        for worker in workers:
            worker.driver = plane.driver
        for number, value in enumerate(values):
            row = np.full((1, WIDTH), value, np.float32).tobytes()
            plane.submit(
                Inference(
                    model="m",
                    items=1,
                    inputs=(row,),
                    on_done=partial(told.__setitem__, number),
                    client=number + 1,
                )
            )
        clock.run()
        assert arena.used_bytes == 0
        for worker in workers:
            del worker.view
    return [told[number] for number in range(len(values))], workers


def test_every_right_request_is_answered_and_the_bad_one_is_told_why_without_our_folders() -> None:
    values = [1.0, 2.0, 3.0, BAD, 5.0, 6.0, 7.0, 8.0]
    told, _ = serve(values, (False, False))
    for value, result in zip(values, told, strict=True):
        if value == BAD:
            assert isinstance(result, Refusal)
            assert result.reason == "invalid-input"
            assert result.message.endswith("Fail: gather.cc:12 idx=99 is out of range")
        else:
            assert isinstance(result, Answer)
            assert (np.frombuffer(result.outputs[0], np.float32) == value + 1).all()


def test_a_broken_worker_is_restarted_and_nobody_is_told_that_the_input_is_bad() -> None:
    told, (broken, sound) = serve([1.0, 2.0, 3.0], (True, False))
    assert all(isinstance(result, Answer) for result in told)
    assert len(broken.restarted) == 1
    assert "fails with any input" in broken.restarted[0]
    assert sound.restarted == []
