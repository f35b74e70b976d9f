"""Which silent workers are given up, and which batches hang: never for want of a core.

Over virtual time, with fakes behind the supervisor.
"""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from headrace.serving.workers.activity import Activity, activity_of
from headrace.serving.workers.beats import CoreWaits
from headrace.serving.workers.hangs import GRACE_US, MOST_US, HangLimit
from headrace.serving.workers.pulse import LOOK_S, SILENCE_S, Watch
from headrace.serving.workers.supervisor import Supervisor
from helpers.fake_workers import LOAD_S, LOADS, P99_US, FakeHost, Told, end, play, run
from helpers.virtual_loop import VirtualTimeLoop
from helpers.waiting import wait_until


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


def test_a_worker_that_gets_no_core_is_waited_for_and_so_is_its_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        [worker] = host.alive
        for _ in range(3):
            run(supervisor)
            worker.starved = True
            await asyncio.sleep(30)
            worker.starved = False
            worker.waited_us += 30_000_000
            await asyncio.sleep(2 * LOOK_S)
            end(host)
        await asyncio.sleep(20)
        assert told.lost == []
        # From now on it is not runnable: what it waits for is no core.
        worker.stopped = True
        await told.until_gained(1)

    host = FakeHost(repeat(LOADS))
    play(host, scene)
    said = [record.message for record in caplog.records if "has had no core" in record.message]
    assert len(said) == 2, "once a minute"
    assert said[0].startswith("slot 'slot0': nothing heard of its worker for 0.")


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_worker_that_computes_in_silence_is_noticed_by_the_time_that_it_had_a_core(
    share: float,
) -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(20)
        silent_at_s = loop.time()
        for worker in host.alive:
            worker.share = share
        await told.until_gained(1)
        [(at_s, _)] = told.lost
        assert SILENCE_S <= at_s - silent_at_s <= (SILENCE_S + 2 * LOOK_S) / share

    host = FakeHost(repeat(LOADS))
    play(host, scene)


def test_where_nothing_is_known_of_a_silent_worker_all_of_its_silence_counts() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        silent_at_s = asyncio.get_running_loop().time()
        [worker] = host.alive
        worker.starved = True
        await told.until_gained(1)
        assert told.lost[0][0] - silent_at_s <= SILENCE_S + 2 * LOOK_S

    host = FakeHost(repeat(LOADS))
    host.tells = False
    play(host, scene)


def test_the_system_says_whether_a_process_would_run_and_for_how_long_it_has() -> None:
    def activity() -> Activity:
        found = activity_of(child.pid)
        assert found is not None
        return found

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            wait_until(lambda: activity().ran_us > 100_000, "it runs")
            assert activity().runnable
            child.send_signal(signal.SIGSTOP)
            wait_until(lambda: not activity().runnable, "it is stopped")
            assert activity() == activity()
        finally:
            child.kill()
    assert activity_of(child.pid) is None


class Uvish(VirtualTimeLoop):
    """Calls at once what is due within half a millisecond, as uvloop does, and returns a handle
    that does not know when it was due."""

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        if round((when - self.time()) * 1000) <= 0:
            return self.call_soon(callback, *args, context=context)
        return super().call_at(when, callback, *args, context=context)


def test_a_watch_goes_on_where_the_server_lost_its_core_while_it_looked() -> None:
    """Its next look is then due before it is set."""

    def activity() -> None:
        loop.pass_by(2 * LOOK_S)

    async def scene() -> None:
        watch = Watch("a worker", activity, lambda: silent.append(loop.time()))
        watch.start()
        await asyncio.sleep(10)
        watch.stop()

    loop, silent = Uvish(), list[float]()
    loop.run_until_complete(scene())
    loop.close()
    assert len(silent) == 1


def test_a_batch_that_hangs_is_noticed_also_if_it_began_just_before_the_watch_was_set() -> None:
    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        run(supervisor, 0)
        await asyncio.sleep(0.001)
        end(host, 0)
        run(supervisor, 1)
        # The watch was set for the first one, and of the second's time 0.3 ms will be left.
        batch = supervisor.slots[0]._batch
        assert batch._running is not None
        batch._running = replace(batch._running, began_at_s=LOAD_S + 0.0003)
        await asyncio.wait_for(told.until_gained(1), 60)

    host = FakeHost(repeat(LOADS))
    play(host, scene, loop_type=Uvish)


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


def test_the_kernel_says_how_long_a_thread_has_waited_for_a_core(tmp_path: Path) -> None:
    waits = CoreWaits(str(tmp_path))
    assert waits.look_us() == 0
    say(tmp_path, "S", "4521833 106980 12\n")
    assert waits.look_us() == 106
    say(tmp_path, "S", "")
    assert waits.look_us() == 0


def test_where_the_kernel_does_not_count_nothing_is_known(tmp_path: Path) -> None:
    now_us = 0
    waits = CoreWaits(str(tmp_path), lambda: now_us)
    say(tmp_path, "R", "0 0 0")
    assert waits.look_us() == 0
    now_us = 600_000
    assert waits.look_us() == 0, "it may compute"


def test_a_wait_for_a_core_counts_while_it_lasts_and_once(tmp_path: Path) -> None:
    now_us = 0
    waits = CoreWaits(str(tmp_path), lambda: now_us)
    say(tmp_path, "R", "900000 5000000 12")
    assert waits.look_us() == 5_000, "it may have run until now"
    now_us = 600_000
    assert waits.look_us() == 605_000
    say(tmp_path, "R", "950000 615000000 13")
    assert waits.look_us() == 615_000, "the kernel has counted it"
    now_us = 700_000
    say(tmp_path, "R", "99950000 615000000 13")
    assert waits.look_us() == 615_000, "it computes"
    now_us = 800_000
    say(tmp_path, "S", "99950000 615000000 13")
    assert waits.look_us() == 615_000, "it waits for something else"
    now_us = 900_000
    say(tmp_path, "R", "99950000 615000000 13")
    assert waits.look_us() == 615_000
    now_us = 1_000_000
    assert waits.look_us() == 715_000


def say(process: Path, state: str, schedstat: str) -> None:
    (process / "stat").write_text(f"7 (a) b) {state} 1 7")
    (process / "schedstat").write_text(schedstat)


# -- batches that hang -----------------------------------------------------------------------------


LIMIT_S = 0.5 + 3 * P99_US / 1e6


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


def test_a_batch_on_its_way_to_another_machine_and_back_does_not_hang() -> None:
    """Only for as long as its worker is known to have it."""

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        loop = asyncio.get_running_loop()
        [worker] = host.alive
        for _ in range(3):
            worker.busy = 0
            run(supervisor)
            await asyncio.sleep(20)  # its inputs
            worker.busy = round(0.9 * LIMIT_S * 1e6)
            await asyncio.sleep(20)  # its answer
            end(host)
        assert told.lost == []
        worker.busy = 0
        run(supervisor)
        await asyncio.sleep(20)
        has_it_since_s = loop.time()
        while not told.lost:
            worker.busy = round((loop.time() - has_it_since_s) * 1e6)
            await asyncio.sleep(0.1)
        assert 4 * LIMIT_S > told.lost[0][0] - has_it_since_s >= LIMIT_S

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
