"""Models quantised by QDQ are cut at their integers, and answer with the same ones."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    quantize_static,
)

from headrace.catalog.documents import write_document
from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.stage_files import stage_path
from headrace.domain.errors import ModelError
from headrace.executors.onnx_session import open_session
from headrace.executors.table import measurement
from headrace.profiling.cut_model import (
    CutModel,
    agrees,
    cut_model,
    require_agreement,
    why_cuts_change,
)
from headrace.profiling.observe import Observed, observe
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import finished, saved

CHANNELS = 8
SIZE = 12


def convolutions(layers: int = 5) -> onnx.ModelProto:
    """float32 `x` [N, 8, 12, 12] -> `y`: convolutions, each with its ReLU."""
    rng = np.random.default_rng(0)
    nodes, weights, current = [], [], "x"
    for i in range(layers):
        kernel = 0.2 * rng.standard_normal((CHANNELS, CHANNELS, 3, 3))
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{i}"))
        nodes.append(
            helper.make_node("Conv", [current, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1], name=f"n{i}")
        )
        current = "y" if i == layers - 1 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"c{i}"], [current], name=f"relu{i}"))
    shape = ["N", CHANNELS, SIZE, SIZE]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    return finished(graph)


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, x: NDArray[Any]) -> None:
        self._batches: Iterator[dict[str, NDArray[Any]]] = iter([{"x": x}])

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._batches, None)


@pytest.fixture
def images() -> NDArray[Any]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((16, CHANNELS, SIZE, SIZE)).astype(np.float32)


@pytest.fixture
def quantised(tmp_path: Path, images: NDArray[Any]) -> Path:
    plain = saved(convolutions(), tmp_path / "plain.onnx")
    quantize_static(plain, tmp_path / "qdq.onnx", Calibration(images))
    return tmp_path / "qdq.onnx"


def observed_cuts(path: Path, images: NDArray[Any]) -> tuple[Any, Observed]:
    graph = load_graph(path)
    return graph, observe(graph, {"x": images.shape[1:]}, find_cuts(graph), {"x": images})


def test_only_integers_cross_where_a_tensor_is_quantised(
    quantised: Path, images: NDArray[Any]
) -> None:
    graph, observed = observed_cuts(quantised, images)

    model = cut_model(graph, observed, observed.cuts, "float32", measurement("cpu"))

    assert len(observed.cuts) >= 5
    assert {spec.dtype for cut in observed.cuts for spec in cut.tensors} == {"int8"}
    # Where the pair has an operator behind it, it is one of uint8, which integer kernels take.
    crossing = [spec.dtype for crossing in model.crossings[1:-1] for spec in crossing]
    assert crossing == ["uint8"] * (len(crossing) - 1) + ["int8"]
    assert {block.cut_bytes for block in model.blocks[:-1]} == {CHANNELS * SIZE * SIZE}


def test_cut_everywhere_it_answers_with_the_same_integers(
    quantised: Path, images: NDArray[Any]
) -> None:
    graph, observed = observed_cuts(quantised, images)
    wanted = open_session(quantised).run(["y"], {"x": images})[0]

    model = cut_model(graph, observed, observed.cuts, "float32", measurement("cpu"))
    got = model.run({"x": images})[-1]["y"]

    assert np.ptp(wanted) > 0
    np.testing.assert_array_equal(got, wanted)


def test_it_is_profiled_cut_and_its_stages_are_served_so(
    quantised: Path, images: NDArray[Any]
) -> None:
    options = ProfileOptions(blocks=3, max_batch=2, budget_s=0.02, profile_folder=quantised.parent)
    wanted = open_session(quantised).run(["y"], {"x": images[:2]})[0]

    profile = profile_model(quantised, options)
    write_document(profile, quantised.parent / "qdq.profile.json")

    assert len(profile.blocks) == 3
    assert "split check: largest relative error 0 " in profile.provenance.notes[0]
    flowing = images[:2]
    for first, end in pairwise(range(4)):
        session = open_session(stage_path(profile, quantised.parent, first, end))
        flowing = session.run(None, {session.get_inputs()[0].name: flowing})[0]
    np.testing.assert_array_equal(flowing, wanted)


def test_a_quantised_model_must_answer_with_the_same_integers(
    quantised: Path, images: NDArray[Any]
) -> None:
    graph, observed = observed_cuts(quantised, images)
    model: CutModel = cut_model(graph, observed, (), "float32", measurement("cpu"))

    assert agrees(model, 0.0, "float32")
    assert not agrees(model, 1e-7, "float32")
    assert agrees(model, 1e-7, "float16")
    with pytest.raises(ModelError, match=r"needs  relative error <= 0 with"):
        require_agreement(model, 1e-7, "float32")


def test_a_model_of_quantised_weights_computes_in_floats_and_may_round_them(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    weights = {"q": np.eye(4, dtype=np.int8), "scale": np.full(4, 0.5, np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "scale"], ["w"], axis=1),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "weights_only",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = saved(finished(graph), tmp_path / "m.onnx")
    graph_read, observed = observed_cuts(path, np.ones((2, 4), np.float32))
    model = cut_model(graph_read, observed, (), "float32", measurement("cpu"))

    assert agrees(model, 1e-7, "float32")
    assert not agrees(model, 1e-2, "float32")
    assert why_cuts_change(model) == "quantised in its weights"
