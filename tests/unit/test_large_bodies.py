"""Bodies that are read past the parser: as any other, whatever the pieces in which they come."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.front.http import HttpConnection
from headrace.serving.front.http_messages import Limits
from helpers.crumbs import crumbling_crowd
from helpers.gateway import Bench, Client, FakeEngine, get, post, served_model

INFER = "/v2/models/picture/infer"
NUMBERS = 40_000
X = np.arange(NUMBERS, dtype=np.float32)
Y = (X + 1).tobytes()


def bench(limits: Limits | None = None, *, at_once: bool = True) -> Bench:
    model = served_model(
        name="picture",
        inputs=(("x", "float32", (NUMBERS,)),),
        outputs=(("y", "float32", (NUMBERS,)),),
    )
    return Bench(FakeEngine(model, at_once=at_once), limits=limits)


def picture(more: bytes = b"") -> bytes:
    tensor = {
        "name": "x",
        "shape": [1, NUMBERS],
        "datatype": "FP32",
        "parameters": {"binary_data_size": X.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    fields = f"Inference-Header-Content-Length: {len(head)}"
    return post(INFER, head + X.tobytes() + more, fields)


def sent_in(client: Client, message: bytes, cuts: list[int]) -> None:
    for start, end in zip([0, *cuts], [*cuts, len(message)], strict=True):
        client.send(message[start:end])


@given(cuts=st.lists(st.integers(0, 2 * len(picture())), max_size=6).map(sorted))
def test_pictures_one_behind_the_other_are_answered_whatever_the_pieces(cuts: list[int]) -> None:
    own = bench()
    client = own.connect()
    sent_in(client, picture() + picture() + get("/v2"), cuts)
    replies = client.replies()
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert all(reply.body.endswith(Y) for reply in replies[:2])
    assert own.server.buffered_bytes == 0
    assert client.transport.reading


def test_a_body_with_bytes_too_many_is_refused_as_any_other() -> None:
    own = bench()
    client = own.connect()
    client.send(picture(b"too many") + get("/v2"))
    refused, after = client.replies()
    assert (refused.status, after.status) == (400, 200)
    assert "8 bytes more" in refused.error


def test_what_has_come_of_a_body_is_counted_and_given_back_when_the_client_leaves() -> None:
    own = bench()
    client = own.connect()
    client.send(picture()[:100_000])
    assert 99_000 < own.server.buffered_bytes < 100_000
    client.transport.close()
    assert own.server.buffered_bytes == 0


def test_an_announced_length_alone_takes_nothing_of_the_room_for_all_bodies() -> None:
    own = bench(Limits(buffered_bytes=200_000))
    for _ in range(20):
        own.connect().send(picture()[:1_000])
    owner = own.connect()
    owner.send(picture())
    assert owner.reply().status == 200


def test_all_bodies_together_have_a_limit() -> None:
    own = bench(Limits(buffered_bytes=200_000))
    own.connect().send(picture()[:120_000])
    refused = own.connect()
    refused.send(picture())
    assert refused.reply().status == 503
    assert own.server.buffered_bytes < 120_000


def test_a_body_that_does_not_come_in_time_is_ended_and_what_still_comes_thrown_away() -> None:
    own = bench(Limits(body_timeout_s=5))
    own.server.sweep(100.0)
    client = own.connect()
    client.send(picture()[:100_000])
    own.server.sweep(105.1)
    assert client.reply().status == 408
    client.send(picture()[100_000:])
    assert client.reply().status == 408
    assert own.server.buffered_bytes == 0
    assert not own.engine.submitted


def test_a_large_body_in_crumbs_is_read_ever_more_seldom_in_a_crowd() -> None:
    own = bench()
    crumbling_crowd(own)
    client = own.connect()
    client.send(picture()[:100_000])
    for at in range(100_000, 100_004):
        assert client.transport.reading
        client.send(picture()[at : at + 1])
    assert not client.transport.reading
    own.server.sweep(client.connection.wakes_s)
    client.send(picture()[100_004:])
    assert client.reply().status == 200


def test_what_came_before_the_peer_was_known_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = bench()
    meetings: list[HttpConnection] = []
    monkeypatch.setattr(own.gateway, "meet", meetings.append)
    client = own.connect()
    message = picture()
    client.send(message[:30_000])
    client.send(message[30_000:90_000])
    monkeypatch.undo()
    own.gateway.meet(*meetings)
    client.send(message[90_000:])
    assert client.reply().body.endswith(Y)
