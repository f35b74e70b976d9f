"""Exports that cannot be served, and those that are not batched, say why in words of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.onnx_session import first_line
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import IR_VERSION, OPSET, saved

FLOAT = TensorProto.FLOAT
ONES = np.ones((80, 4), np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def exported(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    *,
    ir_version: int = IR_VERSION,
    domains: Sequence[str] = (),
    constants: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """`x` of this shape -> `y` of any."""
    graph = helper.make_graph(
        nodes,
        "exported",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid(name, OPSET if not name else 1) for name in ("", *domains)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = ir_version
    return model


def profiled(model: onnx.ModelProto, folder: Path) -> Profile:
    path = saved(model, folder / "m.onnx")
    return profile_model(path, ProfileOptions(blocks=2, max_batch=2, budget_s=0.05))


def refusal(model: onnx.ModelProto, folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        profiled(model, folder)
    return str(refused.value)


RELU = (helper.make_node("Relu", ["x"], ["y"]),)


@pytest.mark.parametrize("shape", [[0, 4], ["N", 0]])
def test_an_input_that_holds_nothing_is_refused(shape: list[int | str], tmp_path: Path) -> None:
    said = refusal(exported(RELU, shape), tmp_path)

    assert f"m.onnx: input 'x' is {shape}: with a dimension of 0 it holds nothing" in said


def test_an_operator_that_is_not_there_is_said_with_the_file_and_what_to_do(tmp_path: Path) -> None:
    strange = [helper.make_node("Strange", ["x"], ["y"], domain="com.acme")]

    said = refusal(exported(strange, ["N", 4], domains=["com.acme"]), tmp_path)

    assert "m.onnx: ONNX Runtime cannot open the model: Fatal error: com.acme:Strange" in said
    assert "  try    an export with operators and an opset that" in said


def test_a_locale_that_is_not_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    normalise = helper.make_node(
        "StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale="xx_XX.UTF-8"
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["N"]) for name in ("x", "y")]
    graph = helper.make_graph([normalise], "g", [ends[0]], [ends[1]])
    opsets = [helper.make_opsetid("", 17)]

    said = refusal(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path)

    assert "  try    an export with a locale that this machine has (`locale -a`)" in said
    assert "operators" not in said


def test_a_model_that_the_runtime_refuses_only_as_a_whole_is_said_with_its_file(
    tmp_path: Path,
) -> None:
    """Its output is its input: what is left of it runs, and its whole file does not."""
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = exported((product,), ["N", 4], constants={"w": np.ones((2, 8), np.float32)})
    model.graph.output[0].CopyFrom(model.graph.input[0])

    said = refusal(model, tmp_path)

    assert "m.onnx: ONNX Runtime cannot open the model: Node () Op (MatMul)" in said


@pytest.mark.parametrize("shape", [["N", 4], ["N", "tokens", 4]])
def test_a_file_of_a_later_format_is_said_in_one_line(
    shape: list[int | str], tmp_path: Path
) -> None:
    said = refusal(exported(RELU, shape, ir_version=99), tmp_path)

    first = said.split("\n")[0]
    assert "cannot open the model: Unsupported model IR version: 99, max supported" in first
    assert said.count("Unsupported") == 1


def test_the_shape_to_give_has_as_many_dimensions_as_the_input(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "w"], ["y"], name="product"),
    ]

    said = refusal(exported(nodes, ["batch", "mels", "frames"], constants={"w": ONES}), tmp_path)

    assert "try  --shape x=?,? with the sizes that you serve" in said
    assert "Compute MatMul dimension mismatch" in said
    assert "ONNXRuntimeError" not in said


def test_an_export_in_training_mode_is_refused_for_what_it_is(tmp_path: Path) -> None:
    dropout = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}

    said = refusal(exported([dropout], ["N", 64], constants=constants), tmp_path)

    assert (
        "try    an export for inference, model.eval(): its Dropout makes every answer another"
        in said
    )


def noise(write: str, **more: float) -> onnx.NodeProto:
    return helper.make_node("RandomNormalLike", ["x"], [write], **more)


def test_seeded_noise_is_refused_since_the_seed_is_the_first_answers_alone(tmp_path: Path) -> None:
    nodes = [noise("noise", seed=1.0), helper.make_node("Add", ["x", "noise"], ["y"])]

    said = refusal(exported(nodes, ["N", 4]), tmp_path)

    assert "output 'y' is another each time for the same item" in said
    assert "its RandomNormalLike makes every answer another" in said


def test_noise_within_a_branch_is_found(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [noise("made", seed=1.0)], "b", [], [helper.make_tensor_value_info("made", FLOAT, None)]
    )
    chosen = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)

    said = refusal(exported([chosen], ["N", 4], constants={"yes": np.array(True)}), tmp_path)

    assert "its RandomNormalLike makes every answer another" in said


@pytest.mark.parametrize("seed", [{}, {"seed": 1.0}], ids=["unseeded", "seeded"])
def test_noise_within_a_function_is_found(seed: dict[str, float], tmp_path: Path) -> None:
    nodes = [noise("noise", **seed), helper.make_node("Add", ["x", "noise"], ["sum"])]
    noisy = helper.make_function(
        "local", "Noisy", ["x"], ["sum"], nodes, [helper.make_opsetid("", OPSET)]
    )
    call = helper.make_node("Noisy", ["x"], ["y"], domain="local")
    model = exported([call], ["N", 4], domains=["local"])
    model.functions.append(noisy)

    assert "its RandomNormalLike makes every answer another" in refusal(model, tmp_path)


def test_random_operators_that_change_nothing_are_served(tmp_path: Path) -> None:
    dropout = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])
    constants = {"ratio": np.array(0, np.float32), "training": np.array(True)}

    assert profiled(exported([dropout], ["N", 4], constants=constants), tmp_path).batched


def test_a_type_that_is_not_served_is_named(tmp_path: Path) -> None:
    model = exported([helper.make_node("Cast", ["x"], ["y"], to=FLOAT)], ["N", 4])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN

    assert "numbers or strings that is served (FLOAT8E4M3FN)" in refusal(model, tmp_path)


def test_why_a_fixed_batch_is_not_batched_names_the_operator(tmp_path: Path) -> None:
    view = helper.make_node("Reshape", ["x", "sizes"], ["y"], name="/head/view")

    profile = profiled(exported([view], [1, 8], constants={"sizes": np.array([1, 2, 4])}), tmp_path)

    (why,) = [note for note in profile.provenance.notes if "one request per run" in note]
    assert "two items in one batch (Reshape '/head/view': " in why
    assert "ONNXRuntimeError" not in why
    assert "onnxruntime::" not in why


def test_a_first_dimension_that_is_no_batch_is_served_as_the_note_says(tmp_path: Path) -> None:
    most = helper.make_node("ReduceMax", ["x"], ["y"], axes=[0], keepdims=0)
    path = saved(exported([most], ["points", 3]), tmp_path / "m.onnx")

    def profiled_with(**options: Any) -> Profile:
        return profile_model(path, ProfileOptions(max_batch=2, budget_s=0.02, **options))

    (why,) = [note for note in profiled_with().provenance.notes if "one request per run" in note]
    assert why.endswith("--batch-axis x=none --shape x=?,3 serves it, with numbers for ?")
    whole = profiled_with(batch_axes={"x": None}, shapes={"x": (10, 3)})
    assert whole.inputs[0].item_shape == (10, 3)


def test_what_onnx_runtime_says_of_its_own_source_is_left_out() -> None:
    said = (
        "[ONNXRuntimeError] : 1 : FAIL : Load model from a.onnx failed:/src/core/graph/utils.h:46"
        " void onnxruntime::utils::Validate(const std::map<std::string, int>&,"
        " bool) Opset 99 is not known.\n at"
    )

    assert first_line(ValueError(said)) == "Opset 99 is not known."
    assert first_line(ValueError("an error of (anything) else: b.h")) == (
        "an error of (anything) else: b.h"
    )
