"""Models without a batch dimension, or with it elsewhere than first."""

from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.stage_files import stage_path
from headrace.domain.errors import ModelError, ProfileError
from headrace.domain.profile import Profile
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import StageToLoad, TensorMemory
from headrace.executors.onnx import OnnxExecutor
from headrace.executors.onnx_session import open_session
from headrace.profiling.batch_hint import batch_hint
from headrace.profiling.estimate import EstimateOptions, estimate_model
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import recurrent_model, saved, scaled_model

FLOAT = TensorProto.FLOAT
Declared = tuple[str, int, Sequence[int | str | None]]
Tensors = dict[str, NDArray[Any]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Declared],
    outputs: Sequence[str],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(*declared) for declared in inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def profiled(given: onnx.ModelProto, folder: Path, **options: object) -> Profile:
    chosen = {"blocks": 3, "max_batch": 3, "budget_s": 0.05, "profile_folder": folder, **options}
    return profile_model(saved(given, folder / "m.onnx"), ProfileOptions(**chosen))  # type: ignore[arg-type]


def served(profile: Profile, folder: Path, size: int, inputs: Tensors) -> Tensors:
    """What a worker answers to one batch of whole models."""
    stage = StageToLoad(
        name="m",
        path=str(stage_path(profile, folder, 0, len(profile.blocks))),
        inputs=profile.inputs,
        outputs=profile.outputs,
        max_batch=size,
        p50_us=(1,) * size,
        p99_us=(1,) * size,
        seed=0,
    )
    memory = TensorMemory(mmap(-1, 1 << 16))
    into = [i * 4096 for i in range(len(profile.inputs))]
    out = [(1 << 15) + i * 4096 for i in range(len(profile.outputs))]
    for spec, offset in zip(profile.inputs, into, strict=True):
        memory.tensor(spec, size, offset)[...] = inputs[spec.name]
    OnnxExecutor(stage, memory).run(size, into, out)
    return {
        spec.name: memory.tensor(spec, size, offset).copy()
        for spec, offset in zip(profile.outputs, out, strict=True)
    }


def test_a_batch_axis_elsewhere_is_found_and_batches_answer_as_the_file_does(
    tmp_path: Path,
) -> None:
    profile = profiled(recurrent_model(), tmp_path)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 1, 3)).astype(np.float32)
    state = rng.standard_normal((2, 3, 4)).astype(np.float32)

    got = served(profile, tmp_path, 3, {"x": x, "state": np.moveaxis(state, 1, 0)})

    y, following = open_session(tmp_path / "m.onnx").run(["y", "next"], {"x": x, "state": state})
    assert profile.batched
    assert {spec.name: spec.shape for spec in (*profile.inputs, *profile.outputs)} == {
        "x": (-1, 1, 3),
        "state": (2, -1, 4),
        "y": (-1, 4),
        "next": (2, -1, 4),
    }
    np.testing.assert_allclose(got["y"], y, rtol=1e-5)
    np.testing.assert_allclose(np.moveaxis(got["next"], 0, 1), following, rtol=1e-5)


def test_an_output_with_the_batch_last_is_served_in_batches(tmp_path: Path) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])

    profile = profiled(model([node], [("x", FLOAT, ["N", 4])], ["y"]), tmp_path)

    assert profile.block_times[0].max_batch == 3
    assert profile.outputs[0].shape == (4, -1)


def test_a_free_dimension_that_is_called_batch_is_the_batch(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])

    profile = profiled(
        model([node], [("x", FLOAT, ["time", "batch_size", 4])], ["y"]),
        tmp_path,
        shapes={"x": (5, 4)},
    )

    assert profile.inputs[0].shape == (5, -1, 4)


def test_an_axis_that_is_named_is_taken(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])

    profile = profiled(
        model([node], [("x", FLOAT, [1, "T"])], ["y"]),
        tmp_path,
        batch_axes={"x": 1},
    )

    assert profile.inputs[0].shape == (1, -1)


def time_first() -> onnx.ModelProto:
    """`x` [T, N, 4] and a state [1, N, 3] through an LSTM."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=(1, 12, size)).astype(np.float32), name)
        for name, size in (("w", 4), ("r", 3))
    ]
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "", "", "h", "c"], ["y", "hn", "cn"], hidden_size=3
    )
    inputs: list[Declared] = [
        ("x", FLOAT, ["T", "N", 4]),
        ("h", FLOAT, [1, "N", 3]),
        ("c", FLOAT, [1, "N", 3]),
    ]
    return model([node], inputs, ["y", "hn", "cn"], weights)


def test_the_name_that_all_inputs_have_is_proposed_for_the_batch(tmp_path: Path) -> None:
    said = "if 'N' is the batch, --batch-axis x=1"

    assert f"would be batched; {said}" in profiled(time_first(), tmp_path).provenance.notes[1]
    with pytest.raises(ModelError, match=rf"for every \?\n   or  {said}"):
        profiled(time_first(), tmp_path, shapes={"x": (5, 4)})
    with pytest.raises(ModelError, match=f"check --shape, {said}, or give items"):
        profiled(time_first(), tmp_path, shapes={"x": (5, 4), "h": (6, 3), "c": (6, 3)})


def test_who_names_the_batch_of_one_input_names_that_of_others_that_call_it_alike(
    tmp_path: Path,
) -> None:
    profile = profiled(time_first(), tmp_path, batch_axes={"h": 1}, shapes={"x": (5, 4)})

    assert profile.batched
    assert {spec.name: spec.batch_axis for spec in profile.inputs} == {"x": 1, "h": 1, "c": 1}
    assert [spec.batch_axis for spec in profile.outputs] == [2, 1, 1]


@pytest.mark.parametrize("state", [(1, "N", 4), (2, "N", "M"), (1, "N", "M")])
def test_an_input_has_its_batch_where_it_calls_a_dimension_as_the_batch_of_another(
    tmp_path: Path, state: Sequence[int | str]
) -> None:
    node = helper.make_node("Add", ["x", "state"], ["y"])
    inputs: list[Declared] = [("x", FLOAT, ["N", 4]), ("state", FLOAT, state)]
    graph = load_graph(saved(model([node], inputs, ["y"]), tmp_path / "m.onnx"))

    assert [tensor.batch_axis for tensor in graph.inputs] == [0, 1]


@pytest.mark.parametrize("state", [("N", "N", 4), (1, "M", 4), (1, "N", "N")])
def test_what_is_called_otherwise_or_twice_is_not_taken_for_the_batch(
    tmp_path: Path, state: Sequence[int | str]
) -> None:
    node = helper.make_node("Add", ["x", "state"], ["y"])
    inputs: list[Declared] = [("x", FLOAT, ["N", 4]), ("state", FLOAT, state)]
    graph = load_graph(saved(model([node], inputs, ["y"]), tmp_path / "m.onnx"))

    assert [tensor.batch_axis for tensor in graph.inputs] == [0, 0]


@pytest.mark.parametrize("batch", ["N", 1])
def test_a_length_that_all_inputs_share_is_not_proposed_for_the_batch(
    tmp_path: Path, batch: str | int
) -> None:
    node = helper.make_node("Add", ["ids", "mask"], ["y"])
    inputs: list[Declared] = [(name, FLOAT, [batch, "L"]) for name in ("ids", "mask")]
    given = model([node], inputs, ["y"])

    assert batch_hint(load_graph(saved(given, tmp_path / "m.onnx"))) is None


def test_a_model_with_a_scalar_is_served_one_request_per_run_and_says_so(tmp_path: Path) -> None:
    profile = profiled(scaled_model(), tmp_path)
    x = np.arange(4, dtype=np.float32)[None]

    got = served(profile, tmp_path, 1, {"x": x, "rate": np.array(3, np.float32)})

    assert not profile.batched
    assert len(profile.blocks) == 1
    assert profile.block_times[0].max_batch == 1
    assert {spec.name: spec.item_shape for spec in profile.inputs} == {"x": (1, 4), "rate": ()}
    assert "one request per run, without batching: input 'rate' has no" in "\n".join(
        profile.provenance.notes
    )
    np.testing.assert_array_equal(got["y"], (x * 3)[None])


def test_a_scalar_is_profiled_without_dimensions(tmp_path: Path) -> None:
    table = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "table")
    nodes = [
        helper.make_node("Gather", ["table", "row"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
    ]

    profile = profiled(
        model(nodes, [("row", TensorProto.INT64, [])], ["y", "sum"], [table]), tmp_path
    )

    assert {spec.name: spec.item_shape for spec in profile.outputs} == {"y": (4,), "sum": ()}
    got = served(profile, tmp_path, 1, {"row": np.array(2, np.int64)})
    np.testing.assert_array_equal(got["y"], [[8, 9, 10, 11]])
    np.testing.assert_array_equal(got["sum"], [38])


def test_a_model_that_runs_one_item_only_is_served_one_request_per_run(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([1, 2, 2], np.int64), "shape")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])

    profile = profiled(model([node], [("x", FLOAT, ["N", 4])], ["y"], [shape]), tmp_path)

    assert not profile.batched
    assert (profile.inputs[0].item_shape, profile.outputs[0].item_shape) == ((1, 4), (1, 2, 2))
    assert "an export whose batch is free (dynamic_shapes)" in profile.provenance.notes[0]


def test_a_fixed_shape_without_a_batch_is_served_one_request_per_run(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])

    profile = profiled(model([node], [("x", FLOAT, [3, 8, 8])], ["y"]), tmp_path)

    assert not profile.batched
    assert profile.inputs[0].item_shape == (3, 8, 8)


def test_a_model_that_batches_is_not_batched_where_the_user_says_so(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])

    profile = profiled(
        model([node], [("x", FLOAT, ["N", 4])], ["y"]),
        tmp_path,
        batch_axes={"x": None},
        shapes={"x": (7, 4)},
    )

    assert (profile.batched, profile.inputs[0].item_shape) == (False, (7, 4))
    assert not any("without batching" in note for note in profile.provenance.notes)


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"z": 0}, r"--batch-axis z: .* has no such input or output; it has x, y"),
        ({"x": 2}, "has 2 dimensions, so --batch-axis x=2 names none of them"),
        ({"y": 1}, "output 'y' has no batch dimension: .*; leave out --batch-axis"),
    ],
)
def test_axes_that_are_not_there_are_refused(
    tmp_path: Path, axes: dict[str, int], reason: str
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])

    with pytest.raises(ModelError, match=reason):
        profiled(model([node], [("x", FLOAT, ["N", 4])], ["y"]), tmp_path, batch_axes=axes)


def test_truth_values_go_in_and_out(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Not", ["x"], ["y"])],
        "not",
        [value("x", TensorProto.BOOL, ["N", 4])],
        [value("y", TensorProto.BOOL, None)],
    )
    given = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    profile = profiled(given, tmp_path)

    x = np.array([[True, False, True, True], [False, False, True, False]])
    got = served(profile, tmp_path, 2, {"x": x})
    assert (profile.inputs[0].dtype, profile.outputs[0].dtype) == ("bool", "bool")
    np.testing.assert_array_equal(got["y"], ~x)


def test_an_output_that_turns_out_to_be_a_list_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("SplitToSequence", ["x"], ["y"], axis=0)
    given = model([node], [("x", FLOAT, ["N", 4])], ["y"])
    given.graph.output[0].ClearField("type")

    with pytest.raises(ModelError, match=r"output 'y' is a list or a map.*'zipmap': False"):
        profiled(given, tmp_path)


def test_names_inside_subgraphs_follow(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    branches = [
        helper.make_graph(
            [helper.make_node(kind, ["x"], [f"{kind}_out"])],
            kind,
            [],
            [value(f"{kind}_out", FLOAT, None)],
        )
        for kind in ("Neg", "Abs")
    ]
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1])
    given = model([node], [("flag", TensorProto.BOOL, []), ("x", FLOAT, [2])], ["y"])

    profile = profiled(given, tmp_path)

    x = np.array([[1, -2]], np.float32)
    for flag, wanted in ((True, -x), (False, abs(x))):
        got = served(profile, tmp_path, 1, {"flag": np.array(flag), "x": x})
        np.testing.assert_array_equal(got["y"], wanted)


def test_an_output_that_is_a_weight_or_a_constant_is_served_one_request_per_run(
    tmp_path: Path,
) -> None:
    version = numpy_helper.from_array(np.array([3], np.float32), "version")
    nodes = [
        helper.make_node("Mul", ["x", "version"], ["y"]),
        helper.make_node("Constant", [], ["scale"], value_floats=[0.5, 2]),
    ]
    given = model(nodes, [("x", FLOAT, ["N", 2])], ["y", "version", "scale"], [version])

    profile = profiled(given, tmp_path)

    assert "output 'version' has no batch dimension" in profile.provenance.notes[0]
    got = served(profile, tmp_path, 1, {"x": np.array([[1, 2]], np.float32)})
    assert {name: array[0].tolist() for name, array in got.items()} == {
        "y": [[3, 6]],
        "version": [3],
        "scale": [0.5, 2],
    }


def test_names_inside_a_model_may_be_those_that_are_added(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([4], np.int64), "x::shape")
    nodes = [
        helper.make_node("Reshape", ["x", "x::shape"], ["x::inside"]),
        helper.make_node("Abs", ["x::inside"], ["y::inside"]),
        helper.make_node("Neg", ["y::inside"], ["y::inside'"]),
        helper.make_node("Identity", ["y::inside'"], ["y"]),
    ]

    profile = profiled(model(nodes, [("x", FLOAT, [2, 2])], ["y"], [shape]), tmp_path)

    got = served(profile, tmp_path, 1, {"x": np.array([[1, -2], [3, 4]], np.float32)})
    assert got["y"].tolist() == [[-1, -2, -3, -4]]


def test_an_input_that_is_called_as_what_is_added_is_refused(tmp_path: Path) -> None:
    given = model(
        [helper.make_node("Abs", ["y::inside"], ["y"])], [("y::inside", FLOAT, [2])], ["y"]
    )

    with pytest.raises(ModelError, match=r"m\.onnx: the name 'y::inside' is needed beside"):
        profiled(given, tmp_path)


def test_a_model_that_does_not_batch_is_not_estimated(tmp_path: Path) -> None:
    path = saved(scaled_model(), tmp_path / "m.onnx")

    with pytest.raises(ModelError, match="takes one request per run, which is not estimated"):
        estimate_model(path, EstimateOptions(devices=("L4",)))


def test_a_profile_that_contradicts_itself_about_the_batch_is_refused(tmp_path: Path) -> None:
    profile = profiled(recurrent_model(), tmp_path)
    wrong = TensorSpec(name="state", dtype="float32", item_shape=(2, 4), batch_axis=3)

    with pytest.raises(ProfileError, match="tensor 'state' has no dimension 3 for its batch"):
        msgspec.structs.replace(profile, inputs=(profile.inputs[0], wrong))
    with pytest.raises(ProfileError, match="one request at a time, and times larger batches"):
        msgspec.structs.replace(profile, batched=False)


def test_a_profile_of_two_tensors_of_one_name_is_refused(tmp_path: Path) -> None:
    profile = profiled(recurrent_model(), tmp_path)
    block = profile.blocks[0]

    for twice in (
        {"inputs": profile.inputs * 2},
        {"outputs": profile.outputs * 2},
        {"blocks": (msgspec.structs.replace(block, cut=block.cut * 2), *profile.blocks[1:])},
    ):
        with pytest.raises(ProfileError, match="stands twice where each has a name of its own"):
            msgspec.structs.replace(profile, **twice)
