"""Files that are not what they should be are refused with what, where and what next."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_graph import MAX_MODEL_BYTES, MAX_NODES, load_graph
from headrace.catalog.onnx_types import tensor_bytes
from headrace.domain.errors import ModelError
from helpers.onnx_models import add_one_model, saved


def refusal(path: Path, max_bytes: int = MAX_MODEL_BYTES) -> str:
    with pytest.raises(ModelError) as caught:
        load_graph(path, max_bytes)
    return str(caught.value)


def test_an_absent_file_is_named_and_the_reason_given(tmp_path: Path) -> None:
    path = tmp_path / "gone.onnx"

    assert refusal(path) == f"{path}: cannot be read: No such file or directory; check the path"


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    assert "is not a file" in refusal(tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")

    assert "is empty" in refusal(path)


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"\x00" * 100, b"\xff" * 50])
def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)

    assert "is not an ONNX model" in refusal(path)


def test_a_truncated_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(add_one_model().SerializeToString()[:-20])

    assert "is not an ONNX model" in refusal(path)


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = saved(add_one_model(), tmp_path / "m.onnx")

    message = refusal(path, max_bytes=100)

    assert f"is too large: {path.stat().st_size:,} bytes, at most 100" in message


def test_a_graph_that_reads_what_nothing_makes_is_refused(tmp_path: Path) -> None:
    model = add_one_model()
    model.graph.node[0].input[0] = "nowhere"

    assert "reads 'nowhere' before anything makes it" in refusal(saved(model, tmp_path / "m.onnx"))


def test_an_input_of_complex_numbers_is_refused(tmp_path: Path) -> None:
    model = add_one_model()
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("x", TensorProto.COMPLEX64, ["N", 4])
    )

    assert "is not a tensor of numbers" in refusal(saved(model, tmp_path / "m.onnx"))


def test_a_graph_of_too_many_operators_is_refused(tmp_path: Path) -> None:
    model = add_one_model()
    node = model.graph.node[0]
    del model.graph.node[:]
    model.graph.node.extend([node] * (MAX_NODES + 1))

    message = refusal(saved(model, tmp_path / "m.onnx"))

    assert "has 200,001 operators, at most 200,000 are read" in message


@pytest.mark.parametrize("where", ["a branch", "a function"])
def test_too_many_operators_within_another_are_refused(tmp_path: Path, where: str) -> None:
    model = add_one_model()
    node = model.graph.node[0]
    if where == "a function":
        model.functions.add(name="f", domain="d").node.extend([node] * MAX_NODES)
    else:
        branch = helper.make_graph([node] * MAX_NODES, "branch", [], [])
        outer = helper.make_graph(
            [helper.make_node("If", ["c"], [], then_branch=branch)], "outer", [], []
        )
        model.graph.node.append(helper.make_node("If", ["c"], [], else_branch=outer))

    message = refusal(saved(model, tmp_path / "m.onnx"))

    assert "operators, at most 200,000 are read" in message


@pytest.mark.parametrize("dims", [[2**62, 2**62], [2**62]])
def test_inputs_of_impossible_shapes_are_refused(tmp_path: Path, dims: list[int]) -> None:
    model = add_one_model()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, *dims]))

    assert "elements, at most 268,435,456 are served" in refusal(saved(model, tmp_path / "m.onnx"))


def test_a_list_of_maps_is_refused_with_the_option_that_avoids_it(tmp_path: Path) -> None:
    labels = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    model = add_one_model()
    model.graph.output.add(name="probabilities").type.CopyFrom(
        helper.make_sequence_type_proto(labels)
    )

    message = refusal(saved(model, tmp_path / "m.onnx"))

    assert "output 'probabilities' is a list or a map" in message
    assert "'zipmap': False" in message


def test_an_output_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime takes it, and of two bound to memory by name it fills the second."""
    model = add_one_model()
    model.graph.output.append(model.graph.output[0])
    name = model.graph.output[0].name

    assert f"output {name!r} is listed twice; leave one" in refusal(saved(model, tmp_path / "m"))


def test_the_size_of_weights_comes_from_their_shape() -> None:
    assert tensor_bytes(numpy_helper.from_array(np.zeros((3, 5), np.float32))) == 60
    assert tensor_bytes(numpy_helper.from_array(np.zeros(7, np.int64))) == 56
    assert tensor_bytes(TensorProto(data_type=TensorProto.INT4, dims=[3, 5])) == 8
    assert tensor_bytes(TensorProto(data_type=TensorProto.BFLOAT16, dims=[3, 5])) == 30


@pytest.mark.parametrize("dims", [[0, 4], [2, 17], [7]])
def test_weights_of_another_size_than_their_shape_are_refused(
    tmp_path: Path, dims: list[int]
) -> None:
    """As in a damaged file: of size 0, the model would seem to cost nothing."""
    model = add_one_model()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(32, np.float32), "one"))
    model.graph.initializer[0].dims[:] = dims

    said = refusal(saved(model, tmp_path / "m.onnx"))

    assert f"m.onnx: weights 'one' of shape {dims} hold 128 bytes, need " in said
