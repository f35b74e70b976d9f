"""A worker that loads is given its time, as far as it had a core in it."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.domain.errors import ModelError, ProcessLimitError
from headrace.serving.workers import worker_process
from headrace.serving.workers.activity import Activity
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.host import LocalHost
from headrace.serving.workers.placement import worker_specs
from headrace.serving.workers.stage_io import stage_index
from headrace.serving.workers.worker_process import WorkerProcess
from helpers.served import served_chain
from helpers.waiting import until

pytestmark = pytest.mark.e2e


def with_worker(folder: Path, use: Callable[[WorkerProcess], Awaitable[None]]) -> None:
    """Start a worker of an emulated slot, and end it after `use`."""
    served = served_chain(folder, pools=(1,), device="l4")
    stages = stage_index(served.plan, served.profiles)
    specs = worker_specs(served.plan, served.profiles, served.folders, stages, "auto")

    async def main() -> None:
        with closing(Arena(1 << 16)) as arena, closing(LocalHost(arena)) as host:
            worker = host.start_worker(specs, lambda frame: None, lambda reason: None)
            try:
                await use(worker)
            finally:
                await worker.reap()

    asyncio.run(main())


def test_one_that_is_stopped_while_it_loads_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_LOOK_S", 0.01)

    async def use(worker: WorkerProcess) -> None:
        os.kill(worker.process_id, signal.SIGSTOP)
        with pytest.raises(ModelError, match=r"'m/p/0' is not loaded after 0 s"):
            await worker.load(0.1)

    with_worker(tmp_path, use)


def test_one_that_has_no_core_to_load_on_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def no_core(process_id: int) -> Activity:
        looks.append(process_id)
        return Activity(runnable=True, ran_us=0)

    monkeypatch.setattr(worker_process, "_LOOK_S", 0.01)
    monkeypatch.setattr(worker_process, "activity_of", no_core)

    async def use(worker: WorkerProcess) -> None:
        os.kill(worker.process_id, signal.SIGSTOP)
        loading = asyncio.ensure_future(worker.load(0.01))
        try:
            await until(lambda: len(looks) >= 10 or loading.done())
        finally:
            os.kill(worker.process_id, signal.SIGCONT)
        await loading

    with_worker(tmp_path, use)


def no_threads(*_: object) -> None:
    raise RuntimeError("can't start new thread")


WITHOUT_THREADS = """
import threading
def refuse(thread): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
from headrace.serving.workers.worker import main
main()
"""


def test_one_that_gets_no_thread_leaves_it_to_its_gateway_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, errors = subprocess.Popen, tmp_path / "errors"

    def without_threads(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        assert command[1:4] == ["-P", "-m", "headrace.serving.workers.worker"]
        words = [command[0], "-P", "-c", WITHOUT_THREADS, *command[4:]]
        with errors.open("wb") as file:
            return popen(words, stderr=file, **options)

    monkeypatch.setattr(subprocess, "Popen", without_threads)

    async def use(worker: WorkerProcess) -> None:
        with pytest.raises(ProcessLimitError, match=r"a thread of its worker .* \(ulimit -u\)"):
            await worker.load(60.0)

    with_worker(tmp_path, use)
    assert errors.read_text() == "", "the gateway says it"


def test_one_that_cannot_be_started_for_a_limit_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def use(worker: WorkerProcess) -> None: ...

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ProcessLimitError, match=r"its worker cannot be started.*pids\.max"):
        with_worker(tmp_path, use)


def test_one_is_stopped_by_a_server_that_gets_no_thread_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(worker: WorkerProcess) -> None:
        await worker.load(60.0)
        monkeypatch.setattr(threading.Thread, "start", no_threads)
        await worker.stop()
        assert await worker.reap() == 0

    with_worker(tmp_path, use)
