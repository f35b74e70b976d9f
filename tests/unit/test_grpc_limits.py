"""What clients of gRPC may send, hold and leave unread, and for how long."""

import numpy as np
import pytest

from headrace.serving.front.grpc import frames, status
from headrace.serving.front.http_messages import Limits
from helpers.gateway import FakeEngine
from helpers.grpc_bench import GrpcBench, X, answer_of, infer, prefixed


@pytest.fixture
def bench() -> GrpcBench:
    return GrpcBench()


def test_a_message_is_bounded_by_its_announced_length_before_it_is_read() -> None:
    bench = GrpcBench(limits=Limits(body_bytes=1000))
    peer = bench.connect().greet()
    stream = peer.open("ModelInfer")
    peer.data(stream, b"\0" + (1001).to_bytes(4))
    told = peer.calls[stream]
    assert (told.status, told.reset) == (status.RESOURCE_EXHAUSTED, frames.NO_ERROR)
    assert "larger than 1000 bytes" in told.sentence
    assert bench.server.buffered_bytes == 0
    assert peer.call("ServerLive").status == 0


def test_all_messages_together_are_bounded() -> None:
    bench = GrpcBench(limits=Limits(buffered_bytes=5_000))
    peer = bench.connect().greet()
    for _ in range(2):
        stream = peer.open("ModelInfer")
        peer.data(stream, b"\0" + (4_000).to_bytes(4) + bytes(3_000))
    told = peer.calls[stream]
    assert (told.status, told.trailers["grpc-retry-pushback-ms"]) == (status.UNAVAILABLE, "1000")
    peer.send(frames.reset(1, frames.CANCEL))
    assert bench.server.buffered_bytes == 0


def test_more_calls_than_allowed_are_refused_so_that_clients_try_again() -> None:
    bench = GrpcBench(FakeEngine(at_once=False), limits=Limits(calls=2))
    peer = bench.connect().greet()
    for _ in range(3):
        peer.call("ModelInfer", infer())
    assert peer.calls[5].reset == frames.REFUSED_STREAM
    bench.engine.finish()
    peer.look()
    assert peer.call("ModelInfer", infer()).reset is None


def test_windows_open_again_as_data_are_taken(bench: GrpcBench) -> None:
    peer = bench.connect().greet()
    stream = peer.open("ModelInfer")
    body = prefixed(bytes(8 << 20))
    for at in range(0, len(body), 1 << 16):
        peer.data(stream, body[at : at + (1 << 16)])
    opened = [f for f in peer.frames if f[0] == frames.WINDOW_UPDATE]
    assert {frame[2] for frame in opened} == {0, stream}
    peer.send(frames.reset(stream, frames.CANCEL))
    assert bench.server.buffered_bytes == 0


def test_more_than_the_window_allows_is_not_read() -> None:
    engine_holds = GrpcBench(FakeEngine(at_once=False), limits=Limits(calls_streamed=1))
    peer = engine_holds.connect().greet()
    stream = peer.open("ModelStreamInfer")
    for _ in range(40):
        if not peer.calls[stream].over:
            peer.data(stream, prefixed(infer()) + prefixed(bytes(60_000)))
    assert peer.calls[stream].reset == frames.FLOW_CONTROL_ERROR
    assert engine_holds.server.buffered_bytes == 0
    assert len(engine_holds.engine.cancelled) == 1


def test_what_takes_too_long_ends(bench: GrpcBench) -> None:
    silent = bench.connect()
    idle = bench.connect().greet()
    half = bench.connect().greet()
    call = half.open("ModelInfer")
    half.data(call, b"\0\0")
    waiting = bench.connect().greet()
    stream = waiting.open("ModelStreamInfer")
    bench.server.sweep(11.0)
    assert silent.transport.closed
    bench.server.sweep(61.0)
    half.look()
    assert half.calls[call].status == status.INVALID_ARGUMENT
    assert "did not arrive in time" in half.calls[call].sentence
    bench.server.sweep(301.0)
    assert idle.look().goaway is not None
    bench.server.sweep(304.0)
    assert idle.transport.closed
    assert (frames.PING, 0, 0, b"headrace") in waiting.look().frames
    waiting.send(frames.frame(frames.PING, frames.ACK, 0, b"headrace"))
    bench.server.sweep(330.0)
    assert not waiting.transport.closed
    bench.server.sweep(900.0)
    bench.server.sweep(930.0)
    assert waiting.transport.closed
    assert waiting.calls[stream].over is False


def test_while_the_client_does_not_read_it_is_not_read_either(bench: GrpcBench) -> None:
    peer = bench.connect().greet()
    peer.connection.pause_writing()
    assert not peer.transport.reading
    peer.connection.resume_writing()
    assert peer.transport.reading
    peer.connection.pause_writing()
    bench.server.sweep(31.0)
    assert peer.transport.aborted


def test_a_client_that_reads_slowly_is_read_again_as_long_as_it_takes_enough() -> None:
    bench = GrpcBench(limits=Limits(write_timeout_s=5, write_bytes=100))
    peer = bench.connect().greet(window=10)
    peer.call("ModelInfer", infer())
    peer.transport.untaken_bytes = 1_000
    peer.connection.pause_writing()
    for now_s, left in ((6.0, 900), (12.0, 500)):
        peer.transport.untaken_bytes = left
        bench.server.sweep(now_s)
    assert not peer.transport.aborted
    peer.connection.resume_writing()
    bench.server.sweep(16.0)
    assert not peer.look().calls[1].over, "its own time begins when it is read again"
    peer.connection.pause_writing()
    peer.transport.untaken_bytes = 401
    bench.server.sweep(22.0)
    assert peer.transport.aborted


def test_an_answer_of_which_a_byte_is_taken_now_and_then_is_taken_back() -> None:
    bench = GrpcBench(limits=Limits(write_timeout_s=5, write_bytes=20))
    peer = bench.connect().greet(window=1)
    steady, stingy = peer.call("ModelInfer", infer()), peer.call("ModelInfer", infer())
    for now_s in (4.0, 8.0):
        bench.server.sweep(now_s)
        peer.send(frames.window_update(1, 20) + frames.window_update(3, 1))
    assert (len(steady.data), steady.reset) == (41, None)
    assert (len(stingy.data), stingy.reset) == (2, frames.CANCEL)
    peer.send(frames.window_update(1, 1_000))
    np.testing.assert_array_equal(answer_of(steady), X[0] + 1)


def test_answers_without_a_window_count_as_held_and_who_holds_the_most_is_cut_off() -> None:
    bench = GrpcBench(limits=Limits(untaken_bytes=100))
    patient, greedy = (bench.connect().greet(window=1) for _ in range(2))
    patient.call("ModelInfer", infer())
    one_bytes = patient.connection.waiting_bytes
    assert 34 <= one_bytes < 100, "three of them are too much"
    bench.server.sweep(1.0)
    assert not patient.transport.aborted
    for _ in range(2):
        greedy.call("ModelInfer", infer())
    assert greedy.connection.waiting_bytes == 2 * one_bytes
    bench.server.sweep(2.0)
    assert (patient.transport.aborted, greedy.transport.aborted) == (False, True)
