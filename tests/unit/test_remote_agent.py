"""An agent when one of its sessions fails: the others are watched, and nobody waits in vain."""

import asyncio
import contextlib
import errno
import logging
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.domain.errors import ModelError
from headrace.serving.workers import host as local
from headrace.serving.workers.affinity import allowed_cores
from headrace.serving.workers.frames import Run
from headrace.serving.workers.kept_files import KeptFiles
from headrace.serving.workers.machine_memory import MachineMemory
from headrace.serving.workers.remote import agent as agent_module
from headrace.serving.workers.remote import files
from headrace.serving.workers.remote.agent import Agent, AgentOptions, run_agent
from headrace.serving.workers.remote.cluster import ClusterAddresses, close_links
from headrace.serving.workers.remote.files import held_alone
from headrace.serving.workers.remote.frames import Expect, Order, Tensors
from headrace.serving.workers.remote.handshake import HandshakeError
from headrace.serving.workers.remote.host import FileHashes, RemoteHost
from headrace.serving.workers.remote.link import Address, AgentLink
from headrace.serving.workers.remote.peers import Peers
from headrace.serving.workers.remote.session import Session, _Worker
from headrace.serving.workers.worker_process import WorkerSpec
from helpers.agents import opened_links
from helpers.control_groups import limited, machine
from helpers.cores import GONE
from helpers.waiting import until

PATIENCE_S = 60.0
SECRET = b"a secret of sixteen bytes"
ALLOWED = allowed_cores()


def play(
    scene: Callable[[Agent, ClusterAddresses], Awaitable[None]],
    folder: Path,
    cores: tuple[int, ...] = (),
) -> None:
    """Over an agent that lets in."""

    async def main() -> None:
        agent = Agent(
            AgentOptions(
                name="n0",
                host="127.0.0.1",
                port=0,
                secret=SECRET,
                cache=folder,
                cores=cores,
                grace_s=0.0,
            )
        )
        host, port = agent.open()
        serving = asyncio.ensure_future(agent.serve())
        try:
            address = Address(host=host, port=port)
            await scene(agent, ClusterAddresses(nodes={"n0": address}, secret=SECRET))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_who_is_called_says_all_the_time_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of tensors that nobody wants there."""
    monkeypatch.setattr(agent_module, "_LOOK_S", 0.01)

    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        address, peers = cluster.nodes["n0"], Peers(SECRET, None)
        assert address is not None
        failed = list[str]()
        for transfer in (1, 2):
            tensors = Tensors(7, transfer), memoryview(bytes(8))
            peers.push(address.host, address.port, *tensors, failed.append)
        [peer] = peers._peers.values()
        await until(lambda: not peer._waiting and not peer._unknown)
        assert peer._connection is not None
        peer._connection.heard_at_s = -1.0
        await until(lambda: peer._connection is not None and peer._connection.heard_at_s > 0)
        assert not failed
        peers.close()

    play(scene, tmp_path)


@pytest.mark.parametrize(
    ("told", "expected"),
    [((), ALLOWED), ((GONE, ALLOWED[0]), ALLOWED[:1]), ((GONE,), ALLOWED)],
    ids=["nothing", "one-is-gone", "all-are-gone"],
)
def test_a_gateway_is_told_of_the_cores_that_are_allowed_when_it_calls(
    tmp_path: Path, told: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        links = await opened_links(cluster, "n0")
        hello = links["n0"].hello
        assert hello is not None
        assert hello.cores == expected
        await close_links(links)

    play(scene, tmp_path, told)


def test_a_path_is_not_kept_for_tensors_that_nobody_will_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that was damaged on the way, say."""
    monkeypatch.setattr(agent_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(agent_module, "LEASE_S", 0.1)

    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        links = await opened_links(cluster, "n0")
        address, peers = links["n0"].address, Peers(SECRET, None)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tensors = Tensors(links["n0"].session, 1 << 40), memoryview(bytes(8))
        peers.push(address.host, address.port, *tensors, ended.set_result)
        number = 0
        while not ended.done():
            # Others are expected all the time.
            number += 1
            links["n0"].send(Expect(number, 0, 8))
            await asyncio.sleep(0)
        assert "it has closed its end" in await ended
        peers.close()
        await close_links(links)

    play(scene, tmp_path)


def test_a_session_that_fails_costs_no_other_its_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_module, "_LOOK_S", 0.01)

    class Failing:
        """What the watch sees of a session."""

        connection = None
        detached_at_s = math.inf

        def look(self) -> None:
            raise BufferError("something is held")

        async def close(self) -> None:
            """Nothing is."""

    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        links = await opened_links(cluster, "n0")
        [session] = agent.sessions()
        failing: Any = Failing()
        agent._sessions.insert(0, failing)
        await until(lambda: "a session is not watched for a moment" in caplog.text)
        session.detach("its gateway is gone")
        await until(lambda: session.closed)
        assert failing in agent.sessions()
        await close_links(links)

    with caplog.at_level(logging.ERROR):
        play(scene, tmp_path)


def test_a_gateway_whose_session_cannot_be_made_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Agent, frame: object) -> None:
        raise BufferError("something is held")

    monkeypatch.setattr(Agent, "_new_session", fail)

    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        with pytest.raises(HandshakeError, match="it has closed its end"):
            await opened_links(cluster, "n0")
        assert not agent.sessions()

    play(scene, tmp_path)
    assert "a session cannot be opened" in caplog.text


def test_an_agent_whose_folder_another_agent_has_is_refused_before_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ENDING_S", 0.0)

    def unready(host: str, port: int) -> None:
        raise AssertionError("it listens")

    options = AgentOptions(name="n0", host="127.0.0.1", port=0, secret=SECRET, cache=tmp_path)
    with (
        held_alone([tmp_path]),
        pytest.raises(ModelError, match=r"another agent keeps .* here\n  try    a --cache"),
    ):
        asyncio.run(run_agent(options, unready))
    with held_alone([tmp_path]):
        pass


def test_agents_of_one_name_have_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ENDING_S", 0.0)
    folders = [tmp_path / name for name in ("agent-n0", "agent-n0-2", "agent-n0-3")]
    with held_alone(folders) as first, held_alone(folders) as second:
        with held_alone(folders) as third:
            assert [first, second, third] == folders
        with held_alone(folders) as again:
            assert again == third


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_an_agent_refuses_to_listen_under_a_name_that_no_host_can_have(
    tmp_path: Path, host: str
) -> None:
    agent = Agent(AgentOptions(name="n0", host=host, port=0, secret=SECRET, cache=tmp_path))
    with pytest.raises(HandshakeError, match=f"cannot listen on {host}:0: .*label"):
        agent.open()


def test_a_gateway_is_told_of_an_agents_memory_limit_and_of_a_worker_that_was_ended_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, groups = machine(tmp_path / "proc", "0::/\n"), tmp_path / "groups"
    limited(groups, "3000000", used=1_000_000, idle_files=0)
    monkeypatch.setattr(local, "MachineMemory", lambda: MachineMemory(proc, groups))
    lost = list[str]()

    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        links = await opened_links(cluster, "n0")
        links["n0"].keep()
        remote = RemoteHost(links["n0"], FileHashes(), lambda *_: 0)
        await until(lambda: remote.available_memory_bytes() is not None)
        assert remote.available_memory_bytes() == 2_000_000
        spec = WorkerSpec(slot="slot0", executor="emulated", loads=())
        worker = remote.start_worker([spec], lambda _: None, lost.append)
        await worker.load(PATIENCE_S)

        limited(groups, "3000000", used=1_000_000, idle_files=0, kills=1)
        os.kill(worker.process_id, signal.SIGKILL)

        await until(lambda: bool(lost))
        await worker.reap()
        await close_links(links)

    play(scene, tmp_path / "files")
    [reason] = lost
    assert "(the memory limit of its control group, or container, was reached)" in reason


@contextlib.asynccontextmanager
async def coming_back(
    agent: Agent, cluster: ClusterAddresses
) -> AsyncIterator[tuple[Session, "asyncio.Task[None]", Callable[[], None]]]:
    """A session, a gateway that is let in to it again, and what ends the batch of before."""
    links = await opened_links(cluster, "n0")
    [session], address, opened = agent.sessions(), cluster.nodes["n0"], links["n0"]._open_frame
    assert address is not None
    assert opened is not None
    order = Order(1, Run(1, 1, 0, 1, (), ()))
    worker = _Worker(b"", KeptFiles(), None, orders={0: (order, 0.0)})
    session._workers.add(worker)

    def end_batch() -> None:
        worker.orders.clear()
        session._idle.set()

    again = AgentLink("n0", address, SECRET, None, lambda: 0)
    await again.connect()
    opening = asyncio.ensure_future(again.open(opened))
    await until(lambda: session.connection is None)
    yield session, opening, end_batch
    await close_links({**links, "again": again})


def test_a_session_does_not_end_while_its_gateway_is_let_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its time of grace does."""
    monkeypatch.setattr(agent_module, "_LOOK_S", 0.001)

    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        async with coming_back(agent, cluster) as (session, opening, end_batch):
            looks = list[int]()
            session.look = lambda: looks.append(1)  # type: ignore[method-assign]
            await until(lambda: len(looks) > 2)
            end_batch()
            await opening
            assert not session.closed
            assert agent.sessions() == [session]

    play(scene, tmp_path)


def test_a_gateway_is_not_let_in_to_a_session_that_has_ended_meanwhile(tmp_path: Path) -> None:
    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        async with coming_back(agent, cluster) as (session, opening, _):
            await agent.dismissed(session)
            with pytest.raises(HandshakeError, match=r"refuses this gateway: .* has just ended"):
                await opening
        links = await opened_links(cluster, "n0")
        assert session not in agent.sessions()
        await close_links(links)

    play(scene, tmp_path)


def test_callers_that_the_system_has_no_descriptor_for_wait_and_end_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loops = asyncio.SelectorEventLoop
    accept, refused = loops.sock_accept, list[int]()

    async def short_of_descriptors(
        loop: asyncio.SelectorEventLoop, listener: socket.socket
    ) -> tuple[socket.socket, Any]:
        if len(refused) < 2:
            refused.append(errno.EMFILE)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await accept(loop, listener)

    async def scene(agent: Agent, cluster: ClusterAddresses) -> None:
        links = await opened_links(cluster, "n0")
        assert links["n0"].is_up
        await close_links(links)

    monkeypatch.setattr(loops, "sock_accept", short_of_descriptors)
    monkeypatch.setattr(agent_module, "_ACCEPT_AGAIN_S", 0.0)
    play(scene, tmp_path)
    assert len(refused) == 2
    assert caplog.text.count("callers are kept waiting") == 1
