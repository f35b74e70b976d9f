"""Workers that die or hang under load: every inference ends, and the slot comes back."""

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.domain.events import AnyEvent, Dispatched, SlotGained, SlotLost
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.served_plan import ServiceOptions
from headrace.serving.workers import pulse, restart_delays
from helpers.served import WIDTH, Client, rows_of, served_chain
from helpers.waiting import until

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang reaches it."""
ROW = np.ones((1, WIDTH), np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


class Log:
    """An event sink that one can wait on."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: AnyEvent) -> None:
        self.events.append(event)
        self._changed.set()

    def of(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()


def kill(engine: Engine, slot: int, how: signal.Signals = signal.SIGKILL) -> None:
    process_id = engine.status().slots[slot].process_id
    assert process_id is not None
    os.kill(process_id, how)


def slot_of_last_batch(log: Log) -> int:
    event = log.of(Dispatched)[-1]
    assert isinstance(event, Dispatched)
    return event.path[0].slot


def test_a_batch_whose_worker_is_killed_runs_again_on_another(tmp_path: Path) -> None:
    served = served_chain(tmp_path, pools=(2,), device="l4", stage_us=400_000)

    async def test() -> None:
        log = Log()
        engine = served.engine(sink=log)
        await engine.start()
        try:
            future = Client(engine).send(ROW)
            first = slot_of_last_batch(log)
            kill(engine, first)
            answer = await future
            assert isinstance(answer, Answer)
            assert slot_of_last_batch(log) == 1 - first
            assert len(log.of(Dispatched)) == 2
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_middle_stage_that_is_lost_runs_again_from_its_kept_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test decides when a frozen worker is lost.
    monkeypatch.setattr(pulse, "SILENCE_S", WAIT_S)
    served = served_chain(tmp_path, pools=(1, 2), stage_us=50_000)

    async def test() -> None:
        log = Log()
        engine = served.engine(sink=log)
        await engine.start()
        try:
            client = Client(engine)
            expected = rows_of(await client.send(ROW))
            # Frozen, not dead: it takes the batch and never ends it.
            kill(engine, 1, signal.SIGSTOP)
            kill(engine, 2, signal.SIGSTOP)
            future = client.send(ROW)
            await log.until(lambda: engine.status().running_batches == 1 and _ran(log) == 3)
            second = _stage_one_slot(log)
            kill(engine, 3 - second, signal.SIGCONT)
            kill(engine, second)
            np.testing.assert_array_equal(rows_of(await future), expected)
            assert engine.status().arena_used_bytes == 0
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def _ran(log: Log) -> int:
    return sum(type(event).__name__ == "Ran" for event in log.events)


def _stage_one_slot(log: Log) -> int:
    event = log.of(Dispatched)[-1]
    assert isinstance(event, Dispatched)
    return event.path[-1].slot


def test_without_another_slot_the_request_is_refused_before_its_deadline(tmp_path: Path) -> None:
    # A second run would be a minute late, and the refusal comes long before that minute is over.
    stage_us = 60_000_000
    slo_us = stage_us + 50_000
    served = served_chain(tmp_path, pools=(1,), device="l4", stage_us=stage_us, slo_us=slo_us)

    async def test() -> None:
        engine = served.engine()
        await engine.start()
        try:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            future = Client(engine).send(ROW)
            kill(engine, 0)
            refusal = await future
            assert isinstance(refusal, Refusal)
            assert refusal.reason in ("no-slot", "deadline")
            assert loop.time() - began_s < slo_us / 1e6
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_killed_worker_is_back_and_answers(tmp_path: Path) -> None:
    async def test() -> None:
        log = Log()
        engine = served_chain(tmp_path, pools=(1, 1)).engine(sink=log)
        await engine.start()
        try:
            for _ in range(2):
                kill(engine, 1)
                await log.until(lambda: len(log.of(SlotLost)) > len(log.of(SlotGained)))
                assert not engine.ready
                await log.until(lambda: len(log.of(SlotLost)) == len(log.of(SlotGained)))
                assert engine.ready
                assert isinstance(await Client(engine).send(ROW), Answer)
            assert engine.status().slots[1].restarts == 2
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_killed_worker_is_back_also_when_the_stage_cache_has_been_removed(tmp_path: Path) -> None:
    async def test() -> None:
        log = Log()
        engine = served_chain(tmp_path, pools=(1, 1)).engine(sink=log)
        await engine.start()
        try:
            client = Client(engine)
            expected = rows_of(await client.send(ROW))
            shutil.rmtree(tmp_path / "cache")
            kill(engine, 1)
            await log.until(lambda: bool(log.of(SlotGained)))
            np.testing.assert_array_equal(rows_of(await client.send(ROW)), expected)
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_workers_have_the_limits_and_the_cores_that_they_were_given(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))

    async def test() -> None:
        served = served_chain(tmp_path, pools=(1,))
        engine = served.engine(
            ServiceOptions(cores=tuple(reversed(cores)), worker_memory_bytes=1_500_000_000)
        )
        # As `serve --core` does: what the server is kept on is not for its workers.
        os.sched_setaffinity(0, {cores[0]})
        try:
            await engine.start()
            worker = engine.status().slots[0].process_id
            assert worker is not None
            assert os.sched_getaffinity(worker) == {cores[-1]}
            limits = Path(f"/proc/{worker}/limits").read_text().splitlines()
            [data] = [line.split() for line in limits if line.startswith("Max data size")]
            assert data[3:5] == ["1500000000", "1500000000"]
            assert os.sched_getscheduler(worker) == os.SCHED_BATCH
            assert os.getpriority(os.PRIO_PROCESS, worker) == os.getpriority(os.PRIO_PROCESS, 0)
            assert isinstance(await Client(engine).send(ROW), Answer)
        finally:
            os.sched_setaffinity(0, cores)
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_worker_that_hangs_is_killed_and_its_batch_runs_elsewhere(tmp_path: Path) -> None:
    # The grace is as it is in service: with less, a worker that is merely slow would be killed too.
    served = served_chain(tmp_path, pools=(2,))

    async def test() -> None:
        log = Log()
        engine = served.engine(sink=log)
        await engine.start()
        try:
            client = Client(engine)
            await client.send(ROW)
            usual = slot_of_last_batch(log)
            kill(engine, usual, signal.SIGSTOP)
            assert isinstance(await client.send(ROW), Answer)
            assert [event.slot for event in log.of(SlotLost)] == [usual]  # type: ignore[union-attr]
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_slot_whose_worker_cannot_load_is_tried_again_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restart_delays, "RESTART_DELAYS_S", (0.0, 0.05))
    caplog.set_level("INFO")

    async def test() -> None:
        log = Log()
        engine = served_chain(tmp_path, pools=(1,)).engine(sink=log)
        await engine.start()
        try:
            [file] = (tmp_path / "cache").rglob("*.onnx")
            sound = file.read_bytes()
            file.write_bytes(b"no longer a model")
            kill(engine, 0)
            await log.until(lambda: bool(log.of(SlotLost)))
            await until(lambda: engine.status().slots[0].restarts >= 3)
            assert engine.status().outages == {"lost": 0, "load-failed": 1, "refused": 0}
            refusal = await Client(engine).send(ROW)
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "no-slot"
            assert not engine.ready
            file.write_bytes(sound)
            await log.until(lambda: bool(log.of(SlotGained)))
            assert engine.status().outages == {"lost": 0, "load-failed": 0, "refused": 0}
            assert isinstance(await Client(engine).send(ROW), Answer)
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))
    levels = [entry.levelname for entry in caplog.records if "load" in entry.message]
    assert levels.count("ERROR") == 1, "what failed is said once"
    assert levels.count("INFO") >= 1, "further attempts are told quietly"


_GATEWAY = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from helpers.served import served_chain

async def main():
    engine = served_chain(Path(sys.argv[2]), pools=(2,), device="l4").engine()
    await engine.start()
    print(*(slot.process_id for slot in engine.status().slots), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for strangers' ends by pidfd")
def test_workers_end_when_the_gateway_is_killed(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", _GATEWAY, str(tests), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        workers = [os.pidfd_open(int(pid)) for pid in gateway.stdout.readline().split()]
        assert len(workers) == 2
        gateway.kill()
    for worker in workers:
        assert select.select([worker], [], [], WAIT_S)[0], "a worker outlives its gateway"
        os.close(worker)
