"""Frames and tensors over a socket: whole however they are cut, straight to where they belong."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote.connection import BUFFER_BYTES, LATER, Connection, Place
from headrace.serving.workers.remote.frames import (
    HEADER,
    MAX_BODY_BYTES,
    MAX_PAYLOAD_BYTES,
    AnyRemoteFrame,
    Ping,
    Put,
    Refused,
    decode,
    encode,
    read_header,
)
from helpers.certificates import authority, signed

PATIENCE_S = 60.0


class Keeper:
    """Keeps what comes; payloads in memory of its own."""

    def __init__(self) -> None:
        self.frames: list[AnyRemoteFrame] = []
        self.payloads: list[bytearray | None] = []
        self.later = False
        self.wanted = True
        self.closed: list[str] = []
        self.changed = asyncio.Event()

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        if not isinstance(frame, Put):
            raise FrameError("no payload here")
        if self.later:
            self.changed.set()
            return LATER
        self.payloads.append(bytearray(length) if self.wanted else None)
        last = self.payloads[-1]
        return None if last is None else memoryview(last)

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        self.frames.append(frame)
        self.changed.set()

    def on_closed(self, reason: str) -> None:
        self.closed.append(reason)
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()


Scene = Callable[[Connection, socket.socket, Keeper], Awaitable[None]]


def play(
    scene: Scene,
    runner: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    ends: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair,
) -> None:
    """A connection, the raw socket at its other end, and what it keeps."""

    async def main() -> None:
        ours, theirs = ends()
        connection, keeper = Connection(ours), Keeper()
        connection.handler = keeper
        connection.start()
        try:
            await asyncio.wait_for(scene(connection, theirs, keeper), PATIENCE_S)
        finally:
            connection.close()
            theirs.close()

    runner(main())


async def written(to: socket.socket, data: bytes) -> None:
    to.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(to, data)


MOST_PIECES = 2_000
"""That a payload of megabytes comes in; short ones come byte by byte too."""


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 63, BUFFER_BYTES - 20, BUFFER_BYTES, 100_000]), max_size=6
    ),
    notes=st.lists(st.sampled_from([0, 5, BUFFER_BYTES, 3 * BUFFER_BYTES]), max_size=3),
    cut=st.integers(1, 70_000),
)
def test_whatever_the_cuts_each_frame_comes_once_and_in_order(
    sizes: list[int], notes: list[int], cut: int
) -> None:
    sent: list[AnyRemoteFrame] = [Put(i) for i in range(len(sizes))]
    payloads = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    data = b"".join(
        encode(frame, len(payload)) + payload for frame, payload in zip(sent, payloads, strict=True)
    )
    # Frames that are longer than the buffer come between.
    sent += [Refused("x" * length) for length in notes]
    data += b"".join(encode(frame) for frame in sent[len(sizes) :])

    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        length = max(cut, len(data) // MOST_PIECES)
        for start in range(0, len(data), length):
            await written(theirs, data[start : start + length])
            await asyncio.sleep(0)
        await keeper.until(lambda: len(keeper.frames) == len(sent))
        assert keeper.frames == sent
        assert [bytes(each or b"") for each in keeper.payloads] == [
            each for each in payloads if each
        ]

    play(scene)


def test_a_payload_whose_place_is_not_known_yet_waits_and_so_does_all_behind_it() -> None:
    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        keeper.later = True
        await written(theirs, encode(Put(1), 5) + b"12345" + encode(Ping(7)))
        await keeper.changed.wait()
        assert keeper.frames == []
        keeper.later = False
        connection.resume()
        await keeper.until(lambda: len(keeper.frames) == 2)
        assert keeper.frames == [Put(1), Ping(7)]
        assert [bytes(each or b"") for each in keeper.payloads] == [b"12345"]

    play(scene)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_has_come_behind_a_payload_that_waited_is_not_taken_for_it(
    runner: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """uvloop sees that a socket is readable before it calls what is to be called soon."""

    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        keeper.later = True
        await written(theirs, encode(Put(1), 5) + b"12345")
        await keeper.changed.wait()
        await written(theirs, encode(Put(2), 5) + b"67890")
        keeper.later = False
        connection.resume()
        connection.resume()
        await keeper.until(lambda: len(keeper.frames) == 2)
        assert keeper.frames == [Put(1), Put(2)]
        assert [bytes(each or b"") for each in keeper.payloads] == [b"12345", b"67890"]

    play(scene, runner)


def test_what_tls_has_read_behind_a_payload_that_waited_is_not_forgotten(tmp_path: Path) -> None:
    """It makes no socket readable any more."""
    pair = signed(tmp_path, "agent", authority(tmp_path))
    listens = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listens.load_cert_chain(pair.certificate, pair.key)
    calls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calls.check_hostname, calls.verify_mode = False, ssl.CERT_NONE

    def ends() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        with ThreadPoolExecutor(1) as other:
            called = other.submit(calls.wrap_socket, theirs)
            return listens.wrap_socket(ours, server_side=True), called.result()

    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        keeper.later = True
        length = BUFFER_BYTES + 10 - len(encode(Put(1), BUFFER_BYTES))
        data = encode(Put(1), length) + bytes(length)
        # As records of TLS: the second one does not fit into what is left of the buffer.
        for record in (data[:10], data[10:]):
            await asyncio.to_thread(theirs.sendall, record)
        await keeper.changed.wait()
        keeper.later = False
        connection.resume()
        await keeper.until(lambda: keeper.frames == [Put(1)])

    play(scene, ends=ends)


def test_what_nobody_wants_is_read_and_dropped_also_in_the_middle_of_it() -> None:
    size = 1_000_000

    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        keeper.wanted = False
        await written(theirs, encode(Put(1), size) + bytes([9]) * size + encode(Ping(1)))
        await keeper.until(lambda: Ping(1) in keeper.frames)
        keeper.wanted = True
        await written(theirs, encode(Put(2), size) + bytes([9]) * (size // 2))
        await keeper.until(lambda: keeper.payloads[-1] is not None)
        connection.discard()
        [kept] = [payload for payload in keeper.payloads if payload is not None]
        before = bytes(kept)
        await written(theirs, bytes([9]) * (size - size // 2) + encode(Ping(2)))
        await keeper.until(lambda: Ping(2) in keeper.frames)
        # Nothing was written there since.
        assert bytes(kept) == before

    play(scene)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (HEADER.pack(MAX_BODY_BYTES + 1, 0), "at most"),
        (HEADER.pack(1, MAX_PAYLOAD_BYTES + 1), "payload"),
        (HEADER.pack(3, 0) + b"abc", "not a frame"),
        (encode(Ping(1), 4) + b"1234", "no payload here"),
    ],
)
def test_what_is_no_frame_ends_the_connection_before_memory_is_taken(
    data: bytes, says: str
) -> None:
    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        await written(theirs, data)
        await keeper.until(lambda: bool(keeper.closed))
        assert says in keeper.closed[0]
        assert not connection.open

    play(scene)


def test_large_tensors_leave_from_where_they_lie_and_are_free_when_all_is_sent() -> None:
    size = 8 << 20

    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        payload, done = memoryview(bytearray(b"\x07" * size)), list[int]()
        connection.send(Put(3), payload, lambda: done.append(1), more=True)
        connection.send(Ping(5))
        assert done == []
        theirs.setblocking(False)
        received, loop = bytearray(), asyncio.get_running_loop()
        whole = len(encode(Put(3), size)) + size + len(encode(Ping(5)))
        while len(received) < whole:
            received += await loop.sock_recv(theirs, 1 << 20)
        assert done == [1]
        body, length = read_header(received)
        assert length == size
        assert decode(memoryview(received)[HEADER.size : HEADER.size + body]) == Put(3)
        assert received[HEADER.size + body : HEADER.size + body + size] == payload

    play(scene)


def test_an_end_that_takes_what_waits_for_it_lives_though_it_says_nothing() -> None:
    """And what the system takes for a process that stands still is no sign of life."""
    size = 64 << 20

    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        def pass_by() -> None:
            connection.heard_at_s -= 100
            connection.taking_since_s -= 100

        pass_by()
        for _ in range(10):
            connection.send(Ping(5))
        connection.send(Put(0), memoryview(bytearray(size)))
        assert connection.silent_s() >= 100
        theirs.setblocking(False)
        for _ in range(4):
            assert await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
        assert connection.silent_s() < 100
        pass_by()
        assert connection.silent_s() >= 100, "it has taken no more"

    play(scene)


def test_who_says_much_and_answers_nothing_is_silent_but_for_payloads() -> None:
    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        loop = asyncio.get_running_loop()
        long_ago_s = loop.time() - 100
        connection.heard_at_s = connection.taking_since_s = long_ago_s
        theirs.setblocking(False)
        await loop.sock_sendall(theirs, encode(Ping(5)))
        await keeper.until(lambda: bool(keeper.frames))
        assert connection.silent_s() < 100
        assert connection.silent_s(long_ago_s) >= 100
        assert connection.silent_s(loop.time()) < 100
        await loop.sock_sendall(theirs, encode(Put(0), 1 << 20) + bytes(1 << 19))
        await keeper.until(lambda: bool(keeper.payloads))
        while connection._payload_at_s <= long_ago_s:
            await asyncio.sleep(0)
        assert connection.silent_s(long_ago_s) < 100

    play(scene)


def test_what_cannot_be_sent_any_more_is_given_back() -> None:
    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        given_back = list[int]()
        connection.send(Put(0), memoryview(bytearray(64 << 20)), lambda: given_back.append(1))
        connection.close()
        connection.send(Put(0), memoryview(b"x"), lambda: given_back.append(2))
        assert given_back == [1, 2]
        assert keeper.closed == []

    play(scene)


def test_what_is_said_while_frames_are_handled_leaves_in_one_piece() -> None:
    class Answering(Keeper):
        def on_frame(self, frame: AnyRemoteFrame) -> None:
            super().on_frame(frame)
            [connection] = connections
            connection.send(frame)
            connection.send(Ping(9))

    async def main() -> None:
        # Sockets that keep the borders of what is sent at once.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        connection = Connection(ours)
        connections.append(connection)
        connection.handler = Answering()
        connection.start()
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(theirs, encode(Ping(1)) + encode(Ping(2)))
            expected = [Ping(1), Ping(9), Ping(2), Ping(9)]
            assert await loop.sock_recv(theirs, 1 << 16) == b"".join(map(encode, expected))
            # Outside of that, at once.
            connection.send(Ping(3))
            assert theirs.recv(1 << 16) == encode(Ping(3))
        finally:
            connection.close()
            theirs.close()

    connections: list[Connection] = []
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_who_cannot_handle_what_comes_ends_the_connection_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a payload that it has refused to place, the rest would be read as frames."""

    class Failing(Keeper):
        def place(self, frame: AnyRemoteFrame, length: int) -> Place:
            raise ValueError("operation forbidden on released memoryview object")

    async def scene(connection: Connection, theirs: socket.socket, keeper: Keeper) -> None:
        connection.handler = failing = Failing()
        await written(theirs, encode(Put(0), 8) + bytes(8))
        await failing.until(lambda: bool(failing.closed))
        assert failing.closed == ["this end has failed"]
        assert not failing.frames

    play(scene)
    assert "operation forbidden on released" in caplog.text
