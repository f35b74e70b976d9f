"""HTTP's less common forms: what a message may be framed in, named by, and mistaken for."""

import gc
import gzip
import json
from collections.abc import Callable, Iterator

import pytest

from headrace.serving.core.signature import InvalidError
from headrace.serving.front.grpc.status import INTERNAL
from headrace.serving.front.http_messages import Limits
from helpers.gateway import Bench, FakeEngine, get, post
from helpers.grpc_bench import GrpcBench, prefixed

INFER = "/v2/models/adder/infer"
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()
CHUNKED = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
)
KILOBYTE = b"a" * 1024


@pytest.fixture
def uncollected() -> Iterator[Callable[[type], list[object]]]:
    """Objects of a type that have come since, and that nothing but the collector would free."""
    gc.collect()
    gc.disable()
    before = {id(each) for each in gc.get_objects()}

    def left(kind: type) -> list[object]:
        return [e for e in gc.get_objects() if issubclass(type(e), kind) and id(e) not in before]

    yield left
    gc.enable()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize(
    "begun",
    [
        CHUNKED + chunk(BODY) + b"0\r\nX: ",
        CHUNKED + chunk(BODY) + b"0\r\nX",
        CHUNKED + b"1;",
        CHUNKED + b"0000",
    ],
    ids=["value of a trailer", "name of a trailer", "extension of a chunk", "size of a chunk"],
)
def test_what_stands_around_a_body_is_bounded_like_a_head(begun: bytes) -> None:
    bench = Bench(limits=Limits(head_bytes=16 << 10))
    client = bench.connect()
    client.send(begun)
    piece = b"0" * 1024 if begun.endswith(b"0000") else KILOBYTE
    for _ in range(15):
        client.send(piece)
        assert not client.transport.written
    client.send(piece + piece)

    reply = client.reply()
    assert (reply.status, reply.headers["connection"]) == (431, "close")
    assert "more than 16384 bytes around a piece of the body" in reply.error
    assert bench.server.buffered_bytes == 0


def test_chunks_of_single_bytes_are_no_frame_too_large() -> None:
    body = BODY + b" " * 5_000
    client = Bench(limits=Limits(head_bytes=8 << 10)).connect()
    sent = CHUNKED + b"".join(chunk(body[i : i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
    for start in range(0, len(sent), 3_000):
        client.send(sent[start : start + 3_000])

    assert client.reply().status == 200


def test_space_behind_a_value_is_not_part_of_it() -> None:
    request = post(INFER, gzip.compress(BODY), "Content-Encoding: gzip \t ")
    request = request.replace(b"Host: localhost", b"Host: localhost  ")

    assert Bench().ask(request).status == 200


@pytest.mark.parametrize("name", ["Identity", "IDENTITY"])
def test_a_body_that_says_that_it_is_not_encoded_is_read(name: str) -> None:
    assert Bench().ask(post(INFER, BODY, f"Content-Encoding: {name}")).status == 200


def test_a_body_that_is_no_gzip_is_forgotten_with_its_answer(
    uncollected: Callable[[type], list[object]],
) -> None:
    bench = Bench()
    reply = bench.ask(post(INFER, BODY, "Content-Encoding: gzip"))

    assert reply.status == 400
    # An error that waits for the collector keeps the body, and up to 64 MB that were made of it.
    assert uncollected(InvalidError) == []


def test_a_body_for_which_there_is_no_room_once_inflated_is_told_when_to_come_again() -> None:
    request = post(INFER, gzip.compress(BODY + bytes(5_000)), "Content-Encoding: gzip")
    reply = Bench(limits=Limits(buffered_bytes=2_000)).ask(request)

    assert (reply.status, reply.headers["retry-after"]) == (503, "1")


def test_a_message_that_is_no_gzip_is_forgotten_with_its_answer(
    uncollected: Callable[[type], list[object]],
) -> None:
    peer = GrpcBench().connect().greet()
    stream = peer.open("ModelInfer", grpc_encoding="gzip")
    peer.data(stream, prefixed(b"no gzip", compressed=True), end=True)

    assert "not gzip data" in peer.calls[stream].sentence
    assert uncollected(InvalidError) == []


def test_a_body_for_which_there_is_no_memory_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("headrace.serving.front.inferences.inflate", no_memory)
    monkeypatch.setattr("headrace.serving.front.grpc.inferences.inflate", no_memory)
    peer = GrpcBench().connect().greet()
    stream = peer.open("ModelInfer", grpc_encoding="gzip")
    peer.data(stream, prefixed(b"zip", compressed=True), end=True)

    assert Bench().ask(post(INFER, b"zip", "Content-Encoding: gzip")).status == 500
    assert peer.calls[stream].status == INTERNAL


def test_gzip_goes_by_its_old_name_too() -> None:
    request = post(INFER, gzip.compress(BODY), "Content-Encoding: X-GZip")

    assert Bench().ask(request).status == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/v2/health/ready", 200),
        ("HTTP://127.0.0.1:8000/v2/health/ready?x=1", 200),
        ("http://localhost", 404),
        ("http://evil.example/v2/health/ready", 421),
        ("ftp://localhost/v2/health/ready", 404),
    ],
)
def test_a_target_that_is_a_whole_url_is_read_and_its_name_counts(target: str, status: int) -> None:
    assert Bench().ask(get(target)).status == status


def test_a_target_that_is_a_whole_url_does_not_stand_in_for_the_host() -> None:
    request = get("http://localhost/v2").replace(b"Host: localhost\r\n", b"")

    assert Bench().ask(request).status == 400


@pytest.mark.parametrize("version", ["2.0", "3.0", "1.2", "9.9"])
def test_a_version_that_is_not_spoken_is_refused_by_its_number(version: str) -> None:
    reply = Bench().ask(get("/v2").replace(b"HTTP/1.1", f"HTTP/{version}".encode()))

    said = f"this server speaks HTTP/1.1, not HTTP/{version}"
    assert (reply.status, reply.error) == (505, said)


@pytest.mark.parametrize("version", ["3", "3.x", "30.0", "1.10", ""])
def test_what_is_no_version_is_not_taken_for_one(version: str) -> None:
    reply = Bench().ask(get("/v2").replace(b"HTTP/1.1", f"HTTP/{version}".encode()))

    assert (reply.status, "not HTTP/1.1" in reply.error) == (400, True)


@pytest.mark.parametrize(
    ("sent", "hint"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "ask for http://"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "--grpc-port"),
    ],
    ids=["TLS", "HTTP/2"],
)
def test_another_protocol_is_told_where_to_go(sent: bytes, hint: str) -> None:
    reply = Bench().ask(sent)

    assert reply.status == 400
    assert hint in reply.error


def test_many_requests_of_one_read_let_others_have_their_turn() -> None:
    bench = Bench()
    client, other = bench.connect(), bench.connect()
    client.send(get("/metrics") * 100, turns=False)
    other.send(get("/v2/health/live"), turns=False)

    assert len(client.replies()) == 1
    assert len(other.replies()) == 1
    client.take_turns()
    assert len(client.replies()) == 100


@pytest.mark.parametrize(("read_bytes", "most_bytes"), [(60_000, 60_000), (3_000, 9_000)])
def test_a_body_in_chunks_of_single_bytes_lets_others_have_their_turn(
    read_bytes: int, most_bytes: int
) -> None:
    bench = Bench()
    client, other = bench.connect(), bench.connect()
    sent = CHUNKED + chunk(b" ") * 40_000 + chunk(BODY) + b"0\r\n\r\n"

    at = 0
    while at < len(sent):
        start = at
        while client.transport.reading and at < len(sent):
            client.send(sent[at : at + read_bytes], turns=False)
            at += read_bytes
        assert at - start <= most_bytes
        other.send(get("/v2/health/live"))
        assert client.transport.reading

    assert client.reply().status == 200
    assert [reply.status for reply in other.replies()] == [200] * len(other.replies())
    assert bench.server.buffered_bytes == 0


def test_many_requests_of_one_read_are_read_in_turns_too() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine, limits=Limits(pipelined=1_000)).connect()
    client.send(post(INFER, BODY) * 100, turns=False)
    assert not client.transport.reading
    client.take_turns()
    assert client.transport.reading

    while engine.open:
        engine.finish()
        client.take_turns()
    assert len(client.replies()) == 100


def test_who_waits_for_its_turn_is_not_read_because_its_requests_were_answered() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine, limits=Limits(pipelined=0)).connect()
    client.send(post(INFER, BODY) * 2 + CHUNKED + chunk(b" ") * 2_000, turns=False)
    while engine.open:
        engine.finish()
    assert len(client.replies()) == 2
    assert not client.transport.reading
    client.take_turns()
    assert client.transport.reading


def test_a_client_that_leaves_while_it_waits_for_its_turn_is_not_read_again() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(CHUNKED + chunk(b" ") * 8_000, turns=False)
    client.transport.close()
    client.take_turns()
    assert not client.transport.reading
    assert bench.server.buffered_bytes == 0


def test_a_client_that_leaves_before_its_turn_is_not_answered() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(get("/metrics") * 100, turns=False)
    known = len(client.replies())
    client.transport.abort()

    client.take_turns()
    assert len(client.replies()) == known
    assert not client.transport.reading, "nothing is asked of a transport that is gone"


def test_a_client_that_half_closes_before_its_answer_has_left_and_hears_so() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine)
    client = bench.connect()
    client.send(post(INFER, BODY) + post(INFER, BODY))
    client.connection.eof_received()
    reply = client.reply()
    assert (reply.status, reply.headers["connection"]) == (400, "close")
    assert "closed its side of the connection" in reply.error
    assert engine.cancelled == engine.submitted
    assert len(engine.submitted) == 1, "what stands behind it is not begun"
    assert bench.core.counters["adder"].refused == {"cancelled": 1}
    assert client.transport.closed
    assert bench.server.buffered_bytes == 0


def test_a_client_that_half_closes_after_its_answer_is_just_let_go() -> None:
    client = Bench().connect()
    client.send(post(INFER, BODY))
    client.connection.eof_received()
    assert client.reply().status == 200
