"""Who is said to hold up the apps, and who is not."""

import asyncio
import logging

import pytest

from headrace.serving.apps.frames import Beat
from headrace.serving.apps.held import HeldLog
from headrace.serving.apps.runner import TASK
from headrace.serving.apps.watchdog import running_app

STACK = "  File app.py, line 7"


def said(caplog: pytest.LogCaptureFixture, app: str | None) -> list[str]:
    """Of a loop that is held up for 322 ms."""
    log = HeldLog()
    with caplog.at_level(logging.WARNING, "headrace.apps"):
        for lag_us in (300_000, 322_000):
            log.note(held(app, lag_us))
        for lag_us in (310_000, 0):
            log.note(Beat(cpu_us=0, lag_us=lag_us, held=False, app="", stack=""))
    assert log.held_us == (0 if app is None else 322_000), "functions' time is counted"
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("app", "name"), [("traffic", "app 'traffic'"), ("", "an app")])
def test_an_app_that_holds_up_the_others_is_told_how_not_to(
    caplog: pytest.LogCaptureFixture, app: str, name: str
) -> None:
    assert said(caplog, app) == [
        f"{name} holds up all apps for 300 ms: compute `aside`, or `await`\n{STACK}",
        f"{name} held up all apps for 322 ms",
    ]


def test_a_loop_that_does_not_get_to_run_is_no_apps_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert said(caplog, None) == [
        f"the loop of the apps' process has not got to run for 300 ms\n{STACK}",
        "the loop of the apps' process did not get to run for 322 ms",
    ]


def held(app: str | None, lag_us: int) -> Beat:
    return Beat(cpu_us=0, lag_us=lag_us, held=True, app=app, stack=STACK)


def test_a_process_that_is_ended_while_it_is_held_up_takes_no_time_out_of_the_count() -> None:
    log = HeldLog()
    log.note(held("traffic", 10_000_000))
    log.begin()
    assert log.held_us == 10_000_000
    log.note(held("traffic", 300_000))
    assert log.held_us == 10_300_000


def test_the_count_does_not_fall_when_no_function_runs_any_more() -> None:
    log = HeldLog()
    log.note(held("traffic", 300_000))
    log.note(held(None, 400_000))
    assert log.held_us == 300_000


def test_a_loop_that_runs_no_function_is_held_up_by_no_app() -> None:
    async def running() -> str | None:
        return running_app(asyncio.get_running_loop())

    async def with_a_task_of_its_own() -> str | None:
        return (await asyncio.gather(running()))[0]

    async def between_tasks() -> str | None:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[str | None] = loop.create_future()
        loop.call_soon(lambda: found.set_result(running_app(loop)))
        return await found

    async def in_a_function() -> list[str | None]:
        ways = (running(), with_a_task_of_its_own(), between_tasks())
        loop = asyncio.get_running_loop()
        return [await loop.create_task(way, name=f"{TASK}traffic") for way in ways]

    assert asyncio.run(in_a_function()) == ["traffic", "", None]
