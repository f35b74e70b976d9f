"""Models of texts: made-up ones, what they show of sizes and of batches."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import saved


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def of_words(*nodes: onnx.NodeProto, kind: int) -> onnx.ModelProto:
    """Texts [N] -> numbers of their words, `ids` [N, words], 0 for words that are not known and
    behind the last -> `y`."""
    known = helper.make_node(
        "LabelEncoder",
        ["words"],
        ["ids"],
        domain="ai.onnx.ml",
        keys_strings=["red", "green", "blue"],
        values_int64s=[1, 2, 3],
        default_int64=0,
    )
    split = helper.make_node("StringSplit", ["x"], ["words", "count"], delimiter=" ")
    table = np.random.default_rng(0).standard_normal((4, 4), np.float32)
    graph = helper.make_graph(
        [split, known, *nodes],
        "words",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["N"])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "along")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    return model


NUMBERS = of_words(helper.make_node("Identity", ["ids"], ["y"]), kind=TensorProto.INT64)


def profiled(model: onnx.ModelProto, folder: Path, **more: Any) -> Profile:
    options = ProfileOptions(blocks=1, max_batch=2, budget_s=0.05, **more)
    return profile_model(saved(model, folder / "m.onnx"), options)


def test_an_output_that_is_as_long_as_the_text_needs_room_for_the_most(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"another size for other inputs.*--max-output y=12"):
        profiled(NUMBERS, tmp_path)

    profile = profiled(NUMBERS, tmp_path, max_outputs={"y": (40,)})

    assert not profile.batched
    assert profile.outputs[0].item_shape == (1, 40)


def test_the_longest_text_of_a_batch_is_found_by_words_that_the_model_knows(
    tmp_path: Path,
) -> None:
    mean = of_words(
        helper.make_node("Gather", ["table", "ids"], ["vectors"]),
        helper.make_node("ReduceMean", ["vectors", "along"], ["y"], keepdims=0),
        kind=TensorProto.FLOAT,
    )

    profile = profiled(mean, tmp_path)

    assert not profile.batched
    assert "items of one batch influence each other's" in profile.provenance.notes[0]
