"""Apps in service: what travels with calls, and how requests end."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.apps import InvalidInput, app, aside, gather, module, tensor, time_left_us
from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, AnyEvent, Arrived, Called, Dropped, EventLogHeader
from headrace.serving.apps.runtime import AppLog
from headrace.serving.engine.inference import Answer, AppAnswer, Refusal
from helpers.live_server import PATIENCE_S
from helpers.served_app import BUDGETS_US, RATE_RPS, SLO_US, TAKES_US, FakeModules, Served, app_plan
from helpers.virtual_loop import VirtualTimeLoop

first, second = module("first"), module("second")
X = [tensor("x", "float32", (2,))]
Y = [tensor("y", "float32", (-1, 2))]
Vector = NDArray[np.float32]
seen: list[str] = []
"""What functions report of themselves."""


@app(name="app", inputs=X, outputs=Y)
async def chain(x: Vector) -> dict[str, Any]:
    found = await first(x)
    return {"y": await gather(*(second(found + i) for i in range(3)))}


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On virtual time."""
    loop = VirtualTimeLoop()
    seen.clear()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


def test_an_app_answers_what_its_function_returns_in_the_order_of_its_calls() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send((1.0, 2.0))
        answer = await done
        assert isinstance(answer, AppAnswer)
        assert answer.tensors[0].tolist() == [[3, 4], [4, 5], [5, 6]]
        assert answer.ended_at_us == sum(TAKES_US.values())
        assert answer.deadline_at_us == SLO_US

    run(test)


def test_an_app_states_the_rate_that_it_is_planned_for() -> None:
    async def test() -> None:
        model = Served(chain).runtime.models["app"]
        assert (model.planned_rps, model.rate_rps) == (RATE_RPS, RATE_RPS)

    run(test)


def test_a_call_is_noted_with_the_request_that_made_it() -> None:
    async def test() -> None:
        served = Served(chain)
        inference, done = served.send((1.0, 2.0))
        await done
        noted = [event for event in served.events if isinstance(event, Called)]
        calls = [call.first_request for call in served.engine.submitted]
        assert [event.call for event in noted] == calls
        assert {event.request for event in noted} == {inference.first_request}

    run(test)


def test_the_calls_of_an_app_are_counted_for_their_modules() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send((1.0, 2.0))
        await done
        for name, calls in (("app.first", 1), ("app.second", 3)):
            counters = served.counters[name]
            assert (counters.answered, counters.items) == (calls, calls)
            assert counters.last_at_ms > 0

    run(test)


def test_deadline_budget_and_priority_travel_with_every_call() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send()
        await done
        calls = [(c.model, c.timeout_us, c.priority) for c in served.engine.submitted]
        # The first call leaves the second's budget; the second may use all that is left.
        left_us = SLO_US - TAKES_US["first"]
        assert calls == [
            ("app.first", SLO_US - BUDGETS_US["second"], 7),
            *[("app.second", left_us, 7)] * 3,
        ]
        served.engine.submitted.clear()
        _, done = served.send(timeout_us=90_000, priority=2)
        await done
        assert served.engine.submitted[0].timeout_us == 40_000
        assert served.engine.submitted[0].priority == 2

    run(test)


def test_a_request_behind_its_budgets_divides_what_is_left_in_their_proportion() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send(timeout_us=40_000)
        await done
        assert served.engine.submitted[0].timeout_us == 40_000 * 30 // 80

    run(test)


def test_an_open_request_is_one_beside_the_calls_that_it_has_out() -> None:
    code = asyncio.Event()

    @app(name="app", inputs=X, outputs=Y)
    async def slow(x: Vector) -> dict[str, Any]:
        await code.wait()
        return {"y": await gather(first(x), first(x))}

    async def test() -> None:
        served = Served(slow)
        found: list[tuple[int, int]] = []

        def look() -> None:
            status = served.runtime.status()
            found.append((status.open_inferences, status.open_requests))

        dones = [served.send()[1] for _ in range(3)]
        look()
        code.set()
        while len(served.engine.submitted) < 6:
            await asyncio.sleep(0)
        look()
        await asyncio.gather(*dones)
        look()
        assert found == [(3, 3), (9, 9), (0, 0)]

    run(test)


def test_a_refused_call_ends_the_request_with_its_reason_and_cancels_its_siblings() -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def both(x: Vector) -> dict[str, Any]:
        try:
            return {"y": await gather(first(x), second(x))}
        finally:
            seen.append("cleaned up")

    async def test() -> None:
        served = Served(both)
        served.engine.refuse["app.second"] = Refusal(
            reason="no-slot", message="model 'app.second' has lost its workers", retry_after_us=9
        )
        _, done = served.send()
        refusal = await done
        assert refusal == Refusal(
            reason="no-slot",
            message="app 'app': model 'app.second' has lost its workers",
            retry_after_us=9,
        )
        assert [c.model for c in served.engine.cancelled] == ["app.first"]
        assert served.counters["app.second"].refused == {"no-slot": 1}
        assert served.counters["app.first"].refused == {"cancelled": 1}
        await asyncio.sleep(0.001)
        assert seen == ["cleaned up"]

    run(test)


def test_at_its_deadline_a_request_is_refused_and_what_it_waits_for_is_cancelled() -> None:
    async def test() -> None:
        served = Served(chain)
        served.engine.silent.add("app.second")
        _, done = served.send()
        refusal = await done
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "deadline"
        assert "waiting for 'second' when its 100 ms were over" in refusal.message
        assert served.engine.now_us() == SLO_US
        assert len(served.engine.cancelled) == 3

    run(test)


def test_no_call_is_made_that_cannot_be_answered_in_time() -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def slow(x: Vector) -> dict[str, Any]:
        await asyncio.sleep(0.081)
        seen.append(f"{time_left_us()} us left")
        return {"y": [await second(x)]}

    async def test() -> None:
        served = Served(slow)
        _, done = served.send()
        refusal = await done
        assert isinstance(refusal, Refusal)
        assert refusal.message == "app 'app': module 'second' can no longer answer in time"
        assert seen == ["19000 us left"]
        assert served.engine.submitted == []

    run(test)


def test_a_client_that_leaves_takes_its_calls_along_and_hears_nothing() -> None:
    async def test() -> None:
        served = Served(chain)
        inference, done = served.send()
        await asyncio.sleep(0.001)
        served.runtime.cancel(inference)
        served.runtime.cancel(inference)
        await asyncio.sleep(1)
        assert not done.done()
        assert [c.model for c in served.engine.cancelled] == ["app.first"]
        assert len(served.engine.submitted) == 1

    run(test)


def beside_a_model() -> FakeModules:
    """The model `second` is served on its own too."""
    plan = app_plan()
    own = replace(plan.deployments[1], model="second", app=None, module=None)
    return FakeModules(replace(plan, deployments=(own, *plan.deployments)))


def test_a_model_beside_the_apps_is_the_engines_to_answer() -> None:
    async def test() -> None:
        served = Served(chain, beside_a_model())
        assert list(served.runtime.models) == ["second", "app"]

        inference, done = served.send((1.0, 2.0), model="second")
        assert served.engine.submitted == [inference]
        assert isinstance(await done, Answer)
        assert isinstance(await served.send()[1], AppAnswer)

        left, unheard = served.send(model="second")
        served.runtime.cancel(left)
        assert served.engine.cancelled == [left]
        served.runtime.log_refused(
            "second", Refusal(reason="deadline", message="", retry_after_us=0)
        )
        assert served.engine.told == ["second"]

        await served.runtime.drain(0.1)
        _, refused = served.send(model="second")
        answer = await refused
        assert isinstance(answer, Refusal)
        assert answer.reason == "draining"
        assert not unheard.done()

    run(test)


def test_a_request_without_a_chance_is_refused_at_the_door_and_told_when_to_come_back() -> None:
    async def test() -> None:
        served = Served(chain)
        # Busy machines answer 100 first and 200 second calls per second (utilisation is a half):
        # ten requests ahead take 100 ms.
        accepted = [served.send()[1] for _ in range(8)]
        refusal = await served.send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "deadline"
        assert refusal.retry_after_us == 80_000 + 30_000 - SLO_US
        assert "too much work waiting" in refusal.message
        answers = await gather(*accepted)
        assert {type(answer) for answer in answers} == {AppAnswer}
        assert isinstance(await served.send()[1], AppAnswer)

    run(test)


def test_a_timeout_shorter_than_the_fastest_path_is_refused_with_what_is_needed() -> None:
    async def test() -> None:
        served = Served(chain)
        refusal = await served.send(timeout_us=29_000)[1]
        assert isinstance(refusal, Refusal)
        assert "needs at least 30.0 ms, but the request allows 29.0 ms" in refusal.message
        assert served.engine.submitted == []

    run(test)


def test_a_failing_function_tells_the_client_an_id_and_the_log_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def broken(x: Vector) -> dict[str, Any]:
        raise RuntimeError("secret of the operator")

    async def test() -> None:
        served = Served(broken)
        with caplog.at_level(logging.ERROR, logger="headrace.apps"):
            refusal = await served.send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "app-error"
        assert "secret" not in refusal.message
        log_id = refusal.message.rpartition(" ")[2]
        assert log_id in caplog.text
        assert "secret of the operator" in caplog.text

    run(test)


@pytest.mark.parametrize(
    "result", [{"z": [[1, 2]]}, {"y": [[1, 2, 3]]}, [1, 2], {"y": [["a", "b"]]}]
)
def test_an_answer_other_than_declared_is_a_failure_not_an_answer(result: object) -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def odd(x: Vector) -> Any:
        return result

    async def test() -> None:
        refusal = await Served(odd).send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "app-error"

    run(test)


def test_an_item_that_the_modules_data_type_cannot_hold_is_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def wild(x: Vector) -> dict[str, Any]:
        return {"y": [await first(x + 5j)]}

    async def test() -> None:
        with caplog.at_level(logging.ERROR, logger="headrace.apps"):
            refusal = await Served(wild).send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "app-error"
        assert "app.first: input 'x': complex64 where float32 is declared" in caplog.text

    run(test)


def test_an_item_of_another_shape_than_the_modules_is_a_failure() -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def wide(x: Vector) -> dict[str, Any]:
        return {"y": [await first([1, 2, 3])]}

    async def test() -> None:
        refusal = await Served(wide).send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "app-error"

    run(test)


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    async def test() -> None:
        served = Served(chain)
        _, running = served.send()
        draining = asyncio.ensure_future(served.runtime.drain(5.0))
        await asyncio.sleep(0)
        refused = await served.send()[1]
        assert isinstance(refused, Refusal)
        assert refused.reason == "draining"
        # The engine must still take the calls of what runs.
        assert not served.engine.drained
        assert isinstance(await running, AppAnswer)
        assert await draining
        assert served.engine.drained

    run(test)


def test_stopping_refuses_everything_that_runs() -> None:
    async def test() -> None:
        served = Served(chain)
        _, running = served.send()
        await served.runtime.stop()
        refusal = await running
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "draining"

    run(test)


def test_the_log_holds_one_arrival_and_one_end_of_each_request() -> None:
    async def test() -> None:
        served = Served(chain)
        await served.send()[1]
        await served.send(timeout_us=1_000)[1]
        served.runtime.cancel(served.send()[0])
        await asyncio.sleep(0)
        arrived = [e.request for e in served.events if isinstance(e, Arrived)]
        ended = [e.request for e in served.events if isinstance(e, Answered | Dropped)]
        assert len(set(arrived)) == 3
        assert arrived == ended
        assert served.header.models == ("app.first", "app.second", "app")
        assert {e.model for e in served.events if isinstance(e, Arrived)} == {2}

    run(test)


def test_after_a_migration_requests_go_by_the_new_plan() -> None:
    async def test() -> None:
        served = Served(chain)
        assert served.runtime.models["app"].slo_us == SLO_US
        served.engine.plan = app_plan(slo_us=200_000)
        assert served.runtime.models["app"].slo_us == 200_000
        await served.send()[1]
        assert served.engine.submitted[0].timeout_us == 200_000 - BUDGETS_US["second"]
        served.engine.plan = app_plan("other")
        assert served.runtime.models == {}
        assert isinstance(await served.send()[1], Refusal)

    run(test)


def test_a_request_whose_app_leaves_with_the_plan_is_refused_at_its_next_call() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send()
        await asyncio.sleep(0.001)
        served.engine.plan = app_plan("other")
        refusal = await done
        assert isinstance(refusal, Refusal)
        assert (refusal.reason, "not served any more" in refusal.message) == ("draining", True)
        assert [call.model for call in served.engine.answered] == ["app.first"]

    run(test)


def test_only_a_plan_of_the_same_apps_and_modules_can_take_over() -> None:
    async def test() -> None:
        served = Served(chain)
        served.runtime.check(app_plan(slo_us=200_000))
        with pytest.raises(PlanError, match="functions for"):
            served.runtime.check(app_plan("other"))
        with pytest.raises(PlanError, match="functions for"):
            served.runtime.check(replace(app_plan(), apps=()))
        plan = app_plan()
        claim = plan.apps[0]
        modules = (*claim.app.modules, replace(claim.app.modules[1], name="third"))
        changed = replace(claim, app=replace(claim.app, modules=modules))
        third = replace(plan.deployments[1], module="third")
        with pytest.raises(PlanError, match="other modules"):
            served.runtime.check(
                replace(plan, apps=(changed,), deployments=(*plan.deployments, third))
            )

    run(test)


def test_the_log_of_a_plan_that_never_came_into_service_gets_no_app_events() -> None:
    logs: list[list[AnyEvent]] = []

    def open_sink(header: EventLogHeader) -> Callable[[AnyEvent], None]:
        logs.append([])
        return logs[-1].append

    header = EventLogHeader(
        clock="virtual", policy="none", models=("app.first",), pipelines=(), slots=(), nodes=()
    )
    log = AppLog(("app",), open_sink)
    for _ in range(2):
        log.open(header)
        log.turn()
        log.sink(Dropped(1, 2, "deadline", 3))
    log.open(header)
    log.sink(Dropped(4, 5, "deadline", 6))
    assert [len(events) for events in logs] == [1, 2, 0]


def test_a_log_is_held_by_each_request_that_still_writes_to_it() -> None:
    async def test() -> None:
        served = Served(chain)
        (_, answered), (gone, _) = served.send(), served.send()
        assert served.written_by == 2
        served.runtime.cancel(gone)
        assert served.written_by == 1
        await answered
        assert served.written_by == 0

    run(test)


def test_work_aside_runs_on_another_thread() -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def heavy(x: Vector) -> dict[str, Any]:
        seen.append(await aside(lambda: threading.current_thread().name))
        return {"y": [await first(x)]}

    async def test() -> None:
        served = Served(heavy)
        # In real time, of which a busy machine may need more than the objective.
        assert isinstance(await served.send(timeout_us=600_000_000)[1], AppAnswer)
        await served.runtime.stop()

    seen.clear()
    asyncio.run(test())
    assert seen[0].startswith("headrace-app")


def test_a_stop_iteration_of_work_aside_reaches_the_function_as_generators_pass_it_on() -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def empty(x: Vector) -> dict[str, Any]:
        try:
            await aside(next, iter([]))
        except RuntimeError as error:
            seen.append(repr(error.__cause__))
        return {"y": [x]}

    async def test() -> None:
        served = Served(empty)
        answer = await served.send(timeout_us=round(PATIENCE_S * 1e6))[1]
        assert isinstance(answer, AppAnswer)
        await served.runtime.stop()

    seen.clear()
    asyncio.run(test())
    assert seen == ["StopIteration()"]


def test_a_class_of_invalid_input_that_cannot_say_why_is_an_error_of_the_app() -> None:
    class Mute(InvalidInput):
        def __str__(self) -> str:
            raise KeyError("words")

    @app(name="app", inputs=X, outputs=Y)
    async def picky(x: Vector) -> dict[str, Any]:
        raise Mute("no")

    async def test() -> None:
        refusal = await Served(picky).send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "app-error"

    run(test)


def test_whatever_class_an_app_makes_of_invalid_input_says_one_sentence() -> None:
    class OfItsOwn(InvalidInput):
        def __init__(self, words: str) -> None:
            self.words = words

    @app(name="app", inputs=X, outputs=Y)
    async def picky(x: Vector) -> dict[str, Any]:
        raise OfItsOwn("a\nb\udcff" + "c" * (2 << 20))

    async def test() -> None:
        refusal = await Served(picky).send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "invalid-input"
        assert refusal.message.startswith("app 'app': a b?ccc")
        assert len(refusal.message) < 400

    run(test)


@pytest.mark.parametrize(
    ("faults", "reason", "message"),
    [
        ([InvalidInput("one"), InvalidInput("two")], "invalid-input", "app 'app': one"),
        (
            [ExceptionGroup("inner", [InvalidInput("one")]), InvalidInput("two")],
            "invalid-input",
            "app 'app': one",
        ),
        ([InvalidInput("one"), ValueError("bug")], "app-error", "app 'app' failed"),
        ([ExceptionGroup("inner", [ValueError("bug")])], "app-error", "app 'app' failed"),
    ],
)
def test_a_task_group_whose_tasks_do_nothing_but_refuse_the_input_refuses_it(
    faults: list[Exception], reason: str, message: str
) -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def grouped(x: Vector) -> dict[str, Any]:
        async def check(fault: Exception) -> None:
            raise fault

        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                tasks.create_task(check(fault))
        return {"y": [x]}

    async def test() -> None:
        refusal = await Served(grouped).send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == reason
        assert refusal.message.startswith(message)

    run(test)


def test_a_module_called_outside_a_request_says_so() -> None:
    with pytest.raises(RuntimeError, match="no request is being served here"):
        asyncio.run(first([1, 2]))


def test_a_call_given_up_by_the_function_is_cancelled_and_the_request_goes_on() -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def impatient(x: Vector) -> dict[str, Any]:
        try:
            await asyncio.wait_for(first(x), 0.005)
        except TimeoutError:
            seen.append("gave up")
        return {"y": [await second(x)]}

    async def test() -> None:
        served = Served(impatient, FakeModules())
        served.engine.silent.add("app.first")
        assert isinstance(await served.send()[1], AppAnswer)
        assert [c.model for c in served.engine.cancelled] == ["app.first"]
        assert seen == ["gave up"]

    run(test)
