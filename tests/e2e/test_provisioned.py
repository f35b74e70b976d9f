"""More models than memory, with real workers: loaded when asked for, evicted, answered right."""

import asyncio
import contextlib
import errno
import os
import signal
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from headrace.dispatch.protocols import EventSink
from headrace.domain.errors import ModelError, PlanError
from headrace.domain.events import AnyEvent, Evicted, Loaded, LoadFailed, Loading
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.served_plan import ServiceOptions
from headrace.serving.workers.remote.cluster import ClusterAddresses
from helpers.served import WIDTH, Served, rows_of
from helpers.served_provisioned import expected, provisioned, send
from helpers.waiting import until

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang reaches it."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all of these tests, whose models are the same: preparing one takes a second."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))


@asynccontextmanager
async def started(served: Served, sink: EventSink | None = None) -> AsyncIterator[Engine]:
    engine = served.engine(sink=sink)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, WAIT_S))


def resident(events: list[AnyEvent]) -> list[int]:
    """How many models the one slot held, or was being given, after each event of weights."""
    here: set[int] = set()
    found = []
    for event in events:
        match event:
            case Loading():
                here.add(event.model)
            case Evicted() | LoadFailed():
                here.discard(event.model)
        found.append(len(here))
    return found


def test_models_come_and_go_and_every_answer_is_onnx_runtimes(tmp_path: Path) -> None:
    events: list[AnyEvent] = []
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1, WIDTH)).astype(np.float32)
    asked = ["m0", "m1", "m0", "m2", "m3", "m0", "m3", "m1"]

    async def test() -> None:
        async with started(provisioned(tmp_path), sink=events.append) as engine:
            assert {each.state for each in engine.standings().values()} == {"UNAVAILABLE"}
            for model in asked:
                answer = await send(engine, model, rows)
                np.testing.assert_allclose(
                    rows_of(answer), expected(tmp_path, model, rows), rtol=1e-5, atol=1e-6
                )
                assert engine.standings()[model].state == "READY"
            at_once = [send(engine, f"m{i % 4}", rows) for i in range(40)]
            for i, future in enumerate(at_once):
                np.testing.assert_allclose(
                    rows_of(await future), expected(tmp_path, f"m{i % 4}", rows), rtol=1e-5
                )
            states = [each.state for each in engine.standings().values()]
            assert states.count("READY") == 2

    run(test())
    assert max(resident(events)) == 2, "as many as there is memory for"
    assert len([event for event in events if isinstance(event, Loaded)]) >= 5


def test_a_damaged_model_is_refused_with_the_reason_and_all_others_are_answered(
    tmp_path: Path,
) -> None:
    rows = np.ones((1, WIDTH), np.float32)
    served = provisioned(tmp_path)

    async def test() -> None:
        broken = tmp_path / "m2.onnx"
        whole = broken.read_bytes()
        broken.write_bytes(whole[:-1] + b"?")
        async with started(served) as engine:
            refused = await send(engine, "m2", rows)
            assert isinstance(refused, Refusal)
            assert "model 'm2' is not available" in refused.message
            assert "not the model that was profiled" in refused.message
            for model in ("m0", "m1", "m3"):
                assert isinstance(await send(engine, model, rows), Answer)
            standing = engine.standings()["m2"]
            assert (standing.state, standing.served) == ("UNAVAILABLE", False)
            assert "not the model that was profiled" in standing.reason
            with pytest.raises(ModelError, match="not the model that was profiled"):
                await engine.load_model("m2")
            broken.write_bytes(whole)
            await engine.load_model("m2")
            assert isinstance(await send(engine, "m2", rows), Answer)

    run(test())


class SmallDisk:
    """Takes so many bytes of cache entries, and no more."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self._lock, self._open = threading.Lock(), os.fdopen

    def open(self, descriptor: int, mode: str) -> Any:
        file: IO[bytes] = self._open(descriptor, mode)
        return SmallDisk.File(self, file) if mode == "wb" else file

    class File:
        def __init__(self, disk: "SmallDisk", file: IO[bytes]) -> None:
            self._disk, self._file = disk, file

        def __enter__(self) -> "SmallDisk.File":
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

        def write(self, content: bytes) -> None:
            with self._disk._lock:
                if len(content) > self._disk.free_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._disk.free_bytes -= len(content)
            self._file.write(content)


@pytest.mark.lengthy
def test_a_disk_that_is_full_costs_the_models_that_found_no_room_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    rows = np.ones((1, WIDTH), np.float32)
    served = provisioned(tmp_path)
    disk = SmallDisk(2 * (tmp_path / "m0.onnx").stat().st_size + 500)
    monkeypatch.setattr(os, "fdopen", disk.open)

    async def test() -> None:
        async with started(served) as engine:
            models = [f"m{i}" for i in range(4)]
            results = [await send(engine, model, rows) for model in models]
            without = [
                (model, each)
                for model, each in zip(models, results, strict=True)
                if isinstance(each, Refusal)
            ]
            assert 1 <= len(without) < 4, "some have room, and some have none"
            for model, refused in without:
                assert f"model {model!r} is not available" in refused.message
                assert "No space left on device; make room there, or set" in refused.message
                assert engine.standings()[model].state == "UNAVAILABLE"
            disk.free_bytes = 1 << 30
            for model, _ in without:
                await engine.load_model(model)
                answer = await send(engine, model, rows)
                np.testing.assert_allclose(
                    rows_of(answer), expected(tmp_path, model, rows), rtol=1e-5, atol=1e-6
                )

    run(test())


def test_a_file_that_vanishes_while_it_is_served_costs_that_model_alone(
    tmp_path: Path, cache: Path
) -> None:
    rows = np.ones((1, WIDTH), np.float32)

    async def test() -> None:
        async with started(provisioned(tmp_path, models=2, room=1)) as engine:
            assert isinstance(await send(engine, "m0", rows), Answer)
            before = [slot.restarts for slot in engine.status().slots]
            for path in cache.rglob("*"):
                if path.is_file():
                    path.unlink()
            # It is held; what it was loaded from is nobody's concern.
            assert isinstance(await send(engine, "m0", rows), Answer)
            gone = await asyncio.gather(*(send(engine, "m1", rows) for _ in range(3)))
            assert all(isinstance(each, Refusal) and each.reason == "failed" for each in gone)
            assert engine.standings()["m1"].served is False
            # It is made again from the model.
            await engine.load_model("m1")
            assert isinstance(await send(engine, "m1", rows), Answer)
            assert [slot.restarts for slot in engine.status().slots] == before

    run(test())


@pytest.mark.lengthy
def test_workers_killed_while_they_load_leave_no_request_without_an_answer_or_a_reason(
    tmp_path: Path,
) -> None:
    rows = np.ones((1, WIDTH), np.float32)
    events: list[AnyEvent] = []

    async def test() -> None:
        served = provisioned(tmp_path, models=6, slots=2)
        async with started(served, sink=events.append) as engine:

            def kill(slot: int) -> None:
                number = engine.status().slots[slot].process_id
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):  # it is being reaped
                        os.kill(number, signal.SIGKILL)

            asked: list[asyncio.Future[Answer | Refusal]] = []

            def loads() -> int:
                return len([event for event in events if isinstance(event, Loading)])

            def loading_or_done(before: int) -> bool:
                return loads() > before or all(each.done() for each in asked)

            for turn in range(3):
                before = loads()
                asked += [send(engine, f"m{i % 6}", rows) for i in range(12)]
                await until(partial(loading_or_done, before))
                kill(turn % 2)
            results = await asyncio.gather(*asked)
            for i, result in enumerate(results):
                if isinstance(result, Answer):
                    np.testing.assert_allclose(
                        rows_of(result), expected(tmp_path, f"m{i % 12 % 6}", rows), rtol=1e-5
                    )
                else:
                    assert result.message
            # And afterwards all is as it was.
            await until(lambda: all(slot.up for slot in engine.status().slots))
            for model in range(6):
                if engine.standings()[f"m{model}"].served:
                    assert isinstance(await send(engine, f"m{model}", rows), Answer)

    run(test())


def test_a_model_that_was_unloaded_is_refused_until_it_is_loaded_again(tmp_path: Path) -> None:
    rows = np.ones((1, WIDTH), np.float32)

    async def test() -> None:
        async with started(provisioned(tmp_path)) as engine:
            assert isinstance(await send(engine, "m0", rows), Answer)
            engine.unload_model("m0")
            refused = await send(engine, "m0", rows)
            assert isinstance(refused, Refusal)
            assert "it was unloaded" in refused.message
            assert refused.never
            assert engine.standings()["m0"].slots == ()
            await engine.load_model("m0")
            assert isinstance(await send(engine, "m0", rows), Answer)
            with pytest.raises(ModelError, match="always loaded"):
                engine.unload_model("nobody")

    run(test())


def test_agents_are_refused_in_a_sentence(tmp_path: Path) -> None:
    served = provisioned(tmp_path, models=1, room=1)
    cluster = ClusterAddresses(nodes={"n0": None}, secret=b"a secret of this test")

    with pytest.raises(PlanError, match="come and go, and agents load what they start with, once"):
        served.engine(ServiceOptions(cluster=cluster))
