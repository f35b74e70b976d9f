"""Outputs whose size a request says, by an input or by what is in it: found, or refused when it is
another than profiled; never answered in another shape."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.profiling import cut_model
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.one_stage import answered
from helpers.onnx_models import saved

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def profiled(
    model: onnx.ModelProto, folder: Path, items: dict[str, NDArray[Any]], **options: Any
) -> Profile:
    for name, array in items.items():
        np.save(folder / f"{name}.npy", array)
    examples = {name: folder / f"{name}.npy" for name in items}
    chosen = {"budget_s": 0.02, "profile_folder": folder, "examples": examples, **options}
    return profile_model(saved(model, folder / "m.onnx"), ProfileOptions(**chosen))


def modelled(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    weights: dict[str, NDArray[Any]],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "sized",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def resized() -> onnx.ModelProto:
    """Pictures `x` [N, 1, 4, 4] to the size `hw` that the request says."""
    return modelled(
        [
            helper.make_node("Concat", ["one picture", "hw"], ["size"], axis=0),
            helper.make_node("Resize", ["x", "", "", "size"], ["y"], mode="nearest"),
        ],
        {"x": (FLOAT, ["N", 1, 4, 4]), "hw": (INT, [2])},
        {"one picture": np.array([1, 1])},
    )


def turned_when_loud(opset: int) -> onnx.ModelProto:
    """`x` [2, 3], its columns as rows where anything is above 100, as no noise is."""

    def branch(name: str, kind: str) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(name, FLOAT, None)
        return helper.make_graph([helper.make_node(kind, ["x"], [name])], name, [], [info])

    turned, plain = branch("turned", "Transpose"), branch("plain", "Identity")
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "hundred"], ["loud"]),
        helper.make_node("If", ["loud"], ["y"], then_branch=turned, else_branch=plain),
    ]
    return modelled(nodes, {"x": (FLOAT, [2, 3])}, {"hundred": np.array(100, np.float32)}, opset)


PICTURE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def test_a_size_that_is_an_input_is_found_to_say_how_large_an_output_is(tmp_path: Path) -> None:
    items = {"x": PICTURE, "hw": np.array([[4, 6]])}

    with pytest.raises(ModelError, match=r"\[1, 1, 4, 6\], \[1, 1, 2, 3\].*--max-output y=9x13"):
        profiled(resized(), tmp_path, items)
    profile = profiled(resized(), tmp_path, items, max_outputs={"y": (8, 8)})

    got = answered(profile, tmp_path, x=PICTURE, hw=np.array([6, 4]))
    assert got["y::shape"].tolist() == [1, 1, 6, 4]
    assert got["y"][0, 0, :6, :4].tolist() == PICTURE[0, 0, [0, 0, 1, 2, 2, 3]].tolist()


@pytest.mark.parametrize("opset", [11, 17])
def test_another_shape_of_as_many_elements_is_an_error_and_no_other_order(
    tmp_path: Path, opset: int
) -> None:
    profile = profiled(turned_when_loud(opset), tmp_path, {})
    quiet = np.arange(6, dtype=np.float32).reshape(2, 3)

    assert answered(profile, tmp_path, x=quiet)["y"].tolist() == quiet.tolist()
    with pytest.raises(ModelError, match=r"has shape \[1, 3, 2\] for these inputs, \[1, 2, 3\]"):
        answered(profile, tmp_path, x=quiet + 200)


def test_a_shape_that_an_input_says_is_answered_in_no_other(tmp_path: Path) -> None:
    model = modelled(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": (FLOAT, [6]), "shape": (INT, [2])},
        {},
    )
    x = np.arange(6, dtype=np.float32)
    profile = profiled(model, tmp_path, {"x": x[np.newaxis], "shape": np.array([[2, 3]])})

    assert answered(profile, tmp_path, x=x, shape=np.array([2, 3]))["y"].shape == (2, 3)
    with pytest.raises(ModelError, match=r"has shape \[1, 3, 2\] for these inputs"):
        answered(profile, tmp_path, x=x, shape=np.array([3, 2]))
    with pytest.raises(Exception, match="cannot be reshaped"):
        answered(profile, tmp_path, x=x, shape=np.array([2, 4]))


def test_a_size_that_is_another_with_zeros_varies(tmp_path: Path) -> None:
    """A worker runs zeros before it serves, and what they give would not fit."""
    model = modelled(
        [
            helper.make_node("Equal", ["n", "zero"], ["none"]),
            helper.make_node("Cast", ["none"], ["as number"], to=INT),
            helper.make_node("Add", ["as number", "two"], ["end"]),
            helper.make_node("Reshape", ["end", "flat"], ["ends"]),
            helper.make_node("Slice", ["x", "starts", "ends"], ["y"]),
        ],
        {"x": (FLOAT, [4]), "n": (INT, [])},
        {
            "zero": np.array([0]),
            "two": np.array([2]),
            "flat": np.array([-1]),
            "starts": np.array([0]),
        },
    )
    items = {"x": np.ones((1, 4), np.float32), "n": np.array([5])}

    with pytest.raises(ModelError, match=r"\[2\], \[3\].*--max-output y=3"):
        profiled(model, tmp_path, items)
    profile = profiled(model, tmp_path, items, max_outputs={"y": (4,)})

    assert answered(profile, tmp_path, x=np.ones(4), n=np.array(0))["y::shape"].tolist() == [3]


def test_floats_that_are_legal_in_few_values_are_compared_as_given(tmp_path: Path) -> None:
    model = modelled(
        [
            helper.make_node("Cast", ["size"], ["hw"], to=INT),
            helper.make_node("Concat", ["one picture", "hw"], ["whole size"], axis=0),
            helper.make_node("Resize", ["x", "", "", "whole size"], ["y"], mode="nearest"),
        ],
        {"x": (FLOAT, ["N", 1, 4, 4]), "size": (FLOAT, [2])},
        {"one picture": np.array([1, 1])},
    )
    items = {"x": PICTURE, "size": np.array([[4, 6]], np.float32)}

    profile = profiled(model, tmp_path, items, max_outputs={"y": (8, 8)})

    (note,) = [note for note in profile.provenance.notes if note.startswith("split check")]
    assert "on the given examples alone, since the model does not run with random floats" in note
    assert "some x [1, 1, 4, 4], size [2]: " in note


def test_made_up_items_that_a_model_does_not_take_ask_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones are 0 and 1, places in its table of two."""
    model = modelled(
        [helper.make_node("Gather", ["table", "place"], ["y"])],
        {"place": (INT, ["N", 3])},
        {"table": np.ones(2, np.float32)},
    )
    beyond = {"place": np.full((8, 3), 2)}
    monkeypatch.setattr(cut_model, "random_items", lambda specs, count, rng: beyond)

    said = r"does not run with some place \[1, 3\]: Gather.* out of .*; give items that it takes"
    with pytest.raises(ModelError, match=said):
        profiled(model, tmp_path, {})


def test_given_items_that_a_model_does_not_take_are_refused_though_made_up_ones_run(
    tmp_path: Path,
) -> None:
    model = modelled(
        [
            helper.make_node("Cast", ["place"], ["whole"], to=INT),
            helper.make_node("Gather", ["table", "whole"], ["y"]),
        ],
        {"place": (FLOAT, ["N", 1])},
        {"table": np.ones(9, np.float32)},
    )
    items = {"place": np.array([[0], [1], [99]], np.float32)}

    with pytest.raises(ModelError, match=r"does not run with some place \[2, 1\]: Gather"):
        profiled(model, tmp_path, items, max_batch=2)


def test_an_output_with_nothing_in_it_is_said_to_be_so(tmp_path: Path) -> None:
    model = modelled(
        [helper.make_node("Slice", ["x", "none", "none", "axes"], ["y"])],
        {"x": (FLOAT, ["N", 4])},
        {"none": np.array([0]), "axes": np.array([1])},
    )
    with pytest.raises(
        ModelError, match=r"may vary in size, though it is \[1, 0\] for all inputs tried"
    ):
        profiled(model, tmp_path, {})

    profile = profiled(model, tmp_path, {}, max_outputs={"y": (1,)})

    assert "'y' is [1, 0] for one item, with nothing in it" in profile.provenance.notes[0]
    assert answered(profile, tmp_path, x=np.ones((1, 4)))["y::shape"].tolist() == [1, 0]
