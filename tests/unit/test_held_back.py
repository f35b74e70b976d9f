"""Requests that waited for earlier ones of their client: why they are refused, and who pays."""

import numpy as np
import pytest

from headrace.serving.core import hopeless
from headrace.serving.core.held import Held
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.core.sequences import Step
from headrace.serving.engine.inference import Refusal
from headrace.serving.front.grpc.messages import message
from helpers.core import Array, CoreClient
from helpers.gateway import FakeEngine, served_model
from helpers.grpc_bench import GrpcBench, GrpcPeer, infer, prefixed
from helpers.sequences import SumEngine

TOO_LATE = Refusal(reason="deadline", message="too much work", retry_after_us=1, passed_us=150_000)
"""Of a request that would have been in time 150.001 ms later."""
STREAMED = 64
"""Inferences of one stream that are under way at once."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock; no time pays for trying what was refused."""
    monkeypatch.setattr(hopeless, "TRIES_PART", 1 << 60)
    clock = [10_000_000]
    for module in ("core.hopeless", "core.protocol", "front.grpc.inferences"):
        monkeypatch.setattr(f"headrace.serving.{module}.monotonic_us", lambda: clock[0])
    return clock


def ahead(bench: GrpcBench, now: list[int]) -> tuple[GrpcPeer, int]:
    """Its last message came when the stream was full, and is under way 200 ms later."""
    peer = bench.connect().greet(1 << 20)
    stream = peer.open("ModelStreamInfer")
    peer.connection.arrived_at_us = now[0]
    for _ in range(STREAMED + 1):
        peer.data(stream, prefixed(infer()))
    now[0] += 200_000
    peer.connection.arrived_at_us = now[0]
    peer.data(stream, b"\0")  # the beginning of another
    for _ in range(STREAMED):
        bench.engine.finish()
    return peer, stream


def test_a_message_behind_a_full_stream_keeps_its_deadline_and_is_told_that_it_waited(
    now: list[int],
) -> None:
    bench = GrpcBench(engine := FakeEngine(at_once=False))
    came_at_us = now[0]
    peer, stream = ahead(bench, now)
    [held] = engine.open
    assert held.arrived_at_us == came_at_us
    engine.finish(TOO_LATE)
    peer.look()
    told = message("ModelStreamInferResponse").FromString(peer.calls[stream].messages[STREAMED])
    assert told.error_message == (
        "the request waited 200.0 ms for earlier ones of its stream or sequence, so that model"
        " 'adder' could not answer within 100.0 ms; send fewer ahead of their answers, or allow"
        " more time"
    )


def test_a_message_behind_a_full_stream_has_its_own_arrival_not_that_of_the_streams_last(
    now: list[int],
) -> None:
    bench = GrpcBench(engine := FakeEngine(at_once=False))
    peer = bench.connect().greet(1 << 20)
    stream = peer.open("ModelStreamInfer")
    for at_us in range(STREAMED + 2):
        peer.connection.arrived_at_us = at_us + 1
        peer.data(stream, prefixed(infer()))
    for _ in range(3):
        engine.finish()
    assert [each.arrived_at_us for each in engine.submitted] == list(range(1, STREAMED + 3))


def test_nobody_else_is_refused_because_a_stream_held_its_own_messages_back(
    now: list[int],
) -> None:
    bench = GrpcBench(engine := FakeEngine(at_once=False))
    ahead(bench, now)
    engine.finish(TOO_LATE)
    peer = bench.connect().greet()
    peer.connection.arrived_at_us = now[0] - 200_000  # it waited as long to be read
    peer.call("ModelInfer", infer())
    assert len(engine.open) == 1


@pytest.mark.parametrize(("waited_us", "explained"), [(200_000, True), (150_000, False)])
def test_only_a_wait_for_the_step_before_that_was_too_long_is_given_as_the_cause(
    now: list[int], waited_us: int, explained: bool
) -> None:
    core = ProtocolCore(engine := SumEngine(at_once=False))
    clients = [
        CoreClient(core, (Array("x", np.ones((1, 1), np.float32)),), "sums", step=Step(7, start))
        for start in (True, False)
    ]
    for client in clients:
        core.submit("sums", client)
    now[0] += waited_us
    engine.finish()
    engine.finish(TOO_LATE)
    ending = clients[1].ending
    assert isinstance(ending, Refusal)
    assert ("earlier ones of its stream or sequence" in ending.message) == explained
    assert ending.retry_after_us == TOO_LATE.retry_after_us


def test_a_timeout_that_never_does_is_not_put_down_to_a_wait() -> None:
    model = served_model()
    never = model.refuse_timeout(1)
    assert not Held(model, 1_000_000).explains(never)


def test_what_an_apps_own_code_took_is_not_put_down_to_a_wait() -> None:
    expired = Refusal(reason="deadline", message="still in its own code", retry_after_us=0)
    assert not Held(served_model(), 1_000_000).explains(expired)
