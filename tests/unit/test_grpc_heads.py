"""Heads of gRPC calls: header blocks in, and the tables of both directions."""

import pytest
from hpack import Encoder

from headrace.serving.front.grpc import frames, status
from headrace.serving.front.grpc.request_heads import HeadDecoder
from helpers.gateway import FakeEngine
from helpers.grpc_bench import GrpcBench, GrpcPeer, Told, answer_of, infer, prefixed

H, END, WHOLE = frames.HEADERS, frames.END_STREAM, frames.END_HEADERS


@pytest.fixture
def peer() -> GrpcPeer:
    return GrpcBench().connect().greet()


def test_a_head_that_is_twofold_is_refused(peer: GrpcPeer) -> None:
    block = peer.head("ModelInfer") + b"\x00\x0dauthorization\x01a" * 2
    peer.calls[1] = told = Told()
    peer.send(frames.frame(H, WHOLE, 1, block))
    assert told.status == status.INVALID_ARGUMENT
    assert "is there twice" in told.sentence


@pytest.mark.parametrize("huffman", [True, False])
def test_a_call_with_too_much_metadata_is_refused_and_others_of_its_connection_go_on(
    huffman: bool,
) -> None:
    bench = GrpcBench(FakeEngine(at_once=False))
    peer = bench.connect().greet()
    under_way = peer.call("ModelInfer", infer())
    fields = [("baggage", "x" * 40_000), ("kept", "in the table")]
    encoder = Encoder()
    for stream in (3, 5):
        peer.calls[stream] = told = Told()
        block = encoder.encode(fields, huffman=huffman)
        peer.send(frames.frame(H, WHOLE | END, stream, block))
        assert told.status == status.RESOURCE_EXHAUSTED
        assert told.sentence == "the call's metadata has more than 32768 bytes"
    bench.engine.finish()
    peer.look()
    assert answer_of(under_way) is not None
    assert peer.goaway is None


def test_the_same_block_means_what_the_table_says_now() -> None:
    decoder = HeadDecoder(head_bytes=1000, fields=10)
    reference = b"\xbe"  # to the newest entry
    for value in (b"1", b"2", b"3"):
        assert decoder.decode(b"\x40\x01a\x01" + value) == {b"a": value}
        for _ in range(2):
            assert decoder.decode(reference) == {b"a": value}


def test_what_is_said_of_an_unreadable_head_has_no_addresses_of_memory(peer: GrpcPeer) -> None:
    peer.send(frames.frame(H, WHOLE | END, 1, b"\xff" * 100))
    assert peer.goaway is not None
    assert peer.goaway[2].startswith("the header block cannot be read: ")
    assert "0x" not in peer.goaway[2]


def test_a_client_with_a_small_table_is_told_once_that_none_is_used(peer: GrpcPeer) -> None:
    peer.call("ServerLive")
    for size in (100, 4096, 0):
        peer.shrink_table(size)
        assert answer_of(peer.call("ModelInfer", infer())) is not None
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(infer()), end=True)
    assert peer.call("Nonsense").status == status.UNIMPLEMENTED
    blocks = [payload for kind, _, _, payload in peer.frames if kind == H]
    assert [block.startswith(b"\x20") for block in blocks] == [
        number == 2 for number in range(len(blocks))
    ]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "Nonsense"])
def test_whatever_is_answered_first_begins_with_the_size_of_the_table(method: str) -> None:
    peer = GrpcBench().connect().greet()
    peer.shrink_table(0)
    peer.data(peer.open(method), prefixed(infer()), end=True)
    assert next(payload for kind, *_, payload in peer.frames if kind == H).startswith(b"\x20")
