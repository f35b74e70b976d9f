"""Many calls of one connection at once: others have their turn between them."""

import pytest

from headrace.serving.front.grpc import frames, status
from helpers.grpc_bench import GrpcBench, GrpcPeer, Told, prefixed


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
