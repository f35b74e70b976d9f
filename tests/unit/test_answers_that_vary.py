"""What clients get of an output that varies in length: what is true, over each protocol."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.domain.tensors import VARIES, TensorSpec
from headrace.serving.apps.request import _arrays
from headrace.serving.engine.inference import Answer, ServedModel
from helpers.gateway import Bench, FakeEngine, get, post, served_model
from helpers.grpc_bench import GrpcBench, infer_request

ROOM = (5, 2)
BOXES = np.arange(10, dtype=np.float32).reshape(ROOM)
X = np.ones((1, 4), np.float32)


def detector() -> ServedModel:
    """x [1, 4] -> boxes [5 or fewer, 2], score [1]."""
    boxes = TensorSpec(name="boxes", dtype="float32", item_shape=ROOM, dims=(VARIES, ""))
    told = TensorSpec(name="boxes::shape", dtype="int64", item_shape=(2,), shape_of="boxes")
    model = served_model(inputs=(("x", "float32", (1, 4)),), outputs=(("score", "float32", (1,)),))
    return replace(
        model, outputs=(boxes, *model.outputs, told), batched=False, max_items=1, name="adder"
    )


def answer(count: int) -> Answer:
    arrays: tuple[NDArray[Any], ...] = (
        BOXES,
        np.array([0.5], np.float32),
        np.array([count, 2], np.int64),
    )
    return Answer(
        outputs=tuple(memoryview(array.tobytes()) for array in arrays),
        arrived_at_us=0,
        deadline_at_us=100_000,
        ended_at_us=5_000,
    )


def asked(count: int, binary: bool) -> Any:
    """The reply over HTTP when so many boxes were found."""
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}],
        "parameters": {"binary_data_output": binary},
    }
    engine = FakeEngine(detector(), at_once=False)
    client = Bench(engine).connect()
    client.send(post("/v2/models/adder/infer", json.dumps(body).encode()))
    engine.finish(answer(count))
    return client.reply()


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_json_has_as_many_as_there_are(count: int) -> None:
    boxes, score = asked(count, binary=False).json["outputs"]

    assert (boxes["name"], boxes["shape"]) == ("boxes", [count, 2])
    assert boxes["data"] == BOXES[:count].ravel().tolist()
    assert (score["name"], score["shape"], score["data"]) == ("score", [1], [0.5])


@pytest.mark.parametrize("count", [0, 3])
def test_binary_data_have_as_many_as_there_are(count: int) -> None:
    reply = asked(count, binary=True)

    length = int(reply.headers["inference-header-content-length"])
    boxes, score = json.loads(reply.body[:length])["outputs"]
    assert (boxes["shape"], boxes["parameters"]) == ([count, 2], {"binary_data_size": 8 * count})
    assert score["parameters"] == {"binary_data_size": 4}
    assert reply.body[length:] == BOXES[:count].tobytes() + np.float32(0.5).tobytes()


def test_each_answer_of_gRPC_has_its_own_shape() -> None:
    bench = GrpcBench(FakeEngine(detector(), at_once=False))
    peer = bench.connect().greet()
    for count in (3, 0, 5):
        told = peer.call("ModelInfer", infer_request(X).SerializeToString())
        bench.engine.finish(answer(count))
        peer.look()
        response = told.parsed("ModelInferResponse")
        boxes, score = response.outputs
        assert (boxes.name, list(boxes.shape)) == ("boxes", [count, 2])
        assert (score.name, list(score.shape)) == ("score", [1])
        assert response.raw_output_contents[0] == BOXES[:count].tobytes()


def test_metadata_and_configuration_say_that_it_varies() -> None:
    bench = Bench(FakeEngine(detector()))

    outputs = bench.ask(get("/v2/models/adder")).json["outputs"]
    assert [(o["name"], o["shape"]) for o in outputs] == [("boxes", [-1, 2]), ("score", [1])]
    config = bench.ask(get("/v2/models/adder/config")).json
    assert config["max_batch_size"] == 0
    assert [tensor["dims"] for tensor in config["output"]] == [[-1, 2], [1]]


def test_a_true_shape_cannot_be_asked_for() -> None:
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}],
        "outputs": [{"name": "boxes::shape"}],
    }
    reply = Bench(FakeEngine(detector())).ask(
        post("/v2/models/adder/infer", json.dumps(body).encode())
    )
    assert reply.status == 400
    assert "has 'boxes', 'score'" in reply.json["error"]


def test_apps_get_arrays_of_the_true_shape() -> None:
    boxes, score = _arrays(detector(), answer(3))

    np.testing.assert_array_equal(boxes, BOXES[:3])
    assert score.tolist() == [0.5]
