"""Whatever happens to workers and clients, every inference ends once and no memory is lost."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.events import Answered, AnyEvent, Ran
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Failed, Finished, Run
from headrace.serving.workers.stage_io import HERE
from headrace.serving.workers.transport import SharedMemory, TimedLinks
from headrace.simulation.clock import SimClock
from helpers.served import WIDTH, plan_by_hand, profile_by_hand

STAGE_US = 8_000
PROFILE = profile_by_hand(["a", "b", "y"], batch_size=4, stage_us=STAGE_US, device="cpu")
PLAN = plan_by_hand(
    [2, 1, 2],
    batch_size=4,
    slo_us=150_000,
    stage_us=STAGE_US,
    device="cpu",
    nodes=2,
    gbps=0.001,
)
"""Two nodes with a link so slow that a batch takes 2 ms to cross it."""
HORIZON_US = 400_000


@dataclass(slots=True)
class FlakyWorker:
    """Takes the time it is told to, fails when it is told to, and can be lost and found."""

    slot: int
    clock: SimClock
    script: st.DataObject
    up: bool = True
    life: int = 0
    home: str = HERE
    driver: LiveDriver = field(init=False)

    def run(self, frame: Run) -> None:
        started_at_us = self.clock.now_us()
        took_us = self.script.draw(st.integers(1, 30_000), label="took_us")
        fails = self.script.draw(st.integers(0, 9), label="fails") == 0
        ended_at_us = started_at_us + took_us
        report: Callable[[], None] = partial(
            self.driver.on_ran,
            self.slot,
            Finished(frame.batch, frame.attempt, frame.stage, started_at_us, ended_at_us),
        )
        if fails:
            failed = Failed(frame.batch, frame.attempt, frame.stage, "as told")
            report = partial(self.driver.on_failed, self.slot, failed)
        self.clock.call_at(ended_at_us, partial(self._report, self.life, report))

    def restart(self, why: str) -> None:
        raise AssertionError("no worker here says that it is broken")

    def _report(self, life: int, report: Callable[[], None]) -> None:
        if life == self.life:  # the dead do not report
            report()

    def lose(self) -> None:
        if self.up:
            self.up = False
            self.life += 1
            self.driver.on_slot_lost(self.slot)

    def find(self) -> None:
        if not self.up:
            self.up = True
            self.driver.on_slot_gained(self.slot)


class World:
    """A data plane in simulated time; counts what each inference was told."""

    def __init__(self, plan: Plan, profile: Profile, script: st.DataObject, arena: Arena) -> None:
        self.clock = SimClock()
        self.events: list[AnyEvent] = []
        self.workers = [FlakyWorker(i, self.clock, script) for i in range(len(plan.slots))]
        self.plane = DataPlane(
            plan,
            {profile.model: profile},
            clock=self.clock,
            call_soon=lambda callback: self.clock.call_at(self.clock.now_us(), callback),
            links=self.workers,
            transport=TimedLinks(SharedMemory(arena), self.clock),
            sink=self.events.append,
        )
        for worker in self.workers:
            worker.driver = self.plane.driver
        self.inferences: dict[int, Inference] = {}
        self.results: dict[int, list[Answer | Refusal]] = {}
        self.cancelled: set[int] = set()

    def submit(self, number: int, items: int, timeout_us: int | None, cancel_us: int) -> None:
        self.results[number] = []
        inference = self.inferences[number] = Inference(
            model=PROFILE.model,
            items=items,
            inputs=(bytes([number % 251]) * (4 * WIDTH * items),),
            on_done=self.results[number].append,
            timeout_us=timeout_us,
        )
        self.plane.submit(inference)
        if cancel_us:
            self.clock.call_at(
                self.clock.now_us() + cancel_us, partial(self._cancel, number, inference)
            )

    def _cancel(self, number: int, inference: Inference) -> None:
        if not self.results[number]:
            self.cancelled.add(number)
        self.plane.pending.cancel(inference)


def run_times_us(events: list[AnyEvent]) -> dict[int, int]:
    """Request -> how long slots ran for the batch that answered it."""
    ran_us, found = Counter[int](), dict[int, int]()
    for event in events:
        if isinstance(event, Ran):
            ran_us[event.batch] += event.at_us - event.started_at_us
        elif isinstance(event, Answered):
            found[event.request] = ran_us[event.batch]
    return found


instants = st.integers(0, HORIZON_US)
inferences = st.lists(
    st.tuples(
        instants,
        st.integers(1, 6),
        st.one_of(st.none(), st.integers(0, 300_000)),
        st.one_of(st.just(0), st.integers(1, 100_000)),
    ),
    min_size=1,
    max_size=25,
)
faults = st.lists(
    st.tuples(st.integers(0, len(PLAN.slots) - 1), instants, st.integers(1, 100_000)), max_size=6
)


@given(inferences, faults, st.sampled_from([2_000, 1 << 20]), st.data())
def test_every_inference_ends_exactly_once_and_all_memory_comes_back(
    inferences: list[Any], faults: list[Any], arena_bytes: int, script: st.DataObject
) -> None:
    arena = Arena(arena_bytes)
    world = World(PLAN, PROFILE, script, arena)
    for number, (at_us, items, timeout_us, cancel_us) in enumerate(inferences):
        world.clock.call_at(at_us, partial(world.submit, number, items, timeout_us, cancel_us))
    for slot, lost_at_us, down_us in faults:
        world.clock.call_at(lost_at_us, world.workers[slot].lose)
        world.clock.call_at(lost_at_us + down_us, world.workers[slot].find)

    world.clock.run()

    ran_us = run_times_us(world.events)
    for number, results in world.results.items():
        assert len(results) == (number not in world.cancelled)
        for answer in (result for result in results if isinstance(result, Answer)):
            inference = world.inferences[number]
            first, items = inference.first_request, inference.items
            total_us = sum(ran_us[item] for item in range(first, first + items))
            assert answer.run_us == total_us // items <= answer.ended_at_us - answer.arrived_at_us
    assert world.plane.pending.open_inferences == world.plane.pending.open_requests == 0
    assert world.plane.driver.running_batches == 0
    assert world.plane.dispatcher.in_flight == 0
    assert arena.used_bytes == 0
    arena.close()
