"""An app in service before a fake engine, over virtual time: two modules, 10 ms and 20 ms.

`first` has a budget of 30 ms, `second` of 50 ms, the app an SLO of 100 ms and 50 requests/s.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.apps import app, gather, module, tensor
from headrace.dispatch.protocols import EventSink
from headrace.domain.app import App, FanOut, Module
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.elements import element_dtype
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.domain.plan import AppClaim, Deployment, Pipeline, Plan, Stage
from headrace.domain.problem import PlanOptions
from headrace.domain.tensors import TensorSpec
from headrace.serving.apps.api import AppFunction
from headrace.serving.apps.frames import (
    AnyFrame,
    DescribedApp,
    FromApps,
    FromGateway,
    Link,
    Tensors,
)
from headrace.serving.apps.frames import encode as encode_frame
from headrace.serving.apps.host import AppEvents
from headrace.serving.apps.runner import FunctionRunner
from headrace.serving.apps.runtime import AppLog, AppRuntime
from headrace.serving.apps.threads import AsideThreads
from headrace.serving.core.counters import ModelCounters
from headrace.serving.engine.engine import EngineStatus
from headrace.serving.engine.inference import Answer, Inference, Refusal, ServedModel
from headrace.serving.workers.status import AppsStatus
from helpers.served import WHOLE

first, second = module("first"), module("second")
X = [tensor("x", "float32", (2,))]
Y = [tensor("y", "float32", (-1, 2))]
Vector = NDArray[np.float32]


@app(name="app", inputs=X, outputs=Y)
async def chain(x: Vector) -> dict[str, Any]:
    """One call of `first`, three at once of `second`."""
    found = await first(x)
    return {"y": await gather(*(second(found + i) for i in range(3)))}


SLO_US = 100_000
BUDGETS_US = {"first": 30_000, "second": 50_000}
TAKES_US = {"first": 10_000, "second": 20_000}
FAN_OUT = 2.0
RATE_RPS = 50.0
SPEC = TensorSpec(name="x", dtype="float32", item_shape=(2,))


def app_plan(name: str = "app", slo_us: int = SLO_US) -> Plan:
    app = App(
        name=name,
        modules=(
            Module(name="first", model="m"),
            Module(name="second", model="m", fan_out=FanOut(mean=FAN_OUT)),
        ),
        edges=(("first", "second"),),
        slo_us=slo_us,
        rate_rps=RATE_RPS,
        priority=7,
    )
    return Plan(
        planner="by-hand",
        options=PlanOptions(),
        cluster=Cluster(
            device_types=(DeviceType(name="cpu", max_utilisation=0.5),),
            nodes=(Node(name="n", devices={"cpu": 4}),),
        ),
        demands=(),
        profiles=(),
        slots=(),
        deployments=tuple(_deployment(name, module, slo_us) for module in BUDGETS_US),
        objective=1.0,
        bound=None,
        gap=None,
        stopped="heuristic",
        binding="none",
        cost_per_hour=None,
        runtime_s=0.0,
        apps=(
            AppClaim(
                app=app, reading="remaining", worst_case_us=1, budget_us=slo_us, cost_per_hour=1.0
            ),
        ),
    )


def _deployment(app: str, module: str, slo_us: int) -> Deployment:
    rate_rps = RATE_RPS * (FAN_OUT if module == "second" else 1.0)
    stage = Stage(
        first_block=0,
        end_block=1,
        device="cpu",
        share=WHOLE,
        pool=(),
        latency_us=TAKES_US[module],
        transfer_us=0,
        throughput_rps=rate_rps,
    )
    pipeline = Pipeline(
        name=module, batch_size=1, stages=(stage,), latency_us=1, throughput_rps=rate_rps
    )
    return Deployment(
        model="m",
        slo_us=slo_us,
        budget_us=BUDGETS_US[module],
        pipelines=(pipeline,),
        throughput_rps=rate_rps,
        app=app,
        module=module,
        rate_rps=rate_rps,
    )


class FakeModules:
    """Answers every call with x + 1 after its module's time, unless told otherwise."""

    def __init__(self, plan: Plan | None = None, spec: TensorSpec = SPEC) -> None:
        """`spec`: of what modules take and give."""
        self.plan = plan or app_plan()
        self.spec = spec
        self.submitted: list[Inference] = []
        self.cancelled: list[Inference] = []
        self.answered: list[Inference] = []
        self.refused: list[Inference] = []
        self.told: list[str] = []
        """Models of which a request was refused before it was read."""
        self.refuse: dict[str, Refusal] = {}
        """By module's full name."""
        self.silent: set[str] = set()
        """Modules that never answer."""
        self.drained = False
        self.ready = True

    @property
    def models(self) -> Mapping[str, ServedModel]:
        return {
            deployment.name: ServedModel(
                name=deployment.name,
                inputs=(self.spec,),
                outputs=(self.spec,),
                slo_us=deployment.slo_us,
                fastest_us=TAKES_US[deployment.module or deployment.model],
                max_items=16,
            )
            for deployment in self.plan.deployments
        }

    def now_us(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6)

    def submit(self, inference: Inference) -> None:
        inference.first_request = len(self.submitted)
        self.submitted.append(inference)
        loop = asyncio.get_running_loop()
        refusal = self.refuse.get(inference.model)
        if refusal is not None:
            self.refused.append(inference)
            loop.call_soon(self._hand_over, inference, refusal)
        elif inference.model not in self.silent:
            takes_us = TAKES_US[inference.model.rpartition(".")[2]]
            loop.call_later(takes_us / 1e6, self._answer, inference, self.now_us())

    def cancel(self, inference: Inference) -> None:
        self.cancelled.append(inference)

    def log_refused(self, model: str, refusal: Refusal) -> None:
        assert "." not in model, "apps are asked, not their modules"
        self.told.append(model)

    def status(self) -> EngineStatus:
        ended = (*self.answered, *self.refused, *self.cancelled)
        calls = sum(inference not in ended for inference in self.submitted)
        return EngineStatus(
            slots=(),
            open_inferences=calls,
            open_requests=calls,
            running_batches=0,
            arena_used_bytes=0,
            arena_size_bytes=0,
            draining=False,
        )

    async def start(self) -> None:
        """Nothing to start."""

    async def until_gone(self) -> None:
        """Nothing is ever lost here."""
        await asyncio.Event().wait()

    async def drain(self, grace_s: float) -> bool:
        self.drained = True
        return True

    async def stop(self) -> None:
        """Nothing to stop."""

    def _answer(self, inference: Inference, arrived_at_us: int) -> None:
        x = np.frombuffer(inference.inputs[0], element_dtype(self.spec))
        answer = Answer(
            outputs=(memoryview((x + x.dtype.type(1)).tobytes()),),
            arrived_at_us=arrived_at_us,
            deadline_at_us=arrived_at_us + (inference.timeout_us or SLO_US),
            ended_at_us=self.now_us(),
        )
        self.answered.append(inference)
        self._hand_over(inference, answer)

    def _hand_over(self, inference: Inference, result: Answer | Refusal) -> None:
        if inference not in self.cancelled:
            inference.on_done(result)


def as_received(frame: AnyFrame, tensors: Tensors) -> tuple[AnyFrame, Tensors]:
    """What the other end makes of a frame's bytes."""
    got: list[tuple[AnyFrame, Tensors]] = []
    link = Link(lambda *one: got.append(one), lambda reason: None)
    data = b"".join(encode_frame(frame, tensors))
    while data:
        room = link.get_buffer(-1)
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        room.release()
        link.buffer_updated(taken)
        data = data[taken:]
    ((whole, arrays),) = got
    return whole, arrays


class HereHost:
    """Runs functions on the gateway's own loop: the same code on both sides and the same frames
    between, no process."""

    def __init__(self, function: AppFunction, now_us: Callable[[], int]) -> None:
        self.events: AppEvents
        self.apps = (DescribedApp(function.name, function.inputs, function.outputs),)
        self.up = True
        self.congested = False
        self.retry_after_us = 5_000
        loop = asyncio.get_running_loop()
        # Asked on threads too.
        self.threads = AsideThreads(1, lambda: round(loop.time() * 1e6))
        self._runner = FunctionRunner(
            {function.name: function}, self._receive, self.threads, now_us
        )

    def _receive(self, frame: FromApps, tensors: Tensors) -> None:
        got, arrays = as_received(frame, tensors)
        assert isinstance(got, FromApps)
        self.events.on_frame(got, arrays)

    def send(self, frame: FromGateway, tensors: Tensors = ()) -> None:
        got, arrays = as_received(frame, tensors)
        assert isinstance(got, FromGateway)
        self._runner.receive(got, arrays)

    def status(self) -> AppsStatus:
        return AppsStatus(up=True, restarts=0, process_id=None, cpu_us=0, lag_us=0, held_us=0)

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        await self._runner.stop(1.0)


class Served:
    """A runtime, the engine behind it, and what became of each request."""

    def __init__(self, function: AppFunction, engine: FakeModules | None = None) -> None:
        self.engine = engine or FakeModules()
        self.events: list[AnyEvent] = []
        names = (*(d.name for d in self.engine.plan.deployments), function.name)
        self.counters = {name: ModelCounters() for name in names}
        self.written_by = 0
        """Requests that write to the log."""
        log = AppLog((function.name,), self._open, self._join, self._leave)
        log.open(
            EventLogHeader(
                clock="virtual", policy="none", models=names[:-1], pipelines=(), slots=(), nodes=()
            )
        )
        self.host = HereHost(function, self.engine.now_us)
        self.runtime = AppRuntime(self.engine, self.host, self.counters, log)
        self.runtime.on_up()

    def _open(self, header: EventLogHeader) -> EventSink:
        self.header = header
        return self.events.append

    def _join(self, sink: EventSink) -> None:
        assert sink == self.events.append
        self.written_by += 1

    def _leave(self, sink: EventSink) -> None:
        assert sink == self.events.append
        self.written_by -= 1

    def send(
        self,
        x: Sequence[float] = (1.0, 2.0),
        timeout_us: int | None = None,
        priority: int = 0,
        model: str | None = None,
        inputs: Tensors = (),
    ) -> tuple[Inference, "asyncio.Future[Answer | Refusal]"]:
        done: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()
        inference = Inference(
            model=model or self.header.models[-1],
            items=1,
            inputs=tuple(inputs) or (np.array(x, np.float32),),
            on_done=done.set_result,
            timeout_us=timeout_us,
            priority=priority,
        )
        self.runtime.submit(inference)
        return inference, done
