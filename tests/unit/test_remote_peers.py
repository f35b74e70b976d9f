"""What one agent sends another: known to be there, or said to have failed, and never held on to."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.executors.mps import MpsService
from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote import peers as peers_module
from headrace.serving.workers.remote.arrivals import Arrivals
from headrace.serving.workers.remote.connection import SILENCE_S, Connection, Place
from headrace.serving.workers.remote.files import FileStore
from headrace.serving.workers.remote.frames import (
    AnyRemoteFrame,
    Cancel,
    Open,
    Push,
    Received,
    Tensors,
)
from headrace.serving.workers.remote.handshake import HandshakeError
from headrace.serving.workers.remote.peers import Peers
from headrace.serving.workers.remote.session import Session
from headrace.serving.workers.worker_process import WorkerLimits

PATIENCE_S = 60.0
LARGE_BYTES = 64 << 20
"""More than sockets hold."""


class Receiver:
    """The other agent: every call of `Peers` brings one of its connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[Connection] = []
        self.calls = 0
        self.refuses = False
        self.tensors: list[int] = []
        self.changed = asyncio.Event()
        monkeypatch.setattr(peers_module, "call", self._call)

    async def _call(self, *arguments: object) -> socket.socket:
        self.calls += 1
        self.changed.set()
        if self.refuses:
            raise HandshakeError("n1:1: nobody is there")
        near, far = socket.socketpair()
        connection = Connection(far)
        connection.handler = self
        self.connections.append(connection)
        return near

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        return None

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        assert isinstance(frame, Tensors)
        self.tensors.append(frame.transfer)
        self.changed.set()

    def on_closed(self, reason: str) -> None:
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def play(
    scene: Callable[[Peers, Receiver], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        receiver, peers = Receiver(monkeypatch), Peers(b"", None)
        try:
            await scene(peers, receiver)
        finally:
            peers.close()
            receiver.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_what_is_not_known_to_be_there_when_a_connection_ends_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        failed = list[int]()

        def push(transfer: int) -> None:
            def on_failed(reason: str) -> None:
                failed.append(transfer)
                receiver.changed.set()

            peers.push("n1", 1, Tensors(1, transfer), memoryview(bytes(8)), on_failed)

        for transfer in range(3):
            push(transfer)
        await receiver.until(lambda: bool(receiver.connections))
        [connection] = receiver.connections
        connection.start()
        await receiver.until(lambda: receiver.tensors == [0, 1, 2])
        connection.send(Received(2))
        connection.close()
        await receiver.until(lambda: bool(failed))
        assert failed == [2]
        push(3)
        await receiver.until(lambda: receiver.calls == 2)

    play(scene, monkeypatch)


def test_a_peer_that_is_not_heard_is_called_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        failed = list[str]()
        peers.push("n1", 1, Tensors(1, 1), memoryview(bytes(8)), failed.append)
        await receiver.until(lambda: bool(receiver.connections))
        [peer] = peers._peers.values()
        receiver.connections[0].start()
        await receiver.until(lambda: receiver.tensors == [1])
        peers.look()
        assert not failed
        assert peer._connection is not None
        peer._connection.heard_at_s -= SILENCE_S + 1
        peer._connection.taking_since_s -= SILENCE_S + 1
        peers.look()
        assert failed == [f"n1:1: nothing heard of it for {SILENCE_S:g} s"]
        peers.push("n1", 1, Tensors(1, 2), memoryview(bytes(8)), failed.append)
        await receiver.until(lambda: len(receiver.connections) == 2)

    play(scene, monkeypatch)


def test_a_connection_on_which_nothing_arrives_is_ended_though_the_peer_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        failed = list[str]()

        def push(transfer: int) -> None:
            peers.push("n1", 1, Tensors(1, transfer), memoryview(bytes(8)), failed.append)

        push(1)
        await receiver.until(lambda: bool(receiver.connections))
        [peer], [far] = peers._peers.values(), receiver.connections
        far.start()
        await receiver.until(lambda: receiver.tensors == [1])

        async def say(frame: Received) -> None:
            assert peer._connection is not None
            peer._connection.heard_at_s = -1.0
            far.send(frame)
            while peer._connection.heard_at_s < 0:
                await asyncio.sleep(0)

        def pass_by() -> None:
            assert peer._connection is not None
            peer._arriving_since_s -= SILENCE_S + 1
            peer._connection.taking_since_s -= SILENCE_S + 1

        push(2)
        for sign in (Received(0, waits=True), Received(1)):
            pass_by()
            await say(sign)
            peers.look()
        push(3)
        assert not failed
        pass_by()
        await say(Received(1))
        peers.look()
        assert failed == [f"n1:1: nothing has arrived there for {SILENCE_S:g} s"] * 2
        assert far.open

    play(scene, monkeypatch)


def test_where_all_has_arrived_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        failed = list[str]()
        peers.push("n1", 1, Tensors(1, 1), memoryview(bytes(8)), failed.append)
        await receiver.until(lambda: bool(receiver.connections))
        [peer] = peers._peers.values()
        receiver.connections[0].send(Received(1))
        while peer._unknown or not peer._received:
            await asyncio.sleep(0)
        peer._arriving_since_s -= SILENCE_S + 1
        peers.look()
        assert peers._peers

    play(scene, monkeypatch)


def test_what_nobody_wants_any_more_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it has begun to."""

    async def scene(peers: Peers, receiver: Receiver) -> None:
        failed, large = list[str](), memoryview(bytes(LARGE_BYTES))

        def on_failed(reason: str) -> None:
            failed.append(reason)
            receiver.changed.set()

        for transfer in (1, 2, 3, 4):
            peers.push("n1", 1, Tensors(1, transfer), large, on_failed)
        peers.cancel(2)
        await receiver.until(lambda: bool(receiver.connections))
        [peer] = peers._peers.values()
        while not peer._leaving:
            await asyncio.sleep(0)
        for transfer in (1, 4, 4, 7):
            peers.cancel(transfer)
        receiver.connections[0].start()
        await receiver.until(lambda: len(receiver.tensors) == 2)
        assert receiver.tensors == [1, 3]
        assert not peer._waiting
        receiver.connections[0].close()
        await receiver.until(lambda: bool(failed))
        assert len(failed) == 2, "what had left, and is not known to be there"

    play(scene, monkeypatch)


def test_what_nobody_wants_any_more_still_tells_that_nobody_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deadlines are shorter than the time until a call has failed."""

    async def scene(peers: Peers, receiver: Receiver) -> None:
        receiver.refuses = True
        ended = asyncio.get_running_loop().create_future()
        peers.push("n1", 1, Tensors(1, 1), memoryview(bytes(8)), ended.set_result)
        peers.cancel(1)
        assert await ended == "n1:1: nobody is there"

    play(scene, monkeypatch)


def test_a_slow_connection_that_is_taken_from_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        failed = list[str]()
        peers.push("n1", 1, Tensors(1, 1), memoryview(bytes(LARGE_BYTES)), failed.append)
        await receiver.until(lambda: bool(receiver.connections))
        [peer] = peers._peers.values()
        while not peer._leaving:
            await asyncio.sleep(0)
        connection = peer._connection
        assert connection is not None

        def pass_by() -> None:
            assert connection is not None
            peer._arriving_since_s -= SILENCE_S + 1
            connection.heard_at_s -= SILENCE_S + 1
            connection.taking_since_s -= SILENCE_S + 1

        far = receiver.connections[0]._socket
        for _ in range(3):
            pass_by()
            await asyncio.get_running_loop().sock_recv(far, 1 << 20)
            peers.look()
            assert not failed
        pass_by()
        peers.look()
        assert failed

    play(scene, monkeypatch)


def test_who_cannot_be_called_is_called_again_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        receiver.refuses = True
        for _ in range(2):
            ended = asyncio.get_running_loop().create_future()
            peers.push("n1", 1, Tensors(1, 1), memoryview(bytes(8)), ended.set_result)
            assert await ended == "n1:1: nobody is there"
        assert receiver.calls == 2

    play(scene, monkeypatch)


def test_a_peer_that_claims_more_than_it_was_sent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        peers.push("n1", 1, Tensors(1, 1), memoryview(bytes(8)), failed.set_result)
        await receiver.until(lambda: bool(receiver.connections))
        receiver.connections[0].send(Received(2))
        assert await failed == "n1:1: more tensors are there than were sent"

    play(scene, monkeypatch)


@pytest.mark.parametrize("connected", [True, False])
def test_a_session_ends_while_tensors_wait_for_a_peer(
    connected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer reads nothing, and the tensors lie in the session's memory."""

    async def scene(peers: Peers, receiver: Receiver) -> None:
        ours, theirs = socket.socketpair()
        arrivals = Arrivals(FileStore(tmp_path))
        opened = Open(1, "g", "key", LARGE_BYTES, None)
        session = Session(opened, WorkerLimits(), MpsService(), arrivals, peers, lambda: 0)
        await session.attach(Connection(ours), 1)
        session.on_frame(Push(1, 0, LARGE_BYTES, 1, "n1", 1))
        if connected:
            [peer] = peers._peers.values()
            assert peer._calling is not None
            await peer._calling
            assert peer._connection is not None
            assert peer._connection._outgoing, "more than the socket takes"
        await session.close()
        assert session._arena.descriptor == -1
        with pytest.raises(ValueError, match="released"):
            session._arena.view[0]
        theirs.close()

    play(scene, monkeypatch)


def test_a_session_whose_gateway_wants_tensors_no_more_does_not_send_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        ours, theirs = socket.socketpair()
        arrivals = Arrivals(FileStore(tmp_path))
        opened = Open(1, "g", "key", 1 << 16, None)
        session = Session(opened, WorkerLimits(), MpsService(), arrivals, peers, lambda: 0)
        await session.attach(Connection(ours), 1)
        for transfer in (1, 2):
            session.on_frame(Push(transfer, 0, 64, 1, "n1", 1))
        session.on_frame(Cancel(1))
        [peer] = peers._peers.values()
        wanted = [push.frame.transfer for push in peer._waiting if push.payload is not None]
        assert wanted == [2]
        await session.close()
        theirs.close()

    play(scene, monkeypatch)


def test_an_agent_that_is_called_sends_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peers: Peers, receiver: Receiver) -> None:
        peers.push("n1", 1, Tensors(1, 1), memoryview(bytes(8)), lambda reason: None)
        [peer] = peers._peers.values()
        with pytest.raises(FrameError):
            peer.place(Tensors(1, 1), 8)
        with pytest.raises(FrameError):
            peer.on_frame(Tensors(1, 1))

    play(scene, monkeypatch)
