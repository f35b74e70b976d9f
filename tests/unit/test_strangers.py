"""Who holds connections, who gives way, and who is believed to be local."""

import errno
import os
from pathlib import Path

import pytest

from headrace.serving.addresses import peer_key
from headrace.serving.front.http_messages import Limits
from helpers.gateway import TOKEN, Bench, Client, FakeEngine, get, post

OWNER, OTHER = 1, 2
"""Ports, in thousands, of connections of the server's user and of another one."""
INFER = post(
    "/v2/models/adder/infer",
    b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}',
)


@pytest.fixture(autouse=True)
def _users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headrace.serving.front.access.peer_user",
        lambda peer, _: os.geteuid() if peer[1] // 1000 == OWNER else 4_321,
    )


def local(bench: Bench, user: int) -> Client:
    return bench.connect(("127.0.0.1", user * 1000))


def remote(bench: Bench, address: str) -> Client:
    return bench.connect((address, 5_555))


def asked(client: Client, request: bytes) -> int:
    client.send(request)
    return client.replies()[-1].status


@pytest.mark.parametrize("sent", [b"", b"POST /v2/mod", INFER[:-5]], ids=["idle", "head", "body"])
def test_strangers_that_sit_there_shut_out_neither_owner_nor_probes(sent: bytes) -> None:
    bench = Bench(token=TOKEN)
    mine = local(bench, OWNER)
    assert asked(mine, get("/v2")) == 200
    crowd = [local(bench, OTHER) for _ in range(1_100)]
    for client in crowd:
        client.send(sent)
        assert asked(local(bench, OWNER), get("/v2")) == 200
        assert asked(remote(bench, "192.0.2.1"), get("/v2/health/ready")) == 200
    assert asked(mine, INFER) == 200
    limits = bench.server.limits
    held = sum(not client.transport.closed for client in crowd)
    assert held <= limits.connections_per_stranger
    assert len(bench.server.connections) <= limits.connections + limits.reserved_connections


def test_of_many_strangers_the_one_with_most_connections_gives_way() -> None:
    bench = Bench(token=TOKEN, limits=Limits(connections=6, connections_per_stranger=5))
    few = remote(bench, "192.0.2.1")
    many = [remote(bench, "192.0.2.2") for _ in range(5)]
    remote(bench, "192.0.2.3")
    assert [client.transport.closed for client in many] == [True, *[False] * 4]
    assert not few.transport.closed


def test_the_least_recently_active_of_a_peer_gives_way() -> None:
    bench = Bench(token=TOKEN, limits=Limits(connections=3))
    clients = [remote(bench, "192.0.2.1") for _ in range(3)]
    assert asked(clients[0], get("/v2/health/live")) == 200
    remote(bench, "192.0.2.1")
    assert [client.transport.closed for client in clients] == [False, True, False]


def test_a_stranger_that_gives_way_is_gone_without_its_consent() -> None:
    bench = Bench(token=TOKEN, limits=Limits(connections=2))
    clients = [remote(bench, "192.0.2.1") for _ in range(2)]
    clients[0].transport.untaken_bytes = 1
    for client in clients:
        client.transport.stuck = True
        remote(bench, "192.0.2.1").take_turns()
    assert [client.transport.aborted for client in clients] == [True, True]


def test_who_has_the_token_and_gives_way_may_take_its_answer_first() -> None:
    bench = Bench(token=TOKEN, limits=Limits(connections=2))
    clients = [remote(bench, "192.0.2.1") for _ in range(2)]
    for client in clients:
        assert asked(client, get("/v2", f"Authorization: Bearer {TOKEN}")) == 200
        client.transport.stuck = True
    clients[0].transport.untaken_bytes = 1
    for _ in clients:
        local(bench, OWNER).take_turns()
    assert [(each.transport.closed, each.transport.aborted) for each in clients] == [
        (True, False),
        (True, True),
    ]


def test_who_showed_the_token_does_not_give_way_to_who_did_not() -> None:
    bench = Bench(token=TOKEN, limits=Limits(connections=2, reserved_connections=1))
    known = [remote(bench, "192.0.2.1") for _ in range(2)]
    for client in known:
        assert asked(client, get("/v2", f"Authorization: Bearer {TOKEN}")) == 200
    stranger = remote(bench, "192.0.2.2")
    assert asked(stranger, get("/v2/health/live")) == 200
    assert stranger.transport.closed, "a seat of the reserve is for one request"
    assert [asked(client, get("/v2/health/live")) for client in known] == [200, 200]


def test_a_seat_of_the_reserve_serves_the_token_and_probes_only() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine, token=TOKEN, limits=Limits(connections=1, reserved_connections=2))
    busy = local(bench, OWNER)
    busy.send(INFER)
    with_token = get("/v2", f"Authorization: Bearer {TOKEN}")
    assert asked(remote(bench, "192.0.2.1"), with_token) == 200
    assert asked(remote(bench, "192.0.2.1"), get("/v2/health/ready")) == 200
    assert asked(remote(bench, "192.0.2.1"), get("/v2")) == 401
    engine.finish()
    assert asked(busy, get("/v2")) == 200


def test_all_addresses_of_one_ipv6_network_are_one_peer() -> None:
    assert peer_key("2001:db8::1") == peer_key("2001:db8::ffff:2")
    assert peer_key("2001:db8::1") != peer_key("2001:db8:0:1::1")
    assert peer_key("::ffff:192.0.2.1") == peer_key("192.0.2.1")


@pytest.mark.parametrize(
    "field",
    [
        "Forwarded: for=192.0.2.43",
        "X-Forwarded-For: 192.0.2.43",
        "x-forwarded-anything: 1",
        "X-Original-Host: example.com",
        "X-Real-IP: 192.0.2.43",
        "Via: 1.1 proxy",
        "CF-Connecting-IP: 192.0.2.43",
    ],
)
def test_what_a_proxy_passes_on_is_not_the_owners(field: str) -> None:
    client = local(Bench(token=TOKEN), OWNER)
    assert asked(client, get("/v2")) == 200
    assert asked(client, get("/v2", field, f"Authorization: Bearer {TOKEN}")) == 200
    assert asked(client, get("/v2")) == 401, "one connection of a proxy carries many clients"
    assert asked(local(Bench(token=TOKEN), OWNER), get("/v2", field)) == 401
    assert asked(local(Bench(token=None), OWNER), get("/v2", field)) == 403


def test_the_owners_programs_can_be_asked_for_the_token_too() -> None:
    from headrace.serving.front.access import Access

    peer, here = ("127.0.0.1", OWNER * 1000), ("127.0.0.1", 8000)
    assert Access(bind_host="127.0.0.1", token=TOKEN).identify(peer, here)[1]
    strict = Access(bind_host="127.0.0.1", token=TOKEN, trust_owner=False)
    assert not strict.identify(peer, here)[1]


def test_a_connection_whose_peer_is_not_known_yet_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serving.front.access.answers_at_once", lambda: False)
    bench = Bench(token=TOKEN)
    waiting: list[tuple[object, ...]] = []
    monkeypatch.setattr(bench.gateway, "_aside", lambda *work: waiting.append(work))
    client = local(bench, OWNER)
    client.send(get("/v2"))
    assert client.replies() == []
    assert not client.transport.reading
    from helpers.gateway import at_once

    at_once(*waiting[0])  # type: ignore[arg-type]
    assert client.reply().status == 200
    assert client.transport.reading


def test_the_kernels_answer_does_not_need_the_table_of_all_connections(tmp_path: Path) -> None:
    from headrace.serving.front import peer_user

    if not peer_user.answers_at_once():
        pytest.skip("this system forbids netlink")
    kernel = peer_user._kernel()
    assert kernel is not None
    assert kernel.works()
    assert kernel.user(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    assert kernel.user(("127.0.0.1", 1), ("::1", 2)) is None


def test_where_netlink_is_forbidden_the_log_says_once_what_to_permit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from headrace.serving.front import peer_user

    def forbidden(_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(peer_user.SockDiag, "__init__", forbidden)
    peer_user._kernel.cache_clear()
    try:
        assert not peer_user.answers_at_once()
        assert peer_user.peer_user(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    finally:
        peer_user._kernel.cache_clear()
    [warning] = caplog.records
    assert "(Address family not supported by protocol)" in warning.getMessage()
    assert warning.getMessage().endswith("permit AF_NETLINK to this service")


def test_who_finds_no_seat_is_told_so_as_long_as_not_too_many_are() -> None:
    limits = Limits(
        connections=1, connections_per_stranger=1, reserved_connections=0, turned_away=2
    )
    bench = Bench(FakeEngine(at_once=False), token=TOKEN, limits=limits)
    local(bench, OWNER).send(INFER)
    others = [remote(bench, "192.0.2.2") for _ in range(4)]
    assert [bool(each.transport.written) for each in others] == [True, True, False, False]
    assert [each.transport.aborted for each in others] == [False, False, True, True]
