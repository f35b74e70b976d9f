"""Whom gRPC answers: tokens, names, origins, and seats, as over HTTP."""

import gzip

import numpy as np
import pytest

from headrace.serving.front.grpc import frames, status
from headrace.serving.front.http_messages import Limits
from helpers.grpc_bench import GrpcBench, X, answer_of, infer, prefixed

STRANGE = ("192.0.2.7", 40_000)


def test_strangers_need_the_token_but_for_health() -> None:
    bench = GrpcBench(token="a-token-of-some-length")
    peer = bench.connect(STRANGE).greet()
    assert peer.call("ServerLive").parsed("ServerLiveResponse").live
    assert peer.call("ServerReady").parsed("ServerReadyResponse").ready
    assert peer.call("/grpc.health.v1.Health/Check").parsed("HealthCheckResponse").status == 1
    for method in ("ModelInfer", "ModelStreamInfer", "ServerMetadata", "Nonsense"):
        assert peer.call(method, infer()).status == status.UNAUTHENTICATED
    wrong = peer.call("ModelInfer", infer(), authorization="Bearer wrong-wrong-wrong")
    assert wrong.status == status.UNAUTHENTICATED
    right = peer.call("ModelInfer", infer(), authorization="Bearer a-token-of-some-length")
    np.testing.assert_array_equal(answer_of(right), X[0] + 1)
    assert peer.call("ModelInfer", infer()).status == status.UNAUTHENTICATED


def padded(size: int) -> bytes:
    """A message of so many bytes, which has one field that nobody knows."""
    return b"\x7a" + bytes(((size - 3) & 0x7F | 0x80, (size - 3) >> 7)) + bytes(size - 3)


@pytest.mark.parametrize("token", ["a-token-of-some-length", "another"])
@pytest.mark.parametrize("method", ["ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"])
def test_what_is_open_takes_small_messages_from_anybody(token: str, method: str) -> None:
    bench = GrpcBench(token="a-token-of-some-length")
    peer = bench.connect(STRANGE).greet()
    fields = {"authorization": f"Bearer {token}", "grpc_encoding": "gzip"}
    assert peer.call(method, padded(4_096), **fields).status == status.OK

    announced, unfolded = peer.open(method, **fields), peer.open(method, **fields)
    peer.data(announced, prefixed(padded(4_097))[:5])
    peer.data(unfolded, prefixed(gzip.compress(padded(4_097)), compressed=True), end=True)

    for told in (peer.calls[announced], peer.calls[unfolded]):
        assert told.status == status.RESOURCE_EXHAUSTED
        assert "larger than 4096 bytes" in told.sentence
    assert bench.server.buffered_bytes == 0


def test_names_origins_and_proxies_are_checked_as_over_http() -> None:
    bench = GrpcBench(token="a-token-of-some-length")
    peer = bench.connect(STRANGE).greet()
    token = {"authorization": "Bearer a-token-of-some-length"}
    foreign = {**token, ":authority": "evil.example:8001"}
    assert peer.call("ModelInfer", infer(), **foreign).status == status.PERMISSION_DENIED
    page = {**token, "origin": "http://evil.example"}
    assert peer.call("ModelInfer", infer(), **page).status == status.PERMISSION_DENIED
    through = GrpcBench(token=None).connect().greet()
    proxied = through.call("ModelInfer", infer(), x_forwarded_for="192.0.2.7")
    assert proxied.status == status.PERMISSION_DENIED
    assert "proxy" in proxied.sentence


def test_a_stranger_has_few_calls_open_at_once() -> None:
    bench = GrpcBench(token="a-token-of-some-length", limits=Limits(calls_of_strangers=2))
    peer = bench.connect(STRANGE).greet()
    for _ in range(3):
        last = peer.open("ServerLive")
    assert peer.calls[last].reset == frames.REFUSED_STREAM


def test_connections_have_seats_as_over_http() -> None:
    limits = Limits(connections=2, connections_per_stranger=2, reserved_connections=0)
    bench = GrpcBench(token="a-token-of-some-length", limits=limits)
    first, second, third = (bench.connect((f"192.0.2.{n}", 1)).greet() for n in range(3))
    assert first.transport.closed
    assert not second.transport.closed
    assert third.call("ServerLive").status == 0
