"""Stages of PyTorch's that a worker loads, runs and gives up, beside what they compute."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from mmap import mmap
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import StageToLoad, TensorMemory
from headrace.executors.table import executor
from helpers.torch_networks import export

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
torch_model = pytest.importorskip("headrace.executors.torch_model")
room_missing = pytest.importorskip("headrace.executors.cuda").room_missing

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]

IDS = TensorSpec(name="ids", dtype="int64", item_shape=(3,))
ROWS = TensorSpec(name="embedding", dtype="float32", item_shape=(3, 8))


class FromOne(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Looks up indices from 1: it does not compute zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(16, 8)

    def forward(self, ids: Any) -> Any:
        return self.table(ids - 1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExternalWeights | None]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    graph = load_graph(export(FromOne().eval(), torch.ones(2, 3, dtype=int), folder / "m.pt2"))
    (folder / "stage").write_bytes(whole_model(graph))
    return folder / "stage", graph.weights


def stage_of(
    path: Path, weights: ExternalWeights | None, outputs: TensorSpec = ROWS
) -> StageToLoad:
    return StageToLoad(
        name="m/p/0",
        path=str(path),
        weights=weights,
        inputs=(IDS,),
        outputs=(outputs,),
        max_batch=2,
        p50_us=(1, 1),
        p99_us=(1, 1),
        seed=0,
    )


def test_a_model_that_does_not_compute_zeros_is_loaded_and_answers(
    exported: tuple[Path, ExternalWeights | None],
) -> None:
    memory = TensorMemory(mmap(-1, 1 << 16))
    opened = executor("torch").open
    assert opened is not None
    held: Any = opened(stage_of(*exported), memory)
    assert held.refuses_zeros
    ids = memory.tensor(IDS, 2, 0)
    ids[...] = [[1, 2, 3], [16, 1, 4]]
    held.run(2, (0,), (4096,))
    torch.manual_seed(0)
    expected = FromOne()(torch.from_numpy(ids)).detach().numpy()
    assert np.array_equal(memory.tensor(ROWS, 2, 4096), expected)


def test_stages_of_one_file_have_its_weights_once_unless_they_come_and_go(
    exported: tuple[Path, ExternalWeights | None],
) -> None:
    opened, stage = executor("torch").open, stage_of(*exported)
    assert opened is not None
    memory = TensorMemory(mmap(-1, 1 << 16))
    first, other, own = (
        opened(each, memory) for each in (stage, stage, replace(stage, comes_and_goes=True))
    )
    models: list[Any] = [held._model for held in (first, other, own)]  # type: ignore[attr-defined]
    assert models[0] is models[1]
    assert models[0] is not models[2]
    first.unload()
    memory.tensor(IDS, 1, 0)[...] = [[1, 2, 3]]
    other.run(1, (0,), (4096,))
    own.run(1, (0,), (8192,))
    assert np.array_equal(memory.tensor(ROWS, 1, 4096), memory.tensor(ROWS, 1, 8192))


def test_an_output_of_another_shape_than_profiled_is_refused_at_load(tmp_path: Path) -> None:
    graph = load_graph(export(torch.nn.ReLU().eval(), torch.ones(2, 3), tmp_path / "m.pt2"))
    (tmp_path / "stage").write_bytes(whole_model(graph))
    one = TensorSpec(name=graph.inputs[0].name, dtype="float32", item_shape=(3,))
    other = TensorSpec(name=graph.outputs[0], dtype="float32", item_shape=(4,))
    stage = replace(stage_of(tmp_path / "stage", graph.weights, other), inputs=(one,))
    opened = executor("torch").open
    assert opened is not None
    with pytest.raises(ModelError, match="the profile says"):
        opened(stage, TensorMemory(mmap(-1, 1 << 16)))


class OnDevice:
    """A model that fails with whatever it is warmed up with, and its device perhaps too."""

    inputs, outputs = MappingProxyType({"ids": "int64"}), ("embedding",)
    _on_device = True

    def __init__(self, error: Exception, *, fatal: bool) -> None:
        self._error, self._fatal = error, fatal

    def binding(self, inputs: Any, outputs: Any) -> Callable[[], None]:
        return self._fail

    def require_device(self) -> None:
        if self._fatal:
            self._fail()

    def _fail(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "fatal"),
    [(RuntimeError("CUDA error: device-side assert triggered"), True), (MemoryError(), False)],
)
def test_a_device_that_zeros_have_cost_or_that_is_full_ends_the_load(
    error: Exception, fatal: bool
) -> None:
    memory = TensorMemory(mmap(-1, 1 << 16))
    stage = stage_of(Path("stage"), None)
    with pytest.raises(type(error)):
        torch_model.TorchExecutor(stage, memory, OnDevice(error, fatal=fatal))
    refusing = OnDevice(IndexError("out of range in self"), fatal=False)
    assert torch_model.TorchExecutor(stage, memory, refusing).refuses_zeros


class Recorder:
    """PyTorch's allocator and graphs: versions before 2.12 leave a recording that fails under way,
    and none begins in a pool with one."""

    def __init__(self, *, leaves: bool) -> None:
        self.leaves = leaves
        self.under_way: list[int] = []
        self.pools = 0

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    @contextmanager
    def graph(self, graph: object, *, pool: int, **rest: object) -> Iterator[None]:
        if pool in self.under_way:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.under_way.append(pool)
        try:
            yield
        except RuntimeError:
            if not self.leaves:
                self.under_way.remove(pool)
            raise
        self.under_way.remove(pool)

    def end(self, device: int, pool: int) -> None:
        if pool not in self.under_way:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.under_way.remove(pool)


def put_on_device(
    model: Any, program: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Have a model compute as on a GPU; what its stream is told."""
    told: list[str] = []
    for name, value in {
        "graph_pool_handle": recorder.graph_pool_handle,
        "graph": recorder.graph,
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: None,
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", recorder.end)
    model._program, model._on_device = program, True
    model._stream, model._pool = SimpleNamespace(synchronize=lambda: told.append("wait")), 0
    return told


@pytest.mark.parametrize("leaves", [True, False])
def test_a_batch_size_that_cannot_be_recorded_keeps_no_other_from_it(
    leaves: bool, exported: tuple[Path, ExternalWeights | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(leaves=leaves)
    path, weights = exported
    model = torch_model.TorchModel(path.read_bytes(), weights)
    program = model._program

    class Refusing:
        device = "cpu"
        inputs, outputs = program.inputs, program.outputs

        def __call__(self, given: list[Any]) -> Any:
            if recorder.under_way and len(given[0]) == 2:
                raise RuntimeError("operation not permitted when stream is capturing")
            return program(given)

    put_on_device(model, Refusing(), recorder, monkeypatch)
    rows = {}
    for size in (1, 2, 3, 4):
        ids = np.full((size, 3), size, np.int64)
        rows[size] = np.zeros((size, 3, 8), np.float32)
        model.binding({"ids": ids}, {"embedding": rows[size]})()
    assert model.recorded == 3
    assert recorder.under_way == []
    torch.manual_seed(0)
    expected = FromOne()(torch.full((2, 3), 2)).detach().numpy()
    assert np.array_equal(rows[2], expected)


def test_copies_of_a_run_that_fails_are_made_before_it_is_said(
    exported: tuple[Path, ExternalWeights | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs' memory is given to others then."""
    path, weights = exported
    model = torch_model.TorchModel(path.read_bytes(), weights)
    ids = np.ones((1, 3), np.int64)
    told: list[str] = []

    class Twice:
        device, outputs = "cpu", ("one", "two")
        inputs = model._program.inputs

        def __call__(self, given: list[Any]) -> Any:
            told.clear()
            return [given[0], given[0]]

    told = put_on_device(model, Twice(), Recorder(leaves=False), monkeypatch)
    one, two = np.zeros((1, 3), np.int64), np.zeros((1, 4), np.int64)
    with pytest.raises(ModelError, match="output 'two'"):
        model.binding({"ids": ids}, {"one": one, "two": two})()
    assert (one == 1).all()
    assert told == ["wait"]


def test_an_unloaded_model_is_gone_before_what_is_free_on_the_device_is_given_back(
    exported: tuple[Path, ExternalWeights | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = executor("torch").open
    assert opened is not None
    held: Any = opened(stage_of(*exported), TensorMemory(mmap(-1, 1 << 16)))
    program = weakref.ref(held._model._program)
    there = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: there.append(program()))
    gc.disable()
    try:
        held.unload()
    finally:
        gc.enable()
    assert there == [None]


def test_memory_that_this_process_keeps_for_itself_is_room_for_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = [60]

    def info(number: int) -> tuple[int, int]:
        return 30 - number + 60 - kept[0], 100

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: kept.__setitem__(0, 0))
    assert room_missing("m/p/0", 30, 0) is None
    assert kept == [60], "nothing is given back where there is room"
    assert room_missing("m/p/0", 89, 1) is None
    assert kept == [0]
    refusal = room_missing("m/p/0", 90, 1)
    assert refusal is not None
    assert "does not fit onto GPU 1" in refusal
