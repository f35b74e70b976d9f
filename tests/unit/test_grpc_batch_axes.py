"""gRPC where the batch is not the first dimension, or there is none: as over HTTP."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.serving.engine.inference import ServedModel
from headrace.serving.front.grpc import status
from headrace.serving.front.grpc.messages import message
from helpers.gateway import FakeEngine, moved, one_by_one
from helpers.grpc_bench import GrpcBench, Told

STATE = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
"""[2, batch, 3], a batch of two."""
X, RATE = np.arange(4, dtype=np.float32).reshape(1, 4), np.array(16_000, np.int64)
DATATYPES = {"float32": ("FP32", "fp32_contents"), "int64": ("INT64", "int64_contents")}


def ask(engine: FakeEngine, raw: bool, **inputs: NDArray[Any]) -> Told:
    request = message("ModelInferRequest")(model_name="adder")
    for name, array in inputs.items():
        datatype, contents = DATATYPES[array.dtype.name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            request.raw_input_contents.append(array.tobytes())
        else:
            getattr(tensor.contents, contents).extend(array.ravel().tolist())
    return GrpcBench(engine).connect().greet().call("ModelInfer", request.SerializeToString())


@pytest.mark.parametrize("raw", [True, False])
def test_the_engine_has_the_batch_first_and_the_client_has_it_where_the_model_does(
    raw: bool,
) -> None:
    engine = FakeEngine(moved())

    response = ask(engine, raw, state=STATE).parsed("ModelInferResponse")

    (inference,) = engine.submitted
    assert inference.items == 2
    arrived = np.frombuffer(inference.inputs[0], np.float32).reshape(2, 2, 3)
    np.testing.assert_array_equal(arrived, np.moveaxis(STATE, 1, 0))
    assert list(response.outputs[0].shape) == [2, 2, 3]
    assert response.raw_output_contents[0] == (STATE + 1).tobytes()


@pytest.mark.parametrize("raw", [True, False])
def test_a_model_without_a_batch_takes_whole_tensors_and_scalars(raw: bool) -> None:
    engine = FakeEngine(one_by_one())

    response = ask(engine, raw, x=X, rate=RATE).parsed("ModelInferResponse")

    (inference,) = engine.submitted
    assert inference.items == 1
    assert np.frombuffer(inference.inputs[1], np.int64).tolist() == [16_000]
    assert list(response.outputs[0].shape) == [1, 4]
    assert response.raw_output_contents[0] == (X + 1).tobytes()


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        (
            moved(),
            {"state": np.zeros((2, 9, 3), np.float32)},
            "dimension 1 must lie in 1..8, got 9",
        ),
        (
            moved(),
            {"state": np.zeros((3, 2, 3), np.float32)},
            "needs shape [2, n, 3], got [3, 2, 3]",
        ),
        (one_by_one(), {"x": X, "rate": RATE[None]}, "needs shape [], got [1]"),
        (one_by_one(), {"x": X[0], "rate": RATE}, "needs shape [1, 4], got [4]"),
        (one_by_one(), {"x": np.vstack([X, X]), "rate": RATE}, "needs shape [1, 4], got [2, 4]"),
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_shapes_that_do_not_fit_are_refused(
    model: ServedModel, inputs: dict[str, NDArray[Any]], said: str, raw: bool
) -> None:
    told = ask(FakeEngine(model), raw, **inputs)

    assert told.status == status.INVALID_ARGUMENT
    assert said in told.sentence


@pytest.mark.parametrize(
    ("model", "shapes"), [(moved(), [[2, -1, 3]]), (one_by_one(), [[1, 4], []])]
)
def test_metadata_and_configuration_say_where_the_batch_is(
    model: ServedModel, shapes: list[list[int]]
) -> None:
    peer = GrpcBench(FakeEngine(model)).connect().greet()

    def told(what: str) -> Any:
        request = message(f"{what}Request")(name="adder").SerializeToString()
        return peer.call(what, request).parsed(f"{what}Response")

    assert [list(tensor.shape) for tensor in told("ModelMetadata").inputs] == shapes
    config = told("ModelConfig").config
    assert config.max_batch_size == 0
    assert [list(tensor.dims) for tensor in config.input] == shapes
