"""Outputs whose length depends on what is in the inputs: room for the most, and the true shape."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.documents import read_profile, write_document
from headrace.catalog.onnx_types import elem_type
from headrace.catalog.stage_files import stage_path
from headrace.domain.errors import ModelError, ProfileError
from headrace.domain.profile import Profile
from headrace.domain.tensors import VARIES, TensorSpec
from headrace.executors.onnx_session import open_session
from headrace.load.gateway_plan import that_waits, write_plan
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.serving.core.signature import true_shape
from headrace.serving.engine.inference import ServedModel
from helpers.detectors import MOST, detector_model
from helpers.one_stage import answered
from helpers.onnx_models import finished, saved

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def profiled(given: onnx.ModelProto, folder: Path, **options: Any) -> Profile:
    chosen = {"budget_s": 0.02, "profile_folder": folder, **options}
    return profile_model(saved(given, folder / "m.onnx"), ProfileOptions(**chosen))


def chooser(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int] = (8, 4),
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """float32 `x` -> `y`."""
    return finished(
        helper.make_graph(
            list(nodes),
            "chooser",
            [helper.make_tensor_value_info("x", FLOAT, list(shape))],
            [helper.make_tensor_value_info("y", INT, None)],
            list(weights),
        )
    )


POSITIVE = [
    helper.make_node("Relu", ["x"], ["positive"]),
    helper.make_node("NonZero", ["positive"], ["at"]),
]


def integers(name: str, values: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def served(profile: Profile, folder: Path, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return answered(profile, folder, **{profile.inputs[0].name: x})


def test_a_detector_has_room_for_the_most_boxes_that_its_graph_allows(tmp_path: Path) -> None:
    profile = profiled(detector_model("boxes"), tmp_path)

    boxes, scores, chosen, told = profile.outputs
    assert (boxes.dims, scores.dims) == ((), ())
    assert (chosen.item_shape, chosen.dims) == ((MOST, 3), (VARIES, ""))
    assert (told.name, told.dtype, told.item_shape) == ("chosen::shape", "int64", (2,))
    assert told.shape_of == "chosen"
    assert (profile.batched, len(profile.blocks)) == (False, 1)
    write_document(profile, tmp_path / "m.profile.json")
    assert read_profile(tmp_path / "m.profile.json") == profile


@pytest.mark.parametrize("contrast", [1.0, 0.02, 0.0])
def test_a_worker_writes_the_true_shape_beside_the_tensor(tmp_path: Path, contrast: float) -> None:
    profile = profiled(detector_model("boxes"), tmp_path)
    noise = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    images = noise * np.float32(contrast)

    got = served(profile, tmp_path, images)

    (wanted,) = open_session(tmp_path / "m.onnx").run(["chosen"], {"images": images})
    assert got["chosen::shape"].tolist() == list(wanted.shape)
    np.testing.assert_array_equal(got["chosen"][: len(wanted)], wanted)
    assert not got["chosen"][len(wanted) :].any()


TOP = [
    helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
    helper.make_node("Cast", ["largest"], ["as_int"], to=INT),
    helper.make_node("Abs", ["as_int"], ["count"]),
    helper.make_node("Reshape", ["count", "one"], ["k"]),
]
KNOWN_MOST = {
    "NonZero": ([*POSITIVE, helper.make_node("Identity", ["at"], ["y"])], (2, 32), ("", VARIES)),
    "then gathered": (
        [
            *POSITIVE,
            helper.make_node("Transpose", ["at"], ["rows"]),
            helper.make_node("Slice", ["rows", "zero", "five", "zero"], ["y"]),
        ],
        (5, 2),
        (VARIES, ""),
    ),
    "Compress": (
        [
            helper.make_node("Greater", ["x", "nothing"], ["is_positive"]),
            helper.make_node("Reshape", ["is_positive", "flat"], ["which"]),
            helper.make_node("Compress", ["numbers", "which"], ["y"]),
        ],
        (32,),
        (VARIES,),
    ),
    "TopK": (
        [
            *TOP,
            helper.make_node("TopK", ["x", "k"], ["values", "y"], axis=0),
        ],
        (8, 4),
        (VARIES, ""),
    ),
}


@pytest.mark.parametrize("which", KNOWN_MOST)
def test_the_most_is_found_from_the_graph(tmp_path: Path, which: str) -> None:
    nodes, room, dims = KNOWN_MOST[which]
    weights = [integers("zero", [0]), integers("five", [5]), integers("flat", [-1])]
    weights += [integers("one", [1]), integers("numbers", np.arange(32))]
    weights += [numpy_helper.from_array(np.zeros(1, np.float32), "nothing")]

    profile = profiled(chooser(nodes, weights=weights), tmp_path)

    assert (profile.outputs[0].item_shape, profile.outputs[0].dims) == (room, dims)
    x = np.random.default_rng(3).standard_normal((8, 4)).astype(np.float32)
    got = served(profile, tmp_path, x)
    (wanted,) = open_session(tmp_path / "m.onnx").run(["y"], {"x": x})
    assert tuple(got["y::shape"]) == wanted.shape
    np.testing.assert_array_equal(got["y"][tuple(map(slice, wanted.shape))], wanted)


UNKNOWN_MOST = [
    helper.make_node("Relu", ["x"], ["positive"]),
    helper.make_node("ReduceMax", ["positive"], ["largest"], keepdims=0),
    helper.make_node("Cast", ["largest"], ["end"], to=INT),
    helper.make_node("Range", ["start", "end", "step"], ["y"]),
]
COUNTING = [integers("start", -9), integers("step", 1)]


def test_where_the_graph_does_not_tell_the_most_is_asked_for_and_taken(tmp_path: Path) -> None:
    model = chooser(UNKNOWN_MOST, weights=COUNTING)

    with pytest.raises(ModelError, match=r"most is not\s+known.*--max-output y=1\d, "):
        profiled(model, tmp_path)
    with pytest.raises(ModelError, match="--max-output 3 is too small"):
        profiled(model, tmp_path, max_outputs={"y": (3,)})
    with pytest.raises(ModelError, match="has 1 dimensions whose length depends"):
        profiled(model, tmp_path, max_outputs={"y": (20, 2)})
    with pytest.raises(ModelError, match=r"--max-output z: .* no such output; it has y"):
        profiled(model, tmp_path, max_outputs={"z": (20,)})
    profile = profiled(model, tmp_path, max_outputs={"y": (20,)})

    assert profile.outputs[0].item_shape == (20,)
    got = served(profile, tmp_path, np.full((8, 4), 3, np.float32))
    assert got["y"][: got["y::shape"][0]].tolist() == list(range(-9, 3))


@pytest.mark.parametrize(
    ("dtype", "opset"),
    [("bool", 11), ("bool", 13), ("int16", 17), ("uint16", 17), ("bfloat16", 17), ("float16", 17)],
)
def test_numbers_of_every_type_may_vary(tmp_path: Path, dtype: str, opset: int) -> None:
    model = chooser(
        [
            *POSITIVE,
            helper.make_node("Slice", ["at", "zero", "one", "zero"], ["rows"]),
            helper.make_node("Cast", ["rows"], ["y"], to=elem_type(dtype)),
        ],
        weights=[integers("zero", [0]), integers("one", [1])],
    )
    model.opset_import[0].version = opset
    model.graph.output[0].type.tensor_type.elem_type = elem_type(dtype)
    profile = profiled(model, tmp_path)

    x = np.full((8, 4), -1, np.float32)
    x[2:5] = 1
    got = served(profile, tmp_path, x)

    assert (profile.outputs[0].dtype, profile.outputs[0].item_shape) == (dtype, (1, 32))
    assert got["y::shape"].tolist() == [1, 12]
    rows = np.repeat([2, 3, 4], 4).astype(got["y"].dtype)
    assert got["y"][0, :12].tolist() == rows.tolist()
    assert not got["y"][0, 12:].any()


def test_strings_that_vary_are_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    model = chooser([*POSITIVE, helper.make_node("Cast", ["at"], ["y"], to=TensorProto.STRING)])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING

    for named in {}, {"y": (64,)}, {"y": (2, 64)}:
        with pytest.raises(ModelError, match=r"m\.onnx: output 'y' holds strings, .* indices"):
            profiled(model, tmp_path, max_outputs=named)


def test_what_the_gateway_takes_is_measured_with_outputs_that_vary(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    profile = profiled(detector_model("boxes"), tmp_path)
    write_plan(that_waits(profile, "cpu"), tmp_path / "gateway")

    emulated = read_profile(tmp_path / "gateway" / "profile.json")
    assert [spec.dims for spec in emulated.outputs] == [(), (), (VARIES, ""), ()]


def test_more_than_there_is_room_for_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    profile = profiled(chooser(UNKNOWN_MOST, weights=COUNTING), tmp_path, max_outputs={"y": (20,)})

    with pytest.raises(Exception, match="more of y than --max-output says"):
        served(profile, tmp_path, np.full((8, 4), 100, np.float32))


def halved_when_loud() -> onnx.ModelProto:
    """float32 `x` [N, 16] -> `y`: half of each item where anything is above 100, as no noise is."""

    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(name, FLOAT, None)]
        )

    half = helper.make_node("Slice", ["x", "zeros", "eight", "ones"], ["half"])
    choice = helper.make_node(
        "If",
        ["loud"],
        ["y"],
        then_branch=branch("half", half),
        else_branch=branch("all", helper.make_node("Relu", ["x"], ["all"])),
    )
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Greater", ["most", "hundred"], ["loud"]),
            choice,
        ],
        "halved",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [
            *(integers(name, [value]) for name, value in (("zeros", 0), ("ones", 1), ("eight", 8))),
            numpy_helper.from_array(np.float32(100), "hundred"),
        ],
    )
    return finished(graph)


def test_a_size_that_no_run_of_profile_showed_is_an_error_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    loud = np.full((1, 16), 200, np.float32)
    unaware = profiled(halved_when_loud(), tmp_path)
    assert unaware.batched
    said = (
        r"output 'y' has shape \[1, 8\] for these inputs, \[1, 16\] in the profile; profile again"
        " with --batch-axis y=none --max-output y=MOST"
    )
    with pytest.raises(ModelError, match=said):
        served(unaware, tmp_path, loud)

    named: dict[str, Any] = {"batch_axes": {"y": None}}
    with pytest.raises(ModelError, match="the most of every dimension: y=1x16"):
        profiled(halved_when_loud(), tmp_path, **named, max_outputs={"y": (16,)})
    aware = profiled(halved_when_loud(), tmp_path, **named, max_outputs={"y": (1, 16)})
    got = served(aware, tmp_path, loud)
    assert got["y::shape"].tolist() == [1, 8]


def test_rooms_of_another_size_are_another_stage(tmp_path: Path) -> None:
    model = chooser(UNKNOWN_MOST, weights=COUNTING)
    paths = {
        stage_path(profiled(model, tmp_path, max_outputs={"y": (most,)}), tmp_path, 0, 1)
        for most in (20, 21)
    }
    assert len(paths) == 2


def test_rows_that_are_chosen_by_their_values_are_no_batch(tmp_path: Path) -> None:
    # Of the random items all are chosen: as many rows as items, by chance.
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["x"], ["highest"], axes=[1], keepdims=0),
            helper.make_node("Greater", ["highest", "zero"], ["good"]),
            helper.make_node("Compress", ["x", "good"], ["kept"], axis=0),
        ],
        "chosen",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 32])],
        [helper.make_tensor_value_info("kept", FLOAT, ["K", 32])],
        [numpy_helper.from_array(np.float32(0), "zero")],
    )

    profile = profiled(finished(graph), tmp_path, max_outputs={"kept": (1,)})

    assert not profile.batched
    assert profile.outputs[0].dims == (VARIES, "")
    assert (
        "'kept' is [2, 32] for two items and [0, 32] for two others" in profile.provenance.notes[0]
    )


def trimmed(*bound: onnx.NodeProto) -> onnx.ModelProto:
    """Texts of 16 numbers, cut off where the nodes say; 7 stands for nothing."""
    graph = helper.make_graph(
        [*bound, helper.make_node("Slice", ["ids", "zeros", "bound", "ones"], ["y"])],
        "trimmed",
        [helper.make_tensor_value_info("ids", INT, ["N", 16])],
        [helper.make_tensor_value_info("y", INT, ["N", "L"])],
        [integers("zeros", [0]), integers("ones", [1]), integers("nothing", 7)],
    )
    return finished(graph)


LONGEST = [
    helper.make_node("Equal", ["ids", "nothing"], ["empty"]),
    helper.make_node("Not", ["empty"], ["filled"]),
    helper.make_node("Cast", ["filled"], ["counted"], to=INT),
    helper.make_node("ReduceSum", ["counted", "ones"], ["words"], keepdims=1),
    helper.make_node("ReduceMax", ["words"], ["longest"], keepdims=0),
    helper.make_node("Reshape", ["longest", "ones"], ["bound"]),
]
BY_SHAPE = [
    helper.make_node("Shape", ["ids"], ["shape"]),
    helper.make_node("Slice", ["shape", "ones", "twos"], ["bound"]),
]


def test_a_length_that_is_computed_from_what_inputs_hold_varies(tmp_path: Path) -> None:
    """Noise of 0 and 1 has no places with nothing, so that no run of it shows that."""
    model = trimmed(*LONGEST)

    with pytest.raises(
        ModelError, match=r"\[1, 16\], \[1, 8\].*name it: --max-output y=16, .* or more"
    ):
        profiled(model, tmp_path)
    profile = profiled(model, tmp_path, max_outputs={"y": (16,)})

    assert not profile.batched
    assert "is computed from what the inputs hold" in profile.provenance.notes[0]
    assert profile.outputs[0].dims == ("", VARIES)
    text = np.full((1, 16), 7)
    text[0, :10] = 1
    got = served(profile, tmp_path, text)
    assert got["y::shape"].tolist() == [1, 10]
    assert got["y"][:, :10].tolist() == [[1] * 10]


def test_the_most_that_is_proposed_is_what_was_seen_with_other_numbers_too(tmp_path: Path) -> None:
    largest = [
        helper.make_node("ReduceMax", ["ids"], ["largest"], keepdims=0),
        helper.make_node("Reshape", ["largest", "ones"], ["bound"]),
    ]
    # Noise is 0 and 1: no text of it is longer than 1.
    with pytest.raises(ModelError, match="--max-output y=3, which is the most seen here, or more"):
        profiled(trimmed(*largest), tmp_path)


def test_a_length_that_allows_no_other_number_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = chooser(
        [
            helper.make_node("Equal", ["x", "x"], ["all"]),
            helper.make_node("Cast", ["all"], ["counted"], to=INT),
            helper.make_node("ReduceSum", ["counted"], ["count"], keepdims=0),
            helper.make_node("Reshape", ["count", "flat"], ["shape"]),
            helper.make_node("Reshape", ["counted", "shape"], ["y"]),
        ],
        weights=[integers("flat", [-1])],
    )
    caplog.set_level(logging.INFO, "headrace.profiling")

    notes = profiled(model, tmp_path).provenance.notes

    said = "whether outputs change in size with 'count', computed from what the inputs hold,"
    assert len([note for note in notes if said in note and "cannot be reshaped" in note]) == 1
    assert caplog.text.count(said) == 2, "halved, and doubled"


def test_a_length_that_is_computed_from_shapes_does_not(tmp_path: Path) -> None:
    model = trimmed(*BY_SHAPE)
    model.graph.initializer.append(integers("twos", [2]))

    assert profiled(model, tmp_path).batched


def test_of_an_output_that_was_not_seen_to_vary_every_dimension_is_named(tmp_path: Path) -> None:
    model = chooser([helper.make_node("Cast", ["x"], ["y"], to=INT)])

    with pytest.raises(ModelError, match=r"not seen to vary.*every dimension: y=8x4$"):
        profiled(model, tmp_path, max_outputs={"y": (16,)})
    profile = profiled(model, tmp_path, max_outputs={"y": (8, 9)})

    assert profile.outputs[0].item_shape == (8, 9)


def test_a_batched_model_has_no_such_outputs(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "plain",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", FLOAT, ["N", 4])],
    )
    with pytest.raises(ModelError, match="is batched, and its outputs have one size"):
        profiled(finished(graph), tmp_path, max_outputs={"y": (9,)})


def test_a_profile_whose_shapes_are_not_told_is_refused(tmp_path: Path) -> None:
    profile = profiled(detector_model("boxes"), tmp_path)
    told = profile.outputs[-1]
    for changed in (
        {"outputs": profile.outputs[:-1]},
        {"outputs": (told, *profile.outputs[:-1])},
        {"outputs": (*profile.outputs[:-1], msgspec.structs.replace(told, item_shape=(3,)))},
        {"batched": True},
    ):
        with pytest.raises(ProfileError, match="need their true shapes behind all others"):
            msgspec.structs.replace(profile, **changed).__post_init__()


def varying(*names: str) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=name, dtype="float32", item_shape=(5, 2), dims=(VARIES, ""))
        for name in names
    )


def test_clients_do_not_see_the_true_shapes_tensors() -> None:
    told = TensorSpec(name="b::shape", dtype="int64", item_shape=(2,), shape_of="b")
    state = TensorSpec(name="s", dtype="float32", item_shape=(3,))
    model = ServedModel(
        name="m",
        inputs=(state, state),
        outputs=(state, *varying("b"), told),
        states=((0, 0),),
        slo_us=1,
        fastest_us=1,
        max_items=1,
        batched=False,
    )

    asked = model.as_asked(1)

    assert [spec.name for spec in asked.outputs] == ["b"]
    assert asked.rooms == ((0, 1),)


@pytest.mark.parametrize(
    ("told", "shape"), [((3, 2), (3, 2)), ((0, 0), (0, 2)), ((99, 2), (5, 2)), ((-1, 2), (0, 2))]
)
def test_a_true_shape_never_leaves_its_room(told: tuple[int, int], shape: tuple[int, int]) -> None:
    (spec,) = varying("b")
    assert true_shape(spec, memoryview(np.array(told, np.int64).tobytes())) == shape
