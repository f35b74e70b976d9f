"""What a worker reports of batches that its stage cannot compute."""

from collections.abc import Callable, Sequence
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.catalog.weights_files import weights_in
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import ExecutorKind, StageToLoad, TensorMemory
from headrace.serving.workers import worker as module
from headrace.serving.workers.frames import (
    Failed,
    Finished,
    Load,
    Loaded,
    Run,
    Unload,
    Unloaded,
)
from headrace.serving.workers.worker import Worker
from helpers.cores import GONE

X = TensorSpec(name="x", dtype="float32", item_shape=(4,))
BAD = np.float32(99)


class Stage:
    """Refuses batches that `refuses` says so of."""

    def __init__(self, memory: TensorMemory, refuses: Callable[[np.ndarray], bool]) -> None:
        self.memory, self.refuses = memory, refuses

    def run(self, size: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        x = self.memory.tensor(X, size, inputs[0])
        if self.refuses(x):
            raise ValueError("idx=99 is out of range")
        self.memory.tensor(X, size, outputs[0])[...] = x

    def unload(self) -> None:
        pass


def worker_with(
    monkeypatch: pytest.MonkeyPatch,
    refuses: Callable[[np.ndarray], bool],
    cores: frozenset[int] = frozenset(),
) -> tuple[Worker, TensorMemory]:
    memory = TensorMemory(mmap(-1, 4096))

    def opened(stage: StageToLoad, memory: TensorMemory) -> Stage:
        return Stage(memory, refuses)

    kind = ExecutorKind(
        device_types=(),
        slot_is="core",
        open=opened,
        environment={},
        reads_model=False,
        process_bytes=0,
        process_memory_per_weight=0,
        device_memory_per_weight=0,
    )
    monkeypatch.setattr(module, "executor", lambda name: kind)
    worker = Worker(memory, cores=cores)
    assert isinstance(worker.answer(load_of(0)), Loaded)
    return worker, memory


def load_of(stage: int) -> Load:
    return Load(
        stage=stage,
        name=f"m/p/{stage}",
        executor="picky",
        path="",
        inputs=(X,),
        outputs=(X,),
        max_batch=4,
        p50_us=(1,) * 4,
        p99_us=(1,) * 4,
        seed=0,
    )


def test_an_input_that_alone_cannot_be_computed_is_told_from_a_stage_that_computes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(7, 0, 0, 1, (0,), (1024,))
    for refuses, broken in ((lambda x: (x == BAD).any(), False), (lambda x: True, True)):
        worker, memory = worker_with(monkeypatch, refuses)
        memory.tensor(X, 1, 0)[...] = BAD
        failed = worker.answer(run)
        assert isinstance(failed, Failed)
        assert failed.broken is broken
        # Another worker may get the input from where it lies.
        assert (memory.tensor(X, 1, 0) == BAD).all()


def test_a_larger_batch_that_fails_says_nothing_of_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, _ = worker_with(monkeypatch, lambda x: True)
    failed = worker.answer(Run(7, 0, 0, 2, (0,), (1024,)))
    assert isinstance(failed, Failed)
    assert not failed.broken


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("name", ["stage.onnx", "weights.bin"])
def test_a_file_that_is_not_the_one_that_was_checked_is_said_to_be_read_again_by_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, gone: bool
) -> None:
    worker, _ = worker_with(monkeypatch, lambda x: False)
    for each in ("stage.onnx", "weights.bin"):
        (tmp_path / each).write_bytes(b"as it was")
    known = weights_in(tmp_path / "stage.onnx", ["stage.onnx"])
    assert known is not None
    load = replace(
        load_of(1),
        path=str(tmp_path / "stage.onnx"),
        own=known.files[0],
        weights=weights_in(tmp_path / "stage.onnx", ["weights.bin"]),
    )
    assert isinstance(worker.answer(load), Loaded)
    if gone:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(b"as it is now")
    refused = worker.answer(load)
    assert isinstance(refused, Failed)
    assert "`load` (v2 repository extension) has them read or made again" in refused.message
    assert "profile again" not in refused.message


def test_a_stage_comes_and_goes_beside_another_that_goes_on_answering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, _ = worker_with(monkeypatch, lambda x: False)
    dropped: list[int] = []
    load = load_of(1)

    def opened(stage: StageToLoad, memory: TensorMemory) -> Stage:
        if stage.path:
            raise ModelError("no such file")
        made = Stage(memory, lambda x: False)
        made.unload = lambda: dropped.append(1)  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(module, "open_stage", opened)
    gone = worker.answer(replace(load, path="gone"))
    assert isinstance(gone, Failed)
    assert (gone.batch, gone.stage, gone.message) == (-1, 1, "ModelError: no such file")
    assert isinstance(worker.answer(load), Loaded)
    on_it = Run(7, 0, 1, 1, (0,), (1024,))
    assert isinstance(worker.answer(on_it), Finished)
    assert worker.answer(Unload(1, 5)) == Unloaded(1, 5)
    assert dropped == [1]
    # What a batch does there then is no batch of its.
    assert isinstance(worker.answer(on_it), Failed)
    assert worker.answer(Unload(1, 5)) == Unloaded(1, 5)
    assert dropped == [1]
    assert isinstance(worker.answer(Run(8, 0, 0, 1, (0,), (1024,))), Finished)


def test_a_stage_is_loaded_also_where_its_workers_core_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, _ = worker_with(monkeypatch, lambda x: False, frozenset({GONE}))
    assert isinstance(worker.answer(load_of(1)), Loaded)


def test_a_good_input_is_computed_after_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, memory = worker_with(monkeypatch, lambda x: bool((x == BAD).any()))
    memory.tensor(X, 1, 0)[...] = BAD
    worker.answer(Run(7, 0, 0, 1, (0,), (1024,)))
    memory.tensor(X, 1, 0)[...] = 3
    assert isinstance(worker.answer(Run(8, 0, 0, 1, (0,), (1024,))), Finished)
    assert (memory.tensor(X, 1, 1024) == 3).all()
