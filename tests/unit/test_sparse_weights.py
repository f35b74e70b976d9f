"""Weights that are stored sparse in an ONNX file: served as dense ones, or refused by name."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace.domain.errors import ModelError
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.one_stage import answered
from helpers.onnx_models import finished, refer, saved

X = np.array([1, 2, 3, 4], np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def product() -> onnx.ModelProto:
    """x times a matrix of zeros but for 1, 2 and 3 on its diagonal."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
    )
    values = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    indices = helper.make_tensor("places", TensorProto.INT64, [3], [0, 5, 10])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 4]))
    return finished(graph)


def test_sparse_weights_answer_as_dense_ones(tmp_path: Path) -> None:
    path = saved(product(), tmp_path / "m.onnx")
    options = ProfileOptions(blocks=1, max_batch=2, budget_s=0.02, profile_folder=tmp_path)

    profile = profile_model(path, options)

    assert answered(profile, tmp_path, x=X)["y"].tolist() == [1, 4, 9, 0]


def test_large_sparse_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    # Small ones become part of the model when it is read.
    model, count = product(), 2048
    weights = model.graph.sparse_initializer[0]
    weights.dims[:] = [4, count]
    weights.values.dims[:] = weights.indices.dims[:] = [count]
    weights.indices.int64_data[:] = range(count)
    (tmp_path / "w.bin").write_bytes(np.ones(count, np.float32).tobytes())
    refer(weights.values, "w.bin", 0, 4 * count)

    with pytest.raises(ModelError, match="sparse weights 'w' are in another file"):
        profile_model(saved(model, tmp_path / "m.onnx"), ProfileOptions())
