"""Who has time waits before the dispatcher: others keep their SLO, and nobody waits for ever."""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count

import numpy as np
import pytest

from headrace.domain.request import Request
from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.engine.offenders import Offenders
from headrace.serving.engine.waiting_room import ALONE_US, PROOF, WaitingRoom
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Finished, Run
from headrace.serving.workers.stage_io import HERE
from headrace.serving.workers.transport import SharedMemory
from headrace.simulation.clock import SimClock
from helpers.served import WIDTH, plan_by_hand, profile_by_hand
from helpers.topologies import make_route, make_stage, make_topology

SLO_US = 1_000
HOUR_US = 3_600_000_000


# -- the room alone -------------------------------------------------------------------------------


class StepClock:
    """Time passes when it is told to."""

    def __init__(self) -> None:
        self._now_us = 0
        self._scheduled: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = count()

    def now_us(self) -> int:
        return self._now_us

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None:
        heappush(self._scheduled, (max(at_us, self._now_us), next(self._sequence), callback))

    def pass_us(self, duration_us: int) -> None:
        until_us = self._now_us + duration_us
        while self._scheduled and self._scheduled[0][0] <= until_us:
            self._now_us, _, callback = heappop(self._scheduled)
            callback()
        self._now_us = until_us


class Bench:
    """A room before a dispatcher that ends requests when told to: two slots, batches of two."""

    def __init__(self, limit: int = 64) -> None:
        self.clock = StepClock()
        self.inside: list[Request] = []
        self.unwanted: set[int] = set()
        self.slow = Offenders()
        self._next = 0
        route = make_route(make_stage([0, 1], [100, 100]))
        self.room = WaitingRoom(
            make_topology([route], slo_us=SLO_US),
            self.clock,
            self.inside.append,
            lambda number: number not in self.unwanted,
            limit,
            self.slow,
        )

    def come(
        self, left_us: int, items: int = 1, peer: str = "a", priority: int = 0
    ) -> list[Request]:
        """An inference that has so much time."""
        now_us, first = self.clock.now_us(), self._next
        self._next += items
        requests = [
            Request(
                id=number,
                model=0,
                arrived_at_us=now_us,
                deadline_at_us=now_us + left_us,
                priority=priority,
            )
            for number in range(first, self._next)
        ]
        if not self.room.take(requests, peer):
            self.inside += requests
        return requests

    def end(self, *requests: Request, refused: bool = False) -> None:
        for request in requests:
            self.inside.remove(request)
        self.room.ended(requests, "deadline" if refused else None)
        self.clock.pass_us(0)

    def urgent(self, hurt: bool = False) -> None:
        """One comes and ends."""
        self.end(*self.come(SLO_US), refused=hurt)


def test_looks_at_those_whose_patience_ends_are_as_many_as_these() -> None:
    bench = Bench()
    bench.urgent()  # so that few patient ones go in
    waiting, scheduled, call_at = 40, [], bench.clock.call_at

    def counted(at_us: int, callback: Callable[[], None]) -> None:
        scheduled.append(at_us)
        call_at(at_us, callback)

    bench.clock.call_at = counted  # type: ignore[method-assign]
    for number in range(waiting):
        bench.come(4 * SLO_US - 10 * number)
    assert bench.room.waiting > waiting // 2
    bench.clock.pass_us(4 * SLO_US)
    assert bench.room.waiting == 0
    assert len(scheduled) <= 2 * waiting


def test_urgent_requests_never_wait() -> None:
    bench = Bench()
    bench.come(HOUR_US, items=20)
    (urgent,) = bench.come(2 * SLO_US)
    assert urgent in bench.inside


def test_alone_patient_requests_fill_every_slot_twice() -> None:
    bench = Bench()
    bench.come(HOUR_US, items=20)
    assert len(bench.inside) == 2 * 2 * 2
    bench.end(bench.inside[0])
    assert len(bench.inside) == 8, "one has ended, the next one is in"
    assert bench.room.waiting == 11


def test_beside_urgent_ones_one_goes_in_at_a_time_until_more_are_proved_harmless() -> None:
    bench = Bench()
    bench.urgent()
    bench.come(HOUR_US, items=20)
    assert len(bench.inside) == 1
    for _ in range(2 * PROOF):
        bench.urgent()
    bench.end(bench.inside[0])
    assert len(bench.inside) == 3


def test_where_one_at_a_time_still_hurts_they_pause_and_longer_each_time() -> None:
    bench = Bench()
    bench.urgent()
    bench.come(HOUR_US, items=20)
    for pause_us in (SLO_US, 4 * SLO_US, 16 * SLO_US, 16 * SLO_US):
        bench.urgent(hurt=True)
        bench.end(bench.inside[0])
        bench.clock.pass_us(pause_us - 1)
        bench.urgent()
        assert not bench.inside
        bench.clock.pass_us(1)
        assert len(bench.inside) == 1, "but some work always goes on"


def test_when_urgent_ones_stay_away_the_window_is_whole_again() -> None:
    bench = Bench()
    bench.urgent(hurt=True)
    bench.come(HOUR_US, items=20)
    bench.clock.pass_us(ALONE_US + 1)
    bench.end(bench.inside[0])
    assert len(bench.inside) == 8


def test_who_is_patient_no_longer_goes_in_at_once() -> None:
    bench = Bench()
    bench.urgent()
    bench.come(HOUR_US, items=4, priority=0)
    (last,) = bench.come(50 * SLO_US, priority=9)
    bench.clock.pass_us(48 * SLO_US - 1)
    bench.urgent()
    assert last not in bench.inside, "behind the more important ones"
    bench.clock.pass_us(1)
    assert last in bench.inside


def test_each_peer_has_its_part_of_the_window_however_much_it_asks_for() -> None:
    bench = Bench()
    bench.come(HOUR_US, items=40, peer="a")
    (one,) = bench.come(HOUR_US, peer="b")
    two = bench.come(HOUR_US, items=10, peer="c")
    for _ in range(6):
        bench.end(bench.inside[0])
    assert one in bench.inside
    assert sum(request in bench.inside for request in two) >= 3


def test_those_that_nobody_waits_for_any_more_do_not_go_in() -> None:
    bench = Bench()
    first = bench.come(HOUR_US, items=10)
    bench.unwanted = {request.id for request in first[8:]}
    kept = bench.come(HOUR_US, items=1)
    bench.end(bench.inside[0])
    assert kept[0] in bench.inside
    assert not set(first[8:]) & set(bench.inside)


def test_beyond_its_limit_the_room_takes_nobody_and_the_dispatcher_decides() -> None:
    bench = Bench(limit=10)
    bench.come(HOUR_US, items=10)
    refused_here = bench.come(HOUR_US, items=9)
    assert set(refused_here) <= set(bench.inside)


def test_an_open_room_lets_everybody_in() -> None:
    bench = Bench()
    before = bench.come(HOUR_US, items=20)
    bench.room.open()
    after = bench.come(HOUR_US, items=20)
    assert set(before + after) == set(bench.inside)
    assert bench.room.waiting == 0


def test_who_waits_can_be_taken_out_most_urgent_first_and_nobody_waits_there_again() -> None:
    bench = Bench()
    late = bench.come(2 * HOUR_US, items=10)
    soon = bench.come(HOUR_US, items=10, peer="b")
    bench.unwanted = {soon[0].id}
    inside = list(bench.inside)
    left = bench.room.leave()
    assert left == [each for each in [*soon[1:], *late] if each not in inside]
    assert (bench.room.waiting, bench.inside) == (0, inside)
    bench.end(*inside)
    assert not bench.inside
    assert set(bench.come(HOUR_US, items=20)) == set(bench.inside)


def test_a_peer_whose_batches_often_overrun_waits_like_those_that_have_time() -> None:
    bench = Bench()
    for _ in range(3):
        bench.slow.note("slow", bad=True)
    bench.urgent()
    slow = bench.come(SLO_US, items=4, peer="slow")
    other = bench.come(SLO_US, items=4, peer="other")
    assert set(other) <= set(bench.inside)
    assert sum(request in bench.inside for request in slow) == 1, "one slot at a time"
    # Two in a batch on one of two slots take 100 us.
    bench.clock.pass_us(SLO_US - 100)
    assert sum(request in bench.inside for request in slow) == 1
    bench.clock.pass_us(1)
    assert set(slow) <= set(bench.inside), "hopeless now: the dispatcher says so"


def test_a_slow_peer_that_is_alone_has_all_slots() -> None:
    bench = Bench()
    for _ in range(3):
        bench.slow.note("slow", bad=True)
    slow = bench.come(SLO_US, items=8, peer="slow")
    assert set(slow) == set(bench.inside)


# -- with a dispatcher, on slots that slow each other down ----------------------------------------


STAGE_US = 29_000
HEAVY_US = 3_000_000
"""Of a batch with a row that is not all zeros."""


class Crowded:
    """Workers of one machine: each batch takes longer while the others are busy, and varies."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.busy = 0
        self._rng = np.random.default_rng(1)

    def duration_us(self, rows: memoryview) -> int:
        if any(rows):
            return HEAVY_US
        factor = 1 + 0.25 * (self.busy - 1)
        return round(STAGE_US * factor * float(np.exp(0.25 * self._rng.standard_normal())))


class Worker:
    home = HERE
    driver: LiveDriver
    view: memoryview

    def __init__(self, slot: int, machine: Crowded) -> None:
        self._slot, self._machine = slot, machine

    def restart(self, why: str) -> None:
        raise AssertionError("no worker here says that it is broken")

    def run(self, frame: Run) -> None:
        machine = self._machine
        machine.busy += 1
        now_us = machine.clock.now_us()
        start = frame.input_offsets[0]
        rows = self.view[start : start + frame.size * 4 * WIDTH]
        ended_at_us = now_us + machine.duration_us(rows)
        report = Finished(frame.batch, frame.attempt, frame.stage, now_us, ended_at_us)
        machine.clock.call_at(ended_at_us, partial(self._end, report))

    def _end(self, report: Finished) -> None:
        self._machine.busy -= 1
        self.driver.on_ran(self._slot, report)


class Service:
    """A model on two slots, SLO 150 ms."""

    slo_us = 150_000

    def __init__(self, pools: Sequence[int] = (1, 1)) -> None:
        """`pools`: slots of each stage."""
        self.clock = SimClock()
        machine = Crowded(self.clock)
        workers = [Worker(slot, machine) for slot in range(2)]
        cuts = [f"h{i}" for i in range(len(pools) - 1)] + ["y"]
        profile = profile_by_hand(cuts, batch_size=2, stage_us=STAGE_US, device="cpu")
        plan = plan_by_hand(pools, 2, self.slo_us, STAGE_US, device="cpu", nodes=1, gbps=None)
        self.arena = Arena(1 << 16)
        self.plane = DataPlane(
            plan,
            {profile.model: profile},
            clock=self.clock,
            call_soon=lambda callback: self.clock.call_at(self.clock.now_us(), callback),
            links=workers,
            transport=SharedMemory(self.arena),
            sink=lambda event: None,
        )
        for worker in workers:
            worker.driver, worker.view = self.plane.driver, self.arena.view
        self.patient: list[Answer | Refusal] = []
        self.urgent: list[Answer | Refusal] = []

    def ask(
        self,
        items: int,
        timeout_us: int | None,
        on_done: Callable[[Answer | Refusal], None],
        peer: str = "a",
        heavy: bool = False,
    ) -> None:
        self.plane.submit(
            Inference(
                model="m",
                items=items,
                inputs=(bytes([heavy]) * (4 * WIDTH * items),),
                on_done=on_done,
                timeout_us=timeout_us,
                peer=peer,
            )
        )

    def heavy_client(self, until_us: int) -> None:
        """One connection of a peer whose inputs take seconds; asks again after what it is told."""

        def on_done(result: Answer | Refusal) -> None:
            self.clock.call_at(self.clock.now_us() + 20_000, ask)

        def ask() -> None:
            if self.clock.now_us() < until_us:
                self.ask(1, None, on_done, peer="heavy", heavy=True)

        ask()

    def patient_client(self, until_us: int) -> None:
        """One connection, closed loop."""

        def on_done(result: Answer | Refusal) -> None:
            self.patient.append(result)
            if self.clock.now_us() < until_us:
                self.ask(16, HOUR_US, on_done)

        self.ask(16, HOUR_US, on_done)

    def urgent_client(self, rps: float, until_us: int) -> None:
        """Open loop."""
        rng, at_us = np.random.default_rng(2), 0
        while at_us < until_us:
            self.clock.call_at(at_us, lambda: self.ask(1, None, self.urgent.append))
            at_us += round(rng.exponential(1e6 / rps))

    @property
    def attainment(self) -> float:
        in_time = sum(isinstance(r, Answer) and r.late_us == 0 for r in self.urgent)
        return in_time / len(self.urgent)


@pytest.mark.parametrize("connections", [1, 2, 12])
def test_a_client_with_an_slo_keeps_it_beside_a_patient_one_that_slows_the_machine_down(
    connections: int,
) -> None:
    service = Service()
    for _ in range(connections):
        service.patient_client(until_us=60_000_000)
    service.urgent_client(rps=14, until_us=60_000_000)
    service.clock.run()
    assert service.attainment >= 0.99
    assert all(isinstance(result, Answer) for result in service.patient)
    assert len(service.patient) > connections, "the patient one gets what is left"
    assert service.arena.used_bytes == 0


def test_alone_a_patient_client_loses_nothing_by_the_room() -> None:
    took_us = []
    for room in (True, False):
        service = Service()
        if not room:
            service.plane.room.open()
        for _ in range(12):
            service.patient_client(until_us=0)
        service.clock.run()
        assert len(service.patient) == 12
        took_us.append(max(r.ended_at_us for r in service.patient if isinstance(r, Answer)))
    assert took_us[0] <= 1.02 * took_us[1]


def test_what_was_accepted_is_answered_when_the_dispatcher_is_drained() -> None:
    service = Service()
    for _ in range(3):
        service.patient_client(until_us=0)
    service.plane.room.open()
    service.plane.dispatcher.drain()
    service.clock.run()
    assert [type(result) for result in service.patient] == [Answer] * 3


def test_requests_that_a_migration_has_held_wait_in_the_room_like_others() -> None:
    service, done = Service(), list[Answer | Refusal]()
    inference = Inference(
        model="m",
        items=32,
        inputs=(bytes(4 * WIDTH * 32),),
        on_done=done.append,
        timeout_us=HOUR_US,
        peer="a",
    )
    model = service.plane.models["m"]
    requests = service.plane.pending.open(inference, 0, model)
    for group in service.plane.epoch.groups(requests):
        service.plane.epoch.enter(group)
    assert service.plane.room.waiting > 16
    service.clock.run()
    assert [type(each) for each in done] == [Answer]


def test_a_client_whose_inputs_take_seconds_does_not_take_all_slots() -> None:
    in_time = []
    for bounded in (True, False):
        service = Service(pools=[2])
        if not bounded:
            service.plane.room.open()
        for _ in range(8):
            service.heavy_client(until_us=60_000_000)
        service.urgent_client(rps=16, until_us=60_000_000)
        service.clock.run()
        known = [r for r in service.urgent[len(service.urgent) // 3 :] if isinstance(r, Answer)]
        in_time.append(sum(r.late_us == 0 for r in known) / (len(service.urgent) * 2 / 3))
    assert in_time[0] > 0.95
    assert in_time[1] < 0.6, "without a bound it does"
