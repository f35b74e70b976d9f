"""Connections: order, limits, deadlines, and clients that go away."""

import json

import pytest

from headrace.serving.engine.inference import Refusal
from headrace.serving.front.http_messages import Limits
from helpers.gateway import Bench, Client, FakeEngine, get, post

INFER = "/v2/models/adder/infer"


def infer(first: float = 0.0, *headers: str, **fields: object) -> bytes:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [first, 0, 0, 0]}
    return post(INFER, json.dumps({"inputs": [tensor], **fields}).encode(), *headers)


def first_values(client: Client) -> list[float]:
    return [reply.json["outputs"][0]["data"][0] for reply in client.replies()]


def chunked(request: bytes, size: int) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    chunks = b"".join(
        b"%x;note=1\r\n%b\r\n" % (len(body[i : i + size]), body[i : i + size])
        for i in range(0, len(body), size)
    )
    head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked"])
    return head + b"\r\n\r\n" + chunks + b"0\r\nTrailer: 1\r\n\r\n"


def test_one_connection_serves_many_requests() -> None:
    client = Bench().connect()
    for number in range(5):
        client.send(infer(number))
    assert first_values(client) == [1, 2, 3, 4, 5]
    assert not client.transport.closed


@pytest.mark.parametrize(
    ("path", "status"), [("/v2/health/live", b"200"), ("/v2/models/adder/infer", b"405")]
)
def test_an_answer_to_head_is_that_to_get_without_a_body_that_the_next_answer_could_be_taken_for(
    path: str, status: bytes
) -> None:
    client = Bench().connect()
    client.send(get(path) + get(path).replace(b"GET", b"HEAD", 1) + infer(1))

    whole, _, rest = bytes(client.transport.written).partition(b"\r\n\r\n")
    _, _, rest = rest.partition(b"HTTP/1.1 ")
    head, _, rest = rest.partition(b"\r\n\r\n")
    assert head.startswith(status)
    if status == b"200":
        assert b"HTTP/1.1 " + head == whole
    assert rest.startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine).connect()
    client.send(infer(1) + infer(2) + get("/v2/health/live") + infer(3))
    assert len(engine.submitted) == 1
    while engine.open:
        engine.finish()
        client.take_turns()
    replies = client.replies()
    assert [len(reply.json.get("outputs", [])) for reply in replies] == [1, 1, 0, 1]


def test_a_long_pipeline_stops_the_reading_until_it_is_worked_off() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine, limits=Limits(pipelined=2)).connect()
    client.send(infer() * 5)
    assert not client.transport.reading
    for _ in range(5):
        engine.finish()
    assert client.transport.reading
    assert len(client.replies()) == 5


def test_a_client_that_waits_on_one_request_is_still_watched_for_leaving() -> None:
    client = Bench(FakeEngine(at_once=False)).connect()
    client.send(infer())
    assert client.transport.reading


def test_ten_thousand_pipelined_requests_do_not_exhaust_the_stack() -> None:
    client = Bench().connect()
    client.send(get("/v2/health/live") * 10_000)
    assert len(client.replies()) == 10_000


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_chunked_bodies_are_read_whatever_the_chunks(size: int) -> None:
    client = Bench().connect()
    client.send(chunked(infer(4), size) + infer(5))
    assert first_values(client) == [5, 6]


def test_a_request_may_come_in_single_bytes() -> None:
    client = Bench().connect()
    for byte in infer(6):
        client.send(bytes([byte]))
    assert first_values(client) == [7]


HTTP_2 = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"
TLS = "Connection: Upgrade\r\nUpgrade: TLS/1.2"
BOTH = "Upgrade: h2c, TLS/1.2\r\nconnection: keep-alive,\tupgrade"
WEBSOCKET = "Upgrade: websocket\r\nConnection: keep-alive\r\nConnection: Upgrade"


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("offer", [HTTP_2, TLS, BOTH, WEBSOCKET])
def test_an_offer_of_another_protocol_is_ignored_body_and_following_requests_included(
    offer: str, size: int
) -> None:
    client = Bench().connect()
    offered = [infer(1, offer), chunked(infer(2, offer), 5), get("/v2", offer) * 3]
    sent = b"".join([*offered, infer(3)])
    for start in range(0, len(sent), size):
        client.send(sent[start : start + size])
    replies = client.replies()
    assert [reply.status for reply in replies] == [200] * 6
    values = [reply.json["outputs"][0]["data"][0] for reply in (*replies[:2], replies[-1])]
    assert values == [2, 3, 4]
    assert not client.transport.closed


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_body_behind_an_offer_is_not_taken_for_a_request(size: int) -> None:
    client = Bench().connect()
    sent = post("/v2", get("/v2/health/live"), TLS) + get("/v2")
    for start in range(0, len(sent), size):
        client.send(sent[start : start + size])
    assert [reply.status for reply in client.replies()] == [405, 200]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_what_else_a_client_asks_for_is_done_beside_its_offer(version: bytes) -> None:
    client = Bench().connect()
    asked = infer(1, "Connection: close, Upgrade\r\nUpgrade: TLS/1.2\r\nExpect: 100-continue")
    head, _, body = asked.replace(b"HTTP/1.1", b"HTTP/" + version, 1).partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    client.send(body)
    told = [100, 200] if version == b"1.1" else [200]
    assert [reply.status for reply in client.replies()] == told
    assert client.transport.closed


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    client = Bench().connect()
    head, _, body = infer(1, "Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert bytes(client.transport.written) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert [reply.status for reply in client.replies()] == [100, 200]


def test_a_client_that_asks_behind_other_requests_is_told_when_its_turn_comes() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine, limits=Limits(body_timeout_s=60))
    client = bench.connect()
    head, _, body = infer(3, "Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(infer(1) + infer(2) + head + b"\r\n\r\n")
    bench.server.sweep(50.0)
    engine.finish()
    client.take_turns()
    assert [reply.status for reply in client.replies()] == [200]
    engine.finish()
    assert [reply.status for reply in client.replies()] == [200, 200, 100]
    bench.server.sweep(100.0)
    client.send(body)
    engine.finish()
    assert [reply.status for reply in client.replies()] == [200, 200, 100, 200]


def test_a_client_that_asks_and_does_not_wait_is_not_told() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine).connect()
    sent = infer(1) + infer(2, "Expect: 100-continue")
    client.send(sent[:-3])
    engine.finish()
    client.send(sent[-3:])
    engine.finish()
    assert [reply.status for reply in client.replies()] == [200, 200]


def test_a_client_that_asks_first_for_too_much_is_told_no() -> None:
    client = Bench(limits=Limits(body_bytes=10)).connect()
    client.send(infer(1, "Expect: 100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert client.reply().status == 413


@pytest.mark.parametrize(("length", "said"), [(100, [100]), (101, [413])])
def test_a_body_of_just_the_limit_is_asked_for_and_one_byte_more_is_not(
    length: int, said: list[int]
) -> None:
    client = Bench(limits=Limits(body_bytes=100)).connect()
    client.send(
        b"POST /v2/models/adder/infer HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        b"Content-Length: %d\r\n\r\n" % length
    )
    assert [int(line.split()[1]) for line in client.transport.written.split(b"\r\n")[:1]] == said


def test_the_connection_closes_when_the_client_asks_for_it() -> None:
    client = Bench().connect()
    client.send(infer(1, "Connection: close"))
    assert client.reply().headers["connection"] == "close"
    assert client.transport.closed


def test_nothing_follows_the_last_answer_of_a_connection() -> None:
    client = Bench().connect()
    client.send(infer(1, "Connection: close") + infer(2) + b"nonsense")
    assert client.reply().status == 200


def test_a_client_of_http_1_0_gets_one_answer() -> None:
    client = Bench().connect()
    client.send(get("/v2").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert client.reply().status == 200
    assert client.transport.closed


def test_a_client_of_http_1_0_need_not_name_the_host_as_health_checks_do_not() -> None:
    answered = []
    for origin in (b"", b"Origin: http://evil.example\r\n"):
        for version in (b"1.0", b"1.1"):
            client = Bench().connect()
            client.send(b"GET /v2/health/ready HTTP/%b\r\n%b\r\n" % (version, origin))
            answered.append(client.reply().status)
    assert answered == [200, 400, 403, 400]


def test_a_client_of_http_1_0_that_asks_first_is_not_told_to_go_on_which_it_would_not_know() -> (
    None
):
    client = Bench().connect()
    client.send(infer(1, "Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert [reply.status for reply in client.replies()] == [200]


def test_when_the_client_leaves_its_inference_is_cancelled_and_never_answered() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine)
    client = bench.connect()
    client.send(infer(1) + infer(2))
    inference = engine.open[0]
    client.transport.close()
    assert engine.cancelled == [inference]
    assert len(engine.submitted) == 1
    inference.on_done(engine.answer_to(inference))
    assert client.replies() == []
    assert bench.server.buffered_bytes == 0
    assert not bench.server.connections


def test_a_refusal_half_way_through_a_body_is_sent_before_the_connection_is_cut() -> None:
    client = Bench(limits=Limits(body_bytes=100, linger_bytes=1000)).connect()
    client.send(post(INFER, b"x" * 5000)[:300])
    assert client.reply().status == 413
    assert client.transport.half_closed
    assert not client.transport.closed
    client.send(b"x" * 900)
    assert not client.transport.closed
    client.send(b"x" * 900)
    assert client.transport.aborted


def test_refusals_wait_for_the_answers_before_them() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine).connect()
    client.send(infer(1) + b"nonsense\r\n\r\n")
    assert client.replies() == []
    engine.finish()
    assert [reply.status for reply in client.replies()] == [200, 400]


def test_connections_beyond_the_limit_are_turned_away() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine, limits=Limits(connections=2, reserved_connections=0))
    clients = [bench.connect() for _ in range(2)]
    for client in clients:
        client.send(infer())
    clients.append(bench.connect())
    reply = clients[2].reply()
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    engine.finish()
    assert clients[0].reply().status == 200
    clients[0].transport.close()
    clients[2].transport.close()
    replacement = bench.connect()
    replacement.send(get("/v2"))
    assert replacement.reply().status == 200


def test_all_bodies_together_have_a_limit() -> None:
    bench = Bench(limits=Limits(buffered_bytes=1000))
    holding = bench.connect()
    holding.send(post(INFER, b"x" * 2000)[:900])
    refused = bench.connect()
    refused.send(post(INFER, b"x" * 900))
    assert refused.reply().status == 503
    holding.transport.close()
    assert bench.server.buffered_bytes == 0


@pytest.mark.parametrize(
    ("sent", "limit", "what"),
    [
        (b"POST /v2 HT", Limits(head_timeout_s=5), "head"),
        (infer()[:-3], Limits(body_timeout_s=5), "body"),
    ],
)
def test_a_request_that_trickles_in_is_ended(sent: bytes, limit: Limits, what: str) -> None:
    bench = Bench(limits=limit)
    bench.server.sweep(100.0)
    client = bench.connect()
    client.send(sent)
    bench.server.sweep(104.9)
    client.send(b"")
    assert client.replies() == []
    bench.server.sweep(105.1)
    assert client.reply().status == 408
    assert f"the {what} of the request" in client.reply().error


def test_each_byte_of_a_trickle_buys_no_more_time() -> None:
    bench = Bench(limits=Limits(head_timeout_s=5))
    client = bench.connect()
    for second, byte in enumerate(infer()[:20]):
        client.send(bytes([byte]))
        bench.server.sweep(float(second))
    assert client.reply().status == 408


def test_an_idle_connection_is_closed_without_a_word() -> None:
    bench = Bench(limits=Limits(idle_timeout_s=5))
    client = bench.connect()
    client.send(get("/v2"))
    bench.server.sweep(4.0)
    assert not client.transport.closed
    client.send(get("/v2"))
    bench.server.sweep(8.0)
    assert not client.transport.closed
    bench.server.sweep(9.5)
    assert client.transport.closed
    assert len(client.replies()) == 2


def test_a_request_being_worked_on_is_never_timed_out_by_the_connection() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine)
    client = bench.connect()
    client.send(infer())
    bench.server.sweep(1e6)
    engine.finish()
    assert client.reply().status == 200


def test_a_client_that_does_not_read_is_not_written_to_and_finally_cut_off() -> None:
    bench = Bench(limits=Limits(write_timeout_s=5))
    client = bench.connect()
    client.send(infer(1))
    client.connection.pause_writing()
    client.send(infer(2))
    assert first_values(client) == [2]
    client.connection.resume_writing()
    assert first_values(client) == [2, 3]
    client.connection.pause_writing()
    bench.server.sweep(6.0)
    assert client.transport.aborted


def test_a_last_answer_that_nobody_takes_does_not_hold_the_connection_for_ever() -> None:
    bench = Bench(limits=Limits(write_timeout_s=5))
    client = bench.connect()
    client.transport.stuck = True
    client.send(infer(1, "Connection: close"))
    bench.server.sweep(4.0)
    assert bench.server.connections
    bench.server.sweep(6.0)
    assert not bench.server.connections


@pytest.mark.parametrize("last", [False, True])
def test_a_client_that_takes_its_answer_slowly_is_let_for_as_long_as_it_takes_enough(
    last: bool,
) -> None:
    bench = Bench(limits=Limits(write_timeout_s=5, write_bytes=1_000))
    client = bench.connect()
    client.transport.stuck = True
    client.transport.untaken_bytes = 10_000
    client.send(infer(1, "Connection: close" if last else "X: y"))
    if not last:
        client.connection.pause_writing()
    for now_s, left in ((6.0, 9_000), (12.0, 5_000), (18.0, 999), (24.0, 1)):
        client.transport.untaken_bytes = left
        bench.server.sweep(now_s)
        assert client.transport.aborted == (left == 1), left


def test_of_all_that_do_not_take_their_answers_those_who_hold_the_most_are_cut_off() -> None:
    bench = Bench(limits=Limits(untaken_bytes=1_000))
    clients = [bench.connect() for _ in range(4)]

    def cut_off(*held_bytes: int) -> list[bool]:
        for client, size_bytes in zip(clients, held_bytes, strict=True):
            client.transport.untaken_bytes = size_bytes
        bench.server.sweep(1.0)
        return [client.transport.aborted for client in clients]

    assert cut_off(100, 400, 0, 500) == [False] * 4
    assert cut_off(100, 500, 0, 501) == [False, False, False, True]
    clients[3] = bench.connect()
    assert cut_off(600, 700, 500, 0) == [True, True, False, False]


def test_who_has_taken_all_and_is_not_gone_is_not_waited_for_again() -> None:
    bench = Bench(limits=Limits(write_timeout_s=5))
    client = bench.connect()
    client.transport.stuck = True
    client.transport.untaken_bytes = 10
    client.send(infer(1, "Connection: close"))
    client.transport.untaken_bytes = 0
    bench.server.sweep(6.0)
    assert not client.transport.aborted
    bench.server.sweep(12.0)
    assert client.transport.aborted


def test_draining_answers_what_was_accepted_and_closes_every_connection() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine)
    idle, busy, late = bench.connect(), bench.connect(), bench.connect()
    idle.send(get("/v2"))
    busy.send(infer(1))
    late.send(infer(2)[:-3])
    bench.server.drain()
    assert idle.transport.closed
    late.send(infer(2)[-3:])
    engine.finish()
    assert busy.reply().status == 200
    assert busy.reply().headers["connection"] == "close"
    engine.finish(Refusal(reason="draining", message="shutting down", retry_after_us=0))
    assert late.reply().status == 503
    assert late.reply().headers["retry-after"] == "1"
    assert busy.transport.closed
    assert late.transport.closed
    assert not bench.server.connections


def test_large_answers_are_not_copied_into_one_piece() -> None:
    from helpers.gateway import served_model

    shape = (100_000,)
    model = served_model(inputs=(("x", "uint8", shape),), outputs=(("y", "uint8", shape),))
    tensor = {"name": "x", "shape": [1, 100_000], "datatype": "UINT8"}
    text = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": 100_000}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    header = f"Inference-Header-Content-Length: {len(text)}"
    reply = Bench(FakeEngine(model)).ask(post(INFER, text + bytes(100_000), header))
    assert reply.body.endswith(b"\x01" * 100_000)
