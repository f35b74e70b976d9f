"""Clients of a model that is unloaded, or has faulty files, are not told to come back."""

import numpy as np
import pytest

from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.front.grpc.status import status_of
from helpers.gateway import served_model

INPUT = np.zeros(4, np.float32).tobytes()


@pytest.mark.parametrize(("why", "never"), [("it was unloaded", True), ("", False)])
def test_what_only_a_load_can_mend_is_refused_without_a_time_to_try_again(
    why: str, never: bool
) -> None:
    results: list[Answer | Refusal] = []
    pending = PendingRequests(lambda: 0, lambda callback: None)
    inference = Inference(model="adder", items=1, inputs=(INPUT,), on_done=results.append)
    (request,) = pending.open(inference, 0, served_model())

    pending.refuse(request, "failed", 0, why)
    pending.flush()

    (refusal,) = results
    assert isinstance(refusal, Refusal)
    assert why in refusal.message
    assert refusal.never == never
    pushback = dict(status_of(refusal).fields)[b"grpc-retry-pushback-ms"]
    assert (pushback == b"-1") == never
