"""The public Triton client over gRPC, unchanged, against a real server: sync, asyncio, streams."""

import asyncio
import queue
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.certificates import authority, signed
from helpers.live_server import LiveServer, serving, write_plan
from helpers.served import WIDTH, served_add_one
from helpers.triton_calls import NOT_SERVED
from helpers.waiting import wait_until

pytest.importorskip("grpc", reason="needs tritonclient[grpc]: `make test-all` installs it")
triton = pytest.importorskip("tritonclient.grpc")
aio = pytest.importorskip("tritonclient.grpc.aio")
InferenceServerException = pytest.importorskip("tritonclient.utils").InferenceServerException

pytestmark = [pytest.mark.e2e, pytest.mark.extras, pytest.mark.xdist_group("grpc")]

X = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("plan")
    plan = write_plan(served_add_one(folder), folder)
    with serving(plan, "--grpc-port", "0", environment={"XDG_CONFIG_HOME": str(folder)}) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[Any]:
    with triton.InferenceServerClient(server.grpc_address) as opened:
        yield opened


def given(x: np.ndarray[Any, Any] = X) -> list[Any]:
    tensor = triton.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    return [tensor]


def test_health_and_readiness(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "1")
    assert not client.is_model_ready("m", "2")
    assert not client.is_model_ready("nobody")


def test_metadata_config_and_index(client: Any) -> None:
    assert client.get_server_metadata().name == "headrace"
    metadata = client.get_model_metadata("m", "1", as_json=True)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", str(WIDTH)]}]
    config = client.get_model_config("m").config
    assert config.max_batch_size >= 2
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("y", [WIDTH])]
    assert config.parameters["slo_us"].string_value
    [entry] = client.get_model_repository_index().models
    assert (entry.name, entry.version, entry.state) == ("m", "1", "READY")


def test_inference_with_id_version_priority_and_timeout(client: Any) -> None:
    result = client.infer(
        "m",
        given(),
        model_version="1",
        request_id="r-7",
        priority=2,
        timeout=60_000_000,
        client_timeout=600.0,
        outputs=[triton.InferRequestedOutput("y")],
    )
    assert result.get_response().id == "r-7"
    np.testing.assert_array_equal(result.as_numpy("y"), X + 1)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_inference(client: Any, encoding: str) -> None:
    x = np.repeat(X, 8, axis=0)
    result = client.infer("m", given(x), compression_algorithm=encoding)
    np.testing.assert_array_equal(result.as_numpy("y"), x + 1)


def test_a_timeout_that_nobody_can_meet_is_refused_with_the_reason(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="needs at least") as caught:
        client.infer("m", given(), timeout=1)
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    refusal: Any = caught.value.__context__
    fields = dict(refusal.trailing_metadata())
    assert fields["headrace-reason"] == "deadline"
    assert "grpc-retry-pushback-ms" in fields


def test_many_at_once(client: Any) -> None:
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()

    def keep(number: int) -> Any:
        return lambda result, error: done.put((number, result, error))

    for number in range(200):
        client.async_infer("m", given(X * number), keep(number))
    for _ in range(200):
        number, result, error = done.get(timeout=300)
        assert error is None, error
        np.testing.assert_array_equal(result.as_numpy("y"), X * number + 1)


def test_a_stream_answers_in_order_and_goes_on_after_a_mistake(client: Any) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: done.put((result, error)))
    for number in range(100):
        x = X if number != 50 else np.zeros((1, 3), np.float32)
        client.async_stream_infer(
            "m", given(x * number), request_id=str(number), enable_empty_final_response=True
        )
    for number in range(100):
        result, error = done.get(timeout=300)
        if number == 50:
            assert "needs shape [n, 16]" in str(error)
            continue
        assert error is None, error
        response = result.get_response()
        assert response.id == str(number)
        assert response.parameters["triton_final_response"].bool_param
        np.testing.assert_array_equal(result.as_numpy("y"), X * number + 1)
    client.stop_stream()
    assert client.is_server_live()


def test_statistics_count_what_was_served(client: Any) -> None:
    def count() -> int:
        return int(client.get_inference_statistics("m").model_stats[0].inference_count)

    before = count()
    client.infer("m", given())
    assert count() == before + 2
    assert len(client.get_inference_statistics().model_stats) == 1


@pytest.mark.parametrize("ask", NOT_SERVED)
def test_what_is_not_served_says_so(client: Any, ask: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(client)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert client.is_server_live()


def test_a_model_of_the_plan_is_loaded_already(client: Any) -> None:
    client.load_model("m")
    with pytest.raises(InferenceServerException, match="models come from the plan"):
        client.load_model("another")


def test_mistakes_are_explained(client: Any) -> None:
    for inputs, model, status, sentence in (
        (given(), "nobody", "NOT_FOUND", "no model is named 'nobody'; served here: m"),
        (given(np.zeros((1, 3), np.float32)), "m", "INVALID_ARGUMENT", "got [1, 3]"),
        (given(np.zeros((9999, WIDTH), np.float32)), "m", "INVALID_ARGUMENT", "must lie in"),
    ):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, inputs)
        assert caught.value.status() == f"StatusCode.{status}"
        assert sentence in caught.value.message()


def test_asyncio_client_with_calls_and_a_stream(server: LiveServer) -> None:
    async def ask() -> None:
        async with aio.InferenceServerClient(server.grpc_address) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(
                *(client.infer("m", given(X * number)) for number in range(50))
            )
            for number, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("y"), X * number + 1)

            async def requests() -> AsyncIterator[dict[str, Any]]:
                for number in range(20):
                    yield {"model_name": "m", "inputs": given(X * number)}

            number = 0
            async for result, error in client.stream_infer(requests()):
                assert error is None, error
                np.testing.assert_array_equal(result.as_numpy("y"), X * number + 1)
                number += 1
            assert number == 20

    asyncio.run(ask())


def test_mutual_tls_and_a_token_let_the_client_in(tmp_path: Path) -> None:
    plan = write_plan(served_add_one(tmp_path), tmp_path)
    ours = authority(tmp_path)
    server_files, client_files = signed(tmp_path, "server", ours), signed(tmp_path, "client", ours)
    arguments = (
        *("--grpc-port", "0", "--require-token"),
        *("--tls-cert", str(server_files.certificate), "--tls-key", str(server_files.key)),
        *("--tls-client-ca", str(ours.certificate)),
    )
    with serving(plan, *arguments, environment={"XDG_CONFIG_HOME": str(tmp_path)}) as live:
        token = {"authorization": f"Bearer {Path(str(live.token_file)).read_text().strip()}"}
        with triton.InferenceServerClient(
            live.grpc_address,
            ssl=True,
            root_certificates=str(ours.certificate),
            private_key=str(client_files.key),
            certificate_chain=str(client_files.certificate),
        ) as client:
            result = client.infer("m", given(), headers=token)
            np.testing.assert_array_equal(result.as_numpy("y"), X + 1)
            with pytest.raises(InferenceServerException) as caught:
                client.infer("m", given())
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        live.signal(signal.SIGTERM)
        code, errors = live.wait()
        assert code == 0, errors


def test_broken_streams_leave_no_descriptors_and_no_open_work(server: LiveServer) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    async def break_streams(count: int) -> None:
        async with aio.InferenceServerClient(server.grpc_address) as client:

            async def requests() -> AsyncIterator[dict[str, Any]]:
                for _ in range(50):
                    yield {"model_name": "m", "inputs": given()}
                await asyncio.Event().wait()  # the stream stays open

            for _ in range(count):
                answers = client.stream_infer(requests())
                async for _, error in answers:
                    assert (
                        error is None or error.message()
                    )  # a busy machine may refuse, with a reason
                    break
                answers.cancel()
            assert await client.is_server_live()

    asyncio.run(break_streams(5))
    before = descriptors()
    asyncio.run(break_streams(20))

    def nothing_open() -> bool:
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            return b"headrace_open_inferences 0.0" in answer.read()

    wait_until(lambda: descriptors() <= before, "the server keeps what its clients have closed")
    # What a stream had asked for when it broke off is still worked on, and may be in others' way.
    wait_until(nothing_open, "the server keeps open what nobody waits for")
    with triton.InferenceServerClient(server.grpc_address) as client:
        np.testing.assert_array_equal(client.infer("m", given()).as_numpy("y"), X + 1)
