"""Workers that die or cannot load are started again, ever more patiently, for as long as it takes.

Over virtual time, with fakes behind the supervisor: a worker is whatever its script says.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from itertools import chain, count, pairwise, repeat
from pathlib import Path
from typing import Any

import pytest

from headrace.domain.errors import ModelError
from headrace.serving.workers.frames import AnyFrame, Beat, Failed, Finished, Load, Run
from headrace.serving.workers.hangs import GRACE_US, MOST_US, HangLimit
from headrace.serving.workers.pulse import LOOK_S, SILENCE_S, waited_for_core_us
from headrace.serving.workers.supervised import LOAD_TIMEOUT_S, RESTART_DELAYS_S
from headrace.serving.workers.supervisor import Supervisor
from headrace.serving.workers.worker_process import WorkerSpec
from helpers.virtual_loop import VirtualTimeLoop

LOAD_S = 1.0
P99_US = 100_000
FAILS, LOADS, HANGS = "fails", "loads", "hangs"


class FakeWorker:
    """Once it has loaded it beats, unless it is `stopped`."""

    def __init__(
        self,
        host: "FakeHost",
        what: str,
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.stopped = False
        self.waited_us = 0
        self._on_frame = on_frame
        self.process_id = next(host.numbers)
        self._host = host
        self._what = what
        self.lose = on_lost
        host.alive.add(self)

    def _beat(self) -> None:
        if self in self._host.alive:
            if not self.stopped:
                self._on_frame(Beat(self.waited_us))
            asyncio.get_running_loop().call_later(LOOK_S, self._beat)

    def send(self, frame: Run) -> None:
        """Nothing is run here."""

    async def load(self, timeout_s: float) -> None:
        host = self._host
        host.loading += 1
        together, host.most_loading = host.loading, max(host.most_loading, host.loading)
        try:
            await asyncio.sleep(timeout_s if self._what == HANGS else LOAD_S)
        finally:
            host.loading -= 1
        if self._what != LOADS or max(together, host.loading + 1) > host.room:
            raise ModelError("no memory")
        self._beat()

    def kill(self) -> None:
        self.lose("killed")

    async def stop(self) -> None:
        self._host.alive.discard(self)

    async def reap(self) -> int:
        self._host.alive.discard(self)
        return 1


class FakeHost:
    """A machine on which workers start: with room for so many that load at once."""

    home = "elsewhere"
    clock_offset_us = 0
    last_frame: Callable[[AnyFrame], None]

    def __init__(self, script: Iterator[str], room: int = 100) -> None:
        self.script = script
        self.room = room
        self.loading = 0
        self.most_loading = 0
        self.alive: set[FakeWorker] = set()
        self.numbers = count(1)
        self.started_at_s: list[float] = []

    def start_worker(
        self,
        specs: Sequence[WorkerSpec],
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
    ) -> FakeWorker:
        self.started_at_s.append(asyncio.get_running_loop().time())
        self.last_frame = on_frame
        return FakeWorker(self, next(self.script), on_frame, on_lost)

    def cores(self) -> Sequence[int]:
        return ()

    def available_memory_bytes(self) -> int | None:
        return None

    def set_niceness(self, process_id: int, niceness: int) -> None:
        """Nothing is run here."""


class Told:
    """What the supervisor said of slots, and when."""

    def __init__(self) -> None:
        self.lost: list[tuple[float, int]] = []
        self.gained: list[tuple[float, int]] = []
        self.ran: list[Finished] = []
        self.changed = asyncio.Event()

    def on_ran(self, slot: int, frame: Finished) -> None:
        self.ran.append(frame)

    def on_failed(self, slot: int, frame: Failed) -> None:
        raise AssertionError("nothing runs here")

    def on_slot_lost(self, slot: int) -> None:
        self.lost.append((asyncio.get_running_loop().time(), slot))

    def on_slot_gained(self, slot: int) -> None:
        self.gained.append((asyncio.get_running_loop().time(), slot))
        self.changed.set()

    async def until_gained(self, times: int) -> None:
        while len(self.gained) < times:
            self.changed.clear()
            await self.changed.wait()


def specs(slots: int) -> list[WorkerSpec]:
    load = Load(
        stage=0,
        executor="onnx",
        name="m/p/0",
        path="",
        inputs=(),
        outputs=(),
        max_batch=1,
        p50_us=(P99_US,),
        p99_us=(P99_US,),
        seed=0,
    )
    return [WorkerSpec(slot=f"slot{i}", executor="onnx", loads=(load,)) for i in range(slots)]


Scene = Callable[[Supervisor, Told], Coroutine[Any, Any, None]]


def play(host: FakeHost, scene: Scene, slots: int = 1) -> None:
    """Run a scene in virtual time; afterwards no worker may be left."""

    async def main() -> None:
        supervisor, told = Supervisor(specs(slots), host), Told()
        supervisor.connect(told)
        try:
            await scene(supervisor, told)
        finally:
            await supervisor.stop()

    with closing(VirtualTimeLoop()) as loop:
        loop.run_until_complete(main())
    assert not host.alive


def gaps_s(host: FakeHost, took_s: float = LOAD_S) -> list[float]:
    """Between an attempt's end and the next one's start."""
    return [after - before - took_s for before, after in pairwise(host.started_at_s)]


def test_a_worker_that_cannot_load_is_tried_again_with_growing_delays_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = len(RESTART_DELAYS_S) + 3
    host = FakeHost(chain(repeat(FAILS, failures), repeat(LOADS)))
    caplog.set_level(logging.INFO)

    async def scene(supervisor: Supervisor, told: Told) -> None:
        tried: list[int] = []
        await supervisor.insist([0], tried.extend)
        assert tried == [0]
        assert told.lost == [(LOAD_S, 0)]
        [slot] = supervisor.slots
        assert (slot.up, slot.outage) == (False, "load-failed")
        await told.until_gained(1)
        assert (slot.up, slot.outage, slot.restarts) == (True, None, failures)
        assert len(told.gained) == 1

    play(host, scene)
    longest_s = RESTART_DELAYS_S[-1]
    assert gaps_s(host) == pytest.approx([*RESTART_DELAYS_S, longest_s, longest_s, longest_s])
    levels = [record.levelno for record in caplog.records if "no memory" in record.message]
    assert levels == [logging.ERROR] + [logging.INFO] * (failures - 1)
    assert "back" in caplog.records[-1].message


def test_nobody_is_given_up_however_long_it_takes() -> None:
    failures = 2_000
    host = FakeHost(chain(repeat(FAILS, failures), repeat(LOADS)))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.insist([0], lambda slots: None)
        await told.until_gained(1)
        assert told.gained[0][0] > 16 * 3600

    play(host, scene)
    assert max(gaps_s(host)) == pytest.approx(RESTART_DELAYS_S[-1])


def test_a_worker_that_dies_early_waits_longer_each_time_and_one_that_lived_does_not() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        for number, lived_s in enumerate((1.0, 1.0, 1.0, 60.0, 1.0), start=1):
            await asyncio.sleep(lived_s)
            [worker] = host.alive
            worker.kill()
            assert supervisor.slots[0].outage == "lost"
            await told.until_gained(number)
        down_s = [up - down for (down, _), (up, _) in zip(told.lost, told.gained, strict=True)]
        waited = [seconds - LOAD_S for seconds in down_s]
        assert waited == pytest.approx([*RESTART_DELAYS_S[:3], *RESTART_DELAYS_S[:2]])

    play(host, scene)


def test_workers_that_find_no_memory_together_load_one_after_the_other() -> None:
    host = FakeHost(repeat(LOADS), room=1)

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.insist([0, 1, 2], lambda slots: None)
        assert [slot for _, slot in told.lost] == [0, 1, 2]
        host.most_loading = 0
        await told.until_gained(3)
        assert host.most_loading == 1

    play(host, scene, slots=3)


def test_a_slot_is_told_as_soon_as_its_own_worker_has_loaded() -> None:
    host = FakeHost(iter([LOADS, HANGS]))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        tried: list[tuple[float, list[int]]] = []
        loop = asyncio.get_running_loop()
        await supervisor.insist([0, 1], lambda slots: tried.append((loop.time(), [*slots])))
        assert tried == [(LOAD_S, [0]), (LOAD_TIMEOUT_S, [1])]
        assert [slot.up for slot in supervisor.slots] == [True, False]

    play(host, scene, slots=2)


@pytest.mark.parametrize("at_s", [0.5, 1.1, 1.9, 5.0, 5.9], ids="at {} s".format)
def test_stopping_ends_at_once_whether_a_worker_loads_or_is_waited_for(at_s: float) -> None:
    host = FakeHost(repeat(FAILS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        loop = asyncio.get_running_loop()
        trying = loop.create_task(supervisor.insist([0], lambda slots: None))
        await asyncio.sleep(at_s)
        trying.cancel()
        await asyncio.gather(trying, return_exceptions=True)
        await supervisor.stop()
        assert loop.time() == at_s
        assert not host.alive
        started = len(host.started_at_s)
        await asyncio.sleep(100.0)
        assert len(host.started_at_s) == started, "nobody tries again after the end"

    play(host, scene)


def test_two_who_want_a_shared_process_start_it_once() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        nothing: Callable[[Sequence[int]], None] = lambda slots: None  # noqa: E731
        await asyncio.gather(supervisor.insist([0], nothing), supervisor.insist([0], nothing))
        assert len(host.alive) == 1

    play(host, scene)


def test_a_start_that_must_succeed_says_why_it_does_not_and_leaves_nothing() -> None:
    host = FakeHost(iter([LOADS, FAILS]))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        with pytest.raises(ModelError, match="no memory"):
            await supervisor.start()
        assert not host.alive

    play(host, scene, slots=2)


@pytest.mark.parametrize("offset_us", [0, -3_000])
def test_instants_of_another_hosts_clock_are_reported_on_ours(offset_us: int) -> None:
    host = FakeHost(repeat(LOADS))
    host.clock_offset_us = offset_us

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        host.last_frame(Finished(7, 1, 3, 5_000, 9_000, 0))
        assert told.ran == [Finished(7, 1, 3, 5_000 + offset_us, 9_000 + offset_us, 0)]
        assert supervisor.slots[0].home == "elsewhere"

    play(host, scene)


# -- signs of life ---------------------------------------------------------------------------------


def test_a_worker_that_stops_is_noticed_within_a_second_also_if_it_runs_nothing() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(20)
        assert told.lost == []
        stopped_at_s = loop.time()
        for worker in host.alive:
            worker.stopped = True
        await told.until_gained(2)
        for at_s, _ in told.lost:
            assert SILENCE_S < at_s - stopped_at_s <= SILENCE_S + 2 * LOOK_S < 1.0

    host = FakeHost(repeat(LOADS))
    play(host, scene, slots=2)


def test_workers_are_not_blamed_for_the_time_in_which_the_server_itself_was_away() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        for worker in host.alive:
            # What it sent meanwhile is read after the timers that were due.
            worker.stopped = True
        loop.pass_by(5.0)
        await asyncio.sleep(SILENCE_S / 2)
        for worker in host.alive:
            worker.stopped = False
        await asyncio.sleep(20)
        assert told.lost == []

    host = FakeHost(repeat(LOADS))
    play(host, scene)


# -- batches that hang -----------------------------------------------------------------------------


LIMIT_S = 0.5 + 3 * P99_US / 1e6


def run(supervisor: Supervisor, batch: int = 0) -> None:
    supervisor.slots[0].run(Run(batch, 0, 0, 1, (), (), 0))


def end(host: FakeHost, batch: int = 0) -> None:
    host.last_frame(Finished(batch, 0, 0, 0, 0, 0))


def test_a_batch_that_hangs_in_a_worker_that_beats_is_noticed_within_its_limit() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        began_at_s = asyncio.get_running_loop().time()
        run(supervisor)
        await told.until_gained(1)
        assert told.lost[0][0] - began_at_s == pytest.approx(LIMIT_S)
        await asyncio.sleep(20)
        assert len(told.lost) == 1, "an idle worker does not hang"

    host = FakeHost(repeat(LOADS))
    play(host, scene)


def test_time_in_which_the_worker_had_no_core_does_not_count() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        run(supervisor)
        [worker] = host.alive
        for _ in range(100):
            # Nine tenths of the time others run on its core.
            await asyncio.sleep(0.05)
            worker.waited_us += 45_000
        assert told.lost == []
        end(host)
        await asyncio.sleep(20)
        assert told.lost == []

    host = FakeHost(repeat(LOADS))
    play(host, scene)


def test_batches_that_end_late_are_given_more_time_and_no_worker_is_killed_for_them() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        for took_s in (0.7, 1.0, 1.5, 2.0, 2.0, 2.0):
            run(supervisor)
            await asyncio.sleep(took_s)
            end(host)
        assert told.lost == []

    host = FakeHost(repeat(LOADS))
    play(host, scene)


def test_a_worker_killed_for_nothing_leaves_twice_the_time_to_the_next_one() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        loop, limits_s = asyncio.get_running_loop(), []
        for attempt in range(1, 4):
            began_at_s = loop.time()
            run(supervisor)
            await told.until_gained(attempt)
            limits_s.append(told.lost[-1][0] - began_at_s)
        assert limits_s == pytest.approx([LIMIT_S, 2 * LIMIT_S, 4 * LIMIT_S])
        run(supervisor)
        await asyncio.sleep(7 * LIMIT_S)
        end(host)
        assert len(told.lost) == 3

    host = FakeHost(repeat(LOADS))
    play(host, scene)


def test_a_batch_is_not_blamed_for_the_time_in_which_the_server_itself_was_away() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        run(supervisor)
        await asyncio.sleep(0.01)
        loop.pass_by(5.0)
        await asyncio.sleep(LOOK_S / 2)
        end(host)  # it was sent long ago, and is read after the timers that were due
        await asyncio.sleep(20)
        assert told.lost == []

    host = FakeHost(repeat(LOADS))
    play(host, scene)


def test_the_limit_of_a_slot_comes_down_again_when_its_batches_do() -> None:
    limit = HangLimit()
    for _ in range(10):
        limit.ended(50 * P99_US, P99_US)
    assert limit.us(P99_US) > GRACE_US + 100 * P99_US
    for _ in range(500):
        limit.ended(P99_US // 2, P99_US)
    assert limit.us(P99_US) == pytest.approx(GRACE_US + 3 * P99_US, rel=0.01)
    for _ in range(50):
        limit.killed(P99_US)
    assert limit.us(P99_US) == MOST_US


def test_the_kernel_says_how_long_a_thread_has_waited_for_a_core(tmp_path: Path) -> None:
    kept = tmp_path / "schedstat"
    kept.write_text("4521833 106980 12\n")
    assert waited_for_core_us(str(kept)) == 106
    assert waited_for_core_us(str(tmp_path / "none")) == 0
    kept.write_text("")
    assert waited_for_core_us(str(kept)) == 0
