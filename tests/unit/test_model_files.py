"""Files that are not what they should be are refused with what, where and what next."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_graph import load_graph, tensor_bytes
from headrace.domain.errors import ModelError
from helpers.onnx_models import add_one_model, saved


def refusal(path: Path, **bounds: int) -> str:
    with pytest.raises(ModelError) as caught:
        load_graph(path, **bounds)
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


def test_weights_in_other_files_are_refused_with_the_way_out(tmp_path: Path) -> None:
    model = add_one_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../etc/passwd")

    message = refusal(saved(model, tmp_path / "m.onnx"))

    assert "keeps its weights in other files" in message
    assert "save_as_external_data=False" in message


def test_a_graph_that_reads_what_nothing_makes_is_refused(tmp_path: Path) -> None:
    model = add_one_model()
    model.graph.node[0].input[0] = "nowhere"

    assert "reads 'nowhere' before anything makes it" in refusal(saved(model, tmp_path / "m.onnx"))


def test_a_scalar_input_is_refused_because_it_has_no_batch(tmp_path: Path) -> None:
    model = add_one_model()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, []))

    assert "is a scalar" in refusal(saved(model, tmp_path / "m.onnx"))


def test_a_text_input_is_refused(tmp_path: Path) -> None:
    model = add_one_model()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.STRING, ["N", 4]))

    assert "is not a tensor of numbers" in refusal(saved(model, tmp_path / "m.onnx"))


def test_the_size_of_weights_comes_from_their_shape() -> None:
    assert tensor_bytes(numpy_helper.from_array(np.zeros((3, 5), np.float32))) == 60
    assert tensor_bytes(numpy_helper.from_array(np.zeros(7, np.int64))) == 56
