"""What a request is told whose function fails, refuses its input or gives what is not declared."""

import asyncio
import logging
from typing import Any

import pytest

from headrace.apps import InvalidInput, app, aside
from headrace.serving.engine.inference import AppAnswer, Refusal
from helpers.live_server import PATIENCE_S
from helpers.served_app import Served, Vector, X, Y, first
from helpers.virtual_loop import on_virtual_time


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

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)


def test_an_item_of_another_shape_than_the_modules_is_a_failure() -> None:
    @app(name="app", inputs=X, outputs=Y)
    async def wide(x: Vector) -> dict[str, Any]:
        return {"y": [await first([1, 2, 3])]}

    async def test() -> None:
        refusal = await Served(wide).send()[1]
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "app-error"

    on_virtual_time(test)


def test_a_stop_iteration_of_work_aside_reaches_the_function_as_generators_pass_it_on() -> None:
    seen: list[str] = []

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

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)


def test_a_module_called_outside_a_request_says_so() -> None:
    with pytest.raises(RuntimeError, match="no request is being served here"):
        asyncio.run(first([1, 2]))
