"""Many calls of one connection at once: others have their turn between them."""

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.serving.front.grpc import frames, status
from headrace.serving.front.grpc.call import Call
from headrace.serving.front.grpc.outgoing import Outgoing
from helpers.gateway import FakeEngine, served_model
from helpers.grpc_bench import GrpcBench, GrpcPeer, Told, answer_of, infer, prefixed


@pytest.fixture
def bench() -> GrpcBench:
    return GrpcBench()


def many_calls(peer: GrpcPeer, count: int, method: str = "ServerLive") -> bytes:
    """In one piece."""
    sent = []
    for stream in range(1, 2 * count, 2):
        peer.calls[stream] = Told()
        block = peer.head(method)
        sent.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block))
        sent.append(frames.frame(frames.DATA, frames.END_STREAM, stream, prefixed(b"")))
    return b"".join(sent)


def ended(peer: GrpcPeer) -> int:
    return sum(told.over for told in peer.look().calls.values())


@pytest.mark.parametrize(
    ("method", "code"), [("ServerLive", status.OK), ("Nonsense", status.UNIMPLEMENTED)]
)
def test_many_calls_of_one_read_let_others_have_their_turn(
    bench: GrpcBench, method: str, code: int
) -> None:
    peer, other = bench.connect().greet(), bench.connect().greet()
    sent = many_calls(peer, 100, method)

    peer.send(sent[:-5], turns=False)
    assert 0 < ended(peer) < 20
    assert not peer.transport.reading, "who has much to be answered is not read"
    peer.send(sent[-5:], turns=False)
    other.send(many_calls(other, 1), turns=False)
    assert ended(other) == 1
    peer.send(b"")

    assert ended(peer) == 100
    assert [told.status for told in peer.calls.values()] == [code] * 100
    assert peer.transport.reading


def test_answers_that_are_not_taken_count_as_well(bench: GrpcBench) -> None:
    peer = bench.connect().greet(window=0)

    peer.send(many_calls(peer, 100), turns=False)

    assert ended(peer) == 0
    assert 0 < len(peer.connection.calls) < 20


def test_calls_wait_for_a_peer_that_does_not_read(bench: GrpcBench) -> None:
    peer = bench.connect().greet()
    peer.send(many_calls(peer, 100), turns=False)
    known = ended(peer)

    peer.connection.pause_writing()
    peer.send(b"")
    assert ended(peer) == known
    assert not peer.connection.calls, "nor is one answered whose answer would wait here"
    assert not peer.transport.reading
    peer.connection.resume_writing()
    assert not peer.transport.reading
    peer.send(b"")

    assert ended(peer) == 100
    assert peer.transport.reading


def test_of_a_peer_that_leaves_no_more_calls_are_answered(bench: GrpcBench) -> None:
    peer = bench.connect().greet()
    peer.send(many_calls(peer, 100), turns=False)
    known = ended(peer)

    peer.transport.abort()
    peer.send(b"")

    assert ended(peer) == known
    assert bench.server.buffered_bytes == 0


PING = frames.frame(frames.PING, 0, 0, b"and then")
PONG = (frames.PING, frames.ACK, 0, b"and then")
LITTLE = {
    "window updates": frames.window_update(0, 1),
    "unknown kinds": frames.frame(0x42, 0, 0),
    "settings": frames.settings(((frames.INITIAL_WINDOW_SIZE, 1000),)),
    "pieces of a message": frames.frame(frames.DATA, 0, 1, b"x"),
}
"""Frames that ask for nothing, or next to it."""


@pytest.mark.parametrize("kind", LITTLE)
@pytest.mark.parametrize("at_once", [4_000, 50])
def test_many_frames_let_others_have_their_turn(bench: GrpcBench, kind: str, at_once: int) -> None:
    peer, other = bench.connect().greet(), bench.connect().greet()
    peer.data(peer.open("ModelInfer"), prefixed(bytes(9_000))[:-8_000])

    for _ in range(0, 4_000, at_once):
        if peer.transport.reading:
            peer.send(LITTLE[kind] * at_once, turns=False)
    assert not peer.transport.reading, "who sends much, in one read or in several, is not read"
    peer.send(PING, turns=False)
    assert PONG not in peer.frames
    other.send(many_calls(other, 1), turns=False)
    assert ended(other) == 1
    peer.send(b"")

    assert PONG in peer.frames
    assert peer.transport.reading


def test_a_head_that_takes_long_to_read_counts_as_many_frames(bench: GrpcBench) -> None:
    peer = bench.connect().greet()
    block = peer.head("ServerLive", x="z" * 8_000)

    peer.send(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block) + PING, turns=False)

    assert PONG not in peer.frames
    peer.send(b"")
    assert PONG in peer.frames


def test_a_client_that_updates_its_windows_for_each_kilobyte_it_takes_is_not_cut_off() -> None:
    picture = (("x", "float32", (40_000,)),)
    bench = GrpcBench(FakeEngine(served_model(inputs=picture, outputs=picture)))
    peer = bench.connect().greet()
    x = np.ones((1, 40_000), np.float32)
    updates = 0
    while updates < 20_000:
        stream = peer.open("ModelInfer")
        for start in range(0, len(body := prefixed(infer(x=x))), frames.DEFAULT_FRAME_BYTES):
            piece = body[start : start + frames.DEFAULT_FRAME_BYTES]
            peer.data(stream, piece, end=start + len(piece) == len(body))
        told, taken = peer.calls[stream], 0
        while taken < len(told.data):
            taken += 2048
            peer.send(frames.window_update(0, 2048) + frames.window_update(stream, 2048))
            updates += 2
        assert len(answer_of(told)) == 40_000
    assert peer.goaway is None


def test_of_many_sizes_of_a_window_the_last_alone_is_applied_to_the_calls(
    bench: GrpcBench,
) -> None:
    class Calls(list[Call]):
        rounds = 0

        def __iter__(self) -> Iterator[Call]:
            self.rounds += 1
            return super().__iter__()

    connection = bench.connect().greet().connection
    calls, out = Calls([Call(connection, 1, {})]), Outgoing()
    sizes = [*range(1_000), 70_000]

    out.set(frames.settings((frames.INITIAL_WINDOW_SIZE, size) for size in sizes)[9:], calls)

    assert (calls[0].send_window, out.call_window) == (70_000, 70_000)
    assert calls.rounds == 1
