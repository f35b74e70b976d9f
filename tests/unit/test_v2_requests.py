"""What a well-formed inference request means, and what its answer looks like."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest

from headrace.serving.core.signature import DATATYPES
from headrace.serving.front.http_messages import Limits
from helpers.gateway import Bench, FakeEngine, post, served_model

INFER = "/v2/models/adder/infer"


def binary_request(
    document: dict[str, Any], *tensors: bytes, path: str = INFER, extra: tuple[str, ...] = ()
) -> bytes:
    text = json.dumps(document).encode()
    header = f"Inference-Header-Content-Length: {len(text)}"
    return post(path, text + b"".join(tensors), header, *extra)


def one_input(size: int, shape: list[int], datatype: str = "FP32") -> dict[str, Any]:
    return {
        "name": "x",
        "shape": shape,
        "datatype": datatype,
        "parameters": {"binary_data_size": size},
    }


def test_a_json_request_gets_a_json_answer() -> None:
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4.5]}]}
    reply = Bench().ask(post(INFER, json.dumps(body).encode()))
    assert reply.status == 200
    assert reply.json == {
        "model_name": "adder",
        "model_version": "1",
        "outputs": [{"name": "y", "shape": [1, 4], "datatype": "FP32", "data": [2, 3, 4, 5.5]}],
    }


def test_a_nested_data_list_means_the_same_as_a_flat_one() -> None:
    nested = {
        "name": "x",
        "shape": [2, 4],
        "datatype": "FP32",
        "data": [[1, 2, 3, 4], [5, 6, 7, 8]],
    }
    reply = Bench().ask(post(INFER, json.dumps({"inputs": [nested]}).encode()))
    assert reply.json["outputs"][0]["data"] == [2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("indent", [None, 1, 8, 100])
def test_white_space_between_the_brackets_of_nested_data_changes_nothing(
    indent: int | None,
) -> None:
    model = served_model(
        inputs=(("x", "float32", (1, 2, 1, 2)),), outputs=(("y", "float32", (1, 2, 1, 2)),)
    )
    tensor = {"name": "x", "shape": [1, 1, 2, 1, 2], "datatype": "FP32"}
    body = {"inputs": [{**tensor, "data": [[[[[1, 2]], [[3, 4]]]]]}]}
    reply = Bench(FakeEngine(model)).ask(post(INFER, json.dumps(body, indent=indent).encode()))
    assert reply.status == 200, reply.error
    assert reply.json["outputs"][0]["data"] == [2, 3, 4, 5]


def test_a_binary_request_gets_the_bytes_back_behind_the_json() -> None:
    x = np.arange(8, dtype=np.float32)
    document = {"inputs": [one_input(32, [2, 4])], "parameters": {"binary_data_output": True}}
    reply = Bench().ask(binary_request(document, x.tobytes()))
    assert reply.status == 200
    output = reply.json["outputs"][0]
    assert output["parameters"] == {"binary_data_size": 32}
    assert output["shape"] == [2, 4]
    text_length = int(reply.headers["inference-header-content-length"])
    assert reply.body[text_length:] == (x + 1).tobytes()


@pytest.mark.parametrize("dtype", sorted(DATATYPES.keys() - {"bytes"}))
@pytest.mark.parametrize("binary", [True, False])
def test_every_numeric_type_travels_in_both_forms(dtype: str, binary: bool) -> None:
    model = served_model(inputs=(("x", dtype, (2,)),), outputs=(("y", dtype, (2,)),))
    x = np.array([0, 1], dtype=dtype)
    tensor: dict[str, Any] = {"name": "x", "shape": [1, 2], "datatype": DATATYPES[dtype]}
    if binary:
        tensor["parameters"] = {"binary_data_size": x.nbytes}
    else:
        tensor["data"] = x.tolist()
    document = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    bench = Bench(FakeEngine(model))
    reply = bench.ask(
        binary_request(document, x.tobytes())
        if binary
        else post(INFER, json.dumps(document).encode())
    )
    assert reply.status == 200, reply.body
    expected = (x + 1).astype(dtype)
    if binary:
        assert reply.body.endswith(expected.tobytes())
    else:
        assert reply.json["outputs"][0]["data"] == expected.tolist()


def test_inputs_reach_the_engine_in_the_models_order_whatever_the_requests() -> None:
    engine = FakeEngine(
        served_model(
            inputs=(("a", "uint8", (1,)), ("b", "uint8", (1,))),
            outputs=(("y", "uint8", (1,)), ("z", "uint8", (1,))),
        )
    )
    tensors = [{**one_input(1, [1, 1], "UINT8"), "name": name} for name in "ba"]
    reply = Bench(engine).ask(binary_request({"inputs": tensors}, b"\x14", b"\x0a"))
    assert reply.status == 200
    assert [np.frombuffer(given, np.uint8)[0] for given in engine.submitted[0].inputs] == [10, 20]


def test_outputs_come_as_chosen_in_the_order_and_form_chosen() -> None:
    model = served_model(
        inputs=(("a", "uint8", (1,)), ("b", "uint8", (1,))),
        outputs=(("y", "uint8", (1,)), ("z", "uint8", (1,))),
    )
    document = {
        "inputs": [{**one_input(1, [1, 1], "UINT8"), "name": name} for name in "ab"],
        "outputs": [
            {"name": "z", "parameters": {"binary_data": True}},
            {"name": "y", "parameters": {"binary_data": False}},
        ],
    }
    reply = Bench(FakeEngine(model)).ask(binary_request(document, b"\x01", b"\x02"))
    outputs = reply.json["outputs"]
    assert [output["name"] for output in outputs] == ["z", "y"]
    assert outputs[1]["data"] == [2]
    assert reply.body.endswith(b"\x03")


def test_what_was_prepared_for_one_answer_serves_the_next_with_its_own_id_and_values() -> None:
    two = (("a", "float32", (4,)), ("b", "float32", (4,)))
    bench = Bench(FakeEngine(served_model(inputs=two, outputs=two)))
    outputs = [{"name": "b"}, {"name": "a", "parameters": {"binary_data": True}}]
    both: list[list[float]] = [[1, 2, 3, 4], [5, 6, 7, 8.5]]
    for number, given in enumerate(both):
        tensors = [
            {"name": name, "shape": [1, 4], "datatype": "FP32", "data": values}
            for name, values in (("a", given), ("b", given[::-1]))
        ]
        asked = {"id": str(number), "inputs": tensors, "outputs": outputs}
        reply = bench.ask(post(INFER, json.dumps(asked).encode()))
        expected = np.array(given, np.float32) + 1
        said = json.loads(reply.body[: int(reply.headers["inference-header-content-length"])])
        assert said["id"] == str(number)
        assert said["outputs"][0]["data"] == expected[::-1].tolist()
        assert said["outputs"][1]["parameters"] == {"binary_data_size": 16}
        assert reply.body.endswith(expected.tobytes())


def test_id_timeout_and_priority_are_carried() -> None:
    engine = FakeEngine()
    document = {
        "id": 'a "quoted" id',
        "parameters": {"timeout": 250_000, "priority": 3, "binary_data_output": True},
        "inputs": [one_input(16, [1, 4])],
    }
    reply = Bench(engine).ask(binary_request(document, bytes(16)))
    assert reply.json["id"] == 'a "quoted" id'
    assert (engine.submitted[0].timeout_us, engine.submitted[0].priority) == (250_000, 3)


def test_without_a_timeout_the_models_own_objective_holds() -> None:
    engine = FakeEngine()
    Bench(engine).ask(binary_request({"inputs": [one_input(16, [1, 4])]}, bytes(16)))
    document = {"inputs": [one_input(16, [1, 4])], "parameters": {"timeout": 0}}
    Bench(engine).ask(binary_request(document, bytes(16)))
    for inference in engine.submitted:
        assert (inference.timeout_us, inference.priority) == (None, 0)


@pytest.mark.parametrize("items", [1, 3])
def test_the_only_input_may_come_without_json(items: int) -> None:
    x = np.arange(4 * items, dtype=np.float32)
    reply = Bench().ask(post(INFER, x.tobytes(), "Inference-Header-Content-Length: 0"))
    [output] = reply.json["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("y", [items, 4], "FP32")
    assert reply.body.endswith((x + 1).tobytes())


@pytest.mark.parametrize(
    "inputs",
    [
        (("x", "float32", (4,)), ("z", "float32", (4,))),
        (("x", "bytes", (4,)),),
    ],
)
def test_other_inputs_need_json(inputs: tuple[tuple[str, str, tuple[int, ...]], ...]) -> None:
    model = served_model(inputs=inputs, outputs=(("y", "float32", (4,)),))
    request = post(INFER, bytes(16), "Inference-Header-Content-Length: 0")
    reply = Bench(FakeEngine(model)).ask(request)
    assert (reply.status, "do without" in reply.error) == (400, True)


def test_the_only_version_can_be_named() -> None:
    document = {"inputs": [one_input(16, [1, 4])]}
    path = "/v2/models/adder/versions/1/infer"
    assert Bench().ask(binary_request(document, bytes(16), path=path)).status == 200


def test_json_that_cannot_carry_the_answer_is_refused_rather_than_falsified() -> None:
    document = {"inputs": [one_input(16, [1, 4])]}
    x = np.array([np.nan, 0, 0, np.inf], dtype=np.float32)
    bench = Bench()
    reply = bench.ask(binary_request(document, x.tobytes()))
    assert reply.status == 422
    assert "NaN or infinity" in reply.error
    counters = bench.core.counters["adder"]
    assert (counters.answered, counters.items, counters.latency_sum_us) == (0, 0, 0)
    assert sum(counters.latency_counts) == 0
    assert counters.refused == {"not-representable": 1}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(encoding: str) -> None:
    model = served_model(inputs=(("x", "float32", (1000,)),), outputs=(("y", "float32", (1000,)),))
    text = json.dumps(
        {"inputs": [one_input(4000, [1, 1000])], "parameters": {"binary_data_output": True}}
    ).encode()
    whole = text + bytes(4000)
    reply = Bench(FakeEngine(model)).ask(
        post(
            INFER,
            zlib.compress(whole) if encoding == "deflate" else gzip.compress(whole),
            f"Inference-Header-Content-Length: {len(text)}",
            f"Content-Encoding: {encoding}",
            f"Accept-Encoding: {encoding}",
        )
    )
    assert reply.status == 200
    assert reply.headers["content-encoding"] == encoding
    plain = (zlib if encoding == "deflate" else gzip).decompress(reply.body)
    assert plain.endswith(np.ones(1000, np.float32).tobytes())


@pytest.mark.parametrize("cuts", [(0, 5), (7, 7, 40), (20_000, 20_001)])
def test_a_gzip_body_may_have_several_members(cuts: tuple[int, ...]) -> None:
    document = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1] * 4}]}
    text = b" " * 20_000 + json.dumps(document).encode()
    ends = zip((0, *cuts), (*cuts, len(text)), strict=True)
    members = [gzip.compress(text[start:end], 0) for start, end in ends]
    reply = Bench().ask(post(INFER, b"".join(members), "Content-Encoding: gzip"))
    assert reply.json["outputs"][0]["data"] == [2] * 4


def test_a_client_that_offers_several_encodings_by_default_gets_plain_bytes() -> None:
    document = {"inputs": [one_input(16, [1, 4])]}
    extra = ("Accept-Encoding: gzip, deflate, br",)
    reply = Bench().ask(binary_request(document, bytes(16), extra=extra))
    assert "content-encoding" not in reply.headers


BOMB = bytes(10_000_000)


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        ("deflate", zlib.compress(BOMB)),
        ("gzip", gzip.compress(BOMB)),
        ("gzip", gzip.compress(b"{") + gzip.compress(BOMB)),
        ("gzip", gzip.compress(bytes(100_000)) + gzip.compress(b"{")),
    ],
    ids=["deflate", "gzip", "second member", "first of two members"],
)
def test_a_compressed_body_never_grows_beyond_the_limit(encoding: str, sent: bytes) -> None:
    bench = Bench(limits=Limits(body_bytes=100_000))
    reply = bench.ask(post(INFER, sent, f"Content-Encoding: {encoding}"))
    assert reply.status == 413
    assert bench.server.buffered_bytes == 0
