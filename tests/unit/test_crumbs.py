"""Requests that come in crumbs: read at once from one client, ever more seldom from a crowd."""

import json
import socket
import struct
import time

import pytest

from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front import arrivals
from headrace.serving.front.http_messages import Limits
from helpers.crumbs import CROWD, crumbling_crowd
from helpers.gateway import Bench, Client, get, post

BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}]}
)
REQUEST = post("/v2/models/adder/infer", BODY.encode())


def send_bytes(client: Client, data: bytes) -> None:
    """One by one, as far as they are read."""
    for byte in data:
        assert client.transport.reading
        client.send(bytes([byte]))


def test_a_request_in_crumbs_is_read_ever_more_seldom_in_a_crowd_and_answered_all_the_same() -> (
    None
):
    bench = Bench(limits=Limits(head_timeout_s=1000))
    crumbling_crowd(bench)
    client = bench.connect()
    dozes_s, now_s = list[float](), 0.0
    for byte in get("/v2"):
        client.send(bytes([byte]))
        if not client.transport.reading:
            dozes_s.append(client.connection.wakes_s - now_s)
            bench.server.sweep(client.connection.wakes_s - 0.1)
            assert not client.transport.reading
            now_s = client.connection.wakes_s
            bench.server.sweep(now_s)
            assert client.transport.reading
    # The first three, and the one that completes it, are read at once.
    assert dozes_s == pytest.approx([0.4, 0.8, 1.6] + [3.2] * (len(get("/v2")) - 7))
    assert client.reply().status == 200


def test_a_request_in_a_few_pieces_is_read_at_once() -> None:
    bench = Bench()
    client = bench.connect()
    request = get("/v2")
    for start in range(0, len(request), 12):
        client.send(request[start : start + 12])
    assert client.transport.reading
    assert client.reply().status == 200
    for _ in range(20):
        client.send(request[:20])
        client.send(request[20:])
        assert client.transport.reading, "each whole request begins anew"


def test_one_client_that_sends_byte_by_byte_is_read_at_once() -> None:
    bench = Bench()
    crowd = crumbling_crowd(bench, CROWD - 1)
    client = bench.connect()
    for _ in range(3):
        send_bytes(client, REQUEST)
    assert [reply.status for reply in client.replies()] == [200] * 3
    assert all(each.transport.reading for each in crowd)


def test_a_request_of_a_thousand_crumbs_is_read_more_seldom_from_one_client_too() -> None:
    bench = Bench()
    client = bench.connect()
    head = REQUEST[: -len(BODY)].replace(b"Content-Length: %d" % len(BODY), b"Content-Length: 2000")
    client.send(head)
    send_bytes(client, b" " * 1_000)
    assert not client.transport.reading


def test_a_crowd_is_one_only_while_its_requests_are_half_sent() -> None:
    bench = Bench(limits=Limits(head_timeout_s=5))
    rest = get("/v2")[4:]
    for leave in (
        lambda client: client.send(rest),
        lambda client: client.send(b"\0\0"),
        lambda client: client.transport.abort(),
        lambda client: bench.server.sweep(bench.server.tick_s + 6),
    ):
        for client in crumbling_crowd(bench):
            leave(client)
        assert not bench.server.crumbling


def test_a_pause_of_the_servers_own_uses_up_no_requests_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class StampedSocket:
        """Its first unread byte has waited for a second."""

        def recvmsg(self, size: int, room: int, flags: int) -> tuple[object, ...]:
            stamp = struct.pack("@ll", *divmod(time.time_ns() - 1_000_000_000, 1_000_000_000))
            return b"x", [(socket.SOL_SOCKET, arrivals.SO_TIMESTAMPNS, stamp)], 0, None

        def detach(self) -> None: ...

    bench = Bench()
    crumbling_crowd(bench)
    client = bench.connect()
    send_bytes(client, REQUEST[:4])
    assert not client.transport.reading
    rested_at_us = monotonic_us()
    bench.server.sweep(client.connection.wakes_s)
    client.connection._socket = StampedSocket()  # type: ignore[assignment]
    client.send(REQUEST[4:])
    [inference] = bench.engine.submitted
    assert inference.arrived_at_us is not None
    assert inference.arrived_at_us >= rested_at_us
