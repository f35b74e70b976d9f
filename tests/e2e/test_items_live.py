"""Requests of many items on real worker processes: right, in order, whatever happens meanwhile."""

import asyncio
import os
import shutil
import signal
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import sha256_file, write_document
from headrace.cli import app
from headrace.domain.errors import DocumentError
from headrace.domain.events import AnyEvent, Opened, Placed, Ran, SlotGained
from headrace.domain.problem import ProfileRef
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Refusal
from helpers.lengthy import with_lengthy
from helpers.served_items import classes_of, pictures, send, served_items, whole_network
from helpers.waiting import until

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang reaches it."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, WAIT_S))


def changes_of_depth(events: list[AnyEvent]) -> int:
    """Requests that are served by another number of slots than before, while they have items."""
    depths: dict[int, int] = {}
    changes = 0
    for event in events:
        if isinstance(event, Placed):
            before = depths.get(event.request, 0)
            changes += before not in (0, len(event.slots))
            depths[event.request] = len(event.slots)
    return changes


@pytest.mark.parametrize("item_batch", with_lengthy([1, 2], lengthy=[1]))
def test_bursts_change_depths_and_every_item_is_answered_in_its_place(
    tmp_path: Path, item_batch: int
) -> None:
    served = served_items(tmp_path, item_batch=item_batch)
    assert [len(depth.stages) for depth in served.plan.deployments[0].depths] == [1, 2]
    whole = whole_network(tmp_path)
    events: list[AnyEvent] = []
    rng = np.random.default_rng(1)
    asked = [pictures(int(items), seed) for seed, items in enumerate(rng.integers(3, 13, 60))]

    async def test() -> None:
        engine = served.engine(sink=events.append)
        await engine.start()
        try:
            answers = []
            for first in range(0, len(asked), 6):
                burst = []
                for rows in asked[first : first + 6]:
                    burst.append(send(engine, rows, priority=first // 6 % 2))
                    await asyncio.sleep(0)
                answers += await asyncio.gather(*burst)
            assert engine.status().arena_used_bytes == 0
        finally:
            await engine.stop()
        for rows, answer in zip(asked, answers, strict=True):
            expected = whole.run(["y"], {"x": rows})[0]
            np.testing.assert_allclose(classes_of(answer), expected, atol=1e-4)

    run(test())
    opened = [event.items for event in events if isinstance(event, Opened)]
    assert sorted(opened) == sorted(len(rows) for rows in asked)
    # The first of all has two slots until the second one comes. Later it depends on what times the
    # dispatcher has learned here whether a second slot helps.
    assert changes_of_depth(events) >= 1
    assert {event.slot for event in events if isinstance(event, Ran)} == {0, 1}


def test_a_worker_that_dies_within_a_pipeline_costs_no_item(tmp_path: Path) -> None:
    # Emulated stages take a while, so that the worker is in the middle of a request.
    served = served_items(tmp_path, device="l4", block_us=50_000)
    events: list[AnyEvent] = []
    before: list[AnyEvent] = []

    async def test() -> None:
        engine = served.engine(sink=events.append)
        await engine.start()
        try:
            answer = send(engine, pictures(12, 0))
            await until(lambda: sum(isinstance(event, Ran) for event in events) >= 5)
            before.extend(events)
            placed = [event for event in events if isinstance(event, Placed)][-1]
            assert len(placed.slots) == 2
            process_id = engine.status().slots[placed.slots[1]].process_id
            assert process_id is not None
            os.kill(process_id, signal.SIGKILL)
            assert classes_of(await answer).shape == (12, 10)
        finally:
            await engine.stop()

    run(test())
    # Of a worker that says nothing, the loss is known later than that it answers no more.
    after = [event for event in events[len(before) :] if isinstance(event, Placed)]
    assert len(after[0].slots) == 1, "it goes on at the depth that is left"


@pytest.mark.lengthy
def test_a_killed_worker_is_back_also_when_the_cache_has_been_removed(tmp_path: Path) -> None:
    """Twice, so that what was put back is known too."""
    served = served_items(tmp_path)
    whole = whole_network(tmp_path)
    events: list[AnyEvent] = []

    def back(times: int) -> bool:
        return sum(isinstance(event, SlotGained) for event in events) == 2 * times

    async def test() -> None:
        engine = served.engine(sink=events.append)
        await engine.start()
        try:
            for times in (1, 2):
                before = sorted(path.name for path in (tmp_path / "cache").glob("shared/*/*/*"))
                shutil.rmtree(tmp_path / "cache")
                for slot in engine.status().slots:
                    assert slot.process_id is not None
                    os.kill(slot.process_id, signal.SIGKILL)
                await until(partial(back, times))
                rows = pictures(6, times)
                expected = whole.run(["y"], {"x": rows})[0]
                answer = classes_of(await send(engine, rows))
                np.testing.assert_allclose(answer, expected, atol=1e-4)
                after = sorted(path.name for path in (tmp_path / "cache").glob("shared/*/*/*"))
                assert after == before, "for whoever starts next"
        finally:
            await engine.stop()

    run(test())


def test_a_request_that_cannot_be_in_time_is_refused_as_a_whole(tmp_path: Path) -> None:
    served = served_items(tmp_path, device="l4", slo_us=2_000_000, block_us=20_000)

    async def test() -> None:
        engine = served.engine()
        await engine.start()
        try:
            many, few = (
                send(engine, pictures(30, 0), timeout_us=400_000),
                send(engine, pictures(2, 1)),
            )
            refusal = await many
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "deadline"
            assert "cannot answer 30 items within 400.0 ms" in refusal.message
            assert "send at most 9 items at a time" in refusal.message
            assert classes_of(await few).shape == (2, 10)
            assert engine.status().open_requests == 0
        finally:
            await engine.stop()

    run(test())


def test_what_does_not_fit_a_plan_is_refused_in_one_sentence(tmp_path: Path) -> None:
    served = served_items(tmp_path, device="l4")
    profile, path = tmp_path / "net.profile.json", tmp_path / "plan.json"
    write_document(served.profiles["net"], profile)
    ref = ProfileRef(model="net", path=profile.name, sha256=sha256_file(profile))
    write_document(replace(served.plan, profiles=(ref,)), path)
    refused = CliRunner().invoke(app, ["serve", str(path), "--policy", "reservation"])
    assert isinstance(refused.exception, DocumentError)
    assert refused.exception.exit_code == 2
    assert "needs pipelines, and this plan has depths" in str(refused.exception)
    with pytest.raises(ValueError, match="41 items, needs 1 to 40"):
        run(_submitted(served.engine(), 41))


async def _submitted(engine: Engine, items: int) -> None:
    await engine.start()
    try:
        send(engine, pictures(items, 0))
    finally:
        await engine.stop()
