"""Models whose items influence each other: how much is measured, noted, and served alone."""

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
from headrace.profiling.influence import influence_between
from headrace.profiling.options import ProfileOptions, ProfileProgress
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import batch_norm_model, chain_model, finished, saved

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


def network(*nodes: onnx.NodeProto, dims: tuple[str | int, ...] = ("N", 4)) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    weights = [
        numpy_helper.from_array(np.array(0, np.int64), "first"),
        numpy_helper.from_array(np.array([1e-2], np.float32), "little"),
    ]
    graph = helper.make_graph(
        list(nodes), "test", [value("x", FLOAT, dims)], [value("y", FLOAT, None)], weights
    )
    return finished(graph)


CENTRED = network(
    helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
    helper.make_node("Sub", ["x", "m"], ["y"]),
)
SHARED = network(helper.make_node("Softmax", ["x"], ["y"], axis=0))
# The first item is none the wiser.
RUNNING = network(helper.make_node("CumSum", ["x", "first"], ["y"]))
BATCH_LAST = network(
    helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
    helper.make_node("Sub", ["x", "m"], ["y"]),
    dims=(4, "batch"),
)
QUANTISED = network(
    helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
)


@pytest.mark.parametrize(
    "model",
    [CENTRED, SHARED, RUNNING, BATCH_LAST, batch_norm_model()],
    ids=["mean", "softmax", "running sum", "batch last", "batch norm"],
)
def test_items_that_change_each_others_answers_are_run_alone_with_why_and_what_to_do(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    reports: list[ProfileProgress] = []
    path = saved(model, tmp_path / "m.onnx")

    profile = profile_model(path, ProfileOptions(max_batch=2, budget_s=0.05), reports.append)

    axis = 1 if model is BATCH_LAST else 0
    assert not profile.batched
    assert (len(profile.blocks), profile.block_times[0].max_batch) == (1, 1)
    assert profile.provenance.notes[0].startswith(ALONE)
    assert f"--batch-axis x={axis} batches them all the same" in profile.provenance.notes[0]
    assert any(ALONE in (report.notice or "") for report in reports)


def test_who_names_the_batch_gets_batches_and_is_told_what_they_change(tmp_path: Path) -> None:
    profile = profiled(CENTRED, tmp_path, batch_axes={"x": 0})

    assert profile.batched
    assert profile.block_times[0].max_batch == 2
    assert "and are batched as --batch-axis says; --batch-axis x=none serves each" in notes(profile)


def test_who_asks_for_one_request_per_run_is_told_nothing(tmp_path: Path) -> None:
    profile = profiled(CENTRED, tmp_path, batch_axes={"x": None})

    assert not profile.batched
    assert "influence" not in notes(profile)


def test_scales_found_anew_for_each_batch_are_noted_and_batched(tmp_path: Path) -> None:
    profile = profiled(QUANTISED, tmp_path)

    assert profile.batched
    assert "influence each other's answers (relative change 0.0" in notes(profile)
    assert "(dynamic quantisation); --batch-axis x=none serves each request alone" in notes(profile)


def test_of_a_model_whose_items_are_independent_nothing_is_said(tmp_path: Path) -> None:
    profile = profiled(chain_model(layers=6, width=64), tmp_path)

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


def test_a_later_pair_may_show_more_than_the_first() -> None:
    spec = TensorSpec(name="x", dtype="float32", item_shape=())

    def run(items: Any, count: int) -> dict[str, NDArray[Any]]:
        """Each comes a tenth nearer to the largest of its batch."""
        x = items["x"][:count].astype(np.float64)
        return {"x": x + 0.1 * (np.max(x) - x)}

    alike, unlike = (
        influence_between(run, [spec], [spec], {"x": np.array(items, np.float32)})
        for items in ([100, 110], [100, 110, 0, 1000])
    )

    assert alike == pytest.approx(1 / 110)
    assert unlike == pytest.approx(100 / 1000)
