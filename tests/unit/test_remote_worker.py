"""A worker on another machine, as the gateway starts it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from headrace.domain.errors import HeadraceError, ModelError
from headrace.serving.workers.host import HostGoneError
from headrace.serving.workers.remote import host
from headrace.serving.workers.remote.frames import (
    AnyRemoteFrame,
    Chunk,
    End,
    FileRef,
    Missing,
    Ready,
    Start,
)
from headrace.serving.workers.remote.host import FileHashes, RemoteHost, RemoteWorker, _SentFile
from headrace.serving.workers.remote.link import AgentLink
from headrace.serving.workers.worker_process import WorkerSpec
from helpers.waiting import until

PATIENCE_S = 60.0
LOAD_S = 30.0


class FakeLink:
    """To an agent that comes and goes as a test has it, and keeps what it is sent."""

    where = "node 'n0'"
    descriptor = None
    hello = None

    def __init__(self) -> None:
        self.is_up = True
        self.sent: list[AnyRemoteFrame] = []
        self._workers: dict[int, RemoteWorker] = {}
        self._up = asyncio.Event()
        self._refused = False
        self._up.set()

    async def until_up(self) -> None:
        while not self.is_up:
            await self._up.wait()
            if self._refused:
                raise HeadraceError("the agent refuses this gateway")

    def add(self, worker: RemoteWorker) -> int:
        self._workers[len(self.sent) + 1] = worker
        return len(self.sent) + 1

    def remove(self, number: int) -> None:
        self._workers.pop(number, None)

    def send(self, frame: AnyRemoteFrame) -> None:
        self.sent.append(frame)

    def send_part(self, frame: AnyRemoteFrame, payload: memoryview) -> None:
        self.sent.append(frame)

    async def drained(self) -> None:
        """The network takes nothing more."""
        await asyncio.get_running_loop().create_future()

    def fail(self) -> None:
        """As the link does: nobody knows its workers any more."""
        self.is_up = False
        self._up.clear()
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.lost("its agent is lost: nothing heard of it for 1.5 s")

    def come_back(self) -> None:
        self.is_up = True
        self._up.set()

    def refuse(self) -> None:
        self._refused = True
        self._up.set()

    @property
    def starts(self) -> list[Start]:
        return [frame for frame in self.sent if isinstance(frame, Start)]


def loading(test: Callable[[FakeLink, RemoteWorker, list[str]], Coroutine[Any, Any, None]]) -> None:
    """Run it with a link, a worker behind it that was not started, and whatever is lost later."""

    async def main() -> None:
        link, told = FakeLink(), list[str]()
        remote = RemoteHost(cast(AgentLink, link), FileHashes(), lambda *_: 0)
        spec = WorkerSpec(slot="slot0", executor="onnx", loads=())
        worker = remote.start_worker([spec], lambda _: None, told.append)
        await test(link, worker, told)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_worker_is_loaded_though_its_agent_was_not_heard_for_a_moment() -> None:
    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        link.fail()
        link.come_back()
        await until(lambda: len(link.starts) == 2)
        worker.ready(Ready(link.starts[1].worker, process_id=7))
        await load

        assert worker.process_id == 7
        assert told == [], "the worker that is up was not lost"
        link.fail()
        assert len(told) == 1

    loading(test)


def test_an_agent_that_stays_away_ends_the_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BACK_S", 0.0)

    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        link.fail()
        with pytest.raises(ModelError, match="died while loading: its agent is lost: nothing"):
            await load
        assert await worker.reap() == 0

    loading(test)


def test_an_agent_that_will_never_be_back_is_not_waited_for() -> None:
    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        link.fail()
        link.refuse()
        with pytest.raises(HostGoneError, match="refuses this gateway"):
            await load

    loading(test)


def test_a_worker_that_dies_while_it_loads_is_not_loaded_again_here() -> None:
    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        worker.lost("it was killed")
        with pytest.raises(ModelError, match="died while loading: it was killed"):
            await load
        assert len(link.starts) == 1

    loading(test)


def test_a_worker_that_is_to_end_is_not_started_again() -> None:
    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        end = asyncio.create_task(worker.reap())
        await until(lambda: isinstance(link.sent[-1], End))
        link.fail()
        link.come_back()
        assert await end == 0
        with pytest.raises(ModelError, match="died while loading"):
            await load
        assert len(link.starts) == 1

    loading(test)


def test_an_agent_that_does_not_say_that_a_worker_has_ended_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "ENDED_S", 0.01)

    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        worker.ready(Ready(1, 7))
        await load
        assert await worker.reap() != 0
        assert isinstance(link.sent[-1], End)
        assert await worker.reap() == 0, "it is nobody's any more"

    loading(test)
    assert "does not say that it has ended it" in caplog.text


def test_what_an_agent_refuses_is_said_with_its_node() -> None:
    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        worker.ready(Ready(1, 0, "/cache: there is room for 7 bytes"))
        with pytest.raises(ModelError, match=r"^node 'n0': /cache: there is room for 7 bytes$"):
            await load

    loading(test)


def test_an_agent_hears_that_a_file_will_not_be_sent_to_its_end() -> None:
    async def test(link: FakeLink, worker: RemoteWorker, told: list[str]) -> None:
        load = asyncio.create_task(worker.load(LOAD_S))
        await until(lambda: len(link.starts) == 1)
        file = _SentFile(FileRef("a" * 64, 1000, ""), __file__)
        worker._files[file.ref.sha256] = file
        worker.missing(Missing(1, (file.ref.sha256,)))
        await until(lambda: link.sent[-1] == Chunk(file.ref.sha256, 1000))
        worker.ready(Ready(1, 0, "no room for another one"))
        with pytest.raises(ModelError, match="no room"):
            await load
        end = asyncio.create_task(worker.reap())
        await until(lambda: isinstance(link.sent[-1], Chunk) and bool(link.sent[-1].error))
        worker.ended(0)
        await end

    loading(test)
