"""The public Triton client, unchanged, against a real server: every method that is served."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from helpers.live_server import LiveServer, serving, write_plan
from helpers.served import WIDTH, served_add_one
from helpers.triton_calls import NOT_SERVED

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("triton")]

X = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("plan")
    plan = write_plan(served_add_one(folder), folder)
    with serving(plan, environment={"XDG_CONFIG_HOME": str(folder)}) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address, concurrency=4) as opened:
        yield opened


def given(binary: bool = True, x: np.ndarray[Any, Any] = X) -> list[Any]:
    tensor = triton.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    return [tensor]


def test_health_and_readiness(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "1")
    assert not client.is_model_ready("m", "2")
    assert not client.is_model_ready("nobody")


def test_metadata_config_and_index(client: Any) -> None:
    assert client.get_server_metadata()["name"] == "headrace"
    metadata = client.get_model_metadata("m", "1", query_params={"a": "b"})
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, WIDTH]}]
    config = client.get_model_config("m")
    assert config["max_batch_size"] >= 2
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [WIDTH]}]
    assert client.get_model_repository_index() == [{"name": "m", "version": "1", "state": "READY"}]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_inference_in_every_mixture_of_forms(
    client: Any, binary_in: bool, binary_out: bool | None
) -> None:
    outputs = None
    if binary_out is not None:
        outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    result = client.infer("m", given(binary_in), outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("y"), X + 1)
    assert result.get_response()["model_name"] == "m"


@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("received", [None, "gzip", "deflate"])
def test_inference_in_every_mixture_of_compressions(
    client: Any, sent: str | None, received: str | None
) -> None:
    result = client.infer(
        "m",
        given(x=np.repeat(X, 8, axis=0)),
        request_compression_algorithm=sent,
        response_compression_algorithm=received,
    )
    np.testing.assert_array_equal(result.as_numpy("y"), np.repeat(X, 8, axis=0) + 1)


def test_id_version_priority_and_timeout(client: Any) -> None:
    result = client.infer(
        "m", given(), model_version="1", request_id="r-7", priority=2, timeout=60_000_000
    )
    assert result.get_response()["id"] == "r-7"
    np.testing.assert_array_equal(result.as_numpy("y"), X + 1)


def test_a_timeout_that_nobody_can_meet_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("m", given(), timeout=1)
    assert caught.value.status() == "429"


def test_many_at_once(client: Any) -> None:
    pending = [client.async_infer("m", given(x=X * number)) for number in range(40)]
    for number, request in enumerate(pending):
        np.testing.assert_array_equal(request.get_result().as_numpy("y"), X * number + 1)


def test_statistics_count_what_was_served(client: Any) -> None:
    def count() -> Any:
        return client.get_inference_statistics("m")["model_stats"][0]["inference_count"]

    before = count()
    client.infer("m", given())
    assert count() == before + 2
    assert len(client.get_inference_statistics()["model_stats"]) == 1


@pytest.mark.parametrize("ask", NOT_SERVED)
def test_what_is_not_served_says_so(client: Any, ask: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(client)
    assert caught.value.status() == "501"
    assert client.is_server_live()


def test_mistakes_are_explained(client: Any) -> None:
    for inputs, model, sentence in (
        (given(), "nobody", "no model is named 'nobody'; served here: m"),
        (given(x=np.zeros((1, 3), np.float32)), "m", "needs shape [n, 16], got [1, 3]"),
        (given(x=np.zeros((0, WIDTH), np.float32)), "m", "the first dimension must lie in"),
        (
            given(x=np.zeros((9999, WIDTH), np.float32)),
            "m",
            "at most 32768 in one request, which 512 items",
        ),
    ):
        with pytest.raises(InferenceServerException, match=r"needs|served|must|at most") as caught:
            client.infer(model, inputs)
        assert sentence in caught.value.message()
    with pytest.raises(InferenceServerException, match="classification is not served"):
        client.infer("m", given(), outputs=[triton.InferRequestedOutput("y", class_count=2)])
