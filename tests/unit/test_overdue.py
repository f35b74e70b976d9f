"""Requests that nothing answers are given up in the end."""

from collections.abc import Callable

from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.pending import OVERDUE_US, PendingRequests
from helpers.gateway import served_model

TIMEOUT_US = 100_000


def test_a_request_is_given_up_once_long_after_its_deadline() -> None:
    now_us = 1_000
    called: list[Callable[[], None]] = []
    results: list[Answer | Refusal] = []
    abandoned: list[int] = []
    pending = PendingRequests(lambda: now_us, called.append)
    pending.on_abandoned = abandoned.append
    model = served_model()
    for timeout_us in (TIMEOUT_US, 10 * TIMEOUT_US):
        inference = Inference(
            model=model.name,
            items=2,
            inputs=(bytes(2 * sum(model.input_item_bytes)),),
            on_done=results.append,
            timeout_us=timeout_us,
        )
        pending.open(inference, 0, model)

    now_us = 1_000 + 2 * TIMEOUT_US + OVERDUE_US
    pending.refuse_overdue()
    assert not called, "it was given this long"
    now_us += 1
    pending.refuse_overdue()
    pending.refuse_overdue()
    for call in called:
        call()

    (refusal,) = results
    assert isinstance(refusal, Refusal)
    assert "5.1 s after the deadline" in refusal.message
    assert abandoned == [0, 1], "both leave the dispatcher's queue"
    assert pending.open_inferences == 1
