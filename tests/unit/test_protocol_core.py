"""The protocol core by itself: each inference ends once, counted once, without any front."""

from typing import Any, cast, get_args

import numpy as np
import pytest

from headrace.domain.errors import OverloadError
from headrace.domain.request import DropReason
from headrace.serving.core.counters import ModelCounters, measures
from headrace.serving.core.protocol import Invalid, Late, ProtocolCore
from headrace.serving.core.refusals import RefusalKind, kind_of
from headrace.serving.core.signature import InvalidError
from headrace.serving.engine.inference import Answer, Inference, Refusal
from helpers.core import Array, CoreClient
from helpers.gateway import FakeEngine, served_model


def core_of(engine: FakeEngine) -> ProtocolCore:
    return ProtocolCore(engine)


def requests(core: ProtocolCore) -> dict[str, float]:
    """Outcome -> inferences, as the measure has them."""
    [found] = [m for m in measures(core.counters, core.status()) if m.name == "requests"]
    samples = {labels[1]: value for labels, value in found.samples}
    return {
        outcome: value for outcome, value in samples.items() if isinstance(value, int) and value
    }


def test_outcomes_stand_in_the_same_order_whichever_came_first() -> None:
    core = core_of(FakeEngine())
    for reason in ("queue-full", "deadline", "bad-request"):
        core.counters["adder"].count_refusal(reason)
    [found] = [m for m in measures(core.counters, core.status()) if m.name == "requests"]
    outcomes = [labels[1] for labels, _ in found.samples]
    assert outcomes == ["answered", "late", *sorted(outcomes[2:])]


def test_every_outcome_there_can_be_is_counted_from_0_on() -> None:
    """A first burst of refusals between two scrapes is an increase only then."""
    core = core_of(FakeEngine())
    [found] = [m for m in measures(core.counters, core.status()) if m.name == "requests"]
    counted = {labels[1]: value for labels, value in found.samples}
    reasons = {*get_args(DropReason), "bad-request", "not-representable"}
    assert counted == dict.fromkeys({"answered", "late", *reasons}, 0)


def test_an_answer_in_time_comes_with_its_tensors() -> None:
    core = core_of(FakeEngine())
    client = CoreClient(core)
    assert core.submit("adder", client) is None, "it has ended: nothing is left to cancel"
    assert isinstance(client.ending, Answer)
    assert np.frombuffer(client.ending.outputs[0], np.float32).tolist() == [1.0] * 4
    assert requests(core) == {"answered": 1}


def test_an_answer_after_its_deadline_is_late_by_name() -> None:
    engine = FakeEngine(at_once=False)
    core = core_of(engine)
    client = CoreClient(core, timeout_us=3_000)
    core.submit("adder", client)
    engine.finish(engine.answer_to(engine.open[0], ended_at_us=5_000))
    assert isinstance(client.ending, Late)
    assert client.ending.late_us == 2_000
    assert "2.0 ms after its deadline of 3 ms" in client.ending.message
    assert requests(core) == {"late": 1}


def test_an_answer_at_its_deadline_is_in_time() -> None:
    engine = FakeEngine(at_once=False)
    core = core_of(engine)
    client = CoreClient(core, timeout_us=5_000)
    core.submit("adder", client)
    engine.finish(engine.answer_to(engine.open[0], ended_at_us=5_000))
    assert isinstance(client.ending, Answer)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("deadline", "overloaded"),
        ("queue-full", "overloaded"),
        ("no-slot", "unavailable"),
        ("draining", "unavailable"),
        ("failed", "failed"),
        ("invalid-input", "invalid"),
    ],
)
def test_a_refusal_says_who_can_mend_it_and_when(reason: DropReason, kind: RefusalKind) -> None:
    engine = FakeEngine(at_once=False)
    core = core_of(engine)
    client = CoreClient(core)
    core.submit("adder", client)
    engine.finish(Refusal(reason=reason, message="no", retry_after_us=7))
    assert isinstance(client.ending, Refusal)
    assert kind_of(client.ending) == kind
    assert client.ending.retry_after_us == 7
    assert requests(core) == {reason: 1}


def test_a_full_queue_is_a_refusal_though_the_backend_raises() -> None:
    class Full(FakeEngine):
        def submit(self, inference: Inference) -> None:
            raise OverloadError("the queue is full")

    core = core_of(Full())
    client = CoreClient(core)
    assert core.submit("adder", client) is None
    assert isinstance(client.ending, Refusal)
    assert kind_of(client.ending) == "overloaded"
    assert requests(core) == {"queue-full": 1}


BAD_INPUTS: dict[str, tuple[tuple[Array, ...], str]] = {
    "none": ((), "needs exactly the inputs 'x', each once; got none"),
    "wrong name": ((Array("z", np.zeros((1, 4), np.float32)),), "needs exactly the inputs 'x'"),
    "wrong datatype": ((Array("x", np.zeros((1, 4)), "FP64"),), "needs datatype FP32"),
    "wrong shape": ((Array("x", np.zeros((1, 5), np.float32)),), r"needs shape \[n, 4\]"),
    "too many items": ((Array("x", np.zeros((9, 4), np.float32)),), r"must lie in 1\.\.8, got 9"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_what_the_model_does_not_take_is_invalid_and_never_submitted(name: str) -> None:
    tensors, message = BAD_INPUTS[name]
    engine = FakeEngine()
    core = core_of(engine)
    client = CoreClient(core, tensors)
    assert core.submit("adder", client) is None
    assert isinstance(client.ending, Invalid)
    with pytest.raises(InvalidError, match=message):
        client.read()
    assert client.ending.fault == "malformed"
    assert not engine.submitted
    assert requests(core) == {"bad-request": 1}


def test_any_byte_but_0_is_true_and_reaches_the_executor_as_1() -> None:
    engine = FakeEngine(served_model(inputs=(("x", "bool", (4,)),)), at_once=False)
    core = core_of(engine)
    values = np.array([[0, 1, 2, 255]], np.uint8)
    client = CoreClient(core, (Array("x", values, "BOOL"),))
    core.submit("adder", client)
    assert bytes(memoryview(cast(Any, engine.submitted[0].inputs[0])).cast("B")) == b"\0\1\1\1"
    assert values.tolist() == [[0, 1, 2, 255]], "what the client holds is not written to"


def test_a_model_that_is_not_served_is_invalid_and_counted_for_none() -> None:
    core = core_of(FakeEngine())
    client = CoreClient(core, model="nobody")
    assert core.submit("nobody", client) is None
    assert isinstance(client.ending, Invalid)
    assert client.ending.fault == "unknown-model"
    assert "served here: adder" in client.ending.message
    assert requests(core) == {}


def test_a_client_that_leaves_is_told_nothing_and_its_work_is_cancelled() -> None:
    engine = FakeEngine(at_once=False)
    core = core_of(engine)
    client = CoreClient(core)
    submission = core.submit("adder", client)
    assert submission is not None
    [inference] = engine.open
    submission.cancel()
    submission.cancel()
    inference.on_done(engine.answer_to(inference))
    assert client.endings == []
    assert engine.cancelled == [inference]
    assert requests(core) == {"cancelled": 1}


def test_cancelling_what_has_ended_changes_nothing() -> None:
    engine = FakeEngine(at_once=False)
    core = core_of(engine)
    submission = core.submit("adder", CoreClient(core))
    assert submission is not None
    engine.finish()
    submission.cancel()
    assert engine.cancelled == []
    assert requests(core) == {"answered": 1}


def test_a_timeout_that_no_server_could_meet_is_refused_before_anything_is_read() -> None:
    core = core_of(FakeEngine())
    assert core.admit("adder", None) is None
    assert core.admit("adder", 1_000) is None
    refusal = core.admit("adder", 999)
    assert refusal is not None
    assert kind_of(refusal) == "overloaded"
    assert "needs at least 1.000 ms, but the request allows 0.999 ms" in refusal.message
    assert requests(core) == {"deadline": 1}


def test_models_that_come_are_asked_for_and_models_that_leave_are_still_refused_by_name() -> None:
    class Changing(FakeEngine):
        def become(self, *names: str) -> None:
            self._models = {name: served_model(name) for name in names}

    engine = Changing(at_once=False)
    core = ProtocolCore(engine, {name: ModelCounters() for name in ("adder", "other")})
    told: list[list[str]] = []
    core.on_change(lambda: told.append(list(core.models)))
    engine.become("other")
    core.refresh()
    assert told == [["other"]]
    core.submit("other", CoreClient(core, model="other"))
    left = CoreClient(core)
    core.submit("adder", left)
    assert [inference.model for inference in engine.open] == ["other", "adder"]
    engine.open.pop(0)
    engine.finish(Refusal(reason="draining", message="gone", retry_after_us=0))
    assert isinstance(left.ending, Refusal)
    assert core.counters["adder"].refused == {"draining": 1}


def test_a_deadline_counts_from_when_the_request_reached_the_machine() -> None:
    engine = FakeEngine(at_once=False)
    core = ProtocolCore(engine)
    core.submit("adder", CoreClient(core), arrived_at_us=1_234)
    assert engine.open[0].arrived_at_us == 1_234


def test_what_the_engine_had_is_counted_by_the_name_that_it_had_there() -> None:
    """Of a model of several sizes, a bucket's; what is refused before it is read has none."""
    engine = FakeEngine(at_once=False)
    core = ProtocolCore(engine)
    two = (Array("x", np.zeros((2, 4), np.float32)),)
    for _ in range(2):
        core.submit("adder", CoreClient(core, two))
    answered, refused = engine.open
    engine.finish(engine.answer_to(answered, ended_at_us=1))
    engine.open.remove(refused)
    refused.on_done(Refusal(reason="deadline", message="no", retry_after_us=0))
    core.refuse("adder", Refusal(reason="queue-full", message="no", retry_after_us=0))
    cancelled = core.submit("adder", CoreClient(core, two))
    assert cancelled is not None
    cancelled.cancel()
    assert core.counters["adder"].by_size == {answered.model: 2 + 1 + 1}
