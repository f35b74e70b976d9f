"""Products saved as convolutions, and sessions that take over: the same answers, sooner."""

import errno
import weakref
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.shared_weights import WEIGHTS
from headrace.catalog.weights_files import weights_in
from headrace.domain.tensors import TensorSpec
from headrace.executors import onnx as onnx_executor
from headrace.executors import onnx_products
from headrace.executors.base import StageToLoad, TensorMemory
from headrace.executors.behind import do_behind
from headrace.executors.onnx import OnnxExecutor
from headrace.executors.onnx_products import BLOCKED
from headrace.executors.onnx_shared import PACKED_BYTES, share
from helpers.onnx_models import finished, residual_model, saved

WIDTH, ROWS = 128, 16
Rows = NDArray[np.float32]


def model_of(item: Sequence[int | str], width: int = WIDTH) -> onnx.ModelProto:
    """`x` [N, *item, width] -> two products with one matrix, one with another -> `y`."""
    rng = np.random.default_rng(0)
    matrices = [
        (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32) for _ in "wv"
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("MatMul", ["c", "v"], ["y"]),
    ]
    given, answered = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *item, width]) for name in "xy"
    )
    weights = [numpy_helper.from_array(m, name) for m, name in zip(matrices, "wv", strict=True)]
    return finished(helper.make_graph(nodes, "products", [given], [answered], weights))


def prepared(model: onnx.ModelProto, folder: Path) -> Path:
    share({"stage.onnx": str(saved(model, folder / "model.onnx"))}, folder)
    return folder / "stage.onnx"


def packed_bytes(stage: Path) -> int:
    found = onnx.load(str(stage), load_external_data=False).metadata_props
    return int({entry.key: entry.value for entry in found}[PACKED_BYTES])


def convolutions(stage: Path) -> int:
    nodes = onnx.load(str(stage), load_external_data=False).graph.node
    return sum(node.op_type == "Conv" and node.domain == BLOCKED for node in nodes)


def answers(path: Path, rows: Rows) -> Rows:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": rows})[0])


def assert_alike(folder: Path, shape: Sequence[int]) -> None:
    rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found, wanted = (answers(folder / name, rows) for name in ("stage.onnx", "model.onnx"))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether the runtime has channels in blocks here, as a network of convolutions tells."""
    folder = tmp_path_factory.mktemp("blocks")
    return convolutions(prepared(residual_model(channels=16), folder)) > 0


@pytest.mark.parametrize("item", [(ROWS,), (2, ROWS)])
def test_products_of_many_rows_are_convolutions_that_answer_alike(
    tmp_path: Path, blocks: bool, item: tuple[int, ...]
) -> None:
    stage = prepared(model_of(item), tmp_path)

    assert convolutions(stage) == 3 * blocks
    if not blocks:
        pytest.skip("ONNX Runtime has no channels in blocks on this processor")
    assert packed_bytes(stage) == 0
    # Each matrix once, as its kernel reads it, and in no other form.
    assert (tmp_path / WEIGHTS).stat().st_size < 2 * 4 * WIDTH * WIDTH + 3 * 4096
    for count in (1, 3):
        assert_alike(tmp_path, (count, *item, WIDTH))


@pytest.mark.parametrize(
    ("item", "width", "shape"),
    [
        ((), WIDTH, (3, WIDTH)),
        ((4,), WIDTH, (3, 4, WIDTH)),
        (("S",), WIDTH, (3, ROWS, WIDTH)),
        ((ROWS,), 136, (3, ROWS, 136)),
    ],
    ids=["no rows", "few rows", "as many rows as there are", "parts of blocks"],
)
def test_other_products_stay_products(
    tmp_path: Path, item: tuple[int | str, ...], width: int, shape: tuple[int, ...]
) -> None:
    stage = prepared(model_of(item, width), tmp_path)

    assert convolutions(stage) == 0
    assert packed_bytes(stage) > 0
    assert_alike(tmp_path, shape)


def opened(stage: Path, memory: TensorMemory, item: tuple[int, ...]) -> OnnxExecutor:
    specs = [TensorSpec(name=name, dtype="float32", item_shape=(*item, WIDTH)) for name in "xy"]
    return OnnxExecutor(
        StageToLoad(
            name="m",
            path=str(stage),
            weights=weights_in(stage, [WEIGHTS]),
            inputs=(specs[0],),
            outputs=(specs[1],),
            max_batch=1,
            p50_us=(1,),
            p99_us=(1,),
            seed=0,
            warm_up=False,
        ),
        memory,
    )


@pytest.mark.parametrize(("item", "takes_over"), [((4,), True), ((ROWS,), False)])
def test_a_session_that_has_matrices_packed_takes_over_before_anybody_asks_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: bool,
    item: tuple[int, ...],
    takes_over: bool,
) -> None:
    monkeypatch.setattr(onnx_executor, "IN_PLACE_FROM_BYTES", 0)
    monkeypatch.setattr(onnx_executor, "PACKED_FROM_BYTES", 1)
    stage = prepared(model_of(item), tmp_path)
    if not takes_over and not blocks:
        pytest.skip("ONNX Runtime has no channels in blocks on this processor")
    memory = TensorMemory(mmap(-1, 1 << 16))
    executor = opened(stage, memory, item)
    rows = np.random.default_rng(1).standard_normal((1, *item, WIDTH)).astype(np.float32)
    spec = TensorSpec(name="x", dtype="float32", item_shape=rows.shape[1:])
    memory.tensor(spec, 1, 0)[...] = rows
    first = weakref.ref(executor._session)

    for _ in range(3):
        memory.tensor(spec, 1, 1 << 15)[...] = 0
        executor.run(1, (0,), (1 << 15,))
        np.testing.assert_allclose(
            memory.tensor(spec, 1, 1 << 15), answers(stage, rows), rtol=1e-5, atol=1e-5
        )
        done = Event()
        do_behind(done.set)
        done.wait()
        # What answered first is given back, and not only when the next batch comes.
        assert (first() is None) == takes_over
    executor.unload()
    assert first() is None


def test_without_room_for_convolutions_a_stage_is_as_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(onnx_products, "_write", full)
    assert convolutions(prepared(model_of((ROWS,)), tmp_path)) == 0
    assert_alike(tmp_path, (3, ROWS, WIDTH))
