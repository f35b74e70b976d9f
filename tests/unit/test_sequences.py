"""Sequences: state that the server keeps from one request to the next."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.domain.errors import ProfileError
from headrace.domain.tensors import TensorSpec, check_states
from headrace.load.payload import RequestEncoder, decode_model_info, decode_sequences
from headrace.serving.core import sequences
from headrace.serving.core.counters import measures
from headrace.serving.core.protocol import Invalid, Late, ProtocolCore
from headrace.serving.core.sequences import MAX_WAITING
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.front.grpc import status
from headrace.serving.front.grpc.codec import MessageCodec
from headrace.serving.front.grpc.messages import message
from helpers.gateway import Bench, get, post
from helpers.grpc_bench import GrpcBench, Told
from helpers.sequences import SUMS, Asking, SumEngine

REFUSAL = Refusal(reason="deadline", message="too much work", retry_after_us=9)


def sequences_of(core: ProtocolCore) -> dict[str, float]:
    found = {m.name: m.samples for m in measures(core.counters, core.status())}
    return {
        name: value
        for name in ("sequences_open", "sequences_given_up")
        for _, value in found[name]
        if isinstance(value, int | float)
    }


def outcomes(core: ProtocolCore) -> dict[str, int]:
    counters = core.counters["sums"]
    return {"answered": counters.answered, "late": counters.late, **counters.refused}


def test_each_step_begins_with_the_state_that_the_one_before_has_left() -> None:
    asking = Asking(ProtocolCore(SumEngine()))
    asking.step(1, start=True)
    asking.step(2)
    asking.step(10, "other", start=True)
    asking.step(3)
    asking.step(20, "other")
    assert asking.sums() == [1, 3, 10, 6, 30]
    assert sequences_of(asking.core) == {"sequences_open": 2, "sequences_given_up": 0}


def test_the_last_step_closes_the_sequence_and_a_first_one_begins_with_zeros() -> None:
    asking = Asking(ProtocolCore(SumEngine()))
    asking.step(1, start=True)
    asking.step(2, end=True)
    assert sequences_of(asking.core)["sequences_open"] == 0
    asking.step(4)
    asking.step(5, start=True)
    asking.step(6, start=True)
    asking.step(7, start=True, end=True)
    assert asking.sums() == [1, 3, 5, 6, 7]
    [(x, ending)] = [pair for pair in asking.ends if not isinstance(pair[1], Answer)]
    assert x == 4
    assert isinstance(ending, Invalid)
    assert "sequence 7 of model 'sums' is not open" in ending.message
    assert "sequence_start" in ending.message
    assert outcomes(asking.core) == {"answered": 5, "late": 0, "bad-request": 1}


def test_steps_that_come_before_the_last_one_is_answered_wait_in_their_order() -> None:
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine))
    for x in (1, 2, 3):
        asking.step(x, start=x == 1)
    asking.step(50, 8, start=True)
    assert len(engine.open) == 2, "one step of each sequence is under way"
    for _ in range(4):
        engine.finish()
    assert asking.sums() == [1, 50, 3, 6]


@pytest.mark.parametrize("how", ["refused", "late", "cancelled"])
def test_a_step_without_an_answer_has_not_happened_and_those_behind_it_are_refused(
    how: str,
) -> None:
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine))
    asking.step(1, start=True)
    engine.finish()
    under_way = asking.step(2)
    asking.step(3)
    asking.step(4, start=True)
    if how == "cancelled":
        assert under_way is not None
        under_way.cancel()
    else:
        late = engine.answer_to(engine.open[0], ended_at_us=100_001)
        engine.finish(REFUSAL if how == "refused" else late)
    assert not engine.open
    told = asking.ends[1:]
    if how != "cancelled":
        (x, ending), *told = told
        assert x == 2
        assert ending is REFUSAL if how == "refused" else isinstance(ending, Late)
    assert [x for x, _ in told] == [3, 4]
    for _, ending in told:
        assert isinstance(ending, Refusal)
        assert ending.reason == "failed"
        assert "the step before it in sequence 7 has no answer" in ending.message

    asking.step(2)
    engine.finish()
    assert asking.sums() == [1, 3], "the state is that of the last answer"


def test_a_first_step_that_is_refused_opens_nothing() -> None:
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine))
    asking.step(1, start=True)
    engine.finish(REFUSAL)
    asking.step(2)
    assert isinstance(asking.ends[1][1], Invalid)
    assert sequences_of(asking.core)["sequences_open"] == 0


def test_an_answer_that_cannot_be_told_leaves_the_state_and_refuses_those_behind() -> None:
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine), untold={2})
    asking.step(1, start=True)
    asking.step(2, end=True)
    asking.step(4, start=True)
    engine.finish()
    engine.finish()
    assert [x for x, _ in asking.ends] == [1, 2, 4]
    assert outcomes(asking.core)["failed"] == 1
    asking.step(8)
    engine.finish()
    assert asking.sums() == [1, 9]


@pytest.mark.parametrize(("untold", "sums"), [(set[float](), [1, 3, 7]), ({2.0}, [1, 5])])
def test_what_a_client_asks_while_it_is_told_follows_what_it_was_told(
    untold: set[float], sums: list[float]
) -> None:
    """As a front does that has the next request already."""
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine), untold=untold)

    def on_end(x: float) -> None:
        if x == 2:
            asking.step(4)

    asking.on_end = on_end
    asking.step(1, start=True)
    asking.step(2)
    while engine.open:
        engine.finish()
    assert asking.sums() == sums


def test_a_step_that_waits_can_be_cancelled_and_takes_with_it_those_behind_it_only() -> None:
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine))
    asking.step(1, start=True)
    asking.step(2)
    third = asking.step(3)
    asking.step(4)
    assert third is not None
    third.cancel()
    third.cancel()
    assert [x for x, _ in asking.ends] == [4]
    engine.finish()
    engine.finish()
    assert asking.sums() == [1, 3]
    assert outcomes(asking.core) == {"answered": 2, "late": 0, "cancelled": 1, "failed": 1}


def test_a_step_behind_the_last_one_needs_a_new_start() -> None:
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine))
    asking.step(1, start=True, end=True)
    asking.step(2)
    asking.step(3, start=True)
    engine.finish()
    engine.finish()
    assert asking.sums() == [1, 3]
    assert isinstance(dict(asking.ends)[2], Invalid)


class Clock:
    now_us = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    make = sequences.Sequences

    def made(model: Any, idle_us: int, counters: Any, log: Any) -> sequences.Sequences:
        return make(model, idle_us, counters, log, lambda: clock.now_us)

    monkeypatch.setattr("headrace.serving.core.protocol.Sequences", made)
    return clock


def test_a_sequence_that_is_idle_is_given_up_and_its_next_step_is_told_so(clock: Clock) -> None:
    asking = Asking(ProtocolCore(SumEngine(), sequence_idle_us=500_000))
    asking.step(1, start=True)
    asking.step(1, 8, start=True)
    clock.now_us += 499_999
    asking.step(2)
    clock.now_us += 1
    assert sequences_of(asking.core) == {"sequences_open": 1, "sequences_given_up": 1}
    asking.step(2, 8)
    asking.step(3)
    assert asking.sums() == [1, 1, 3, 6]
    ending = asking.ends[3][1]
    assert isinstance(ending, Invalid)
    assert "was idle for 0.5 s" in ending.message


def test_a_sequence_with_a_step_under_way_is_not_idle(clock: Clock) -> None:
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine, sequence_idle_us=500_000))
    asking.step(1, start=True)
    clock.now_us += 5_000_000
    assert sequences_of(asking.core)["sequences_open"] == 1
    engine.finish()
    asking.step(2)
    engine.finish()
    assert asking.sums() == [1, 3]


def test_sequences_and_waiting_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MAX_STATE_BYTES", 8)  # a state has 4
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine))
    for number in range(1, 4):
        asking.step(number, number, start=True)
    [(x, ending)] = asking.ends
    assert x == 3
    assert isinstance(ending, Refusal)
    assert (ending.reason, "2 sequences are open" in ending.message) == ("queue-full", True)
    for _ in range(MAX_WAITING):
        asking.step(0, 1)
    assert isinstance(asking.ends[1][1], Refusal)
    assert len(asking.ends) == 2


def test_sequences_go_on_when_the_plan_changes() -> None:
    engine = SumEngine()
    asking = Asking(ProtocolCore(engine))
    asking.step(1, start=True)
    engine._models["sums"] = replace(SUMS, fastest_us=2_000)
    asking.core.refresh()
    asking.step(2)
    assert asking.sums() == [1, 3]


STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from("sfurlc")),
    max_size=30,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_happens_answers_are_those_of_the_answered_steps_before_them(
    script: list[tuple[int, bool, bool, str]],
) -> None:
    """Submit, or end the oldest step under way: finished, untold, refused, late or cancelled."""
    engine = SumEngine(at_once=False)
    asking = Asking(ProtocolCore(engine))
    handles: dict[float, Any] = {}
    asked: dict[float, tuple[int, bool, bool]] = {}
    for number, (sequence, start, end, act) in enumerate(script):
        if act == "s":
            x = float(2**number)
            asked[x] = sequence, start, end
            handles[x] = asking.step(x, sequence, start=start, end=end)
        elif engine.open:
            oldest = engine.open[0]
            x = float(np.frombuffer(oldest.inputs[1], np.float32)[0])
            if act == "c":
                handles[x].cancel()
                continue
            if act == "u":
                asking.untold.add(x)
            late = engine.answer_to(oldest, ended_at_us=100_001)
            engine.finish({"f": None, "u": None, "r": REFUSAL, "l": late}[act])
    while engine.open:
        engine.finish()
    sums: dict[int, float | None] = {}
    for x, said in asking.answers():
        sequence, start, end = asked[x]
        before = 0.0 if start else sums.get(sequence)
        assert before is not None, "no step without a start is answered in a sequence not open"
        total = before + x
        assert said == np.float32(total)
        sums[sequence] = None if end else total
    told = [x for x, _ in asking.ends]
    assert len(told) == len(set(told)), "each ends once"
    cancelled = asking.core.counters["sums"].refused.get("cancelled", 0)
    assert len(told) + cancelled == len(asked)


# -- what clients see ------------------------------------------------------------------------------


def asked(x: float, **parameters: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [x]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return post("/v2/models/sums/infer", body)


def test_http_clients_send_tritons_parameters_and_see_no_state() -> None:
    bench = Bench(SumEngine())
    replies = [
        bench.ask(asked(1, sequence_id=5, sequence_start=True)),
        bench.ask(asked(2, sequence_id=5)),
        bench.ask(asked(3, sequence_id=5, sequence_end=True)),
    ]
    assert [reply.json["outputs"][0]["data"] for reply in replies] == [[-1], [-3], [-6]]
    assert [output["name"] for output in replies[0].json["outputs"]] == ["y"]
    metadata = bench.ask(get("/v2/models/sums")).json
    assert [tensor["name"] for tensor in metadata["inputs"] + metadata["outputs"]] == ["x", "y"]
    config = bench.ask(get("/v2/models/sums/config")).json
    assert config["sequence_batching"] == {"max_sequence_idle_microseconds": 60_000_000}
    assert "sequence" in bench.ask(get("/v2")).json["extensions"]
    assert b"headrace_sequences_open" in bench.ask(get("/metrics")).body


def test_a_step_whose_answer_json_cannot_carry_has_not_happened() -> None:
    bench, huge = Bench(SumEngine()), 3e38
    assert bench.ask(asked(huge, sequence_id=5, sequence_start=True)).status == 200
    with np.errstate(over="ignore"):
        assert bench.ask(asked(huge, sequence_id=5)).status == 422
    reply = bench.ask(asked(-huge, sequence_id=5))
    assert reply.json["outputs"][0]["data"] == [0.0]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "keeps state from request to request: give each a sequence_id"),
        ({"sequence_id": 0, "sequence_start": True}, "give each a sequence_id"),
        ({"sequence_id": ""}, "give each a sequence_id"),
        ({"sequence_id": 5}, "sequence 5 of model 'sums' is not open"),
        ({"sequence_id": "me"}, "sequence 'me' of model 'sums' is not open"),
        ({"sequence_id": -1}, "'sequence_id' must lie in 1..18446744073709551615"),
        ({"sequence_id": "x" * 129, "sequence_start": True}, "longer than 128 bytes"),
        ({"sequence_id": [1]}, "sequence_id"),
        ({"sequence_id": 1, "sequence_start": "yes"}, "sequence_start"),
    ],
)
def test_sequences_that_make_no_sense_are_refused_in_a_sentence(
    parameters: dict[str, Any], said: str
) -> None:
    reply = Bench(SumEngine()).ask(asked(1, **parameters))
    assert reply.status == 400
    assert said in reply.error


def test_a_step_of_several_items_is_refused() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}
    parameters = {"sequence_id": 1, "sequence_start": True}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    reply = Bench(SumEngine()).ask(post("/v2/models/sums/infer", body))
    assert (reply.status, "must lie in 1..1" in reply.error) == (400, True)


def test_a_model_without_state_takes_no_sequence() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}
    body = json.dumps({"inputs": [tensor], "parameters": {"sequence_id": 3}}).encode()
    reply = Bench().ask(post("/v2/models/adder/infer", body))
    assert (reply.status, "keeps no state between requests" in reply.error) == (400, True)


def test_a_client_that_leaves_takes_its_waiting_steps_with_it() -> None:
    engine = SumEngine(at_once=False)
    bench = Bench(engine)
    first, second = bench.connect(), bench.connect()
    first.send(asked(1, sequence_id=5, sequence_start=True))
    second.send(asked(2, sequence_id=5))
    second.transport.abort()
    engine.finish()
    assert first.reply().json["outputs"][0]["data"] == [-1]
    assert not engine.open
    assert outcomes(bench.core)["cancelled"] == 1


def grpc_request(x: float, parameters: dict[str, Any]) -> bytes:
    request = message("ModelInferRequest")(model_name="sums")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.float32(x).tobytes())
    kinds = {int: "int64_param", str: "string_param", bool: "bool_param", float: "double_param"}
    for name, value in parameters.items():
        setattr(request.parameters[name], kinds[type(value)], value)
    written: bytes = request.SerializeToString()
    return written


@pytest.mark.parametrize("name", [5, "a name"])
def test_grpc_clients_send_tritons_parameters(name: int | str) -> None:
    peer = GrpcBench(SumEngine()).connect().greet()

    def step(x: float, **parameters: bool) -> Told:
        return peer.call("ModelInfer", grpc_request(x, {"sequence_id": name, **parameters}))

    told = [step(1, sequence_start=True), step(2), step(3, sequence_end=True)]
    responses = [each.parsed("ModelInferResponse") for each in told]
    assert [np.frombuffer(r.raw_output_contents[0], np.float32)[0] for r in responses] == [
        -1,
        -3,
        -6,
    ]
    assert [output.name for output in responses[0].outputs] == ["y"]
    refused = step(4)
    assert refused.status == status.INVALID_ARGUMENT
    assert "is not open" in refused.sentence
    config = peer.call(
        "ModelConfig", message("ModelConfigRequest")(name="sums").SerializeToString()
    )
    batching = config.parsed("ModelConfigResponse").config.sequence_batching
    assert batching.max_sequence_idle_microseconds == 60_000_000


def test_grpc_carries_infinity_and_a_step_whose_answer_it_cannot_write_has_not_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer, huge = GrpcBench(SumEngine()).connect().greet(), 3e38

    def step(x: float, **parameters: bool) -> Told:
        return peer.call("ModelInfer", grpc_request(x, {"sequence_id": 7, **parameters}))

    def said(told: Told) -> float:
        [raw] = told.parsed("ModelInferResponse").raw_output_contents
        return float(np.frombuffer(raw, np.float32)[0])

    def broken(codec: MessageCodec, ask: Any, answer: Answer) -> Any:
        raise ZeroDivisionError

    step(1, sequence_start=True)
    with monkeypatch.context() as patched:
        patched.setattr(MessageCodec, "encode", broken)
        assert step(2).status == status.INTERNAL
    assert said(step(4)) == -5
    step(huge)
    with np.errstate(over="ignore"):
        assert said(step(huge)) == said(step(1)) == -np.inf


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "give each a sequence_id"),
        ({"sequence_id": 1.5}, "whole number or a text"),
        ({"sequence_id": 1, "sequence_start": 1}, "'sequence_start' must be true or false"),
        ({"sequence_id": 1, "sequence_end": "yes"}, "'sequence_end' must be true or false"),
    ],
)
def test_grpc_says_what_a_sequence_needs(parameters: dict[str, Any], said: str) -> None:
    told = GrpcBench(SumEngine()).connect().greet().call("ModelInfer", grpc_request(1, parameters))
    assert told.status == status.INVALID_ARGUMENT
    assert said in told.sentence


def test_the_load_generator_sends_whole_sequences() -> None:
    bench = Bench(SumEngine(at_once=False))
    assert decode_sequences(bench.ask(get("/v2/models/sums/config")).body)
    assert not decode_sequences(Bench().ask(get("/v2/models/adder/config")).body)
    info = decode_model_info(bench.ask(get("/v2/models/sums")).body)
    encoder = RequestEncoder(
        b"Host: localhost\r\n", info, [np.ones((1, 1), np.float32)], binary=True, first_sequence=3
    )
    for _ in range(3):
        bench.connect().send(b"".join(encoder.parts(None, 0)))
    assert len(bench.engine.open) == 3, "none waits for another"


def test_states_that_do_not_fit_are_refused() -> None:
    def spec(name: str, width: int = 1) -> TensorSpec:
        return TensorSpec(name=name, dtype="float32", item_shape=(width,))

    inputs, outputs = (spec("x"), spec("s")), (spec("y", 2), spec("n"))
    check_states("m", (("s", "n"),), inputs, outputs)
    for states, said in (
        ((("s", "z"),), "needs an output of its own"),
        ((("s", "n"), ("s", "y")), "needs an input of its own"),
        ((("s", "y"),), "must stay alike"),
        ((("x", "n"), ("s", "y")), "every input is a state"),
    ):
        with pytest.raises(ProfileError, match=said):
            check_states("m", states, inputs, outputs)
