"""Free item dimensions: the user's word, the examples' shape, or the first common one that runs."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_graph import OnnxGraph, load_graph
from headrace.domain.errors import ModelError
from headrace.profiling.item_shapes import choose_shapes
from headrace.profiling.items import read_examples
from helpers.onnx_models import add_one_model, free_dims_model, saved


@pytest.fixture
def free(tmp_path: Path) -> OnnxGraph:
    return load_graph(saved(free_dims_model(), tmp_path / "free.onnx"))


def test_without_a_word_the_first_common_shape_that_runs_is_taken_and_told(
    free: OnnxGraph,
) -> None:
    shapes, notice = choose_shapes(free, {}, {})

    assert shapes == {"x": (3, 224, 224)}
    assert notice is not None
    assert "took x=3x224x224" in notice
    assert "--shape x=3,224,224" in notice


def test_shapes_that_the_model_refuses_are_passed_over(tmp_path: Path) -> None:
    # A text recogniser in small: it needs exactly 48 rows.
    rows = numpy_helper.from_array(np.zeros((1, 1, 48, 1), np.float32), "rows")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "rows"], ["y"])],
        "rows",
        [value("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [value("y", TensorProto.FLOAT, None)],
        [rows],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8

    shapes, _ = choose_shapes(load_graph(saved(model, tmp_path / "m.onnx")), {}, {})

    assert shapes == {"x": (3, 48, 320)}


def test_a_model_that_refuses_all_common_shapes_says_what_was_tried(tmp_path: Path) -> None:
    model = free_dims_model()
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.zeros((2, 7, 3, 3), np.float32), "w")  # 7 channels, not 3
    )
    graph = load_graph(saved(model, tmp_path / "m.onnx"))

    with pytest.raises(ModelError, match=r"x=3x224x224[\s\S]*x=3x48x320[\s\S]*try  --shape"):
        choose_shapes(graph, {}, {})


def test_the_users_shape_is_taken_without_a_notice(free: OnnxGraph) -> None:
    assert choose_shapes(free, {"x": (3, 9, 7)}, {}) == ({"x": (3, 9, 7)}, None)


def test_fixed_dimensions_need_no_choice(tmp_path: Path) -> None:
    graph = load_graph(saved(add_one_model(), tmp_path / "m.onnx"))

    assert choose_shapes(graph, {}, {}) == ({"x": (16,)}, None)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"x": (1, 9, 7)}, r"an item is 3x\?x\?"),
        ({"x": (1, 3, 9, 7)}, "leave the batch dimension out"),
        ({"x": (3, 0, 7)}, r"an item is 3x\?x\?"),
        ({"z": (3, 9, 7)}, "has no input 'z'; its inputs: x"),
        ({"x": (3, 99_999, 99_999)}, "at most 268,435,456"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(
    free: OnnxGraph, wanted: dict[str, tuple[int, ...]], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        choose_shapes(free, wanted, {})


def test_examples_decide_the_shape(free: OnnxGraph, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 10, 20), np.float32))

    examples = read_examples(free, {"": tmp_path / "x.npy"})

    assert choose_shapes(free, {}, examples) == ({"x": (3, 10, 20)}, None)


def test_examples_of_another_type_or_shape_are_refused(free: OnnxGraph, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 1, 10, 20), np.float64))

    with pytest.raises(ModelError, match=r"needs  float32 \[items, 3, \?, \?\]\n  has    float64"):
        read_examples(free, {"x": tmp_path / "x.npy"})


def test_pickled_examples_are_refused(free: OnnxGraph, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)

    with pytest.raises(ModelError, match=r"is not a \.npy file of numbers"):
        read_examples(free, {"x": tmp_path / "x.npy"})


def test_examples_whose_header_claims_more_than_the_file_holds_are_refused(
    free: OnnxGraph, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((4, 3, 10, 20), np.float32))
    path.write_bytes(path.read_bytes().replace(b"(4, 3, 10, 20)", b"(9999, 3, 10,20)", 1))

    with pytest.raises(ModelError, match=r"x\.npy"):
        read_examples(free, {"x": path})


def test_examples_for_an_input_that_is_not_there_are_refused(
    free: OnnxGraph, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="example inputs are needed for all of x"):
        read_examples(free, {"z": tmp_path / "x.npy"})
