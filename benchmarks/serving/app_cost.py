"""What the apps' process costs: CPU time per call of a module, per request and per picture.

Modules that answer at once stand behind; a function calls one CALLS times in a row. CPU time of the
gateway's side and of the apps' process is counted, so other load on the machine disturbs little.

    PYTHONPATH=tests python -m benchmarks.serving.app_cost
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from benchmarks.command_line import new_parser

from headrace.apps import app, module, tensor
from headrace.domain.events import EventLogHeader
from headrace.serving.apps.host import AppHost
from headrace.serving.apps.runtime import AppLog, AppRuntime
from headrace.serving.core.counters import ModelCounters
from headrace.serving.engine.inference import Answer, AppAnswer, Inference, Refusal
from helpers.served_app import SLO_US, FakeModules, Served, app_plan

CALLS = 2_000
PICTURES = 100
SHAPE = (720, 1280, 3)
CALL_TARGET_US = 300.0
"""Fifteen calls, as a picture of the OCR example needs, then cost a hundredth of its SLO."""
FUNCTION = """
from headrace.apps import app, module, tensor

first, second = module("first"), module("second")


@app(
    name="app",
    inputs=[tensor("picture", "uint8", (-1, -1, 3)), tensor("calls", "int64", (1,))],
    outputs=[tensor("y", "float32", (2,))],
)
async def chain(picture, calls):
    x = [1.0, 2.0]
    for _ in range(int(calls[0])):
        x = await first([1.0, 2.0])
    return {"y": x}
"""


first = module("first")


@app(
    name="app",
    inputs=[tensor("picture", "uint8", (-1, -1, 3)), tensor("calls", "int64", (1,))],
    outputs=[tensor("y", "float32", (2,))],
)
async def chain_here(picture: Any, calls: Any) -> dict[str, Any]:
    x: Any = [1.0, 2.0]
    for _ in range(int(calls[0])):
        x = await first([1.0, 2.0])
    return {"y": x}


class InstantModules(FakeModules):
    """Answers from the next turn of the loop."""

    def submit(self, inference: Inference) -> None:
        now_us = self.now_us()
        answer = Answer(
            outputs=(memoryview(bytes(8)),),
            arrived_at_us=now_us,
            deadline_at_us=now_us + SLO_US,
            ended_at_us=now_us,
        )
        asyncio.get_running_loop().call_soon(inference.on_done, answer)

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000


async def ask(runtime: AppRuntime, shape: tuple[int, ...], calls: int) -> None:
    done: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()
    inputs = (np.zeros(shape, np.uint8), np.array([calls]))
    inference = Inference(
        model="app", items=1, inputs=inputs, on_done=done.set_result, timeout_us=600_000_000
    )
    runtime.submit(inference)
    answer = await done
    assert isinstance(answer, AppAnswer), answer


async def measure(host: AppHost) -> bool:
    log = AppLog(("app",), lambda header: lambda event: None)
    names = ("app.first", "app.second")
    log.open(
        EventLogHeader(clock="live", policy="none", models=names, pipelines=(), slots=(), nodes=())
    )
    counters = {name: ModelCounters() for name in (*names, "app")}
    runtime = AppRuntime(InstantModules(app_plan()), host, counters, log)
    await runtime.start()
    await ask(runtime, (1, 1, 3), 100)
    figures = []
    for shape, calls, times in (((1, 1, 3), CALLS, 3), ((1, 1, 3), 0, 500), (SHAPE, 0, PICTURES)):
        await asyncio.sleep(0.3)  # the apps' CPU time comes with its signs of life
        ours_s, apps_us, at_s = time.process_time(), host.status().cpu_us, time.monotonic()
        for _ in range(times):
            await ask(runtime, shape, calls)
        ours_s, wall_s = time.process_time() - ours_s, time.monotonic() - at_s
        await asyncio.sleep(0.3)
        count = times * max(1, calls)
        apps_us = host.status().cpu_us - apps_us
        figures.append((ours_s * 1e6 / count, apps_us / count, wall_s * 1e6 / count))
    await runtime.stop()
    here = await in_this_process()
    print(f"{'call':8} of a function in the gateway itself: {here:.1f} us")
    for what, (ours, apps, wall) in zip(("call", "request", "picture"), figures, strict=True):
        print(f"{what:8} gateway {ours:7.1f} us  apps {apps:7.1f} us  wall {wall:7.1f} us")
    passed = figures[0][0] <= CALL_TARGET_US
    print(f"gateway per call: target {CALL_TARGET_US:g} us: {'pass' if passed else 'miss'}")
    return passed


async def in_this_process() -> float:
    """CPU time per call where both sides share a loop, in microseconds."""
    served = Served(chain_here, InstantModules(app_plan()))
    for calls in (100, CALLS):
        before_s = time.process_time()
        await ask(served.runtime, (1, 1, 3), calls)
    return (time.process_time() - before_s) * 1e6 / CALLS


def main() -> int:
    new_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "app.py"
        file.write_text(FUNCTION)
        host = AppHost([file], threads=1)
        host.open()
        return 0 if uvloop.run(measure(host)) else 1


if __name__ == "__main__":
    sys.exit(main())
