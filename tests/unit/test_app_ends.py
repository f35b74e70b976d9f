"""What a request of an app leaves behind in the apps' process when its function has ended: nothing
that waits for a module, and whatever else the function has set going.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.apps import InvalidInput, app, ensemble, gather, step
from headrace.serving.apps import frames
from headrace.serving.apps.api import AppFunction
from headrace.serving.apps.frames import Answer, AnyFrame, Begin, Call, Returned, Tensors
from headrace.serving.apps.process import say_unless_cancelled
from headrace.serving.engine.inference import AppAnswer, Refusal
from headrace.serving.workers.frames import FrameError
from helpers import served_app
from helpers.served_app import SLO_US, Served, Vector, X, Y, first, second
from helpers.virtual_loop import on_virtual_time


async def refuse() -> None:
    raise InvalidInput("a crop without text")


async def fail() -> None:
    raise RuntimeError("secret of the operator")


@app(name="app", inputs=X, outputs=Y)
async def refuses_beside_calls(x: Vector) -> dict[str, Any]:
    await gather(first(x), refuse(), first(x))
    raise AssertionError("refused above")


@app(name="app", inputs=X, outputs=Y)
async def fails_beside_calls_of_calls(x: Vector) -> dict[str, Any]:
    async def both() -> None:
        await gather(first(x), asyncio.shield(first(x)))

    await gather(both(), fail())
    raise AssertionError("failed above")


@app(name="app", inputs=X, outputs=Y)
async def returns_before_its_calls(x: Vector) -> dict[str, Any]:
    started.append(asyncio.create_task(again_and_again(x)))
    return {"y": [await second(x)]}


async def again_and_again(x: Vector) -> None:
    try:
        await first(x)
    except asyncio.CancelledError:
        await first(x)


two_steps = ensemble(
    "app",
    inputs=X,
    outputs=Y,
    steps=[
        step(first, takes=["x"], gives=["a"], items=False),
        step(second, takes=["x"], gives=["b"]),
        step(second, takes=["a"], gives=["y"], items=False),
    ],
)
"""The second takes the numbers of `x` for its items: none of them fits."""

started: list[asyncio.Task[None]] = []
"""By functions, which keep them so from being collected."""


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    started.clear()
    on_virtual_time(test)


@pytest.mark.parametrize(
    ("function", "ending"),
    [
        (refuses_beside_calls, "invalid-input"),
        (fails_beside_calls_of_calls, "app-error"),
        (two_steps, "invalid-input"),
        (returns_before_its_calls, "answered"),
    ],
)
def test_no_task_waits_for_a_module_when_its_function_has_ended(
    function: AppFunction, ending: str
) -> None:
    async def test() -> None:
        served = Served(function)
        served.engine.silent.add("app.first")

        answer = await served.send()[1]
        assert (answer.reason if isinstance(answer, Refusal) else "answered") == ending
        # No timer is left: whatever can still run does so before virtual time moves on.
        await asyncio.sleep(0.001)

        assert asyncio.all_tasks() == {asyncio.current_task()}
        calls = [call for call in served.engine.submitted if call.model == "app.first"]
        assert calls
        assert calls == served.engine.cancelled

    run(test)


@pytest.mark.parametrize("unsent", [Begin, Call, Answer, Returned])
def test_a_frame_that_cannot_be_sent_ends_its_request_and_leaves_nothing_that_waits(
    monkeypatch: pytest.MonkeyPatch, unsent: type[AnyFrame]
) -> None:
    def encode(frame: AnyFrame, tensors: Tensors) -> list[bytes | memoryview]:
        if isinstance(frame, unsent):
            raise FrameError("a frame of 12 and 3000000000 bytes is too long")
        return frames.encode(frame, tensors)

    @app(name="app", inputs=X, outputs=Y)
    async def calls_one(x: Vector) -> dict[str, Any]:
        return {"y": [await first(x)]}

    async def test() -> None:
        monkeypatch.setattr(served_app, "encode_frame", encode)
        served = Served(calls_one)
        inference, done = served.send()
        assert not done.done(), "nobody is told before it is submitted"
        answer = await done
        assert isinstance(answer, Refusal)
        assert answer.reason == "app-error"
        assert served.runtime.status().open_requests == 0
        assert asyncio.get_running_loop().time() < SLO_US / 1e6
        served.runtime.cancel(inference)
        await asyncio.sleep(0.001)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("secret")])
def test_what_nobody_takes_from_a_future_is_said_unless_it_was_cancelled(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(say_unless_cancelled)
        call: asyncio.Future[None] = loop.create_future()
        both = gather(call)
        if isinstance(error, asyncio.CancelledError):
            call.cancel()
        else:
            call.set_exception(error)
        await asyncio.sleep(0.001)
        del both

    with caplog.at_level(logging.ERROR, "asyncio"):
        run(test)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (not isinstance(error, asyncio.CancelledError))


def test_a_task_that_waits_for_no_module_goes_on_when_its_function_has_ended() -> None:
    async def later(x: Vector) -> None:
        await first(x)
        await asyncio.sleep(0.5)

    @app(name="app", inputs=X, outputs=Y)
    async def leaves_a_task(x: Vector) -> dict[str, Any]:
        started.append(asyncio.create_task(later(x)))
        return {"y": [await second(x)]}

    async def test() -> None:
        served = Served(leaves_a_task)
        assert isinstance(await served.send()[1], AppAnswer)
        (task,) = started
        assert not task.done()
        await task

    run(test)
