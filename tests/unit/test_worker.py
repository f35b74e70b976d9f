"""What a worker reports of batches that its stage cannot compute."""

import threading
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
    opens: Callable[[str], None] = lambda name: None,
    is_lost: Callable[[Exception], bool] | None = None,
) -> tuple[Worker, TensorMemory]:
    memory = TensorMemory(mmap(-1, 4096))

    def opened(stage: StageToLoad, memory: TensorMemory) -> Stage:
        opens(stage.name)
        return Stage(memory, refuses)

    kind = ExecutorKind(
        device_types=(),
        slot_is="core",
        open=opened,
        environment={},
        reads_model=False,
        process_bytes=0,
        process_memory_per_weight=0,
        is_lost=is_lost,
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


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("frame", [Run(7, 0, 0, 2, (0,), (1024,)), load_of(1)])
def test_a_device_that_a_run_or_a_load_has_lost_is_told_of_once_and_nothing_more(
    frame: Run | Load, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        if name == "m/p/1":
            raise ValueError("no room")

    worker, memory = worker_with(
        monkeypatch, lambda x: (x == BAD).any(), opens=refuse, is_lost=lambda error: lost
    )
    memory.tensor(X, 2, 0)[...] = BAD
    failed = worker.answer(frame)
    assert isinstance(failed, Failed)
    assert failed.broken is lost
    memory.tensor(X, 2, 0)[...] = 0
    rest = (Run(8, 0, 0, 2, (0,), (1024,)), load_of(1), load_of(2), Unload(0))
    kinds = [type(worker.answer(each)) for each in rest]
    assert kinds == ([type(None)] * 4 if lost else [Finished, Failed, Loaded, Unloaded])


class Moving(Stage):
    """Its weights fail to come while it runs, since the run has lost the device."""

    def __init__(self, memory: TensorMemory) -> None:
        super().__init__(memory, lambda x: True)
        self.runs, self.failed = threading.Event(), threading.Event()

    def run(self, size: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.runs.set()
        assert self.failed.wait(30)
        super().run(size, inputs, outputs)

    def wait_loaded(self) -> None:
        assert self.runs.wait(30)
        raise ValueError("idx=99 is out of range")


class Announced:
    """A lock that says who asks for it behind somebody else."""

    def __init__(self, asked: threading.Event) -> None:
        self._lock, self._asked = threading.Lock(), asked

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._asked.set()
            self._lock.acquire()

    def __exit__(self, *rest: object) -> None:
        self._lock.release()


def test_weights_that_do_not_come_since_a_run_has_lost_the_device_are_not_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, memory = worker_with(monkeypatch, lambda x: False, is_lost=lambda error: True)
    sent: list[bytes] = []
    worker = Worker(memory, send=sent.append)
    stage = Moving(memory)
    monkeypatch.setattr(module, "open_stage", lambda load, memory: stage)
    monkeypatch.setattr(worker, "_runs", Announced(stage.failed))
    assert worker.answer(load_of(0)) is None
    failed = worker.answer(Run(7, 0, 0, 1, (0,), (1024,)))
    assert isinstance(failed, Failed)
    assert failed.broken
    worker.close()
    assert sent == []


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
