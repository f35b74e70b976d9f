"""Requests that nothing answers are given up in the end."""

from collections.abc import Callable
from dataclasses import replace

from headrace.dispatch.topology import Topology
from headrace.planning import solve
from headrace.serving.engine.data_plane import served_models
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.pending import OVERDUE_US, PendingRequests
from helpers.apps import make_app_problem
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
    module = replace(model, of_app=True)
    for asked, timeout_us in (
        (model, TIMEOUT_US),
        (model, 10 * TIMEOUT_US),
        (module, TIMEOUT_US),
    ):
        inference = Inference(
            model=asked.name,
            items=2,
            inputs=(bytes(2 * sum(asked.input_item_bytes)),),
            on_done=results.append,
            timeout_us=timeout_us,
        )
        pending.open(inference, 0, asked)

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
    assert pending.open_inferences == 2, "a late answer is of use to an app that has time left"


def test_the_modules_of_an_app_are_known_as_such() -> None:
    problem = make_app_problem()
    plan = solve(problem).plan
    assert plan is not None
    topology = Topology.from_plan(plan, problem.profiles)
    models = served_models(plan, topology, problem.profiles).values()
    assert models
    assert all(model.of_app for model in models)
    assert not served_model().of_app
