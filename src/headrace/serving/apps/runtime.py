"""Apps in service: each is a model to its clients, and a client of the engine's modules.

Functions run in a process of their own (`host`); deadlines, budgets and ends of their requests are
kept here, so that none of it depends on what a function does.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol

import msgspec

from headrace.dispatch.apps.admission import Admission, admission
from headrace.dispatch.apps.app_dispatcher import AppRun, AppTable, app_tables
from headrace.dispatch.protocols import EventSink, OpenSink
from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, AnyEvent, Arrived, Called, Dropped, EventLogHeader
from headrace.domain.plan import Plan
from headrace.serving.apps import frames
from headrace.serving.apps.error_log import ErrorLog
from headrace.serving.apps.frames import DescribedApp, Tensors
from headrace.serving.apps.host import FunctionHost
from headrace.serving.apps.request import AppRequest, Modules
from headrace.serving.core.counters import ModelCounters
from headrace.serving.engine.engine import STOPPED
from headrace.serving.engine.inference import Answer, Inference, Refusal, ServedModel, try_again
from headrace.serving.workers.status import EngineStatus

FIRST_REQUEST = 1 << 40
"""App requests are numbered from here in event logs, far from the calls'."""
NO_BATCH = -1
"""An app's answer comes from no batch."""


class ModuleEngine(Modules, Protocol):
    """The part of `Engine` that apps stand before."""

    @property
    def plan(self) -> Plan: ...

    @property
    def ready(self) -> bool: ...

    def status(self) -> EngineStatus: ...

    def log_refused(self, model: str, refusal: Refusal) -> None: ...

    async def start(self) -> None: ...

    async def until_gone(self) -> None: ...

    async def drain(self, grace_s: float) -> bool: ...

    async def stop(self) -> None: ...


def _ignore(event: AnyEvent) -> None:
    """The sink where nobody reads the log."""


def _unheld(sink: EventSink) -> None:
    """Where a log is there for good."""


class AppLog:
    """Opens event logs in which the plan's apps stand beside their modules."""

    def __init__(
        self,
        names: tuple[str, ...],
        open_sink: OpenSink,
        join: Callable[[EventSink], None] = _unheld,
        leave: Callable[[EventSink], None] = _unheld,
    ) -> None:
        """`names`: of all apps that are served. `join` and `leave`: called with the sink that a
        request writes to, when it begins and when it has ended, perhaps under another plan."""
        self.names = names
        self.join, self.leave = join, leave
        self.sink: EventSink = _ignore
        self.first = 0
        """The first app's index among the models of the log."""
        self._open = open_sink
        self._next: tuple[EventSink, int] | None = None

    def open(self, header: EventLogHeader) -> EventSink | None:
        """The log of another plan, which the apps' own events go to from `turn` on: the plan may
        yet fail to load."""
        sink = self._open(
            msgspec.structs.replace(
                header,
                models=(*header.models, *self.names),
                pipelines=(*header.pipelines, *(() for _ in self.names)),
            )
        )
        self._next = sink or _ignore, len(header.models)
        return sink

    def turn(self) -> None:
        """The plan of the log opened last is in service."""
        if self._next is not None:
            self.sink, self.first = self._next


class AppInService:
    """One app under the plan in service."""

    def __init__(
        self,
        function: DescribedApp,
        plan: Plan,
        table: AppTable,
        models: Mapping[str, ServedModel],
    ) -> None:
        modules = [models[f"{table.name}.{module.name}"] for module in table.modules]
        self.table = table
        self.fastest_us = tuple(model.fastest_us for model in modules)
        app = next(claim.app for claim in plan.apps if claim.app.name == function.name)
        self.admission: Admission = admission(plan, table, self.fastest_us)
        self.model = ServedModel(
            name=function.name,
            version=str(app.version),
            inputs=function.inputs,
            outputs=function.outputs,
            slo_us=table.slo_us,
            fastest_us=self.admission.fastest_us,
            max_items=1,
            # An app is planned for what is asked of it, no more.
            planned_rps=app.rate_rps,
            rate_rps=app.rate_rps,
            batched=False,
            app=True,
        )


class AppRuntime:
    """Stands before an engine and serves apps instead of their modules; models beside the apps are
    the engine's to serve.

    Has the methods of `Engine` that a server uses (`lifecycle.ServingEngine`).
    """

    def __init__(
        self,
        engine: ModuleEngine,
        host: FunctionHost,
        counters: Mapping[str, ModelCounters],
        log: AppLog,
    ) -> None:
        """
        Args:
            host: has the apps' functions.
            counters: by module (APP.MODULE).
        """
        self._engine = engine
        self._host = host
        host.events = self
        self._functions = {app.name: app for app in host.apps}
        self._errors = ErrorLog(logging.getLogger("headrace.apps"))
        self._counters = counters
        self._log = log
        self._plan: Plan | None = None
        self._apps: dict[str, AppInService] = {}
        self._alone: dict[str, ServedModel] = {}
        """Those that are no modules."""
        self._models: dict[str, ServedModel] = {}
        self._modules: dict[str, tuple[str, ...]] = {}
        """App -> the modules that its function was written for, in topological order."""
        self._requests: dict[Inference, AppRequest] = {}
        self._by_number: dict[int, AppRequest] = {}
        self._ids = count(FIRST_REQUEST)
        self._calls = count()
        self._draining = False
        self._idle = asyncio.Event()

    # -- what it is doing ----------------------------------------------------------------------

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The apps of the plan in service, and the models beside them, as clients see them."""
        self._follow_plan()
        return self._models

    @property
    def ready(self) -> bool:
        return self._engine.ready and self._host.up and not self._draining

    def status(self) -> EngineStatus:
        status, requests = self._engine.status(), len(self._requests)
        return replace(
            status,
            open_inferences=status.open_inferences + requests,
            open_requests=status.open_requests + requests,
            apps=self._host.status(),
        )

    def check(self, plan: Plan) -> None:
        """Whether these apps can be served by another plan. Requests under way go on in it, with
        the budgets that they began with; an app that it does not have is served no longer.

        Raises:
            PlanError: it has no app, one without a function, or one with other modules.
        """
        self._follow_plan()
        apps = {claim.app.name for claim in plan.apps}
        if not apps or apps - set(self._functions):
            raise PlanError(
                "the plan's apps are not those that this server has functions for\n"
                f"  plan      {', '.join(sorted(apps)) or 'none'}\n"
                f"  server    {', '.join(sorted(self._functions))}\n"
                "  try       a server of its own for that plan"
            )
        for table in app_tables(plan):
            modules = tuple(module.name for module in table.modules)
            if modules != self._modules.get(table.name, modules):
                raise PlanError(
                    f"app {table.name!r} has other modules in the new plan\n"
                    f"  plan      {', '.join(modules)}\n"
                    f"  server    {', '.join(self._modules[table.name])}\n"
                    "  try       another name for the changed app"
                )

    def _follow_plan(self) -> None:
        """Budgets and objectives are those of the plan in service, whichever it is now."""
        plan = self._engine.plan
        if plan is self._plan:
            return
        self._plan = plan
        self._log.turn()
        self._apps = {
            table.name: AppInService(self._functions[table.name], plan, table, self._engine.models)
            for table in app_tables(plan)
            if table.name in self._functions
        }
        modules = {each.name for each in plan.deployments if each.app is not None}
        self._alone = {n: model for n, model in self._engine.models.items() if n not in modules}
        self._models = self._alone | {name: app.model for name, app in self._apps.items()}
        for name, app in self._apps.items():
            self._modules.setdefault(name, tuple(module.name for module in app.table.modules))
        self._tell_modules()

    def _tell_modules(self) -> None:
        specs = {
            name: frames.ModuleSpecs(
                model.inputs,
                tuple(spec for spec in model.outputs if not spec.shape_of),
                model.batched,
            )
            for name, model in self._engine.models.items()
        }
        self._host.send(frames.Modules(specs))

    # -- the host's side -----------------------------------------------------------------------

    def on_up(self) -> None:
        self._tell_modules()

    def on_frame(self, frame: frames.FromApps, tensors: Tensors) -> None:
        if isinstance(frame, frames.Ready | frames.NotReady):
            return
        request = self._by_number.get(frame.request)
        if request is not None:
            request.receive(frame, tensors)

    def on_lost(self, why: str) -> None:
        for request in list(self._requests.values()):
            request.lose(why)

    # -- its life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """
        Raises:
            HeadraceError: a stage cannot be extracted or loaded; nothing is left running.
        """
        await self._host.start()
        await self._engine.start()

    async def until_gone(self) -> None:
        """See `Engine.until_gone`: apps answer nothing without their modules."""
        await self._engine.until_gone()

    async def drain(self, grace_s: float) -> bool:
        """Refuse new requests, finish those that run; their calls must still be answered."""
        self._draining = True
        self._idle.clear()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        if self._requests:
            try:
                await asyncio.wait_for(self._idle.wait(), grace_s)
            except TimeoutError:
                return False
        return await self._engine.drain(max(0.0, until_s - loop.time()))

    async def stop(self) -> None:
        """Idempotent."""
        self._draining = True
        for request in list(self._requests.values()):
            request.stop("draining", STOPPED)
        try:
            await self._host.stop()
        finally:
            await self._engine.stop()

    # -- its work ------------------------------------------------------------------------------

    def submit(self, inference: Inference) -> None:
        """Accept or refuse; the result comes later through `inference.on_done`, exactly once."""
        self._follow_plan()
        if inference.model in self._alone and not self._draining:
            self._engine.submit(inference)
            return
        app = self._apps.get(inference.model)
        if app is None or self._draining:
            message = STOPPED if app else f"app {inference.model!r} is not served any more"
            self._tell(inference, Refusal(reason="draining", message=message, retry_after_us=0))
            return
        now_us = self._engine.now_us()
        arrived_at_us = now_us
        if inference.arrived_at_us is not None:
            arrived_at_us = min(now_us, inference.arrived_at_us)
        allowed_us = app.table.slo_us if inference.timeout_us is None else inference.timeout_us
        deadline_at_us = arrived_at_us + allowed_us
        number = inference.first_request = next(self._ids)
        sink, index = self._log.sink, self._log.first + self._log.names.index(app.model.name)
        sink(Arrived(now_us, number, index, deadline_at_us))
        refusal = self._refusal(app, max(0, deadline_at_us - now_us))
        if refusal is not None:
            sink(Dropped(now_us, number, refusal.reason, refusal.retry_after_us))
            self._tell(inference, refusal)
            return
        run = AppRun(
            id=number,
            table=app.table,
            deadline_at_us=deadline_at_us,
            priority=inference.priority or app.table.priority,
            next_call=lambda: next(self._calls),
            fan_out=None,
            fastest_us=app.fastest_us,
        )
        request = self._requests[inference] = self._by_number[number] = AppRequest(
            run,
            inference,
            arrived_at_us,
            model=app.model,
            modules=self._engine,
            send=self._host.send,
            errors=self._errors,
            counters=self._counters,
            on_call=lambda call: sink(Called(self._engine.now_us(), number, call)),
            on_end=partial(self._on_end, sink),
        )
        self._log.join(sink)
        request.begin()

    def log_refused(self, model: str, refusal: Refusal) -> None:
        """See `core.protocol.Backend`. Without effect for an app that is not served any more."""
        self._follow_plan()
        app = self._apps.get(model)
        if model in self._alone:
            self._engine.log_refused(model, refusal)
        elif app is not None:
            now_us, number = self._engine.now_us(), next(self._ids)
            index = self._log.first + self._log.names.index(model)
            self._log.sink(Arrived(now_us, number, index, now_us + app.table.slo_us))
            self._log.sink(Dropped(now_us, number, refusal.reason, refusal.retry_after_us))

    def cancel(self, inference: Inference) -> None:
        """The client went away: `on_done` will not be called. Harmless when already done."""
        request = self._requests.get(inference)
        if request is not None:
            request.abandon()
        elif inference.model in self._alone:
            self._engine.cancel(inference)

    def _refusal(self, app: AppInService, allowed_us: int) -> Refusal | None:
        """Why a request has no chance; None: it has."""
        name = app.model.name
        if app.model.fastest_us > allowed_us:
            return app.model.refuse_timeout(allowed_us)
        if not self._host.up:
            message = f"app {name!r}: the process of the apps' code is being started again"
            retry_after_us = self._host.retry_after_us
            return Refusal(reason="app-lost", message=message, retry_after_us=retry_after_us)
        if self._host.congested:
            message = f"app {name!r} does not keep up with what it is sent"
            return Refusal(reason="queue-full", message=message, retry_after_us=0)
        runs = [r.run for r in self._requests.values() if r.run.table.name == name]
        excess_us = app.admission.excess_us(runs, allowed_us)
        if not excess_us:
            return None
        message = (
            f"app {name!r} has too much work waiting to answer within {allowed_us / 1000:.1f} ms;"
            f" {try_again(excess_us)} or send fewer requests"
        )
        return Refusal(reason="deadline", message=message, retry_after_us=excess_us)

    def _tell(self, inference: Inference, refusal: Refusal) -> None:
        asyncio.get_running_loop().call_soon(inference.on_done, refusal)

    def _on_end(
        self, sink: EventSink, request: AppRequest, result: Answer | Refusal | None
    ) -> None:
        del self._requests[request.inference]
        number = request.inference.first_request
        del self._by_number[number]
        if isinstance(result, Answer):
            sink(Answered(result.ended_at_us, number, NO_BATCH))
        else:
            reason = "cancelled" if result is None else result.reason
            retry_after_us = 0 if result is None else result.retry_after_us
            sink(Dropped(self._engine.now_us(), number, reason, retry_after_us))
        self._log.leave(sink)
        if result is not None:
            request.inference.on_done(result)
        if not self._requests:
            self._idle.set()
