"""Large whole numbers as companions: which a model is tried with, and what they show."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_graph import load_graph
from headrace.profiling.large_numbers import LADDER, large_numbers
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import finished, saved

ONE = np.ones((1, 1), np.int64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def longest_of_the_batch() -> onnx.ModelProto:
    """The mean of as many rows of x [N, 6, 4] as the longest of all items has: lengths [N]."""
    value = helper.make_tensor_value_info
    constants = {"zero": np.array([0]), "rows": np.array([1])}
    nodes = [
        helper.make_node("ReduceMax", ["lengths"], ["most"], keepdims=1),
        helper.make_node("Slice", ["x", "zero", "most", "rows"], ["taken"]),
        helper.make_node("ReduceMean", ["taken"], ["y"], axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "longest",
        [
            value("lengths", TensorProto.INT64, ["N"]),
            value("x", TensorProto.FLOAT, ["N", 6, 4]),
        ],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return finished(graph)


def test_the_longest_of_a_batch_is_found_among_made_up_items(tmp_path: Path) -> None:
    # Whatever is drawn of 0 and 1, a length of 1 is the longest of nearly any batch.
    np.save(tmp_path / "lengths.npy", np.ones(4, np.int64))
    x = np.random.default_rng(0).standard_normal((4, 6, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    examples = {name: tmp_path / f"{name}.npy" for name in ("lengths", "x")}
    options = ProfileOptions(blocks=1, max_batch=2, budget_s=0.05, examples=examples)

    profile = profile_model(saved(longest_of_the_batch(), tmp_path / "m.onnx"), options)

    assert not profile.batched
    assert "items of one batch influence each other's" in profile.provenance.notes[0]


def tried(run: Any, folder: Path, model: onnx.ModelProto, **items: NDArray[Any]) -> dict[str, int]:
    return large_numbers(run, load_graph(saved(model, folder / "m.onnx")), items)


def test_each_input_of_whole_numbers_gets_the_largest_that_the_model_takes(tmp_path: Path) -> None:
    def run(items: Any, count: int) -> dict[str, NDArray[Any]] | str:
        if items["ids"].max() >= 50 or items["types"].max() > 1:
            return "no such place"
        return {"y": np.zeros((count, max(8, int(items["amount"].max()))))}

    names = ["ids", "types", "amount", "free"]
    items: Any = dict.fromkeys(names, ONE) | {"pixels": ONE.astype(np.uint8), "x": np.ones((1, 1))}

    found = tried(run, tmp_path, longest_of_the_batch(), **items)

    # Eight columns are as many as for one; thirty would be others, and nothing to compare with.
    assert found == {"ids": 30, "amount": 7, "free": LADDER[-1]}


def test_operators_that_may_not_look_whether_a_place_is_there_are_not_tried(tmp_path: Path) -> None:
    model = longest_of_the_batch()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    fused = helper.make_node("Gelu", ["taken"], ["gelu"], domain="com.microsoft")
    model.graph.node.insert(2, fused)
    model.graph.node[3].input[0] = "gelu"

    assert tried(lambda items, count: {"y": np.zeros(count)}, tmp_path, model, lengths=ONE) == {}
