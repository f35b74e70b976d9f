"""Too little memory for all tensors at once: batches wait for it, and none fails for want of it."""

from functools import partial

from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Finished, Run
from headrace.serving.workers.stage_io import HERE
from headrace.serving.workers.transport import SharedMemory
from headrace.simulation.clock import SimClock
from helpers.served import WIDTH, plan_by_hand, profile_by_hand

STAGE_US = 8_000
HOUR_US = 3_600_000_000
BATCH_BYTES = 4 * WIDTH * 4
"""Of one batch of four at any cut."""


class ExactWorker:
    """Takes the profiled time."""

    home = HERE
    driver: LiveDriver

    def __init__(self, slot: int, clock: SimClock) -> None:
        self._slot, self._clock = slot, clock

    def restart(self, why: str) -> None:
        raise AssertionError("no worker here says that it is broken")

    def run(self, frame: Run) -> None:
        now_us = self._clock.now_us()
        ended_at_us = now_us + STAGE_US
        report = Finished(frame.batch, frame.attempt, frame.stage, now_us, ended_at_us)
        self._clock.call_at(ended_at_us, partial(self.driver.on_ran, self._slot, report))


def results_of(
    pools: list[int], arena: Arena, inferences: list[tuple[int, int, int]]
) -> list[Answer | Refusal]:
    """What becomes of inferences (items, timeout_us, priority) that come at once, as they end."""
    cuts = [*(f"h{i}" for i in range(len(pools) - 1)), "y"]
    profile = profile_by_hand(cuts, batch_size=4, stage_us=STAGE_US, device="cpu")
    plan = plan_by_hand(
        pools, batch_size=4, slo_us=150_000, stage_us=STAGE_US, device="cpu", nodes=1, gbps=None
    )
    clock, used_bytes = SimClock(), arena.used_bytes
    workers = [ExactWorker(i, clock) for i in range(len(plan.slots))]
    plane = DataPlane(
        plan,
        {profile.model: profile},
        clock=clock,
        call_soon=lambda callback: clock.call_at(clock.now_us(), callback),
        links=workers,
        transport=SharedMemory(arena),
        sink=lambda event: None,
    )
    for worker in workers:
        worker.driver = plane.driver
    results: list[Answer | Refusal] = []
    for items, timeout_us, priority in inferences:
        plane.submit(
            Inference(
                model=profile.model,
                items=items,
                inputs=(bytes(4 * WIDTH * items),),
                on_done=results.append,
                timeout_us=timeout_us,
                priority=priority,
            )
        )
    clock.run()
    assert arena.used_bytes == used_bytes
    return results


def small_arena(batches: int) -> Arena:
    """With room for so many batches at one cut: an arena has whole pages, so the rest is taken."""
    arena = Arena(1)
    taken = arena.allocate(arena.size_bytes - batches * BATCH_BYTES)
    assert taken == 0
    return arena


def test_batches_on_several_slots_wait_for_memory_and_none_fails() -> None:
    # Input and output of one batch fit; there are three slots.
    results = results_of([3], small_arena(batches=2), [(4, HOUR_US, 0)] * 6)
    assert [type(result) for result in results] == [Answer] * 6


def test_the_most_urgent_batch_gets_memory_first() -> None:
    # One item each. All three slots are idle, and the first has taken what memory there is.
    item = 2 * 4 * WIDTH
    arena = Arena(1)
    arena.allocate(arena.size_bytes - item)
    results = results_of([3], arena, [(1, HOUR_US, 0), (1, HOUR_US, 2), (1, HOUR_US - 1, 2)])
    assert [r.deadline_at_us for r in results if isinstance(r, Answer)] == [
        HOUR_US,
        HOUR_US - 1,
        HOUR_US,
    ]


def test_batches_that_only_wait_for_each_other_do_not_wait_for_ever() -> None:
    # One item fits, but not what becomes of it.
    arena = Arena(1)
    arena.allocate(arena.size_bytes - 4 * WIDTH)
    results = results_of([2], arena, [(1, HOUR_US, 0)] * 3)
    assert [type(result) for result in results] == [Refusal] * 3


def test_a_later_stage_waits_for_memory_too() -> None:
    results = results_of([1, 1], small_arena(batches=3), [(4, HOUR_US, 0)] * 6)
    assert [type(result) for result in results] == [Answer] * 6
