"""HTTP/2 as gRPC's clients speak it, and as nobody should: frames, windows, ends."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from headrace.serving.front.grpc import frames, status
from headrace.serving.front.http_messages import Limits
from helpers.gateway import FakeEngine
from helpers.grpc_bench import GrpcBench, GrpcPeer, Told, X, answer_of, infer, prefixed

H, D = frames.HEADERS, frames.DATA
END, WHOLE = frames.END_STREAM, frames.END_HEADERS


@pytest.fixture
def bench() -> GrpcBench:
    return GrpcBench()


@pytest.fixture
def peer(bench: GrpcBench) -> GrpcPeer:
    return bench.connect().greet()


def test_bytes_may_come_one_by_one(bench: GrpcBench) -> None:
    peer = bench.connect()
    block = peer.head("ModelInfer")
    body = prefixed(infer())
    sent = b"".join(
        (
            frames.PREFACE,
            frames.settings(()),
            frames.frame(H, 0, 1, block[:5]),
            frames.frame(frames.CONTINUATION, 0, 1, block[5:9]),
            frames.frame(frames.CONTINUATION, WHOLE, 1, block[9:]),
            frames.frame(D, 0, 1, body[:3]),
            frames.frame(D, frames.PADDED, 1, b"\x07" + body[3:9] + bytes(7)),
            frames.frame(D, END, 1, body[9:]),
        )
    )
    peer.calls[1] = told = Told()
    for number in range(len(sent)):
        peer.send(sent[number : number + 1])
    np.testing.assert_array_equal(answer_of(told), X[0] + 1)
    assert bench.server.buffered_bytes == 0


def test_many_calls_share_a_connection_and_the_same_head_is_read_once(bench: GrpcBench) -> None:
    peer = bench.connect().greet()
    for number in range(50):
        told = peer.call("ModelInfer", infer(x=X * number), grpc_timeout=f"{number + 1}H")
        np.testing.assert_array_equal(answer_of(told), X[0] * number + 1)
    for number in range(50):
        np.testing.assert_array_equal(
            answer_of(peer.call("ModelInfer", infer(x=X * number))), X[0] * number + 1
        )
    assert not peer.connection.calls


def test_an_answer_waits_for_the_windows_of_its_call_and_of_the_connection() -> None:
    wide = FakeEngine()
    bench = GrpcBench(wide)
    peer = bench.connect().greet(window=10)
    told = peer.call("ModelInfer", infer())
    assert (len(told.data), told.over) == (10, False)
    peer.send(frames.window_update(1, 7))
    assert len(told.data) == 17
    peer.send(frames.settings(((frames.INITIAL_WINDOW_SIZE, 1000),)))
    np.testing.assert_array_equal(answer_of(told), X[0] + 1)


def test_a_smaller_window_than_what_was_sent_waits_until_it_is_positive(peer: GrpcPeer) -> None:
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(infer()))
    sent = len(peer.calls[stream].data)
    peer.send(frames.settings(((frames.INITIAL_WINDOW_SIZE, 0),)))
    peer.data(stream, prefixed(infer()))
    peer.send(frames.window_update(stream, sent))
    assert len(peer.calls[stream].data) == sent
    peer.send(frames.window_update(stream, sent))
    assert len(peer.calls[stream].messages) == 2


def test_settings_and_pings_are_acknowledged(peer: GrpcPeer) -> None:
    peer.send(frames.frame(frames.PING, 0, 0, b"12345678"))
    assert (frames.PING, frames.ACK, 0, b"12345678") in peer.frames
    assert (frames.SETTINGS, frames.ACK, 0, b"") in peer.frames


def test_unknown_frames_settings_and_priorities_are_ignored(peer: GrpcPeer) -> None:
    peer.send(frames.frame(0x42, 0xFF, 7, b"what is this"))
    peer.send(frames.settings(((0x99, 5),)))
    peer.send(frames.frame(frames.PRIORITY, 0, 1, bytes(5)))
    assert answer_of(peer.call("ModelInfer", infer())) is not None


def _call(peer: GrpcPeer, stream: int, flags: int = END | WHOLE) -> bytes:
    return frames.frame(H, flags, stream, peer.head("ServerLive"))


def _resets(peer: GrpcPeer) -> bytes:
    return b"".join(
        frames.frame(H, WHOLE, stream, b"\x83") + frames.reset(stream, frames.CANCEL)
        for stream in range(1, 40_000, 2)
    )


_PING = frames.frame(frames.PING, 0, 0, bytes(8))
_ENTRY = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000
"""Enters a field of 4,000 bytes into the table, where one byte (0xbe) stands for it."""
_PIECE = frames.frame(frames.CONTINUATION, 0, 1, bytes(4000))

Wrong = tuple[int, Callable[[GrpcPeer], bytes]]
WRONG: dict[str, Wrong] = {
    "even stream": (frames.PROTOCOL_ERROR, lambda peer: _call(peer, 2)),
    "data before headers": (frames.PROTOCOL_ERROR, lambda _: frames.frame(D, 0, 9, b"x")),
    "reset of nothing": (frames.PROTOCOL_ERROR, lambda _: frames.reset(9, 0)),
    "promise": (
        frames.PROTOCOL_ERROR,
        lambda _: frames.frame(frames.PUSH_PROMISE, 0, 1, bytes(8)),
    ),
    "huge frame": (frames.FRAME_SIZE_ERROR, lambda _: frames.frame_head(1 << 20, D, 0, 1)),
    "padding too long": (
        frames.PROTOCOL_ERROR,
        lambda _: frames.frame(H, WHOLE | frames.PADDED, 1, b"\xff" + bytes(9)),
    ),
    "interrupted block": (frames.PROTOCOL_ERROR, lambda peer: _call(peer, 1, END) + _PING),
    "continuation of nothing": (
        frames.PROTOCOL_ERROR,
        lambda _: frames.frame(frames.CONTINUATION, WHOLE, 1, b"x"),
    ),
    "broken block": (
        frames.COMPRESSION_ERROR,
        lambda _: frames.frame(H, WHOLE, 1, b"\xff\xff\xff\xff\xff\xff\x7f"),
    ),
    "number without end": (
        frames.COMPRESSION_ERROR,
        lambda _: frames.frame(H, WHOLE, 1, b"\x3f" + b"\xff" * 30_000),
    ),
    "header bomb": (
        frames.ENHANCE_YOUR_CALM,
        lambda _: frames.frame(H, WHOLE, 1, _ENTRY + b"\xbe" * 100),
    ),
    "block of two frames too large": (
        frames.ENHANCE_YOUR_CALM,
        lambda _: (
            frames.frame(H, 0, 1, bytes(40_000))
            + frames.frame(frames.CONTINUATION, WHOLE, 1, bytes(40_000))
        ),
    ),
    "table resized for ever": (
        frames.COMPRESSION_ERROR,
        lambda _: frames.frame(H, WHOLE, 1, b"\x20" * 30_000),
    ),
    "continuation flood": (
        frames.ENHANCE_YOUR_CALM,
        lambda _: frames.frame(H, 0, 1, b"") + _PIECE * 20,
    ),
    "ping flood": (frames.ENHANCE_YOUR_CALM, lambda _: _PING * 20_000),
    "settings flood": (frames.ENHANCE_YOUR_CALM, lambda _: frames.settings(()) * 20_000),
    "window update flood": (
        frames.ENHANCE_YOUR_CALM,
        lambda _: frames.window_update(0, 1) * 20_000,
    ),
    "flood of unknown frames": (
        frames.ENHANCE_YOUR_CALM,
        lambda _: frames.frame(0x42, 0, 0) * 20_000,
    ),
    "flood of acknowledgements": (
        frames.ENHANCE_YOUR_CALM,
        lambda _: frames.frame(frames.SETTINGS, frames.ACK, 0) * 20_000,
    ),
    "settings without end": (
        frames.ENHANCE_YOUR_CALM,
        lambda _: frames.settings(((frames.INITIAL_WINDOW_SIZE, 1),) * 5_000) * 3,
    ),
    "rapid resets": (frames.ENHANCE_YOUR_CALM, _resets),
    "window overflow": (
        frames.FLOW_CONTROL_ERROR,
        lambda _: frames.window_update(0, frames.MAX_WINDOW),
    ),
    "window of nothing": (frames.FLOW_CONTROL_ERROR, lambda _: frames.window_update(0, 0)),
    "short ping": (frames.FRAME_SIZE_ERROR, lambda _: frames.frame(frames.PING, 0, 0, b"x")),
    "bad settings": (frames.FRAME_SIZE_ERROR, lambda _: frames.frame(frames.SETTINGS, 0, 0, b"x")),
    "frame size of 5": (
        frames.PROTOCOL_ERROR,
        lambda _: frames.settings(((frames.MAX_FRAME_SIZE, 5),)),
    ),
}
"""What no client should send: what it is told, and the bytes."""


@pytest.mark.parametrize("name", WRONG)
def test_who_does_not_keep_to_the_protocol_is_told_so_and_gone(
    bench: GrpcBench, peer: GrpcPeer, name: str
) -> None:
    code, wrong = WRONG[name]
    peer.send(wrong(peer))
    assert peer.goaway is not None
    assert peer.goaway[1] == code, peer.goaway
    assert peer.transport.closed
    assert not bench.server.connections
    assert bench.server.buffered_bytes == 0


def test_who_speaks_http_1_here_is_told_so_in_http_1(bench: GrpcBench) -> None:
    peer = bench.connect()
    peer.connection.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert peer.transport.written.startswith(b"HTTP/1.1 400 ")
    assert peer.transport.written.endswith(b"port of its own\n")
    assert peer.transport.closed


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_leave_nothing_behind(bench: GrpcBench, seed: int) -> None:
    random_ = random.Random(seed)
    peer = bench.connect().greet()
    peer.open("ModelStreamInfer")
    for _ in range(200):
        kind, flags = random_.randrange(11), random_.randrange(64)
        payload = random_.randbytes(random_.choice((0, 4, 5, 6, 8, 30)))
        if peer.transport.closed:
            break
        peer.connection.data_received(
            frames.frame(kind, flags, random_.choice((0, 1, 3, 5)), payload)
        )
    peer.transport.abort()
    assert bench.server.buffered_bytes == 0
    assert not bench.server.connections


# -- the end -----------------------------------------------------------------------------------


def test_a_retired_server_answers_and_asks_its_clients_to_go_elsewhere(bench: GrpcBench) -> None:
    peer = bench.connect().greet()
    bench.server.retire()
    assert peer.look().goaway == (frames.MAX_WINDOW, frames.NO_ERROR, "")
    for _ in range(2):
        np.testing.assert_array_equal(answer_of(peer.call("ModelInfer", infer())), X[0] + 1)
    assert peer.goaway == (frames.MAX_WINDOW, frames.NO_ERROR, "")
    assert not peer.transport.closed


@pytest.mark.parametrize("end", ["retire", "drain"])
def test_who_has_only_just_connected_is_answered_before_it_is_told_of_the_end(
    bench: GrpcBench, end: str
) -> None:
    peer = bench.connect()
    getattr(bench.server, end)()
    peer.greet()
    assert peer.frames[0][0] == frames.SETTINGS, "nothing may come before them"
    np.testing.assert_array_equal(answer_of(peer.call("ModelInfer", infer())), X[0] + 1)
    assert peer.goaway == (None if end == "retire" else (1, frames.NO_ERROR, ""))


def test_what_is_under_way_when_the_last_call_is_named_is_read_and_refused() -> None:
    bench = GrpcBench(limits=Limits(linger_timeout_s=2))
    answered, silent = bench.connect().greet(), bench.connect().greet()
    answered.call("ModelInfer", infer())
    bench.server.drain()
    assert answered.look().goaway == (1, frames.NO_ERROR, "")
    # Sent before the client has read that; to close now would reset the connection.
    late = answered.call("ModelInfer", infer())
    assert late.reset == frames.REFUSED_STREAM
    assert not answered.transport.closed
    answered.transport.close()
    assert bench.server.connections == {silent.connection}
    bench.server.sweep(1.5)
    silent.send(frames.frame(frames.PING, 0, 0, bytes(8)))
    assert not silent.transport.closed
    bench.server.sweep(2.5)
    assert silent.transport.closed, "who goes on sending is not waited for any longer"


def test_draining_answers_what_was_accepted_and_ends_streams(bench: GrpcBench) -> None:
    engine = FakeEngine(at_once=False)
    bench = GrpcBench(engine)
    peer = bench.connect().greet()
    told = peer.call("ModelInfer", infer())
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(infer()))
    idle = peer.open("ModelStreamInfer")
    bench.server.drain()
    peer.look()
    assert peer.calls[idle].status == status.UNAVAILABLE
    assert peer.goaway == (5, frames.NO_ERROR, "")
    assert not peer.transport.closed
    engine.finish()
    engine.finish()
    peer.look()
    np.testing.assert_array_equal(answer_of(told), X[0] + 1)
    assert len(peer.calls[stream].messages) == 1
    assert peer.calls[stream].status == status.UNAVAILABLE
    assert not peer.transport.closed
    bench.server.sweep(3.0)
    assert peer.transport.closed


def test_an_error_in_our_own_code_is_an_id_and_nothing_else(
    bench: GrpcBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = bench.connect().greet()

    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(type(bench.engine), "answer_to", broken)
    told = peer.call("ModelInfer", infer())
    assert told.status == status.INTERNAL
    assert "secret" not in told.sentence
    assert "a secret" in caplog.text
    monkeypatch.undo()
    assert peer.call("ModelInfer", infer()).status == 0
