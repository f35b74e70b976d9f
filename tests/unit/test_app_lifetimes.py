"""Apps in service as they drain, stop, take over another plan, and what their logs hold of it."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, AnyEvent, Arrived, Dropped, EventLogHeader
from headrace.serving.apps.runtime import AppLog
from headrace.serving.engine.inference import AppAnswer, Refusal
from helpers.served_app import (
    BUDGETS_US,
    SLO_US,
    Served,
    app_plan,
    chain,
)
from helpers.virtual_loop import on_virtual_time


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

    on_virtual_time(test)


def test_stopping_refuses_everything_that_runs() -> None:
    async def test() -> None:
        served = Served(chain)
        _, running = served.send()
        await served.runtime.stop()
        refusal = await running
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "draining"

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)


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

    on_virtual_time(test)
