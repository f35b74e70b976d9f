"""What clients send and get where the batch is not the first dimension, or there is none."""

import json
from typing import Any

import numpy as np
import pytest

from helpers.gateway import Bench, FakeEngine, get, moved, one_by_one, post

STATE = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
"""[2, batch, 3], a batch of two."""


def ask(bench: Bench, *inputs: dict[str, Any]) -> Any:
    return bench.ask(post("/v2/models/adder/infer", json.dumps({"inputs": inputs}).encode()))


def given(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


@pytest.mark.parametrize("nested", [False, True])
def test_the_engine_has_the_batch_first_and_the_client_has_it_where_the_model_does(
    nested: bool,
) -> None:
    engine = FakeEngine(moved())
    data = STATE.tolist() if nested else STATE.ravel().tolist()

    reply = ask(Bench(engine), given("state", "FP32", [2, 2, 3], data))

    (inference,) = engine.submitted
    assert inference.items == 2
    arrived = np.frombuffer(inference.inputs[0], np.float32).reshape(2, 2, 3)
    np.testing.assert_array_equal(arrived, np.moveaxis(STATE, 1, 0))
    (output,) = reply.json["outputs"]
    assert output["shape"] == [2, 2, 3]
    assert output["data"] == (STATE + 1).ravel().tolist()


def test_binary_tensors_are_turned_in_both_directions() -> None:
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "state",
                    "datatype": "FP32",
                    "shape": [2, 2, 3],
                    "parameters": {"binary_data_size": 48},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    header = f"Inference-Header-Content-Length: {len(text)}"

    reply = Bench(FakeEngine(moved())).ask(
        post("/v2/models/adder/infer", text + STATE.tobytes(), header)
    )

    assert reply.body[-48:] == (STATE + 1).tobytes()


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([2, 9, 3], "dimension 1 must lie in 1..8, got 9"),
        ([2, 0, 3], "dimension 1 must lie in 1..8, got 0"),
        ([3, 2, 3], "needs shape [2, n, 3], got [3, 2, 3]"),
        ([2, 3], "needs shape [2, n, 3], got [2, 3]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_the_place_of_the_batch(
    shape: list[int], said: str
) -> None:
    reply = ask(Bench(FakeEngine(moved())), given("state", "FP32", shape, [0]))

    assert reply.status == 400
    assert said in reply.json["error"]


def test_metadata_and_configuration_say_where_the_batch_is() -> None:
    bench = Bench(FakeEngine(moved()))

    assert bench.ask(get("/v2/models/adder")).json["inputs"][0]["shape"] == [2, -1, 3]
    config = bench.ask(get("/v2/models/adder/config")).json
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [2, -1, 3]


@pytest.mark.parametrize("rate", [[16_000], 16_000], ids=["listed", "bare"])
def test_a_model_without_a_batch_takes_whole_tensors_and_scalars(rate: Any) -> None:
    """A scalar is bare where a client nests its lists as the shape is: numpy's `tolist`."""
    engine = FakeEngine(one_by_one())

    reply = ask(
        Bench(engine),
        given("x", "FP32", [1, 4], [[1, 2, 3, 4]]),
        given("rate", "INT64", [], rate),
    )

    (inference,) = engine.submitted
    assert inference.items == 1
    assert np.frombuffer(inference.inputs[1], np.int64).tolist() == [16_000]
    (output,) = reply.json["outputs"]
    assert (output["shape"], output["data"]) == ([1, 4], [2, 3, 4, 5])


@pytest.mark.parametrize("shape", [[2, 4], [4], [1, 1, 4]])
def test_a_model_without_a_batch_takes_one_request_at_a_time(shape: list[int]) -> None:
    reply = ask(
        Bench(FakeEngine(one_by_one())),
        given("x", "FP32", shape, [0]),
        given("rate", "INT64", [], [1]),
    )

    assert reply.status == 400
    assert "needs shape [1, 4]" in reply.json["error"]


def test_a_model_without_a_batch_says_so_as_triton_does() -> None:
    bench = Bench(FakeEngine(one_by_one()))

    assert [t["shape"] for t in bench.ask(get("/v2/models/adder")).json["inputs"]] == [[1, 4], []]
    config = bench.ask(get("/v2/models/adder/config")).json
    assert config["max_batch_size"] == 0
    assert [tensor["dims"] for tensor in config["input"]] == [[1, 4], []]


@pytest.mark.parametrize("rate", [True, None, "16000", {}, 16000.5])
def test_a_bare_value_that_is_no_scalar_of_the_type_is_refused(rate: Any) -> None:
    x = given("x", "FP32", [1, 4], [1, 2, 3, 4])

    reply = ask(Bench(FakeEngine(one_by_one())), x, given("rate", "INT64", [], rate))

    assert reply.status == 400
    assert "input 'rate': `data`" in reply.json["error"]
