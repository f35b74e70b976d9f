"""Models whose items influence each other: what is measured, and that they are served alone."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.domain.tensors import TensorSpec
from headrace.profiling.estimate import EstimateOptions, estimate_model
from headrace.profiling.influence import Influence, influence_between
from headrace.profiling.options import ProfileOptions, ProfileProgress
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import (
    batch_norm_model,
    chain_model,
    finished,
    recurrent_model,
    residual_model,
    saved,
    words_model,
)

FLOAT = TensorProto.FLOAT
ALONE = "served one request per run, without batching: items of one batch influence each other's"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def profiled(model: onnx.ModelProto, folder: Path, **options: Any) -> Profile:
    chosen: Any = {"blocks": 3, "max_batch": 2, "budget_s": 0.05, **options}
    return profile_model(saved(model, folder / "m.onnx"), ProfileOptions(**chosen))


def notes(profile: Profile) -> str:
    return "\n".join(profile.provenance.notes)


def network(
    *nodes: onnx.NodeProto, dims: tuple[str | int, ...] = ("N", 4), dtype: int = FLOAT
) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    constants = {
        "first": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "two": np.array(2, np.int64),
        "column": np.array([-1, 1], np.int64),
        "fifty": np.array(50, np.float32),
        "eight": np.array(8, np.float32),
        "mask": np.array([0, 0, 0, -1e4], np.float32),
    }
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(
        list(nodes), "test", [value("x", dtype, dims)], [value("y", FLOAT, None)], weights
    )
    return finished(graph)


def negated_where(*condition: onnx.NodeProto) -> onnx.ModelProto:
    """-x where the nodes make `when` true, else x."""
    chosen = helper.make_node("Where", ["when", "minus", "x"], ["y"])
    return network(*condition, helper.make_node("Neg", ["x"], ["minus"]), chosen)


CENTRED = network(
    helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
    helper.make_node("Sub", ["x", "m"], ["y"]),
)
SHARED = network(helper.make_node("Softmax", ["x"], ["y"], axis=0))
# The first item is none the wiser; of the other, the last.
RUNNING = network(helper.make_node("CumSum", ["x", "first"], ["y"]))
RUNNING_BACK = network(helper.make_node("CumSum", ["x", "first"], ["y"], reverse=1))
MASKED = network(
    helper.make_node("Softmax", ["x"], ["shares"], axis=0),
    helper.make_node("Add", ["shares", "mask"], ["y"]),
)
# Two pictures of noise have one mean.
PICTURES = network(
    helper.make_node("ReduceMean", ["x"], ["m"], keepdims=1),
    helper.make_node("Sub", ["x", "m"], ["y"]),
    dims=("N", 3, 128, 128),
)
# As a log-mel spectrogram, whose quiet parts are as far from the loudest of all as may be.
FLOORED = network(
    helper.make_node("ReduceMax", ["x"], ["most"], keepdims=1),
    helper.make_node("Sub", ["most", "eight"], ["least"]),
    helper.make_node("Max", ["x", "least"], ["y"]),
)
BYTES = network(
    helper.make_node("Cast", ["x"], ["floats"], to=FLOAT),
    helper.make_node("ReduceMax", ["floats"], ["most"], keepdims=1),
    helper.make_node("Div", ["floats", "most"], ["y"]),
    dims=("N", 64),
    dtype=TensorProto.UINT8,
)
RARE = negated_where(
    helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
    helper.make_node("Greater", ["most", "fifty"], ["when"]),
)
COUNTED = negated_where(
    helper.make_node("Shape", ["x"], ["shape"]),
    helper.make_node("Gather", ["shape", "first"], ["count"]),
    helper.make_node("Greater", ["count", "two"], ["when"]),
)
BATCH_LAST = network(
    helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
    helper.make_node("Sub", ["x", "m"], ["y"]),
    dims=(4, "batch"),
)
# As a detector tells of each box in which picture it is.
NUMBERED = network(
    helper.make_node("Shape", ["x"], ["shape"]),
    helper.make_node("Gather", ["shape", "first"], ["count"]),
    helper.make_node("Range", ["first", "count", "one"], ["numbers"]),
    helper.make_node("Cast", ["numbers"], ["as floats"], to=FLOAT),
    helper.make_node("Reshape", ["as floats", "column"], ["number"]),
    helper.make_node("Concat", ["number", "x"], ["y"], axis=1),
)
QUANTISED = network(
    helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(CENTRED, id="mean"),
        pytest.param(SHARED, id="softmax"),
        pytest.param(RUNNING, id="running sum"),
        pytest.param(RUNNING_BACK, id="running back"),
        pytest.param(BATCH_LAST, id="batch last"),
        pytest.param(batch_norm_model(), id="batch norm"),
        pytest.param(MASKED, id="masked"),
        pytest.param(PICTURES, id="mean of much"),
        pytest.param(FLOORED, id="floored"),
        pytest.param(BYTES, id="brightest byte"),
        pytest.param(RARE, id="rare branch"),
        pytest.param(COUNTED, id="number of items"),
        pytest.param(QUANTISED, id="dynamic quantisation"),
    ],
)
def test_items_that_change_each_others_answers_are_run_alone_with_why_and_what_to_do(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    reports: list[ProfileProgress] = []
    path = saved(model, tmp_path / "m.onnx")

    profile = profile_model(path, ProfileOptions(max_batch=3, budget_s=0.05), reports.append)

    axis = 1 if model is BATCH_LAST else 0
    assert not profile.batched
    assert (len(profile.blocks), profile.block_times[0].max_batch) == (1, 1)
    assert profile.provenance.notes[0].startswith(ALONE)
    assert f"--batch-axis x={axis} batches them all the same" in profile.provenance.notes[0]
    assert any(ALONE in (report.notice or "") for report in reports)


def test_items_that_are_numbered_in_their_batch_are_run_alone_with_why_and_what_to_do(
    tmp_path: Path,
) -> None:
    profile = profiled(NUMBERED, tmp_path)

    assert not profile.batched
    assert (
        "items of one batch are answered by their place in it (relative change 1), and a batch"
        " holds requests of strangers; --batch-axis x=0 batches them all the same"
    ) in profile.provenance.notes[0]


def test_who_names_the_batch_gets_batches_and_is_told_what_they_change(tmp_path: Path) -> None:
    profile = profiled(CENTRED, tmp_path, batch_axes={"x": 0})

    assert profile.batched
    assert profile.block_times[0].max_batch == 2
    assert "and are batched as --batch-axis says; --batch-axis x=none serves each" in notes(profile)


def test_who_asks_for_one_request_per_run_is_told_nothing(tmp_path: Path) -> None:
    profile = profiled(CENTRED, tmp_path, batch_axes={"x": None})

    assert not profile.batched
    assert "influence" not in notes(profile)


def test_dynamic_quantisation_is_named_where_a_model_has_it(tmp_path: Path) -> None:
    why = "scales are found for all of it (dynamic quantisation)"

    assert why in notes(profiled(QUANTISED, tmp_path))
    assert why not in notes(profiled(CENTRED, tmp_path))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(chain_model(layers=6, width=64), id="chain"),
        pytest.param(residual_model(), id="convolutions"),
        pytest.param(recurrent_model(), id="recurrent"),
        pytest.param(words_model(), id="words"),
    ],
)
def test_models_whose_items_are_independent_are_batched_and_nothing_is_said(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    profile = profiled(model, tmp_path)

    assert profile.batched
    assert "influence" not in notes(profile)


def test_one_given_item_is_paired_with_another(tmp_path: Path) -> None:
    # Twice the same item would be normalised as it is alone.
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(5, 1, (1, 4, 8)).astype(np.float32))

    profile = profiled(batch_norm_model(), tmp_path, examples={"": tmp_path / "x.npy"})

    assert not profile.batched


def test_several_sizes_need_batches_and_the_error_says_why_there_are_none(tmp_path: Path) -> None:
    model = batch_norm_model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[2].dim_param = "length"

    with pytest.raises(ModelError, match=r"several sizes must be batched.*influence each other's"):
        profiled(model, tmp_path, shapes={"length": (4, 8)})


def test_what_runs_alone_is_not_estimated_and_the_error_says_why(tmp_path: Path) -> None:
    path = saved(batch_norm_model(), tmp_path / "m.onnx")

    with pytest.raises(ModelError, match=r"not estimated.*influence each other's answers"):
        estimate_model(path, EstimateOptions(devices=("L4",)))


def influence_of(run: Any, items: NDArray[Any], max_batch: int = 4) -> Influence:
    spec = TensorSpec(
        name="x",
        dtype="bytes" if items.dtype == object else items.dtype.name,
        item_shape=items.shape[1:],
    )
    return influence_between(run, [spec], [spec], {"x": items}, max_batch)


def test_companions_are_quiet_and_loud_and_keep_to_whole_numbers_that_were_given() -> None:
    tried: list[NDArray[Any]] = []

    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        tried.append(items["x"][:count])
        return {"x": tried[-1]}

    ids = np.array([[3, 7], [900, 7], [12, 7]])
    for items in (ids, np.array([[0.5], [-2.0]]), np.array([[3], [7]], np.uint8)):
        assert influence_of(run, items) == Influence(0, 0, 0)

    assert {len(batch) for batch in tried} == {1, 2, 4}
    numbers = np.concatenate([batch for batch in tried if batch.dtype == ids.dtype])
    assert set(numbers[:, 0]) == {3, 12, 900}
    assert set(numbers[:, 1]) == {7}
    floats = np.concatenate([batch for batch in tried if batch.dtype == np.float64])
    assert set(floats.ravel()) == {0.5, -2, 0, 1500, -1000}
    small = np.concatenate([batch for batch in tried if batch.dtype == np.uint8])
    assert set(small.ravel()) == {0, 3, 7, 255}


def test_companions_of_texts_are_empty_and_long_and_sound_is_as_loud_as_it_can_be() -> None:
    def lengths(items: Any, count: int) -> dict[str, NDArray[Any]]:
        found = np.array([len(str(text)) for text in items["x"][:count]])
        return {"x": found / max(found.max(), 1)}

    def peaks(items: Any, count: int) -> dict[str, NDArray[Any]]:
        x = items["x"][:count].astype(np.float64)
        return {"x": x / max(np.abs(x).max(), 1)}

    texts = np.array(["as many", "letters"], dtype=object)
    sound = np.array([[0, 1], [1, 0]], np.int16)
    for run, items in ((lengths, texts), (peaks, sound)):
        assert influence_of(run, items).by_companions > 0.5


def test_one_item_of_whole_numbers_is_paired_with_its_numbers_in_another_order() -> None:
    def centred(items: Any, count: int) -> dict[str, NDArray[Any]]:
        x = items["x"][:count].astype(np.float64)
        return {"x": x - x.mean(axis=0)}

    assert influence_of(centred, np.array([[3, 4, 5]])).by_companions > 0.1


@pytest.mark.parametrize("step", [1, -1], ids=["those behind", "those before"])
def test_in_a_batch_of_two_either_may_influence_the_other(step: int) -> None:
    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        x = items["x"][:count]
        return {"x": np.cumsum(x[::step])[::step]}

    assert influence_of(run, np.array([1.0, 2.0]), max_batch=2).by_companions > 0.1


def test_rounding_is_no_influence_even_of_what_cancels_to_nearly_nothing() -> None:
    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        x = items["x"][:count]
        return {"x": x + 1e-7 * np.tanh(np.max(x))}

    found = influence_of(run, np.tile(np.append(np.linspace(1, 2, 99), 1e-9), (4, 1)))

    assert found.by_companions < 1e-6
    assert found.reason(None) is None


def test_a_small_change_with_the_number_of_items_is_rounding_and_a_large_one_is_not() -> None:
    def answered(change: float) -> str | None:
        return influence_of(
            lambda items, count: {"x": items["x"][:count] * (1 + change * (count > 2))},
            np.ones((4, 3)),
        ).reason(None)

    assert answered(0.01) is None
    assert "by how many they are (relative change 0.1)" in str(answered(0.1))


def test_rounding_by_place_that_hits_some_items_is_no_influence() -> None:
    """As whole steps of a quantised network, or a label that was nearly another."""
    items = np.random.default_rng(0).normal(size=(8, 20)).round(1)

    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        x = items["x"][:count].copy()
        if count == 8:
            x[3] += 0.1  # at this place alone
        return {"x": x}

    found = influence_of(run, items, max_batch=8)

    assert found.reason(None) is None


@pytest.mark.parametrize("size", [2, 3, 8, 33])
def test_a_number_among_much_else_is_seen_in_batches_of_all_sizes(size: int) -> None:
    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        return {"x": items["x"][:count] + np.arange(count)[:, None] * (np.arange(12) == 0)}

    found = influence_of(run, np.tile(np.linspace(0, 600, 12), (2, 1)), max_batch=size)

    assert "by their place in it" in str(found.reason(None))


def test_what_is_no_number_at_any_place_does_not_follow_the_place() -> None:
    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        return {"x": items["x"][:count] + np.array([np.nan, np.inf, 0])}

    assert influence_of(run, np.ones((4, 3))).by_place == 0


@pytest.mark.parametrize("kind", [np.int64, np.bool_, object])
def test_labels_that_follow_the_place_are_seen(kind: type) -> None:
    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        number = np.arange(count) % 2
        return {"x": number.astype(str).astype(object) if kind is object else number.astype(kind)}

    assert influence_of(run, np.ones((4, 3))).by_place == 1


def test_where_such_items_are_not_for_the_model_the_others_tell() -> None:
    def run(items: Any, count: int) -> dict[str, NDArray[Any]] | str:
        x = items["x"][:count]
        return {"x": x - x.mean()} if np.abs(x).max() < 100 else "out of range"

    assert influence_of(run, np.array([1.0, 2.0])).by_companions > 0.1
