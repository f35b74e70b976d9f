"""Sequences of clients that send steps ahead of their answers: gRPC streams, pipelined HTTP."""

import json

import numpy as np
import pytest

from headrace.serving.core.sequence_gaps import MOST, SequenceGaps
from headrace.serving.core.sequences import Step
from headrace.serving.core.signature import InvalidError
from headrace.serving.engine.inference import Refusal
from headrace.serving.front.grpc.messages import message
from helpers.gateway import Bench, Client, post
from helpers.grpc_bench import GrpcBench, Told, prefixed
from helpers.sequences import SumEngine

REFUSAL = Refusal(reason="deadline", message="too much work", retry_after_us=9)


def step(x: float, sequence: int = 7, *, name: str = "x", sequence_start: bool = False) -> bytes:
    """One message of a stream; `name` is its tensor's."""
    request = message("ModelInferRequest")(model_name="sums")
    request.inputs.add(name=name, datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.float32(x).tobytes())
    request.parameters["sequence_id"].int64_param = sequence
    request.parameters["sequence_start"].bool_param = sequence_start
    return prefixed(request.SerializeToString())


def sums(told: Told) -> list[float | None]:
    """What each message of a stream was answered; None: an error."""
    found = list[float | None]()
    for written in told.messages:
        response = message("ModelStreamInferResponse").FromString(written)
        raw = response.infer_response.raw_output_contents
        found.append(None if response.error_message else -np.frombuffer(raw[0], np.float32)[0])
    return found


def test_a_client_far_ahead_of_its_answers_on_one_stream_gets_them_all() -> None:
    bench = GrpcBench(SumEngine(at_once=False))
    peer = bench.connect().greet(1 << 20)
    stream = peer.open("ModelStreamInfer")
    for x in range(200):
        peer.data(stream, step(x, sequence_start=x == 0))
    while bench.engine.open:
        bench.engine.finish()
    peer.look()
    assert sums(peer.calls[stream]) == np.cumsum(range(200)).tolist()


def errors(told: Told) -> list[str]:
    """What each message of a stream was told; empty: an answer."""
    return [
        str(message("ModelStreamInferResponse").FromString(written).error_message)
        for written in told.messages
    ]


@pytest.mark.parametrize("wrong", ["its tensor", "refused"])
def test_nothing_that_a_stream_sends_behind_a_missing_step_runs_before_a_new_first_one(
    wrong: str,
) -> None:
    bench = GrpcBench(SumEngine(at_once=False))
    peer = bench.connect().greet()
    stream = peer.open("ModelStreamInfer")

    def send(*steps: bytes, refused: bool = False) -> None:
        for each in steps:
            peer.data(stream, each)
            while bench.engine.open:
                bench.engine.finish(REFUSAL if refused else None)
            peer.look()

    send(step(1, sequence_start=True))
    if wrong == "refused":
        send(step(2), refused=True)
    else:
        send(step(2, name="z"))
    send(step(3), step(4), step(5, 8, sequence_start=True), step(6, 8))
    told = peer.calls[stream]
    assert sums(told) == [1, None, None, None, 5, 11]
    assert "begin anew with sequence_start, or go on from that step" in errors(told)[2]
    send(step(7, sequence_start=True), step(8))
    assert sums(told)[6:] == [7, 15]


def test_what_a_stream_had_sent_far_behind_a_missing_step_is_refused_too() -> None:
    bench = GrpcBench(SumEngine(at_once=False))
    peer = bench.connect().greet(1 << 20)
    stream = peer.open("ModelStreamInfer")
    for x in range(150):
        peer.data(stream, step(x, sequence_start=x == 0))
    for x in range(20):
        bench.engine.finish(REFUSAL if x == 19 else None)
    while bench.engine.open:
        bench.engine.finish()
    peer.look()
    assert sums(peer.calls[stream]) == [*np.cumsum(range(19)).tolist(), *[None] * 131]


def test_another_stream_may_go_on_from_the_missing_step() -> None:
    bench = GrpcBench(SumEngine())
    peer = bench.connect().greet()
    first, second = (peer.open("ModelStreamInfer") for _ in range(2))
    peer.data(first, step(1, sequence_start=True) + step(2, name="z") + step(3))
    peer.data(second, step(2) + step(3))
    assert sums(peer.calls[first]) == [1, None, None]
    assert sums(peer.calls[second]) == [3, 6]


def test_the_gaps_of_a_stream_are_bounded_and_the_oldest_is_forgotten() -> None:
    gaps = SequenceGaps()
    for sequence in range(1, MOST + 1):
        gaps.add("sums", Step(sequence))
    gaps.add("sums", Step(1))
    gaps.add("sums", Step(MOST + 1))
    gaps.check("sums", Step(2))
    for sequence in (1, 3, MOST + 1):
        with pytest.raises(InvalidError, match=f"sequence {sequence} in this stream"):
            gaps.check("sums", Step(sequence))
    gaps.check("others", Step(1))


def asked(x: float, *, name: str = "x", **parameters: int) -> bytes:
    tensor = {"name": name, "datatype": "FP32", "shape": [1, 1], "data": [x]}
    document = {"inputs": [tensor], "parameters": {"sequence_id": 7, **parameters}}
    return post("/v2/models/sums/infer", json.dumps(document).encode())


def said(client: Client) -> list[float | int]:
    """Sums that were answered, and the statuses of what was not."""
    return [
        -reply.json["outputs"][0]["data"][0] if reply.status == 200 else reply.status
        for reply in client.replies()
    ]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_pipelined_behind_a_missing_step_is_not_read(at_once: bool) -> None:
    bench = Bench(SumEngine(at_once=at_once))
    client = bench.connect()
    client.send(asked(1, sequence_start=True) + asked(2, name="z") + asked(4) + asked(8)[:-9])
    if not at_once:
        bench.engine.finish()
    client.send(asked(8)[-9:])
    assert said(client) == [1, 400]
    assert client.replies()[1].headers["connection"] == "close"
    assert client.transport.half_closed
    assert not bench.engine.open

    again = bench.connect()
    for x in (2, 4):
        again.send(asked(x))
        if not at_once:
            bench.engine.finish()
    assert said(again) == [3, 7]


def test_what_comes_behind_a_missing_step_of_a_client_that_has_sent_ahead_is_not_read() -> None:
    client = Bench(SumEngine()).connect()
    client.send(asked(1, sequence_start=True) + asked(2))
    client.send(asked(3, name="z"))
    client.send(asked(4))
    assert said(client) == [1, 3, 400]


def test_a_client_that_waits_for_each_answer_goes_on_from_the_missing_step() -> None:
    client = Bench(SumEngine()).connect()
    for each in (asked(1, sequence_start=True), asked(2, name="z"), asked(2), asked(4)):
        client.send(each)
    assert said(client) == [1, 400, 3, 7]
    assert not client.transport.half_closed
