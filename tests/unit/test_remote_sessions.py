"""An agent's session, when one gateway follows another."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.executors.mps import MpsService
from headrace.serving.workers.frames import AnyFrame, Beat
from headrace.serving.workers.remote.arrivals import Arrivals
from headrace.serving.workers.remote.connection import Connection
from headrace.serving.workers.remote.files import FileStore
from headrace.serving.workers.remote.frames import (
    AnyRemoteFrame,
    Open,
    Ready,
    RemoteSpec,
    Report,
    Start,
)
from headrace.serving.workers.remote.peers import Peers
from headrace.serving.workers.remote.session import Session
from headrace.serving.workers.worker_process import WorkerLimits

PATIENCE_S = 60.0
SPEC = RemoteSpec(
    slot="slot0", executor="onnx", loads=(), cores=(), quota="", device=None, percent=None
)


class Idle:
    """A worker that has loaded at once; and the host on which it starts."""

    process_id = 7
    says: Callable[[AnyFrame], None]

    def start_worker(self, specs: Any, on_frame: Callable[[AnyFrame], None], on_lost: Any) -> Any:
        self.says = on_frame
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

    async def start(self, session: Session, number: int, worker: int) -> None:
        await session.attach(self.connection, number)
        session.on_frame(Start(worker, (SPEC,), 1.0))
        await self._ready.wait()

    def close(self) -> None:
        self._theirs.close()


def session_on(host: Idle, folder: Path) -> Session:
    """Nobody is attached to it yet."""
    opened, arrivals = Open(1, "g", "key", 1 << 16, None), Arrivals(FileStore(folder))
    session = Session(opened, WorkerLimits(), MpsService(), arrivals, Peers(b"", None), lambda: 0)
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
