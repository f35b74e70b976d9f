"""Executors compute in the arena and nowhere else, and refuse what does not fit."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors import onnx
from headrace.executors.base import TensorMemory
from headrace.executors.emulated import EmulatedStage
from headrace.executors.onnx_session import open_session, run_session
from headrace.serving.workers.arena import Arena, map_arena
from headrace.serving.workers.frames import Failed, Finished, Load, Loaded, Run, Stop
from headrace.serving.workers.worker import Worker, open_stage
from helpers.onnx_models import add_one_model, residual_model, saved
from helpers.waiting import wait_until

X = TensorSpec(name="x", dtype="float32", item_shape=(16,))
Y = TensorSpec(name="y", dtype="float32", item_shape=(16,))
GUARD = 0xA5


def load_of(path: Path | str = "", **changes: Any) -> Load:
    load = Load(
        stage=3,
        name="m/p/0",
        executor="onnx" if path else "emulated",
        path=str(path),
        inputs=(X,),
        outputs=(Y,),
        max_batch=4,
        p50_us=(1_000, 1_000, 1_000, 2_000),
        p99_us=(1_000, 1_000, 1_000, 9_000),
        seed=1,
    )
    return msgspec.structs.replace(load, **changes)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1 << 16)
    arena.view[:] = bytes([GUARD]) * arena.size_bytes
    yield arena
    arena.close()


@pytest.fixture
def memory(arena: Arena) -> TensorMemory:
    return TensorMemory(map_arena(arena.descriptor, arena.size_bytes))


def test_onnx_reads_and_writes_exactly_its_regions(
    tmp_path: Path, arena: Arena, memory: TensorMemory
) -> None:
    executor = open_stage(load_of(saved(add_one_model(), tmp_path / "m.onnx")), memory)
    for size, source, target in ((3, 0, 4096), (1, 64, 8192), (3, 0, 4096), (4, 512, 0)):
        arena.view[:] = bytes([GUARD]) * arena.size_bytes
        rows = np.arange(size * 16, dtype=np.float32)
        arena.view[source : source + rows.nbytes] = rows.tobytes()
        executor.run(size, (source,), (target,))
        end = target + rows.nbytes
        np.testing.assert_array_equal(np.frombuffer(arena.view[target:end], np.float32), rows + 1)
        written = {*range(source, source + rows.nbytes), *range(target, end)}
        outside = [byte for i, byte in enumerate(arena.view) if i not in written]
        assert set(outside) == {GUARD}
    executor.unload()


def test_stages_of_one_file_have_it_open_once_and_answer_also_when_one_is_gone(
    tmp_path: Path, arena: Arena, memory: TensorMemory
) -> None:
    path = saved(add_one_model(), tmp_path / "m.onnx")
    first, other = (open_stage(load_of(path, stage=stage), memory) for stage in (0, 1))
    assert isinstance(first, onnx.OnnxExecutor)
    assert isinstance(other, onnx.OnnxExecutor)
    assert first._session is other._session
    rows = np.arange(16, dtype=np.float32)
    arena.view[: rows.nbytes] = rows.tobytes()

    first.run(1, (0,), (4096,))
    first.unload()
    other.run(1, (4096,), (8192,))

    found = np.frombuffer(arena.view[8192 : 8192 + rows.nbytes], np.float32).copy()
    np.testing.assert_array_equal(found, rows + 2)


def test_a_stage_that_comes_and_goes_has_its_file_open_for_itself(
    tmp_path: Path, memory: TensorMemory
) -> None:
    path = saved(add_one_model(), tmp_path / "m.onnx")
    opened: list[Any] = [
        open_stage(load_of(path, comes_and_goes=apart), memory) for apart in (False, True, True)
    ]
    assert len({id(executor._session) for executor in opened}) == len(opened)


def test_an_output_that_is_an_input_is_that_input_and_not_what_was_there_before(
    tmp_path: Path, arena: Arena, memory: TensorMemory
) -> None:
    model = add_one_model()
    model.graph.output.append(model.graph.input[0])
    load = load_of(saved(model, tmp_path / "m.onnx"), outputs=(Y, X))
    executor = open_stage(load, memory)
    rows = np.arange(32, dtype=np.float32)
    arena.view[: rows.nbytes] = rows.tobytes()

    executor.run(2, (0,), (4096, 8192))

    for target, wanted in ((4096, rows + 1), (8192, rows)):
        found = np.frombuffer(arena.view[target : target + rows.nbytes], np.float32).copy()
        np.testing.assert_array_equal(found, wanted)
    executor.unload()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": (msgspec.structs.replace(X, name="z"),)}, "has the inputs"),
        ({"inputs": (msgspec.structs.replace(X, dtype="float16"),)}, "has the inputs"),
        ({"outputs": (msgspec.structs.replace(Y, name="z"),)}, "has the outputs"),
        ({"inputs": (X, Y)}, "has the inputs"),
    ],
)
def test_a_file_that_the_profile_does_not_describe_is_refused_at_load(
    tmp_path: Path, memory: TensorMemory, changes: dict[str, Any], message: str
) -> None:
    path = saved(add_one_model(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=message):
        open_stage(load_of(path, **changes), memory)


def test_an_output_of_another_shape_than_profiled_is_refused_at_load(
    tmp_path: Path, memory: TensorMemory
) -> None:
    path = saved(residual_model(), tmp_path / "m.onnx")
    image = TensorSpec(name="x", dtype="float32", item_shape=(3, 8, 8))
    with pytest.raises(ModelError, match=r"output 'y' has shape \(1, 4\) at batch size 1"):
        open_stage(load_of(path, inputs=(image,)), memory)


@pytest.mark.parametrize(
    ("gpu", "patience_s", "warmed"),
    [(None, 100.0, [1, 4]), (0, 100.0, [1, 4, 2, 3]), (0, 25.0, [1, 4, 2]), (0, 5.0, [1, 4])],
)
def test_batch_sizes_that_a_gpu_prepares_for_run_before_a_stage_is_loaded_while_there_is_time(
    gpu: int | None,
    patience_s: float,
    warmed: list[int],
    tmp_path: Path,
    memory: TensorMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []

    def opened(path: str, *rest: Any, gpu: int | None, **options: Any) -> Any:
        return open_session(path)

    def run(session: Any, names: Any, feeds: Any) -> Any:
        ran.append(len(feeds["x"]))
        return run_session(session, names, feeds)

    monkeypatch.setattr(onnx, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(ran)))
    monkeypatch.setattr(onnx, "WARM_UP_S", patience_s)
    monkeypatch.setattr(onnx, "open_session", opened)
    monkeypatch.setattr(onnx, "run_session", run)
    onnx.OnnxExecutor(load_of(saved(add_one_model(), tmp_path / "m.onnx")), memory, gpu=gpu)
    assert ran == warmed


@pytest.mark.parametrize(("size", "offset"), [(1, -64), (1, 1 << 16), (5_000, 0), (0, 0)])
def test_a_tensor_outside_the_arena_is_refused(
    memory: TensorMemory, size: int, offset: int
) -> None:
    with pytest.raises(ModelError, match="leave the arena"):
        memory.tensor(X, size, offset)


def test_an_emulated_stage_says_its_time_and_never_shows_what_was_there_before(
    arena: Arena, memory: TensorMemory
) -> None:
    assert EmulatedStage(load_of(), memory).begin(2, (128,)) == 1_000
    assert bytes(arena.view[128:256]) == bytes(128)
    assert arena.view[127] == arena.view[256] == GUARD


def test_emulated_times_have_the_profiles_median_and_tail() -> None:
    sample = EmulatedStage(load_of(), memory=None)._sample_us  # type: ignore[arg-type]
    times = [sample(4) for _ in range(20_000)]
    assert np.percentile(times, 50) == pytest.approx(2_000, rel=0.05)
    assert np.percentile(times, 99) == pytest.approx(9_000, rel=0.15)
    assert sample(1) == 1_000


def threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(sys.platform != "linux", reason="threads are placed on Linux only")
def test_each_thread_of_a_slot_of_several_cores_has_one_of_them(
    tmp_path: Path, memory: TensorMemory
) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one core")
    first, second = sorted(allowed)[:2]
    worker = Worker(memory, cores=frozenset({first, second}))
    try:
        for stage in range(2):
            before = threads()
            path = saved(add_one_model(), tmp_path / f"m{stage}.onnx")
            assert isinstance(worker.answer(load_of(path, stage=stage, threads=2)), Loaded)
            assert os.sched_getaffinity(0) == {first}, "the one that runs it"
            [other] = threads() - before
            wait_until(
                lambda thread=other: os.sched_getaffinity(thread) == {second},  # type: ignore[misc]
                "the session's own thread is not on the other core",
            )
    finally:
        worker.close()
        os.sched_setaffinity(0, allowed)


def test_a_worker_answers_each_frame_with_one_and_survives_bad_ones(
    tmp_path: Path, memory: TensorMemory
) -> None:
    worker = Worker(memory)
    bad = worker.answer(load_of(tmp_path / "missing.onnx"))
    assert isinstance(bad, Failed)
    assert (bad.batch, bad.stage) == (-1, 3)
    loaded = worker.answer(load_of(saved(add_one_model(), tmp_path / "m.onnx")))
    assert isinstance(loaded, Loaded)
    unknown = worker.answer(Run(7, 1, 99, 1, (0,), (64,)))
    assert isinstance(unknown, Failed)
    assert (unknown.batch, unknown.attempt) == (7, 1)
    outside = worker.answer(Run(8, 0, 3, 1, (1 << 20,), (64,)))
    assert isinstance(outside, Failed)
    assert "leave the arena" in outside.message
    ran = worker.answer(Run(9, 2, 3, 1, (0,), (64,)))
    assert isinstance(ran, Finished)
    assert (ran.batch, ran.attempt, ran.stage) == (9, 2, 3)
    assert 0 < ran.started_at_us <= ran.ended_at_us
    with pytest.raises(TypeError, match="not sent Stop"):
        worker.answer(Stop())
    worker.close()
