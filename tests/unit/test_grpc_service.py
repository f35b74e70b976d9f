"""What gRPC answers besides inferences; apps; and that it shares one count with HTTP."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.apps import tensor
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.engine.inference import AppAnswer, Inference, ServedModel
from headrace.serving.front.access import Access
from headrace.serving.front.gateway import Gateway
from headrace.serving.front.grpc import status
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.http_server import HttpServer
from helpers.gateway import Client, FakeEngine, FakeTransport, at_once, get, served_model
from helpers.grpc_bench import GrpcBench, GrpcPeer, infer


@pytest.fixture
def bench() -> GrpcBench:
    return GrpcBench()


@pytest.fixture
def peer(bench: GrpcBench) -> GrpcPeer:
    return bench.connect().greet()


def ask(peer: GrpcPeer, method: str, **fields: Any) -> Any:
    request = message(f"{method}Request")(**fields)
    told = peer.call(method, request.SerializeToString())
    assert told.status == 0, told.sentence
    return told.parsed(f"{method}Response")


def test_documents_say_what_http_says(peer: GrpcPeer) -> None:
    assert ask(peer, "ServerMetadata").name == "headrace"
    metadata = ask(peer, "ModelMetadata", name="adder", version="1")
    [given] = metadata.inputs
    assert (given.name, given.datatype, list(given.shape)) == ("x", "FP32", [-1, 4])
    config = ask(peer, "ModelConfig", name="adder").config
    assert config.max_batch_size == 8
    assert config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[
        config.input[0].data_type
    ].name == ("TYPE_FP32")
    assert config.parameters["slo_us"].string_value == "100000"
    [entry] = ask(peer, "RepositoryIndex").models
    assert (entry.name, entry.state) == ("adder", "READY")


def test_a_model_is_known_under_its_version_and_no_other() -> None:
    peer = GrpcBench(FakeEngine(replace(served_model(), version="3"))).connect().greet()
    assert list(ask(peer, "ModelMetadata", name="adder", version="3").versions) == ["3"]
    assert not ask(peer, "ModelReady", name="adder", version="1").ready
    assert ask(peer, "ModelStatistics").model_stats[0].version == "3"
    told = peer.call("ModelInfer", infer(model_version="3"))
    assert told.parsed("ModelInferResponse").model_version == "3"
    assert peer.call("ModelInfer", infer(model_version="1")).status == status.NOT_FOUND


def test_statistics_and_metrics_count_gRPC_and_http_together(
    bench: GrpcBench, peer: GrpcPeer
) -> None:
    peer.call("ModelInfer", infer())
    [counted] = ask(peer, "ModelStatistics", name="adder").model_stats
    assert (counted.inference_count, counted.inference_stats.success.count) == (1, 1)
    access = Access(bind_host="127.0.0.1", token=None)
    http = HttpServer(Gateway(bench.core, access, at_once), Limits())
    client = Client(http.connect(), FakeTransport())
    client.send(get("/metrics"))
    assert b'headrace_requests_total{model="adder",outcome="answered"} 1.0' in client.reply().body


def test_a_server_that_is_not_ready_says_so_everywhere(bench: GrpcBench, peer: GrpcPeer) -> None:
    assert ask(peer, "ModelReady", name="adder").ready
    bench.engine.is_ready = False
    assert not ask(peer, "ServerReady").ready
    assert not ask(peer, "ModelReady", name="adder").ready
    assert ask(peer, "ServerLive").live
    assert not ask(peer, "RepositoryIndex", ready=True).models
    load = message("RepositoryModelLoadRequest")(model_name="adder").SerializeToString()
    assert peer.call("RepositoryModelLoad", load).status == status.UNAVAILABLE
    health = peer.call("/grpc.health.v1.Health/Check").parsed("HealthCheckResponse")
    assert health.status == 2


def test_what_is_not_here_or_no_message_is_said(peer: GrpcPeer) -> None:
    nobody = message("ModelConfigRequest")(name="nobody").SerializeToString()
    second = message("ModelMetadataRequest")(name="adder", version="2").SerializeToString()
    adder = message("RepositoryModelUnloadRequest")(model_name="adder").SerializeToString()
    for method, body, code, sentence in (
        ("ModelConfig", nobody, status.NOT_FOUND, "no model is named 'nobody'"),
        ("ModelMetadata", second, status.NOT_FOUND, "version 1 only"),
        ("ModelConfig", b"\x0a\xff", status.INVALID_ARGUMENT, "no ModelConfigRequest"),
        ("RepositoryModelLoad", b"", status.NOT_FOUND, "models come from the plan"),
        ("RepositoryModelUnload", adder, status.UNIMPLEMENTED, "is always loaded"),
        ("CudaSharedMemoryStatus", b"", status.UNIMPLEMENTED, "shared memory"),
        ("Nonsense", b"", status.UNIMPLEMENTED, "is not served here"),
        ("/other.Service/Method", b"", status.UNIMPLEMENTED, "is not served here"),
        ("/grpc.health.v1.Health/Check", b"\x0a\x01x", status.NOT_FOUND, "no such service"),
    ):
        told = peer.call(method, body)
        assert told.status == code, method
        assert sentence in told.sentence


def test_a_call_without_a_message_or_with_two_is_refused(peer: GrpcPeer) -> None:
    empty = peer.open("ModelInfer")
    peer.data(empty, b"", end=True)
    assert "none came" in peer.calls[empty].sentence
    twice = peer.open("ServerLive")
    peer.data(twice, bytes(10), end=True)
    assert peer.calls[twice].status == status.INVALID_ARGUMENT
    cut = peer.open("ModelInfer")
    peer.data(cut, b"\0\0", end=True)
    assert "ends within a message" in peer.calls[cut].sentence


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("content_type", "text/html", "the content type is not application/grpc"),
        ("content_type", "application/grpc-web", "the content type is not application/grpc"),
        ("content_type", "application/grpcx", "the content type is not application/grpc"),
        (":method", "GET", "gRPC calls by POST"),
    ],
)
def test_what_only_looks_like_a_call_is_refused(
    peer: GrpcPeer, field: str, value: str, sentence: str
) -> None:
    told = peer.call("ServerLive", b"", **{field: value})
    assert told.status == status.INVALID_ARGUMENT
    assert sentence in told.sentence


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8"])
def test_a_content_type_may_say_more(peer: GrpcPeer, kind: str) -> None:
    assert peer.call("ServerLive", content_type=kind).status == status.OK


APP = ServedModel(
    name="ocr",
    inputs=(tensor("picture", "uint8", (-1, 3)), tensor("hints", "bytes", (-1,))),
    outputs=(tensor("texts", "bytes", (-1,)), tensor("boxes", "float32", (-1, 2))),
    slo_us=1_000,
    fastest_us=1,
    max_items=1,
    batched=False,
    app=True,
)


class FakeApp(FakeEngine):
    def answer_to(self, inference: Inference, *, ended_at_us: int = 500) -> AppAnswer:
        return AppAnswer(
            outputs=(),
            tensors=(
                np.array([b"mill", b"\xff"], dtype=object),
                np.arange(4, dtype=np.float32).reshape(2, 2),
            ),
            arrived_at_us=0,
            deadline_at_us=1_000,
            ended_at_us=ended_at_us,
        )


@pytest.mark.parametrize("raw", [True, False])
def test_apps_take_and_give_strings_and_arrays_of_any_length(raw: bool) -> None:
    engine = FakeApp(APP)
    request = message("ModelInferRequest")(model_name="ocr")
    picture = request.inputs.add(name="picture", datatype="UINT8", shape=[2, 3])
    hints = request.inputs.add(name="hints", datatype="BYTES", shape=[2])
    if raw:
        strings = b"\x01\0\0\0a\x02\0\0\0\xff\xfe"
        request.raw_input_contents.extend([bytes(range(6)), strings])
    else:
        picture.contents.uint_contents.extend(range(6))
        hints.contents.bytes_contents.extend([b"a", b"\xff\xfe"])
    told = GrpcBench(engine).connect().greet().call("ModelInfer", request.SerializeToString())
    first, second = (np.asarray(given) for given in engine.submitted[0].inputs)
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.tolist() == [b"a", b"\xff\xfe"]
    response = told.parsed("ModelInferResponse")
    texts, boxes = response.raw_output_contents
    assert texts == b"\x04\0\0\0mill\x01\0\0\0\xff"
    assert np.frombuffer(boxes, np.float32).tolist() == [0, 1, 2, 3]
    assert [list(output.shape) for output in response.outputs] == [[2], [2, 2]]


def test_models_that_come_and_go_are_served_and_refused(bench: GrpcBench, peer: GrpcPeer) -> None:
    bench.engine._models = {"other": served_model("other")}
    bench.core.counters["other"] = bench.core.counters["adder"]  # type: ignore[index]
    bench.core.refresh()
    assert peer.call("ModelInfer", infer()).status == status.NOT_FOUND
    assert ask(peer, "ModelReady", name="other").ready
    assert isinstance(bench.core, ProtocolCore)


@pytest.mark.extras
def test_names_numbers_and_types_are_those_of_tritons_client() -> None:
    pytest.importorskip("grpc", reason="needs tritonclient[grpc]: `make test-all` installs it")
    service = pytest.importorskip("tritonclient.grpc.service_pb2")

    def fields(descriptor: Any) -> dict[str, tuple[Any, ...]]:
        return {
            field.name: (field.number, field.type, field.is_repeated, field)
            for field in descriptor.fields
        }

    def compare(ours: Any, theirs: Any) -> None:
        known = fields(theirs)
        for name, (number, kind, repeated, field) in fields(ours).items():
            assert known[name][:3] == (number, kind, repeated), f"{ours.name}.{name}"
            other = known[name][3]
            if field.message_type is not None:
                compare(field.message_type, other.message_type)
            elif field.enum_type is not None:
                values = other.enum_type.values_by_name
                for value in field.enum_type.values:
                    assert values[value.name].number == value.number

    for method in service.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        for theirs in (method.input_type, method.output_type):
            if not theirs.name.startswith(("Repository", "System", "Cuda", "Trace", "Log")):
                compare(message(theirs.name).DESCRIPTOR, theirs)
    for name in ("RepositoryIndexRequest", "RepositoryIndexResponse"):
        compare(message(name).DESCRIPTOR, service.DESCRIPTOR.message_types_by_name[name])
