"""An agent's session, when one gateway follows another."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.executors.mps import MpsService
from headrace.serving.workers.frames import AnyFrame, Beat, Finished, Run
from headrace.serving.workers.remote.arrivals import Arrivals
from headrace.serving.workers.remote.connection import Connection
from headrace.serving.workers.remote.files import FileStore
from headrace.serving.workers.remote.frames import (
    AnyRemoteFrame,
    Open,
    Order,
    Ping,
    Pong,
    Ready,
    RemoteSpec,
    Report,
    RunsFor,
    Start,
)
from headrace.serving.workers.remote.peers import Peers
from headrace.serving.workers.remote.session import Session
from headrace.serving.workers.worker_process import WorkerLimits

PATIENCE_S = 60.0
NO_LIMITS = WorkerLimits()
SPEC = RemoteSpec(
    slot="slot0", executor="onnx", loads=(), cores=(), quota="", device=None, percent=None
)


class Idle:
    """A worker that has loaded at once; and the host on which it starts."""

    process_id = 7
    says: Callable[[AnyFrame], None]
    cores: tuple[int, ...]

    def start_worker(self, specs: Any, on_frame: Callable[[AnyFrame], None], on_lost: Any) -> Any:
        self.says = on_frame
        self.cores = specs[0].cores
        return self

    async def load(self, timeout_s: float) -> None:
        """It has."""

    async def stop(self) -> None:
        """Nothing runs."""

    async def reap(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""


class Gateway:
    """A connection that keeps what it is told."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self.connection = Connection(ours)
        self.connection.send = self._keep  # type: ignore[method-assign,assignment]
        self.heard: list[AnyRemoteFrame] = []
        self._ready = asyncio.Event()

    def _keep(self, frame: AnyRemoteFrame, payload: memoryview | None = None) -> None:
        self.heard.append(frame)
        if isinstance(frame, Ready):
            self._ready.set()

    async def start(
        self, session: Session, number: int, worker: int, spec: RemoteSpec = SPEC
    ) -> None:
        await session.attach(self.connection, number)
        session.on_frame(Start(worker, (spec,), 1.0))
        await self._ready.wait()

    def close(self) -> None:
        self._theirs.close()


def session_on(host: Idle, folder: Path, limits: WorkerLimits = NO_LIMITS) -> Session:
    """Nobody is attached to it yet."""
    opened, arrivals = Open(1, "g", "key", 1 << 16, None), Arrivals(FileStore(folder))
    session = Session(opened, limits, MpsService(), arrivals, Peers(b"", None), lambda: 0)
    session._host.close()
    session._host = host  # type: ignore[assignment]
    return session


def test_a_gateway_that_adopts_a_worker_hears_first_how_long_it_had_waited_for_a_core(
    tmp_path: Path,
) -> None:
    """Else all that it ever waited would excuse the first batch that hangs."""

    async def main() -> None:
        host = Idle()
        session = session_on(host, tmp_path)
        first, second = Gateway(), Gateway()
        try:
            await first.start(session, 1, worker=4)
            host.says(Beat(30_000_000))
            assert first.heard == [Ready(4, 7), Report(4, Beat(30_000_000))]
            session.detach("it is killed")
            host.says(Beat(50_000_000))
            await second.start(session, 2, worker=9)
            assert second.heard == [Report(9, Beat(50_000_000)), Ready(9, 7)]
        finally:
            await session.close()
            first.close()
            second.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_gateway_hears_of_a_worker_that_cannot_be_started_whatever_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for that answer."""

    class Failing(Idle):
        async def load(self, timeout_s: float) -> None:
            raise AssertionError

    async def main() -> None:
        session, gateway = session_on(Failing(), tmp_path), Gateway()
        try:
            await gateway.start(session, 1, worker=4)
            assert gateway.heard == [Ready(4, 0, "AssertionError()")]
        finally:
            await session.close()
            gateway.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert "a worker cannot be started" in caplog.text


def test_the_agent_tells_for_how_long_a_worker_has_what_it_runs(tmp_path: Path) -> None:
    class Running(Idle):
        def send(self, run: Run) -> None:
            """It takes its time."""

        def available_memory_bytes(self) -> None:
            """Of no interest."""

    async def main() -> None:
        host = Running()
        session, gateway = session_on(host, tmp_path), Gateway()

        def told() -> tuple[RunsFor, ...]:
            session.on_frame(Ping(0))
            pong = gateway.heard[-1]
            assert isinstance(pong, Pong)
            return pong.runs

        try:
            await gateway.start(session, 1, worker=4)
            assert told() == ()
            session.on_frame(Order(4, Run(1, 1, 0, 1, (), (), slot=3)))
            [worker] = session._workers
            order, since_s = worker.orders[3]
            worker.orders[3] = order, since_s - 5.0
            [runs] = told()
            assert (runs.worker, runs.slot) == (4, 3)
            assert runs.us >= 5_000_000
            host.says(Finished(1, 1, 0, 0, 0, slot=3))
            assert told() == (), "what it wrote may still be on its way"
        finally:
            await session.close()
            gateway.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize(
    ("told", "kept_on"),
    [((), (0, 1)), ((1, 2), (1,)), ((2,), ())],
    ids=["all", "some", "others"],
)
def test_a_worker_is_kept_on_no_core_that_its_agent_was_not_told(
    told: tuple[int, ...], kept_on: tuple[int, ...], tmp_path: Path
) -> None:
    """The gateway has dealt those of the agent that was there before. None: the host gives its."""

    async def main() -> None:
        host, gateway = Idle(), Gateway()
        session = session_on(host, tmp_path, WorkerLimits(cores=told))
        try:
            await gateway.start(session, 1, worker=4, spec=replace(SPEC, cores=(0, 1)))
            assert host.cores == kept_on
        finally:
            await session.close()
            gateway.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
