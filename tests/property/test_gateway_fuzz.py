"""Whatever bytes arrive, the server answers in HTTP or closes, and keeps serving."""

import json
import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.front.http_messages import Limits
from helpers.gateway import Bench, Client, FakeEngine, get, post, served_model

INFER = "/v2/models/adder/infer"
LIMITS = Limits(body_bytes=4096, head_bytes=2048, head_fields=20, target_bytes=256)
GOOD = {
    "id": "7",
    "parameters": {"timeout": 5000, "priority": 1, "binary_data_output": True},
    "inputs": [
        {
            "name": "x",
            "shape": [1, 4],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 16},
        }
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
}
TEXT = json.dumps(GOOD).encode()
HEADER = f"Inference-Header-Content-Length: {len(TEXT)}"
WHOLE = post(INFER, TEXT + bytes(16), HEADER)

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(autouse=True)
def _no_internal_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Bad input is never a bug of ours: nothing may be logged as an internal error."""
    with caplog.at_level(logging.ERROR):
        yield
    assert not caplog.records


def new_bench() -> Bench:
    return Bench(FakeEngine(served_model()), limits=LIMITS)


def assert_sound(bench: Bench, client: Client) -> None:
    """Only whole responses were written, errors are explained, and the next client is served."""
    for reply in client.replies():
        assert reply.status in (100, 200) or reply.error
        assert reply.status != 500
    client.transport.close()
    assert bench.server.buffered_bytes == 0
    assert not bench.server.connections
    assert bench.ask(WHOLE).status == 200


def send_in_pieces(client: Client, data: bytes, cuts: list[int]) -> None:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in pairwise(places):
        client.send(data[start:end])


CUTS = st.lists(st.integers(0, 1 << 16), max_size=4)


@given(st.binary(max_size=3000), CUTS)
def test_random_bytes_on_the_socket(data: bytes, cuts: list[int]) -> None:
    bench = new_bench()
    client = bench.connect()
    send_in_pieces(client, data, cuts)
    assert_sound(bench, client)


@given(st.binary(max_size=5000), CUTS)
def test_random_bytes_as_a_body(data: bytes, cuts: list[int]) -> None:
    bench = new_bench()
    client = bench.connect()
    send_in_pieces(client, post(INFER, data), cuts)
    assert_sound(bench, client)


@given(st.binary(max_size=300), st.integers(-5, 400) | st.text("0123456789-+ex_ ", max_size=8))
def test_random_bytes_as_json_and_tensors(data: bytes, length: object) -> None:
    bench = new_bench()
    client = bench.connect()
    client.send(post(INFER, data, f"Inference-Header-Content-Length: {length}"))
    assert_sound(bench, client)


@given(st.binary(max_size=64), st.integers(0, 1 << 16), st.integers(0, 64), CUTS)
def test_a_good_request_with_some_bytes_replaced(
    new: bytes, at: int, length: int, cuts: list[int]
) -> None:
    at %= len(WHOLE)
    bench = new_bench()
    client = bench.connect()
    send_in_pieces(client, WHOLE[:at] + new + WHOLE[at + length :] + get("/v2"), cuts)
    assert_sound(bench, client)


@given(st.sampled_from(["id", "parameters", "inputs", "outputs"]), JSON_VALUES)
def test_any_value_in_any_field(field: str, value: Any) -> None:
    bench = new_bench()
    client = bench.connect()
    text = json.dumps({**GOOD, field: value}).encode()
    client.send(post(INFER, text + bytes(16), f"Inference-Header-Content-Length: {len(text)}"))
    assert_sound(bench, client)


@given(
    st.sampled_from(["name", "shape", "datatype", "parameters", "data"]),
    JSON_VALUES | st.lists(st.integers(-1, 9), max_size=3),
)
def test_any_value_in_any_field_of_a_tensor(field: str, value: Any) -> None:
    bench = new_bench()
    client = bench.connect()
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], field: value}
    client.send(post(INFER, json.dumps({"inputs": [tensor]}).encode()))
    assert_sound(bench, client)


@given(st.lists(st.sampled_from([WHOLE, get("/v2"), WHOLE[:60], b"\r\n"]), max_size=6), CUTS)
def test_any_pipeline_of_requests(pieces: list[bytes], cuts: list[int]) -> None:
    bench = new_bench()
    client = bench.connect()
    send_in_pieces(client, b"".join(pieces), cuts)
    assert_sound(bench, client)


@given(st.binary(max_size=200))
def test_random_bytes_in_every_known_compression(data: bytes) -> None:
    for encoding in ("gzip", "deflate"):
        bench = new_bench()
        client = bench.connect()
        client.send(post(INFER, data, f"Content-Encoding: {encoding}"))
        assert_sound(bench, client)
