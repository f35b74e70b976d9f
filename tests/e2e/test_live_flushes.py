"""Plans with depths, and of models that come and go, follow others in a running server."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.dispatch.protocols import OpenSink
from headrace.domain.events import AnyEvent, Loading, Opened, Ran
from headrace.planning import solve
from headrace.serving.core.counters import ModelCounters
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.live_migration import LiveMigration, MigrationReport
from headrace.serving.engine.served_plan import ServedPlan
from helpers.left_behind import children, nothing_left_of
from helpers.problems import make_problem
from helpers.served import UNHURRIED_US, WIDTH, Served, rows_of
from helpers.served_items import classes_of, pictures, served_items, whole_network
from helpers.served_items import send as send_pictures
from helpers.served_provisioned import expected, provisioned, send
from helpers.waiting import LOOK_EVERY_S

pytestmark = [pytest.mark.e2e, pytest.mark.lengthy]

WAIT_S = 300.0
CALLERS = 3


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def run(test: Coroutine[Any, Any, None]) -> None:
    with nothing_left_of(children):
        asyncio.run(asyncio.wait_for(test, WAIT_S))


def as_next(served: Served) -> ServedPlan:
    return ServedPlan(plan=served.plan, profiles=served.profiles, folders=served.folders)


def opening(log: list[AnyEvent]) -> OpenSink:
    return lambda header: log.append


async def asked_while(
    work: "asyncio.Future[MigrationReport]", ask: Callable[[int], Awaitable[None]]
) -> int:
    """How often a few callers have asked until the work was done, and once more."""

    async def call(caller: int) -> int:
        asked = 0
        while not work.done():
            await ask(asked * CALLERS + caller)
            asked += 1
            await asyncio.sleep(LOOK_EVERY_S)
        await ask(asked * CALLERS + caller)
        return asked + 1

    return sum(await asyncio.gather(*map(call, range(CALLERS))))


def test_one_more_model_comes_and_goes_and_what_is_counted_goes_on(tmp_path: Path) -> None:
    former = provisioned(tmp_path, models=3, room=2)
    rows = np.random.default_rng(0).standard_normal((1, WIDTH)).astype(np.float32)
    logs: list[list[AnyEvent]] = [[], []]

    async def test() -> None:
        engine = former.engine(sink=logs[0].append, counts=defaultdict(ModelCounters))
        await engine.start()
        try:

            async def ask(number: int, names: Sequence[str] = ("m0", "m1")) -> None:
                name = names[number % len(names)]
                answer = await send(engine, name, rows)
                np.testing.assert_allclose(rows_of(answer), expected(tmp_path, name, rows), 1e-5)

            await ask(0)
            engine.unload_model("m2")
            first = {each.model: each.begun for each in engine.status().loads}
            follows = as_next(provisioned(tmp_path, models=4, room=2))
            move = asyncio.ensure_future(engine.migrate(follows, open_sink=opening(logs[1])))
            assert await asked_while(move, ask) > CALLERS
            report = move.result()
            assert (report.how, report.steps, report.preloaded) == ("flush", 1, True)
            for number in range(8):
                await ask(number, ("m0", "m1", "m3"))
            refused = await send(engine, "m2", rows)
            assert isinstance(refused, Refusal), "what was unloaded under the plan before"
            assert "it was unloaded" in refused.message
            await engine.load_model("m2")
            await ask(0, ("m2",))
            status = engine.status()
            begun = {each.model: each.begun for each in status.loads}
            events = [event for log in logs for event in log]
            assert sum(begun.values()) == sum(isinstance(event, Loading) for event in events)
            assert all(begun[name] >= count for name, count in first.items())
            assert {slot.restarts for slot in status.slots} == {0}
        finally:
            await engine.stop()

    run(test())
    ended_us = max(event.at_us for event in logs[0] if isinstance(event, Ran))
    assert min(event.at_us for event in logs[1] if isinstance(event, Loading)) >= ended_us


def test_what_is_unloaded_and_loaded_while_the_next_plan_loads_holds_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = provisioned(tmp_path, models=2, room=1)
    rows = np.ones((1, WIDTH), np.float32)

    async def test() -> None:
        engine = served.engine()
        await engine.start()
        loaded = LiveMigration.load

        async def load(migration: LiveMigration) -> None:
            await loaded(migration)
            engine.unload_model("m0")
            await engine.load_model("m1")

        monkeypatch.setattr(LiveMigration, "load", load)
        try:
            engine.unload_model("m1")
            await engine.migrate(as_next(served))
            refused = await send(engine, "m0", rows)
            assert isinstance(refused, Refusal)
            assert "it was unloaded" in refused.message
            answer = await send(engine, "m1", rows)
            np.testing.assert_allclose(rows_of(answer), expected(tmp_path, "m1", rows), 1e-5)
        finally:
            await engine.stop()

    run(test())


def test_requests_of_many_items_are_served_by_depths_by_pipelines_and_by_depths_again(
    tmp_path: Path,
) -> None:
    by_depths = served_items(tmp_path, slots=2)
    [profile] = by_depths.profiles.values()
    found = solve(make_problem([profile], nodes={"local": {"cpu": 2}}, slo_us=UNHURRIED_US))
    assert found.plan is not None
    by_pipelines = Served(plan=found.plan, profiles=by_depths.profiles, folders=by_depths.folders)
    whole = whole_network(tmp_path)
    logs: list[list[AnyEvent]] = [[], [], []]

    async def test() -> None:
        engine = by_depths.engine(sink=logs[0].append)
        await engine.start()
        try:

            async def ask(number: int) -> None:
                shown = pictures(1 + number % 4, seed=number)
                answer = await send_pictures(engine, shown)
                [right] = whole.run(None, {"x": shown})
                np.testing.assert_allclose(classes_of(answer), right, rtol=1e-3, atol=1e-4)

            await ask(3)
            for log, follows in zip(logs[1:], (by_pipelines, by_depths), strict=True):
                move = asyncio.ensure_future(
                    engine.migrate(as_next(follows), open_sink=opening(log))
                )
                assert await asked_while(move, ask) > CALLERS
                assert move.result().how == "flush"
            assert isinstance(await send_pictures(engine, pictures(4, seed=1)), Answer)
            assert engine.status().plans_served == 3
        finally:
            await engine.stop()

    run(test())
    assert [any(isinstance(event, Opened) for event in log) for log in logs] == [True, False, True]
    assert all(any(isinstance(event, Ran) for event in log) for log in logs)
