"""A request without a chance is refused before it is read, and who comes back too early waits."""

import json

import pytest

from headrace.serving.core import hopeless
from headrace.serving.engine.inference import Refusal
from headrace.serving.front import inferences
from helpers.gateway import Bench, Client, FakeEngine, post

RETRY_US = 20_000


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    clock = [10_000_000]
    for module in (hopeless, inferences):
        monkeypatch.setattr(module, "monotonic_us", lambda: clock[0])
    monkeypatch.setattr("headrace.serving.core.protocol.monotonic_us", lambda: clock[0])
    return clock


def infer(**fields: object) -> bytes:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    return post("/v2/models/adder/infer", json.dumps({"inputs": [tensor], **fields}).encode())


def refused(engine: FakeEngine, client: Client, request: bytes = b"") -> None:
    """One request that the dispatcher refuses."""
    client.send(request or infer())
    engine.finish(Refusal(reason="deadline", message="too much", retry_after_us=RETRY_US))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(at_once=False)


def test_what_the_dispatcher_refused_is_not_asked_again_before_its_time(
    now: list[int], engine: FakeEngine
) -> None:
    bench = Bench(engine)
    refused(engine, bench.connect())
    now[0] += 5_000
    reply = bench.ask(infer())
    assert (reply.status, reply.json["reason"]) == (429, "deadline")
    assert reply.json["retry_after_ms"] == (RETRY_US - 5_000) / 1000
    assert len(engine.submitted) == 1
    assert bench.core.counters["adder"].refused == {"deadline": 2}
    now[0] += RETRY_US
    bench.connect().send(infer())
    assert len(engine.submitted) == 2


def test_a_request_with_an_objective_of_its_own_is_always_read(
    now: list[int], engine: FakeEngine
) -> None:
    bench = Bench(engine)
    refused(engine, bench.connect())
    for parameters in ({"timeout": 60_000_000}, {"priority": 1}):
        bench.connect().send(infer(parameters=parameters))
    _, _, body = infer(parameters={"timeout": 60_000_000}).partition(b"\r\n\r\n")
    escaped = body.replace(b'"timeout', b'"\\u0074imeout')
    bench.connect().send(post("/v2/models/adder/infer", escaped))
    timeouts = [inference.timeout_us for inference in engine.submitted[1:]]
    assert timeouts == [60_000_000, None, 60_000_000]


def test_an_answer_gives_everybody_hope(now: list[int], engine: FakeEngine) -> None:
    bench = Bench(engine)
    running = bench.connect()
    running.send(infer())
    client = bench.connect()
    client.send(infer())
    engine.open.reverse()
    engine.finish(Refusal(reason="deadline", message="too much", retry_after_us=RETRY_US))
    engine.finish()
    bench.connect().send(infer())
    assert len(engine.submitted) == 3


@pytest.mark.parametrize("parameters", [{"timeout": 2_000}, {"priority": 3}])
def test_the_refusal_of_an_unusual_request_says_nothing_of_usual_ones(
    now: list[int], engine: FakeEngine, parameters: dict[str, int]
) -> None:
    bench = Bench(engine)
    refused(engine, bench.connect(), infer(parameters=parameters))
    bench.connect().send(infer())
    assert len(engine.submitted) == 2


def test_who_comes_back_before_the_time_is_answered_late(
    now: list[int], engine: FakeEngine
) -> None:
    bench = Bench(engine)
    client = bench.connect()
    refused(engine, client)
    assert bench.held_s == []
    for _ in range(3):
        now[0] += 100
        client.send(infer())
    assert bench.held_s == [pytest.approx((RETRY_US - 100 * (i + 1)) / 1e6) for i in range(3)]
    assert [reply.status for reply in client.replies()] == [429] * 4
    assert bench.server.buffered_bytes == 0


def test_who_waits_as_told_is_answered_at_once(now: list[int], engine: FakeEngine) -> None:
    bench = Bench(engine)
    client = bench.connect()
    for _ in range(3):
        refused(engine, client)
        now[0] += RETRY_US
    assert bench.held_s == []
