"""From plan to plan with real worker processes: every request is answered, nothing is left."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.dispatch.changes.migration import How
from headrace.domain.events import AnyEvent, EventLogHeader, Ran
from headrace.domain.tensors import TensorSpec
from headrace.serving.engine import live_migration
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.live_migration import MigrationError, MigrationReport, Shortage
from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
from headrace.serving.workers import restart_delays
from helpers.left_behind import children, descriptors, nothing_left_of
from helpers.lengthy import with_lengthy
from helpers.onnx_models import chain_model
from helpers.served import UNHURRIED_US, WIDTH, Client, Served, plan_by_hand, rows_of, served_chain
from helpers.waiting import LOOK_EVERY_S, until

pytestmark = pytest.mark.e2e

WAIT_S = 300.0


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def two_stages(folder: Path) -> Served:
    return served_chain(folder, pools=(1, 1), batch_size=2, stage_us=3_000, slo_us=UNHURRIED_US)


def other_pools(served: Served) -> ServedPlan:
    """The same model with two slots for its first stage: three devices, two of them common."""
    plan = plan_by_hand([2, 1], 2, UNHURRIED_US, 3_000, "cpu", 1, None)
    return ServedPlan(plan=plan, profiles=served.profiles, folders=served.folders)


async def offer_while(client: Client, work: asyncio.Future[MigrationReport]) -> int:
    """Four callers until the work is done; all that they ask must be answered.

    Each rests a little now and then: the workers that are awaited need the processor too.
    """
    rows = np.ones((1, WIDTH), np.float32)

    async def call() -> int:
        answered = 0
        while not work.done():
            result = await client.send(rows)
            assert isinstance(result, Answer), result
            answered += 1
            await asyncio.sleep(LOOK_EVERY_S)
        return answered

    return sum(await asyncio.gather(*(call() for _ in range(4))))


@pytest.mark.parametrize(
    ("has_memory", "how"),
    [
        pytest.param(True, "drain", id="preloaded-drain"),
        pytest.param(False, "flush", id="exchanged-flush"),
        pytest.param(True, "flush", id="preloaded-flush", marks=pytest.mark.lengthy),
        pytest.param(False, "drain", id="exchanged-drain", marks=pytest.mark.lengthy),
    ],
)
def test_every_request_is_answered_while_the_plan_changes(
    tmp_path: Path, how: How, has_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_memory:
        short = Shortage("this machine", 2, 1)
        monkeypatch.setattr(live_migration, "memory_short_of", lambda *given: short)
    served = two_stages(tmp_path)
    target = other_pools(served)
    logs: list[list[AnyEvent]] = [[], []]
    switched: list[int] = []
    left: list[object] = []

    def open_sink(header: EventLogHeader) -> Callable[[AnyEvent], None]:
        assert len(header.slots) == 3
        return logs[1].append

    async def test() -> None:
        engine = served.engine(sink=logs[0].append, leave_sink=left.append)
        await engine.start()
        try:
            client = Client(engine)
            before = {slot.process_id for slot in engine.status().slots}
            move = asyncio.ensure_future(
                engine.migrate(
                    target, how=how, open_sink=open_sink, on_switch=lambda: switched.append(1)
                )
            )
            assert await offer_while(client, move) > 0
            report = move.result()
            assert report.preloaded == has_memory
            assert report.how == how
            status = engine.status()
            assert status.plans_served == 2
            assert not status.migrating
            assert len(status.slots) == 3
            assert engine.ready
            assert not before & {slot.process_id for slot in status.slots}
            answer = await client.send(np.ones((1, WIDTH), np.float32))
            assert rows_of(answer).shape == (1, WIDTH)
            assert await engine.drain(WAIT_S)
        finally:
            await engine.stop()

    with nothing_left_of(children):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))
    assert switched == [1]
    assert left == [logs[0].append]
    assert any(isinstance(event, Ran) for event in logs[1])


def test_a_plan_that_cannot_be_loaded_leaves_the_old_one_in_service(tmp_path: Path) -> None:
    served = two_stages(tmp_path)
    folder = tmp_path / "broken"
    folder.mkdir()
    broken = served_chain(folder, pools=(1,), model=chain_model(layers=1, width=WIDTH))
    (folder / "m.onnx").write_bytes(b"not a model")
    target = ServedPlan(plan=broken.plan, profiles=broken.profiles, folders=broken.folders)
    logs: list[list[AnyEvent]] = [[], []]
    left: list[object] = []

    async def test() -> None:
        engine = served.engine(sink=logs[0].append, leave_sink=left.append)
        await engine.start()
        try:
            with pytest.raises(Exception, match=r"m\.onnx|cannot"):
                await engine.migrate(target, open_sink=lambda header: logs[1].append)
            assert left == [logs[1].append]
            assert engine.ready
            assert engine.status().plans_served == 1
            await Client(engine).send(np.ones((1, WIDTH), np.float32))
        finally:
            await engine.stop()

    with nothing_left_of(children):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_model_may_not_change_its_tensors(tmp_path: Path) -> None:
    import msgspec

    served = two_stages(tmp_path)
    wide = TensorSpec(name="x", dtype="float32", item_shape=(2 * WIDTH,))
    profile = msgspec.structs.replace(served.profiles["m"], inputs=(wide,))
    target = dataclasses.replace(other_pools(served), profiles={"m": profile})

    async def test() -> None:
        engine = served.engine(ServiceOptions(executor="emulated"))
        await engine.start()
        try:
            with pytest.raises(MigrationError, match="other inputs, outputs or states"):
                await engine.migrate(target)
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


class Spoiler:
    """Makes stage files unreadable once the new plan is prepared, and leaves no memory for two."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._sound: dict[Path, bytes] = {}

    def memory_short_of(self, *given: object) -> Shortage:
        """Stands in for the function of that name, which is asked between the two."""
        self._sound = {file: file.read_bytes() for file in self._cache.rglob("*.onnx")}
        for file in self._sound:
            file.write_bytes(b"not a model")
        return Shortage("this machine", 2, 1)

    def mend(self) -> None:
        for file, content in self._sound.items():
            file.write_bytes(content)


@pytest.fixture
def spoiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spoiler:
    spoiler = Spoiler(tmp_path / "cache")
    monkeypatch.setattr(live_migration, "memory_short_of", spoiler.memory_short_of)
    monkeypatch.setattr(restart_delays, "RESTART_DELAYS_S", (0.0, 0.05))
    return spoiler


@pytest.mark.lengthy
def test_the_old_plan_serves_on_until_the_first_exchanged_worker_can_load(
    tmp_path: Path, spoiler: Spoiler
) -> None:
    served = two_stages(tmp_path)

    async def test() -> None:
        engine = served.engine()
        await engine.start()
        try:
            client = Client(engine)
            move = asyncio.ensure_future(engine.migrate(other_pools(served)))
            offered = asyncio.ensure_future(offer_while(client, move))
            await until(lambda: any(slot.restarts >= 3 for slot in engine.status().slots))
            status = engine.status()
            assert status.migrating
            assert status.outages == {"lost": 0, "load-failed": 1, "refused": 0}
            assert engine.ready
            spoiler.mend()
            report = await move
            assert await offered > 0
            assert (report.preloaded, report.slots_out) == (False, ())
            assert engine.status().outages == {"lost": 0, "load-failed": 0, "refused": 0}
            assert all(slot.up for slot in engine.status().slots)
            # A counter never goes back, whatever plan is served.
            restarts = {slot.name: slot.restarts for slot in engine.status().slots}
            assert max(restarts.values()) >= 3
            await engine.migrate(other_pools(served))
            assert all(slot.restarts >= restarts[slot.name] for slot in engine.status().slots)
        finally:
            await engine.stop()

    with nothing_left_of(children, descriptors):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))


@pytest.mark.parametrize(
    "mended", with_lengthy([True, False], lengthy=[False]), ids=["mended", "stopped"]
)
def test_a_model_whose_only_slot_could_not_be_exchanged_is_refused_until_it_can(
    tmp_path: Path, spoiler: Spoiler, mended: bool
) -> None:
    served = served_chain(tmp_path, pools=(1,), slo_us=UNHURRIED_US)
    same = ServedPlan(plan=served.plan, profiles=served.profiles, folders=served.folders)
    row = np.ones((1, WIDTH), np.float32)

    async def test() -> None:
        engine = served.engine()
        await engine.start()
        try:
            client = Client(engine)
            expected = rows_of(await client.send(row))
            report = await engine.migrate(same)
            assert report.slots_out == ("slot0",)
            await until(lambda: engine.status().slots[0].restarts >= 3)
            assert not engine.ready
            refusal = await client.send(row)
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "no-slot"
            assert refusal.retry_after_us > 0
            assert "lacks a worker" in refusal.message
            if mended:
                spoiler.mend()
                await until(lambda: engine.ready)
                np.testing.assert_array_equal(rows_of(await client.send(row)), expected)
                # And the next migration is as any other.
                report = await engine.migrate(same)
                assert report.slots_out == ("slot0",)
                spoiler.mend()
        finally:
            await engine.stop()

    with nothing_left_of(children, descriptors):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_stopping_in_the_middle_of_a_migration_leaves_nothing(tmp_path: Path) -> None:
    served = two_stages(tmp_path)

    async def test() -> None:
        engine = served.engine()
        await engine.start()
        move = asyncio.ensure_future(engine.migrate(other_pools(served)))
        own = children()
        while children() <= own and not move.done():
            await asyncio.sleep(0)  # the loop's turns: until a new worker is born
        await engine.stop()
        with pytest.raises(MigrationError, match="shut down"):
            await move

    with nothing_left_of(children):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))
