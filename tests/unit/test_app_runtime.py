"""Apps in service: what travels with calls, and how requests end."""

import asyncio
import threading
from typing import Any

from msgspec.structs import replace

from headrace.apps import app, aside, gather, time_left_us
from headrace.domain.events import Called
from headrace.serving.engine.inference import Answer, AppAnswer, Refusal
from helpers.served_app import (
    BUDGETS_US,
    RATE_RPS,
    SLO_US,
    TAKES_US,
    FakeModules,
    Served,
    Vector,
    X,
    Y,
    app_plan,
    chain,
    first,
    second,
)
from helpers.virtual_loop import on_virtual_time


def test_an_app_answers_what_its_function_returns_in_the_order_of_its_calls() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send((1.0, 2.0))
        answer = await done
        assert isinstance(answer, AppAnswer)
        assert answer.tensors[0].tolist() == [[3, 4], [4, 5], [5, 6]]
        assert answer.ended_at_us == sum(TAKES_US.values())
        assert answer.deadline_at_us == SLO_US

    on_virtual_time(test)


def test_an_app_states_the_rate_that_it_is_planned_for() -> None:
    async def test() -> None:
        model = Served(chain).runtime.models["app"]
        assert (model.planned_rps, model.rate_rps) == (RATE_RPS, RATE_RPS)

    on_virtual_time(test)


def test_a_call_is_noted_with_the_request_that_made_it() -> None:
    async def test() -> None:
        served = Served(chain)
        inference, done = served.send((1.0, 2.0))
        await done
        noted = [event for event in served.events if isinstance(event, Called)]
        calls = [call.first_request for call in served.engine.submitted]
        assert [event.call for event in noted] == calls
        assert {event.request for event in noted} == {inference.first_request}

    on_virtual_time(test)


def test_the_calls_of_an_app_are_counted_for_their_modules() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send((1.0, 2.0))
        await done
        for name, calls in (("app.first", 1), ("app.second", 3)):
            counters = served.counters[name]
            assert (counters.answered, counters.items) == (calls, calls)
            assert counters.last_at_ms > 0

    on_virtual_time(test)


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

    on_virtual_time(test)


def test_a_request_behind_its_budgets_divides_what_is_left_in_their_proportion() -> None:
    async def test() -> None:
        served = Served(chain)
        _, done = served.send(timeout_us=40_000)
        await done
        assert served.engine.submitted[0].timeout_us == 40_000 * 30 // 80

    on_virtual_time(test)


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

    on_virtual_time(test)


def test_a_refused_call_ends_the_request_with_its_reason_and_cancels_its_siblings() -> None:
    seen: list[str] = []

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

    on_virtual_time(test)


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

    on_virtual_time(test)


def test_no_call_is_made_that_cannot_be_answered_in_time() -> None:
    seen: list[str] = []

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

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)


def test_a_timeout_shorter_than_the_fastest_path_is_refused_with_what_is_needed() -> None:
    async def test() -> None:
        served = Served(chain)
        refusal = await served.send(timeout_us=29_000)[1]
        assert isinstance(refusal, Refusal)
        assert "needs at least 30.0 ms, but the request allows 29.0 ms" in refusal.message
        assert served.engine.submitted == []

    on_virtual_time(test)


def test_work_aside_runs_on_another_thread() -> None:
    seen: list[str] = []

    @app(name="app", inputs=X, outputs=Y)
    async def heavy(x: Vector) -> dict[str, Any]:
        seen.append(await aside(lambda: threading.current_thread().name))
        return {"y": [await first(x)]}

    async def test() -> None:
        served = Served(heavy)
        # In real time, of which a busy machine may need more than the objective.
        assert isinstance(await served.send(timeout_us=600_000_000)[1], AppAnswer)
        await served.runtime.stop()

    asyncio.run(test())
    assert seen[0].startswith("headrace-app")


def test_a_call_given_up_by_the_function_is_cancelled_and_the_request_goes_on() -> None:
    seen: list[str] = []

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

    on_virtual_time(test)
