"""A request without a chance is refused before it is read, and who comes back too early waits."""

import json
import math
import socket

import pytest

from headrace.domain.events import AnyEvent, Arrived, Dropped
from headrace.domain.request import DropReason
from headrace.serving.core import hopeless
from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Inference, Refusal, try_again
from headrace.serving.front import arrivals, inferences
from headrace.serving.front.arrivals import Arrivals
from headrace.serving.front.grpc.status import status_of
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Run
from headrace.serving.workers.stage_io import HERE
from headrace.serving.workers.transport import SharedMemory
from headrace.simulation.clock import SimClock
from helpers.gateway import Bench, Client, FakeEngine, post, served_model
from helpers.served import plan_by_hand, profile_by_hand

RETRY_US = 20_000


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock; no time pays for trying what was refused."""
    monkeypatch.setattr(hopeless, "TRIES_PART", 1 << 60)
    clock = [10_000_000]
    for module in (hopeless, inferences, arrivals):
        monkeypatch.setattr(module, "monotonic_us", lambda: clock[0])
    monkeypatch.setattr("headrace.serving.core.protocol.monotonic_us", lambda: clock[0])
    return clock


def infer(**fields: object) -> bytes:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    return post("/v2/models/adder/infer", json.dumps({"inputs": [tensor], **fields}).encode())


def refused(
    engine: FakeEngine, client: Client, request: bytes = b"", retry_us: int = RETRY_US
) -> None:
    """One request that the dispatcher refuses."""
    client.send(request or infer())
    engine.finish(Refusal(reason="deadline", message="too much", retry_after_us=retry_us))


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
    [(model, logged)] = engine.logged
    assert (model, logged.reason) == ("adder", "deadline"), "the dispatcher logs what reaches it"
    now[0] += RETRY_US
    bench.connect().send(infer())
    assert len(engine.submitted) == 2


class Stamped(Arrivals):
    """All bytes that are read arrived at that instant."""

    def __init__(self, at_us: int) -> None:
        super().__init__()
        self._at_us = at_us

    def before_read(self, connection: socket.socket | None, alone: bool) -> int:
        return self._at_us


def test_what_arrived_before_the_time_has_no_chance_after_it_unless_it_waited_to_be_read(
    now: list[int], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopeless, "TRIES_PART", 20)
    bench = Bench(engine)
    came_at_us, prompt_us = now[0], bench.core.models["adder"].slo_us // 20
    refused(engine, bench.connect())

    def read(came_us: int, after_us: int) -> bool:
        """Whether one that came so long after the refused one is, so much later."""
        before = len(engine.submitted)
        bench.server.arrivals = Stamped(came_at_us + came_us)
        now[0] = came_at_us + came_us + after_us
        bench.connect().send(infer())
        return len(engine.submitted) > before

    assert not read(RETRY_US - 1, prompt_us)
    assert read(RETRY_US - 1, prompt_us + 1)
    assert read(RETRY_US, 0)


def test_where_models_come_and_go_tries_are_made_as_long_as_they_cost_little(
    now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopeless, "TRIES_PART", 20)
    known = hopeless.Hopeless(served_model(), hopeless.Answers(), sure=False)
    asked = Inference(model="adder", items=1, inputs=(), on_done=print)
    said = Refusal(reason="deadline", message="too much", retry_after_us=RETRY_US)
    known.on_refused(asked, said, now[0])
    assert known.refusal(now[0]) is None
    for _ in range(served_model().slo_us // 20 // hopeless.LEAST_TRY_US):
        known.on_refused(asked, said, now[0])
    assert known.refusal(now[0]) is not None


@pytest.fixture
def behind(now: list[int], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Its gateway reads what came half an objective ago, and a twentieth of time pays for tries."""
    monkeypatch.setattr(hopeless, "TRIES_PART", 20)
    bench = Bench(engine)
    bench.server.arrivals = Stamped(now[0] - bench.core.models["adder"].slo_us // 2)
    return bench


def test_what_has_waited_is_read_as_long_as_tries_cost_little(
    now: list[int], engine: FakeEngine, behind: Bench
) -> None:
    tries = behind.core.models["adder"].slo_us // 20 // hopeless.LEAST_TRY_US + 1
    for _ in range(tries):
        refused(engine, behind.connect(), retry_us=0)
    assert len(engine.submitted) == tries
    behind.ask(infer())
    assert len(engine.submitted) == tries, "an objective's share of time is spent"
    now[0] += 20 * hopeless.LEAST_TRY_US
    refused(engine, behind.connect(), retry_us=0)
    behind.ask(infer())
    assert len(engine.submitted) == tries + 1, "the time that passed pays for one"


def in_vain(engine: FakeEngine, bench: Bench, count: int) -> None:
    """So many requests that have waited are refused together."""
    for _ in range(count):
        bench.connect().send(infer())
    while engine.open:
        engine.finish(Refusal(reason="deadline", message="too much", retry_after_us=0))


def test_a_thousand_that_waited_in_vain_cost_no_more_than_an_objective_without_tries(
    now: list[int], engine: FakeEngine, behind: Bench
) -> None:
    in_vain(engine, behind, 1_000)
    now[0] += behind.core.models["adder"].slo_us + 20 * hopeless.LEAST_TRY_US
    refused(engine, behind.connect(), retry_us=0)
    behind.connect().send(infer())
    assert len(engine.submitted) == 1_002, "what a second would have paid back is forgotten"


def test_what_has_passed_of_the_time_until_one_may_try_counts_as_well(
    now: list[int], engine: FakeEngine
) -> None:
    bench = Bench(engine)
    bench.connect().send(infer())
    now[0] += 1_000
    refusal = Refusal(
        reason="deadline", message="too much", retry_after_us=RETRY_US - 1_000, passed_us=1_000
    )
    engine.finish(refusal)
    now[0] += RETRY_US - 1_001
    assert bench.ask(infer()).json["reason"] == "deadline"
    now[0] += 1
    bench.connect().send(infer())
    assert len(engine.submitted) == 2


def test_what_waited_as_long_as_one_that_was_refused_for_it_is_not_read(
    now: list[int], engine: FakeEngine
) -> None:
    bench = Bench(engine)
    objective_us = bench.core.models["adder"].slo_us

    def read(waited_us: int) -> bool:
        """Whether a request that the gateway came to so late reaches the dispatcher."""
        before = len(engine.submitted)
        bench.server.arrivals = Stamped(now[0] - waited_us)
        bench.connect().send(infer())
        return len(engine.submitted) > before

    long_us = objective_us // 2
    assert read(long_us)
    engine.finish(Refusal(reason="deadline", message="too much", retry_after_us=0))
    assert not read(long_us)
    assert read(long_us - 1)
    engine.finish()
    assert not read(long_us), "answers of others change nothing"
    now[0] += long_us
    assert read(long_us), "after half an objective one tries"


def test_a_request_that_was_read_late_and_refused_much_later_tells_of_nobody_else(
    now: list[int], engine: FakeEngine
) -> None:
    bench = Bench(engine)
    objective_us = bench.core.models["adder"].slo_us
    waited_us = objective_us // 50
    bench.server.arrivals = Stamped(now[0] - waited_us)
    bench.connect().send(infer())
    now[0] += objective_us - waited_us
    engine.finish(Refusal(reason="deadline", message="its time was over", retry_after_us=0))
    bench.server.arrivals = Stamped(now[0] - waited_us)
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
    for _ in range(4):
        now[0] += 100
        client.send(infer())
    assert bench.held_s == [0.05, 0.1, 0.2, 0.2]
    assert [reply.status for reply in client.replies()] == [429] * 5
    assert bench.server.buffered_bytes == 0


@pytest.mark.parametrize(("came_us", "held_s"), [(RETRY_US - 1, [0.05]), (RETRY_US, [])])
def test_who_came_back_too_early_waits_also_when_it_is_read_late(
    now: list[int], engine: FakeEngine, came_us: int, held_s: list[float]
) -> None:
    bench = Bench(engine)
    client = bench.connect()
    refused(engine, client)
    bench.server.arrivals = Stamped(now[0] + came_us)
    now[0] += RETRY_US + 10_000
    client.send(infer())
    for _ in engine.open:  # None where it was refused before it was read.
        engine.finish(Refusal(reason="deadline", message="too much", retry_after_us=RETRY_US))
    assert bench.held_s == held_s


def test_who_waits_as_told_is_answered_at_once(now: list[int], engine: FakeEngine) -> None:
    bench = Bench(engine)
    client = bench.connect()
    for _ in range(3):
        refused(engine, client)
        now[0] += RETRY_US
    assert bench.held_s == []


# -- in the event log, and from the head alone -----------------------------------------------


class IdleWorker:
    home = HERE

    def run(self, frame: Run) -> None:
        raise AssertionError("nothing that is refused early runs")

    def restart(self, why: str) -> None:
        raise AssertionError("nothing that is refused early runs")


def test_what_is_refused_before_it_is_read_is_in_the_event_log() -> None:
    profile = profile_by_hand(["y"], batch_size=4, stage_us=8_000, device="cpu")
    plan = plan_by_hand([1], 4, 150_000, 8_000, device="cpu", nodes=1, gbps=None)
    clock, events = SimClock(), list[AnyEvent]()
    refusal = Refusal(reason="deadline", message="too much", retry_after_us=RETRY_US)
    for sink in (None, events.append):
        plane = DataPlane(
            plan,
            {"m": profile},
            clock=clock,
            call_soon=lambda callback: clock.call_at(clock.now_us(), callback),
            links=[IdleWorker()],
            transport=SharedMemory(Arena(1)),
            sink=sink,
        )
        plane.log_refused("m", refusal)
        plane.log_refused("m", refusal)
    assert events == [
        Arrived(0, 0, 0, 150_000),
        Dropped(0, 0, "deadline", RETRY_US),
        Arrived(0, 1, 0, 150_000),
        Dropped(0, 1, "deadline", RETRY_US),
    ]


def test_tensors_that_are_too_large_for_the_model_are_refused_from_the_head(
    engine: FakeEngine,
) -> None:
    bench = Bench(engine)
    client = bench.connect()
    most_bytes = 8 * 16
    head = (
        b"POST /v2/models/adder/infer HTTP/1.1\r\nHost: localhost\r\n"
        b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n"
    )
    client.send(head % (100 + most_bytes + 1))
    reply = client.reply()
    assert (reply.status, f"at most {most_bytes}" in reply.error) == (413, True)
    assert bench.core.counters["adder"].refused == {"bad-request": 1}
    assert bench.server.buffered_bytes == 0
    client = bench.connect()
    client.send(head % (100 + most_bytes))
    assert client.replies() == [], "that much may be right: its body decides"


# -- when to try again ---------------------------------------------------------------------------


@pytest.mark.parametrize("never", [True, False])
def test_only_what_can_never_be_answered_is_not_told_when_to_try_again(
    engine: FakeEngine, never: bool
) -> None:
    client = Bench(engine).connect()
    client.send(infer())
    engine.finish(Refusal(reason="deadline", message="no", retry_after_us=0, never=never))
    reply = client.reply()
    assert reply.status == 429
    assert ("retry-after" in reply.headers) == (not never)
    assert reply.json.get("retry_after_ms") == (None if never else 1000.0)


@pytest.mark.parametrize(
    ("known_us", "told_ms", "said"),
    [
        (30, 5, "try again in 5.0 ms"),
        (20_500, 20.5, "try again in 20.5 ms"),
        (0, 1_000, "try again in 1.0 s"),
    ],
    ids=["at once", "soon", "not known"],
)
@pytest.mark.parametrize("reason", ["deadline", "no-slot"])
def test_every_protocol_and_the_sentence_say_the_same_time_which_is_never_nothing(
    engine: FakeEngine, reason: DropReason, known_us: int, told_ms: float, said: str
) -> None:
    refusal = Refusal(reason=reason, message="no", retry_after_us=known_us)
    client = Bench(engine).connect()
    client.send(infer())
    engine.finish(refusal)
    assert client.reply().json["retry_after_ms"] == told_ms
    assert (b"headrace-retry-after-ms", b"%g" % told_ms) in status_of(refusal).fields
    assert (b"grpc-retry-pushback-ms", b"%d" % math.ceil(told_ms)) in status_of(refusal).fields
    assert try_again(known_us) == said


def test_an_early_refusal_does_not_say_to_try_again_in_no_time(
    now: list[int], engine: FakeEngine
) -> None:
    bench = Bench(engine)
    refused(engine, bench.connect())
    now[0] += RETRY_US - 30
    assert "try again in 5.0 ms" in bench.ask(infer()).error
