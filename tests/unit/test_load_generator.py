"""The load generator against a tiny server in the same event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.domain.errors import DocumentError, ModelError
from headrace.load.client import parse_url
from headrace.load.generator import (
    LoadError,
    LoadOptions,
    drive_load,
    drive_load_of_models,
    run_load,
)
from headrace.load.payload import decode_slo_us
from headrace.load.result import LoadResult
from headrace.simulation.offered.arrivals import Arrival, uniform
from helpers.fake_v2_server import METADATA, Call, FakeServer, answer_at_once, fake_server, response

Prepare = Callable[[FakeServer], None]


def measure(
    arrivals: list[Arrival],
    options: LoadOptions | None = None,
    *,
    prepare: Prepare = lambda server: None,
    model: str = "m",
) -> tuple[LoadResult, FakeServer]:
    """Run `arrivals` against a fresh fake server, after `prepare` has had its way with it."""

    async def session() -> tuple[LoadResult, FakeServer]:
        async with fake_server() as server:
            prepare(server)
            result = await drive_load(server.url, model, arrivals, options or LoadOptions())
            return result, server

    return asyncio.run(session())


def answering(answer: Callable[[Call], None]) -> Prepare:
    def prepare(server: FakeServer) -> None:
        server.answer = answer

    return prepare


def burst(count: int) -> list[Arrival]:
    return [Arrival(at_us=0, model="m") for _ in range(count)]


def test_every_request_is_sent_and_answered_and_measured() -> None:
    result, server = measure(uniform("m", 500.0, 0.1))

    summary = result.report().total
    assert len(server.calls) == summary.arrived == summary.answered == 50
    assert summary.dropped == {}
    assert [r.status for r in result.requests] == [200] * 50
    assert {r.body_bytes for r in result.requests} == {len(b'{"outputs":[]}')}
    scheduled = [r.scheduled_at_us - result.started_at_us for r in result.requests]
    assert scheduled == [2_000 * i for i in range(50)]
    for request in result.requests:
        assert request.sent_at_us is not None
        assert request.scheduled_at_us <= request.sent_at_us <= request.ended_at_us


def test_several_models_share_one_schedule_and_each_gets_its_own_result() -> None:
    arrivals = [Arrival(at_us=1_000 * i, model="mn"[i % 3 == 0]) for i in range(30)]

    async def session() -> tuple[dict[str, LoadResult], FakeServer]:
        async with fake_server() as server:
            server.models = ("m", "n")
            # On one connection, so that they come in the order in which they were sent.
            options = LoadOptions(connections=1)
            found = await drive_load_of_models(server.url, arrivals, options, order=("x", "m"))
            return found, server

    results, server = asyncio.run(session())

    assert list(results) == ["m", "n"]  # the first to arrive is n

    assert [call.path for call in server.calls] == [f"/v2/models/{a.model}/infer" for a in arrivals]
    assert {model: len(result.requests) for model, result in results.items()} == {"m": 20, "n": 10}
    assert results["m"].started_at_us == results["n"].started_at_us
    n = results["n"]
    assert [r.scheduled_at_us - n.started_at_us for r in n.requests] == list(
        range(0, 30_000, 3_000)
    )


def test_a_stalled_server_does_not_stop_the_schedule() -> None:
    """The server answers nothing before it has all requests: a closed loop would wait forever."""
    held: list[Call] = []

    def hold_until_all_are_here(call: Call) -> None:
        held.append(call)
        if len(held) == 40:
            for waiting in held:
                answer_at_once(waiting)

    result, _ = measure(uniform("m", 400.0, 0.1), prepare=answering(hold_until_all_are_here))

    assert result.report().total.answered == 40
    # The first waited for the last to be due: its latency says so.
    first, last = result.requests[0], result.requests[-1]
    assert first.ended_at_us >= last.scheduled_at_us
    assert first.ended_at_us - first.scheduled_at_us >= 97_500


def test_latency_counts_from_the_schedule_even_while_a_request_waits_for_a_connection() -> None:
    """One connection and 20 ms per answer: the tenth answer comes 200 ms after the start."""

    def answer_after_20_ms(call: Call) -> None:
        asyncio.get_running_loop().call_later(0.02, answer_at_once, call)

    result, server = measure(
        burst(10), LoadOptions(connections=1), prepare=answering(answer_after_20_ms)
    )

    assert server.connections == result.connections == 1
    latencies = [r.ended_at_us - r.scheduled_at_us for r in result.requests]
    # A loop's timers may ring a hair early; the sum of ten cannot hide a missing wait.
    assert all(latency >= 19_500 * (i + 1) for i, latency in enumerate(latencies))


def test_connections_are_opened_on_demand_up_to_the_bound() -> None:
    held: list[Call] = []

    def answer_once_three_are_here(call: Call) -> None:
        held.append(call)
        if len(held) == 3:
            for waiting in held:
                answer_at_once(waiting)
        elif len(held) > 3:
            answer_at_once(call)

    result, server = measure(
        burst(9), LoadOptions(connections=3), prepare=answering(answer_once_three_are_here)
    )

    assert result.report().total.answered == 9
    assert server.connections == 3


def test_refusals_are_counted_by_the_reason_that_the_server_gives() -> None:
    replies = iter(
        [
            response(429, b'{"error":"too late already","reason":"deadline"}'),
            response(503, b'{"error":"shutting down"}'),
            response(504, b"<html>not json</html>"),
            response(200),
            response(500, b"[" * 3000),
        ]
    )

    result, _ = measure(
        uniform("m", 100.0, 0.05),
        LoadOptions(slo_us=600_000_000),
        prepare=answering(lambda call: call.reply(next(replies))),
    )

    summary = result.report().total
    assert summary.dropped == {"deadline": 1, "http-500": 1, "http-503": 1, "http-504": 1}
    assert (summary.arrived, summary.answered, summary.slo_attainment) == (5, 1, 0.2)
    assert result.error_samples["deadline"] == "too late already"
    assert result.error_samples["http-503"] == "shutting down"


def test_a_result_that_the_server_calls_late_counts_as_answered_late() -> None:
    late = response(504, b'{"error":"3 ms after its deadline","reason":"late"}')

    result, _ = measure(
        burst(1), LoadOptions(slo_us=1), prepare=answering(lambda call: call.reply(late))
    )

    summary = result.report().total
    assert (summary.answered, summary.late, summary.dropped) == (1, 1, {})
    assert result.requests[0].reason == "late"


def test_broken_connections_cost_their_request_only() -> None:
    replies = iter([b"", b"HTTP/9 nonsense\r\n\r\n", b"close", b"fine", b"fine"])

    def answer(call: Call) -> None:
        match next(replies):
            case b"":
                call.transport.abort()
            case b"close":
                call.reply(response(200, headers=b"Connection: close\r\n"))
                call.transport.close()
            case b"fine":
                answer_at_once(call)
            case garbage:
                call.reply(garbage)

    # On one connection at a time, so that they come in the order in which they were sent.
    result, _ = measure(
        uniform("m", 50.0, 0.1), LoadOptions(connections=1), prepare=answering(answer)
    )

    assert [r.reason for r in result.requests] == ["closed", "protocol", "", "", ""]


def test_a_request_without_an_answer_is_given_up_after_the_timeout() -> None:
    result, _ = measure(
        burst(2),
        # Long enough for the questions about the model, which are answered.
        LoadOptions(timeout_s=2.0, connections=1),
        prepare=answering(lambda call: None),
    )

    assert [r.reason for r in result.requests] == ["timeout", "timeout"]
    assert result.requests[0].sent_at_us is not None
    assert result.report().total.slo_attainment == 0.0


def test_a_server_that_goes_away_ends_the_run_instead_of_hanging_it() -> None:
    async def session() -> LoadResult:
        async with fake_server() as server:

            def stop_listening(call: Call) -> None:
                # The port is given up; whoever connects from now on is refused.
                stopped.set()
                call.transport.abort()

            stopped = asyncio.Event()
            server.answer = stop_listening
            run = asyncio.ensure_future(
                drive_load(server.url, "m", uniform("m", 50.0, 0.2), LoadOptions(connections=2))
            )
            await stopped.wait()
        return await run

    result = asyncio.run(session())

    assert len(result.requests) == 10
    assert result.requests[0].reason == "closed"
    assert {r.reason for r in result.requests} <= {"closed", "connect"}
    assert result.requests[-1].reason == "connect"


def test_the_binary_request_is_what_the_protocol_says() -> None:
    arrivals = [Arrival(at_us=0, model="m", timeout_us=7_000, priority=3)]

    _, server = measure(arrivals, LoadOptions(items=2, slo_us=90_000))

    (call,) = server.calls
    header_length = int(call.headers[b"inference-header-content-length"])
    header = msgspec.json.decode(call.body[:header_length])
    assert call.path == "/v2/models/m/infer"
    assert header["parameters"] == {"timeout": 7_000, "priority": 3, "binary_data_output": True}
    assert header["inputs"] == [
        {
            "name": "x",
            "datatype": "FP32",
            "shape": [2, 16],
            "parameters": {"binary_data_size": 128},
        }
    ]
    values = np.frombuffer(call.body[header_length:], "<f4")
    assert values.shape == (32,)
    assert np.isfinite(values).all()


def test_the_json_request_carries_the_same_values_as_the_binary_one() -> None:
    _, server = measure(burst(1), LoadOptions(binary=False))
    (as_json,) = server.calls
    _, server = measure(burst(1), LoadOptions())
    (as_binary,) = server.calls

    body = msgspec.json.decode(as_json.body)
    raw = as_binary.body[int(as_binary.headers[b"inference-header-content-length"]) :]
    assert b"inference-header-content-length" not in as_json.headers
    assert body["inputs"][0]["shape"] == [1, 16]
    assert np.array_equal(np.float32(body["inputs"][0]["data"]), np.frombuffer(raw, "<f4"))
    assert "timeout" not in body["parameters"]


def test_without_an_own_objective_the_servers_is_the_yardstick() -> None:
    result, _ = measure(burst(1))
    own, server = measure(burst(1), LoadOptions(slo_us=90_000))

    assert result.requests[0].deadline_at_us - result.requests[0].scheduled_at_us == 250_000
    assert own.requests[0].deadline_at_us - own.requests[0].scheduled_at_us == 90_000
    header_length = int(server.calls[0].headers[b"inference-header-content-length"])
    parameters = msgspec.json.decode(server.calls[0].body[:header_length])["parameters"]
    assert parameters["timeout"] == 90_000


def test_an_array_from_a_file_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    item = np.arange(16, dtype=np.float32)
    np.save(path, item)

    _, server = measure(burst(1), LoadOptions(input_paths=(path,), items=3))

    (call,) = server.calls
    raw = call.body[int(call.headers[b"inference-header-content-length"]) :]
    assert np.array_equal(np.frombuffer(raw, "<f4").reshape(3, 16), np.stack([item] * 3))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(15, np.float32),
        np.zeros((1, 1, 16), np.float32),
        np.zeros(16, np.float64),
        np.array([{"a": 1}], dtype=object),
    ],
)
def test_an_array_that_does_not_fit_is_refused_before_anything_is_sent(
    tmp_path: Path, array: np.ndarray
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, array, allow_pickle=True)

    with pytest.raises(DocumentError, match=r"x\.npy"):
        measure(burst(1), LoadOptions(input_paths=(path,)))


def test_a_scalar_from_an_archive_is_sent_without_dimensions(tmp_path: Path) -> None:
    inputs = [{"name": "rate", "datatype": "FP32", "shape": []}]

    def prepare(server: FakeServer) -> None:
        server.metadata = msgspec.json.encode(METADATA | {"inputs": inputs})

    np.savez(tmp_path / "in.npz", rate=np.float32(0.5))
    _, server = measure(burst(1), LoadOptions(input_paths=(tmp_path,)), prepare=prepare)

    (call,) = server.calls
    length = int(call.headers[b"inference-header-content-length"])
    assert msgspec.json.decode(call.body[:length])["inputs"][0]["shape"] == []
    assert call.body[length:] == np.float32(0.5).tobytes()


def test_the_token_travels_with_every_request() -> None:
    _, server = measure(burst(2), LoadOptions(token="0123456789abcdef"))

    assert {call.headers[b"authorization"] for call in server.calls} == {b"Bearer 0123456789abcdef"}


def test_a_model_that_is_not_there_is_refused_with_the_servers_words() -> None:
    with pytest.raises(LoadError, match="404: no such model"):
        measure([Arrival(at_us=0, model="n")], model="n")


def test_a_server_that_is_not_there_is_named() -> None:
    # A port from which nothing can answer: 1 is privileged and unassigned in practice.
    with pytest.raises(LoadError, match="headrace serve"):
        run_load("http://127.0.0.1:1", "m", burst(1))


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
        [{"name": "x", "datatype": "COMPLEX64", "shape": [-1, 2]}],
        [{"name": "x", "datatype": "FP32", "shape": [-1, 1 << 40]}],
        [{"name": "x", "datatype": "FP32", "shape": "wide"}],
    ],
)
def test_metadata_that_cannot_be_served_from_random_values_is_refused(inputs: list[object]) -> None:
    def prepare(server: FakeServer) -> None:
        server.metadata = msgspec.json.encode({**METADATA, "inputs": inputs})

    with pytest.raises(ModelError):
        measure(burst(1), prepare=prepare)


def test_a_server_without_an_objective_asks_for_one() -> None:
    def prepare(server: FakeServer) -> None:
        server.config = b"{}"

    with pytest.raises(LoadError, match="--slo-ms"):
        measure(burst(1), prepare=prepare)
    assert measure(burst(1), LoadOptions(slo_us=1_000), prepare=prepare)[0].requests


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"parameters":[]}', b'{"parameters":{"slo_us":{"string_value":"-5"}}}'],
)
def test_a_foreign_configuration_states_no_objective(body: bytes) -> None:
    assert decode_slo_us(body) is None


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://a:1",
        "http://",
        "http://a:99999",
        "http://a/v2",
        "http://u@a:1",
        "http://..:1",
        f"http://{'a' * 64}:1",
    ],
)
def test_a_url_that_is_no_plain_server_is_refused(url: str) -> None:
    with pytest.raises(DocumentError, match="http"):
        parse_url(url)


def test_urls_of_both_address_families_are_understood() -> None:
    assert parse_url("http://localhost:8000/").authority == "localhost:8000"
    assert parse_url("http://[::1]:80").authority == "[::1]:80"
    assert parse_url("http://[::1]:80").host == "::1"


def test_the_scheme_says_what_is_spoken() -> None:
    for url, port, tls, grpc in (
        ("http://a", 80, False, False),
        ("https://a", 443, True, False),
        ("grpc://a", 8001, False, True),
        ("grpcs://a:7", 7, True, True),
    ):
        found = parse_url(url)
        assert (found.port, found.tls, found.grpc) == (port, tls, grpc)


def test_sizes_that_the_server_says_it_has_not_are_refused() -> None:
    arrivals = [Arrival(at_us=0, model="m", sizes=(64, 2))]
    parameters = {"dimensions": "length", "sizes": "64,128", "size_shares": "0.5,0.5"}
    parameters |= {"dims.x": "#,length", "slo_us": "250000"}
    several = {name: {"string_value": value} for name, value in parameters.items()}

    def of_several(server: FakeServer) -> None:
        server.config = msgspec.json.encode({"parameters": several})

    with pytest.raises(DocumentError, match="state sizes of model 'm', and its server says"):
        measure(arrivals)
    with pytest.raises(DocumentError, match="sizes '64x2' of model 'm', which has 1: length"):
        measure(arrivals, prepare=of_several)


def test_arrivals_of_another_model_or_none_are_refused() -> None:
    with pytest.raises(DocumentError, match="nothing to send"):
        measure([])
    with pytest.raises(DocumentError, match="arrivals of n"):
        measure([Arrival(at_us=0, model="n")])


@pytest.mark.parametrize(
    "options", [{"connections": 0}, {"connections": 257}, {"items": 0}, {"timeout_s": 0}]
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(DocumentError):
        LoadOptions(**options)  # type: ignore[arg-type]


def test_a_model_with_several_inputs_is_sent_real_data_from_an_archive(tmp_path: Path) -> None:
    inputs = [
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "scale", "datatype": "FP32", "shape": [-1, 1]},
    ]
    metadata = msgspec.json.encode(METADATA | {"inputs": inputs})

    def prepare(server: FakeServer) -> None:
        server.metadata = metadata

    ids, scale = np.arange(5, dtype=np.int64), np.array([0.5], dtype=np.float32)
    np.savez(tmp_path / "text.npz", scale=scale, ids=ids)
    _, server = measure(burst(1), LoadOptions(input_paths=(tmp_path,), items=2), prepare=prepare)

    # In the model's order, whatever the archive's.
    expected = np.stack([ids, ids]).tobytes() + np.stack([scale, scale]).tobytes()
    assert server.calls[0].body.endswith(expected)

    np.savez(tmp_path / "text.npz", ids=ids)
    with pytest.raises(DocumentError, match="no array for input scale; it has: ids"):
        measure(burst(1), LoadOptions(input_paths=(tmp_path / "text.npz",)), prepare=prepare)

    (tmp_path / "empty").mkdir()
    with pytest.raises(DocumentError, match=r"no \.npy or \.npz file"):
        measure(burst(1), LoadOptions(input_paths=(tmp_path / "empty",)), prepare=prepare)
