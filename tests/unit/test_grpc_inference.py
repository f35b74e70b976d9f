"""What gRPC makes of inferences: requests in, answers, and every ending as a status."""

import struct
import zlib
from typing import Any

import numpy as np
import pytest

from headrace.serving.core import hopeless
from headrace.serving.engine.inference import Refusal
from headrace.serving.front.grpc import frames, status
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.http_messages import Limits
from helpers.gateway import FakeEngine, served_model
from helpers.grpc_bench import (
    GrpcBench,
    GrpcPeer,
    X,
    answer_of,
    infer,
    infer_request,
    prefixed,
)


@pytest.fixture
def no_time_for_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopeless, "TRIES_PART", 1 << 60)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(at_once=False)


@pytest.fixture
def bench(engine: FakeEngine) -> GrpcBench:
    return GrpcBench(engine)


@pytest.fixture
def peer(bench: GrpcBench) -> GrpcPeer:
    return bench.connect().greet()


def instant() -> GrpcPeer:
    return GrpcBench().connect().greet()


@pytest.mark.parametrize("raw", [True, False])
def test_an_inference_is_answered_with_raw_contents(raw: bool) -> None:
    told = instant().call("ModelInfer", infer(raw=raw, id="r-7"))
    np.testing.assert_array_equal(answer_of(told), X[0] + 1)
    response = told.parsed("ModelInferResponse")
    assert (response.model_name, response.model_version, response.id) == ("adder", "1", "r-7")
    [output] = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", "FP32", [1, 4])
    assert told.headers["content-type"] == "application/grpc"


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("bool", [True, False]),
        ("int8", [-128, 127]),
        ("uint16", [0, 65535]),
        ("int64", [-(2**62), 5]),
        ("uint64", [2**63, 1]),
        ("float64", [0.1, -1e300]),
    ],
)
def test_typed_contents_of_every_kind_arrive_as_the_model_takes_them(
    dtype: str, values: list[Any]
) -> None:
    model = served_model("adder", (("x", dtype, (2,)),), (("y", "float32", (4,)),))
    engine = FakeEngine(model, at_once=False)
    request = message("ModelInferRequest")(model_name="adder")
    names = {"bool": "bool", "int8": "int", "uint16": "uint", "float64": "fp64"}
    datatypes = {"float64": "FP64"}
    tensor = request.inputs.add(
        name="x", datatype=datatypes.get(dtype, dtype.upper()), shape=[1, 2]
    )
    getattr(tensor.contents, f"{names.get(dtype, dtype)}_contents").extend(values)
    GrpcBench(engine).connect().greet().call("ModelInfer", request.SerializeToString())
    [given] = engine.submitted[0].inputs
    assert np.asarray(given).tobytes() == np.array(values, dtype).tobytes()


def changed(**fields: Any) -> bytes:
    request = infer_request()
    for name, value in fields.items():
        if name == "parameters":
            for key, (kind, content) in value.items():
                setattr(request.parameters[key], kind, content)
        elif name in ("shape", "datatype", "name"):
            if name == "shape":
                del request.inputs[0].shape[:]
                request.inputs[0].shape.extend(value)
            else:
                setattr(request.inputs[0], name, value)
        else:
            setattr(request, name, value)
    written: bytes = request.SerializeToString()
    return written


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        (changed(model_name="nobody"), status.NOT_FOUND, "no model is named 'nobody'"),
        (changed(model_version="2"), status.NOT_FOUND, "version 1 only"),
        (changed(shape=[1, 5]), status.INVALID_ARGUMENT, "needs shape [n, 4], got [1, 5]"),
        (changed(shape=[1, 2**62]), status.INVALID_ARGUMENT, "needs shape"),
        (changed(shape=[2, 4]), status.INVALID_ARGUMENT, "raw contents have 16 bytes"),
        (changed(datatype="INT32"), status.INVALID_ARGUMENT, "needs datatype FP32"),
        (changed(id="x" * 257), status.INVALID_ARGUMENT, "longer than 256"),
        (
            changed(parameters={"sequence_id": ("int64_param", 1)}),
            status.INVALID_ARGUMENT,
            "keeps no state between requests",
        ),
        (
            changed(parameters={"timeout": ("int64_param", -1)}),
            status.INVALID_ARGUMENT,
            "'timeout' must lie in",
        ),
        (
            changed(parameters={"priority": ("string_param", "high")}),
            status.INVALID_ARGUMENT,
            "'priority' must be a whole number",
        ),
        (b"\x0a\xff\xff", status.INVALID_ARGUMENT, "cut off"),
        (b"\x0b", status.INVALID_ARGUMENT, "no ModelInferRequest"),
        (b"\x2a\x00" * 5000, status.RESOURCE_EXHAUSTED, "more than 4096 fields"),
        (infer() + b"\x3a\x00", status.INVALID_ARGUMENT, "1 inputs and 2 raw_input_contents"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_told_in_a_sentence(body: bytes, code: int, sentence: str) -> None:
    told = instant().call("ModelInfer", body)
    assert told.status == code
    assert sentence in told.sentence


def test_contents_that_are_raw_and_typed_or_fit_nothing_are_refused() -> None:
    both = infer_request()
    both.inputs[0].contents.fp32_contents.append(1.0)
    few = infer_request(raw=False)
    few.inputs[0].contents.fp32_contents.append(1.0)
    shared = infer_request()
    shared.inputs[0].parameters["shared_memory_region"].string_param = "r"
    classes = infer_request()
    classes.outputs.add(name="y").parameters["classification"].int64_param = 2
    twice = infer_request()
    twice.outputs.add(name="y")
    twice.outputs.add(name="y")
    for request, sentence in (
        (both, "both `contents` and raw"),
        (few, "needs 4 fp32_contents, got 5"),
        (shared, "shared memory is not served"),
        (classes, "classification is not served"),
        (twice, "asks for 2 outputs"),
    ):
        told = instant().call("ModelInfer", request.SerializeToString())
        assert told.status == status.INVALID_ARGUMENT
        assert sentence in told.sentence


def test_the_head_of_a_message_is_bounded_without_its_raw_contents() -> None:
    bench = GrpcBench(limits=Limits(json_bytes=1000))
    peer = bench.connect().greet()
    request = infer_request()
    request.parameters["much"].string_param = "x" * 1000
    told = peer.call("ModelInfer", request.SerializeToString())
    assert told.status == status.RESOURCE_EXHAUSTED
    assert "raw_input_contents" in told.sentence


@pytest.mark.parametrize(
    ("refusal", "code", "pushback"),
    [
        (("deadline", 20_500), status.RESOURCE_EXHAUSTED, "21"),
        (("queue-full", 0), status.RESOURCE_EXHAUSTED, "1000"),
        (("no-slot", 5_000), status.UNAVAILABLE, "5"),
        (("failed", 0), status.UNAVAILABLE, "1000"),
        (("draining", 0), status.UNAVAILABLE, "1000"),
        (("invalid-input", 0), status.INVALID_ARGUMENT, None),
        (("app-error", 0), status.INTERNAL, None),
    ],
)
def test_every_refusal_has_its_status_reason_and_when_to_come_again(
    engine: FakeEngine,
    bench: GrpcBench,
    refusal: tuple[Any, int],
    code: int,
    pushback: str | None,
) -> None:
    peer = bench.connect().greet()
    told = peer.call("ModelInfer", infer())
    reason, retry_us = refusal
    engine.finish(Refusal(reason=reason, message="why: 100 %, ü", retry_after_us=retry_us))
    peer.look()
    assert (told.status, told.sentence) == (code, "why: 100 %, ü")
    assert told.trailers["headrace-reason"] == reason
    assert told.trailers.get("grpc-retry-pushback-ms") == pushback


def test_what_can_never_be_answered_is_not_to_be_tried_again(
    engine: FakeEngine, peer: GrpcPeer
) -> None:
    told = peer.call("ModelInfer", infer())
    engine.finish(Refusal(reason="deadline", message="never", retry_after_us=0, never=True))
    peer.look()
    assert told.trailers["grpc-retry-pushback-ms"] == "-1"
    assert "headrace-retry-after-ms" not in told.trailers


@pytest.mark.parametrize("whole", [True, False], ids=["one frame", "two frames"])
def test_a_message_that_begins_with_no_flag_is_refused(whole: bool) -> None:
    peer = instant()
    sent = b"\2" + prefixed(infer())[1:]
    stream = peer.open("ModelInfer")
    if not whole:
        peer.data(stream, sent[:9])
    told = peer.calls[stream]
    if not told.over:
        peer.data(stream, sent if whole else sent[9:], end=True)
    assert told.status == status.INVALID_ARGUMENT
    assert "begins with 0, or with 1 where it is compressed" in told.sentence


def test_a_message_compressed_nobody_knows_how_is_refused_with_what_is_missing() -> None:
    peer = instant()
    stream = peer.open("ModelInfer")
    peer.data(stream, prefixed(zlib.compress(infer()), compressed=True), end=True)
    told = peer.calls[stream]
    assert told.status == status.INVALID_ARGUMENT
    assert "no grpc-encoding says how" in told.sentence


def test_a_late_answer_is_withheld(engine: FakeEngine, peer: GrpcPeer) -> None:
    told = peer.call("ModelInfer", infer())
    engine.finish(engine.answer_to(engine.open[0], ended_at_us=200_000))
    peer.look()
    assert (told.status, told.messages) == (status.DEADLINE_EXCEEDED, [])
    assert told.trailers["headrace-late-ms"] == "100"


def test_timeout_and_priority_reach_the_dispatcher(engine: FakeEngine, peer: GrpcPeer) -> None:
    parameters = {"timeout": ("uint64_param", 60_000_000), "priority": ("int64_param", 3)}
    peer.call("ModelInfer", changed(parameters=parameters))
    [inference] = engine.submitted
    assert (inference.timeout_us, inference.priority) == (60_000_000, 3)
    peer.call("ModelInfer", changed(parameters={"timeout": ("int64_param", 0)}))
    assert engine.submitted[-1].timeout_us is None


def test_grpcs_own_deadline_shortens_the_objective_and_never_stretches_it(
    engine: FakeEngine, peer: GrpcPeer
) -> None:
    asked = changed(parameters={"timeout": ("int64_param", 60_000_000)})
    for body, timeout in (
        (infer(), "50m"),
        (infer(), "30S"),
        (asked, "30S"),
        (asked, "2M"),
    ):
        peer.call("ModelInfer", body, grpc_timeout=timeout)
    short, model, tightened, own = (inference.timeout_us for inference in engine.submitted)
    assert short is not None
    assert 0 < short <= 50_000
    assert model is None
    assert tightened is not None
    assert 0 < tightened <= 30_000_000
    assert own == 60_000_000
    assert peer.call("ModelInfer", infer(), grpc_timeout="1 S").status == status.INVALID_ARGUMENT


@pytest.mark.usefixtures("no_time_for_tries")
def test_what_has_no_chance_is_refused_unparsed(engine: FakeEngine, peer: GrpcPeer) -> None:
    peer.call("ModelInfer", infer())
    engine.finish(Refusal(reason="deadline", message="too much", retry_after_us=60_000_000))
    told = peer.call("ModelInfer", infer())
    assert told.status == status.RESOURCE_EXHAUSTED
    assert len(engine.submitted) == 1
    peer.call("ModelInfer", changed(parameters={"timeout": ("int64_param", 60_000_000)}))
    assert len(engine.submitted) == 2


def test_a_call_that_its_client_cancels_is_cancelled_and_releases_all(
    engine: FakeEngine, bench: GrpcBench, peer: GrpcPeer
) -> None:
    peer.call("ModelInfer", infer())
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(infer()))
    peer.call("ModelInfer", infer())
    peer.send(frames.reset(1, frames.CANCEL) + frames.reset(stream, frames.CANCEL))
    assert len(engine.cancelled) == 2
    assert len(peer.connection.calls) == 1
    peer.transport.abort()
    assert len(engine.cancelled) == 3
    assert bench.core.counters["adder"].refused == {"cancelled": 3}
    assert bench.server.buffered_bytes == 0
    assert not bench.server.connections
    assert len(bench.server.seats) == 0


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_messages_are_inflated_within_the_limit(encoding: str) -> None:
    bits = {"gzip": 31, "deflate": 15}[encoding]

    def squeezed(data: bytes) -> bytes:
        packer = zlib.compressobj(wbits=bits)
        return prefixed(packer.compress(data) + packer.flush(), compressed=True)

    bench = GrpcBench(limits=Limits(body_bytes=10_000))
    peer = bench.connect().greet()
    for body, code in ((infer(), 0), (bytes(20_000), status.RESOURCE_EXHAUSTED)):
        stream = peer.open("ModelInfer", grpc_encoding=encoding)
        peer.data(stream, squeezed(body), end=True)
        assert peer.calls[stream].status == code
    unknown = peer.open("ModelInfer", grpc_encoding="snappy")
    peer.data(unknown, squeezed(infer()), end=True)
    assert peer.calls[unknown].status == status.UNIMPLEMENTED
    assert bench.server.buffered_bytes == 0


def test_a_stream_answers_in_order_and_says_what_went_wrong(
    engine: FakeEngine, bench: GrpcBench, peer: GrpcPeer
) -> None:
    stream = peer.open("ModelStreamInfer")
    told = peer.calls[stream]
    for number in range(3):
        peer.data(stream, prefixed(infer(x=X * number, id=str(number))))
    first, second, third = engine.open
    engine.open.clear()
    third.on_done(engine.answer_to(third))
    assert peer.look().calls[stream].messages == []
    first.on_done(engine.answer_to(first))
    second.on_done(Refusal(reason="no-slot", message="lost", retry_after_us=5_000))
    peer.data(stream, prefixed(b"\x0a\xff"), end=True)
    responses = [message("ModelStreamInferResponse").FromString(m) for m in told.messages]
    assert [response.infer_response.id for response in responses] == ["0", "1", "2", ""]
    assert [response.error_message for response in responses] == [
        "",
        "lost",
        "",
        "the message is no ModelInferRequest: it is cut off",
    ]
    parameters = responses[1].infer_response.parameters
    assert parameters["headrace-reason"].string_param == "no-slot"
    [values] = struct.iter_unpack("<4f", responses[2].infer_response.raw_output_contents[0])
    assert values == (3, 5, 7, 9)
    assert (told.status, bench.server.buffered_bytes) == (0, 0)


@pytest.mark.usefixtures("no_time_for_tries")
def test_an_answer_of_a_stream_names_its_request_whatever_is_wrong_with_it(
    engine: FakeEngine, bench: GrpcBench, peer: GrpcPeer
) -> None:
    urgent, unknown = infer_request(id="priority"), infer_request(id="model")
    urgent.parameters["priority"].int64_param = -1
    unknown.model_name = "nobody"
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(urgent.SerializeToString()) + prefixed(unknown.SerializeToString()))
    peer.data(
        stream,
        prefixed(infer(x=X[:, :3], id="shape")) + prefixed(infer(id="version", model_version="7")),
    )
    peer.data(stream, prefixed(infer(id="refused")), end=True)
    [inference] = engine.open
    inference.on_done(Refusal(reason="deadline", message="too late", retry_after_us=3_600_000_000))
    behind = peer.open("ModelStreamInfer")
    peer.data(behind, prefixed(infer(id="unread")), end=True)
    assert engine.submitted == [inference], "the last was refused before it was read"

    told = peer.look().calls[stream].messages + peer.calls[behind].messages
    responses = [message("ModelStreamInferResponse").FromString(m) for m in told]
    names = ["priority", "model", "shape", "version", "refused", "unread"]
    assert [response.infer_response.id for response in responses] == names
    assert all(response.error_message for response in responses)


def test_a_stream_takes_so_many_at_once_and_the_rest_as_these_are_answered() -> None:
    engine = FakeEngine(at_once=False)
    peer = GrpcBench(engine, limits=Limits(calls_streamed=2)).connect().greet()
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(infer()) * 5, end=True)
    assert len(engine.submitted) == 2
    while engine.open:
        engine.finish()
    told = peer.look().calls[stream]
    assert (len(told.messages), told.status) == (5, 0)


def test_streamed_answers_that_come_at_once_take_no_stack() -> None:
    peer = GrpcBench().connect().greet(window=1 << 24)
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, (prefixed(b"\x0a\xff") * 8_000), end=True)
    told = peer.calls[stream]
    assert (len(told.messages), told.status) == (8_000, 0)


def test_a_stream_whose_client_takes_no_answers_is_not_read_on() -> None:
    engine = FakeEngine()
    bench = GrpcBench(engine)
    peer = bench.connect().greet(window=100)
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(infer()) * 50)
    assert len(engine.submitted) < 5
    for _ in range(100):
        peer.send(frames.window_update(stream, 100))
    peer.data(stream, b"", end=True)
    told = peer.calls[stream]
    assert (len(told.messages), told.status) == (50, 0)
    assert bench.server.buffered_bytes == 0
