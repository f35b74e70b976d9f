"""Work `aside` that goes on when its request has ended: whose it is, and what it holds."""

import asyncio
import logging
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from numpy.typing import NDArray

from headrace.apps import app, aside, tensor
from headrace.serving.apps.frames import Beat, LeftWork, decode_beat, encode_beat
from headrace.serving.apps.held import HeldLog
from headrace.serving.apps.host import why_not_wait
from headrace.serving.apps.threads import LEFT_US, AsideThreads
from headrace.serving.engine.inference import Refusal
from helpers.live_server import PATIENCE_S
from helpers.served_app import SLO_US, Served
from helpers.virtual_loop import on_virtual_time

X = [tensor("x", "float32", (2,))]


@dataclass
class Request:
    app: str = "ocr"
    ended_at_us: int | None = None


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()

    def work(self) -> None:
        self.begun.release()
        self.let_go.wait(PATIENCE_S)

    def wait_until_begun(self, times: int) -> None:
        for _ in range(times):
            assert self.begun.acquire(timeout=PATIENCE_S), "no thread begins it"


def test_work_is_left_from_the_end_of_its_request_on() -> None:
    now_us = 0
    threads, held = AsideThreads(2, lambda: now_us), Held()
    requests = [Request(), Request("asr")]

    async def test() -> None:
        nonlocal now_us
        work = [asyncio.ensure_future(threads.run(r, held.work, ())) for r in requests]
        await asyncio.sleep(0)
        held.wait_until_begun(2)
        now_us = 5 * LEFT_US
        assert threads.left() == LeftWork()

        requests[1].ended_at_us = now_us
        now_us += LEFT_US - 1
        assert threads.left() == LeftWork()
        now_us += 1
        left = threads.left()
        assert (left.threads, left.all_us, left.app) == (1, 0, "asr")
        assert left.what == "Held.work"
        assert "let_go.wait" in left.stack

        requests[0].ended_at_us = now_us
        now_us += 100
        left = threads.left()
        assert (left.threads, left.all_us, left.app) == (1, 100, "asr")

        held.let_go.set()
        await asyncio.gather(*work)
        assert threads.left() == LeftWork()

    asyncio.run(test())
    threads.stop()


def test_a_request_that_ends_at_its_deadline_leaves_its_work() -> None:
    held = Held()

    @app(name="app", inputs=X, outputs=[])
    async def hangs(x: NDArray[Any]) -> dict[str, Any]:
        await aside(held.work)
        return {}

    async def test() -> None:
        served = Served(hangs)
        _, done = served.send()
        await asyncio.sleep(0)
        held.wait_until_begun(1)
        answer = await done
        assert isinstance(answer, Refusal)
        assert answer.reason == "deadline"
        await asyncio.sleep(2 * LEFT_US / 1e6)
        left = served.host.threads.left()
        assert (left.threads, left.app) == (1, "app")
        assert left.all_us == served.engine.now_us() - SLO_US
        held.let_go.set()

    on_virtual_time(test)


def test_work_left_is_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = HeldLog()
    with caplog.at_level(logging.WARNING, "headrace.apps"):
        for threads in (0, 1, 2, 0):
            left = LeftWork(threads, 0, "ocr", "read", "  File app.py, line 7\n")
            beat = Beat(cpu_us=0, lag_us=0, held=False, app="", stack="", left=left)
            log.note(decode_beat(encode_beat(beat)))
            assert log.left_threads == threads
    assert [record.getMessage() for record in caplog.records] == [
        "app 'ocr' keeps a thread for work `aside`, read, after its request has ended: give such"
        " work a time limit\n  File app.py, line 7"
    ]


def test_a_process_that_is_started_again_has_no_work_left() -> None:
    log = HeldLog()
    log.note(Beat(0, 0, False, "", "", LeftWork(4, 9, "ocr")))
    log.begin()
    assert log.left_threads == 0


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (LeftWork(4, 10_100_000, "ocr"), "work whose requests have ended has held all its threads"),
        (LeftWork(4, 9_900_000, "ocr"), None),
        (LeftWork(3, 0, "ocr"), None),
    ],
)
def test_a_process_is_ended_when_no_thread_is_left_for_others(
    left: LeftWork, why: str | None
) -> None:
    found = why_not_wait(Beat(0, 0, False, "", "", left))
    assert found == (why and f"{why} for 10.1 s")
