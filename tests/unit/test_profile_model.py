"""From a model file to a profile: what is measured, stated, kept and refused."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.documents import read_profile, write_document
from headrace.catalog.stage_files import stage_path
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.profiling import batching
from headrace.profiling.options import ProfileOptions, ProfileProgress
from headrace.profiling.profiler import profile_model
from headrace.profiling.ranges import ranges_to_measure
from headrace.profiling.summary import sum_ratios
from helpers.onnx_models import add_one_model, chain_model, free_dims_model, residual_model, saved


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    return folder


def quick(**options: object) -> ProfileOptions:
    return ProfileOptions(**{"blocks": 3, "max_batch": 2, "budget_s": 0.05, **options})  # type: ignore[arg-type]


def notes(profile: Profile) -> str:
    return "\n".join(profile.provenance.notes)


def test_a_profile_holds_every_block_and_stage_at_every_batch_size(tmp_path: Path) -> None:
    path = saved(chain_model(layers=6, width=64), tmp_path / "chain.onnx")

    profile = profile_model(path, quick(profile_folder=tmp_path))

    (times,) = profile.block_times
    assert len(profile.blocks) == 3
    assert (len(times.p50_us), times.max_batch) == (3, 2)
    assert {(s.first_block, s.end_block) for s in profile.stage_times} == {(0, 2), (1, 3), (0, 3)}
    assert all(len(s.p50_us) == 2 for s in profile.stage_times)
    assert sum(block.node_count for block in profile.blocks) == 12
    assert profile.weights_bytes(0, 3) == 6 * 64 * 64 * 4
    assert profile.model_path == "chain.onnx"
    assert (profile.inputs[0].item_shape, profile.outputs[0].item_shape) == ((64,), (64,))


def test_a_profile_states_where_its_numbers_come_from(tmp_path: Path) -> None:
    profile = profile_model(saved(residual_model(), tmp_path / "m.onnx"), quick())

    provenance = profile.provenance
    assert provenance.kind == "measured"
    assert provenance.machine
    assert set(provenance.software) == {"headrace", "numpy", "onnx", "onnxruntime", "python"}
    assert provenance.repeats is not None
    assert provenance.repeats >= 2
    assert "split check: largest relative error" in notes(profile)
    assert "sum of blocks / stage measured whole: median" in notes(profile)


def test_a_profile_can_be_written_read_and_executed(tmp_path: Path) -> None:
    path = saved(residual_model(), tmp_path / "m.onnx")
    profile = profile_model(path, quick(profile_folder=tmp_path))

    write_document(profile, tmp_path / "m.profile.json")

    assert read_profile(tmp_path / "m.profile.json") == profile
    assert stage_path(profile, tmp_path, 0, len(profile.blocks)).is_file()


def test_what_was_measured_before_is_returned_unchanged_and_said(tmp_path: Path) -> None:
    path = saved(chain_model(), tmp_path / "chain.onnx")
    reports: list[ProfileProgress] = []

    first = profile_model(path, quick())
    second = profile_model(path, quick(), reports.append)

    assert second == first
    assert any("measured before" in (report.notice or "") for report in reports)


def test_the_cache_follows_content_not_name(tmp_path: Path) -> None:
    first = profile_model(saved(chain_model(), tmp_path / "a.onnx"), quick())
    second = profile_model(saved(chain_model(), tmp_path / "b.onnx"), quick())

    assert (first.model, second.model) == ("a", "b")
    assert second.model_path == str(tmp_path / "b.onnx")
    assert second.block_times == first.block_times


@pytest.mark.parametrize(
    "changed",
    [
        {"blocks": 2},
        {"max_batch": 3},
        {"boundary": "float16"},
        {"stages": "none"},
        {"budget_s": 0.06},
    ],
)
def test_other_options_are_measured_anew(
    tmp_path: Path, cache: Path, changed: dict[str, object]
) -> None:
    path = saved(chain_model(), tmp_path / "chain.onnx")

    profile_model(path, quick())
    profile_model(path, quick(**changed))

    assert len(list(cache.rglob("*.json"))) == 2


def test_a_damaged_cache_entry_is_measured_again(tmp_path: Path, cache: Path) -> None:
    path = saved(chain_model(), tmp_path / "chain.onnx")
    profile_model(path, quick())
    (entry,) = cache.rglob("*.json")
    entry.write_text("{")

    assert profile_model(path, quick()).model == "chain"


def test_a_cache_that_cannot_take_the_result_is_refused_before_anything_is_measured(
    tmp_path: Path, cache: Path
) -> None:
    cache.mkdir()
    (cache / "profiles").touch()
    reports: list[ProfileProgress] = []

    with pytest.raises(ModelError, match="set HEADRACE_CACHE to a folder that you may write to"):
        profile_model(saved(chain_model(), tmp_path / "chain.onnx"), quick(), reports.append)

    assert all(report.step == "read" for report in reports)


def test_a_path_that_no_profile_can_name_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    """Of an old archive, in Latin-1; a profile that lies beside the model does not name it."""
    folder = tmp_path / os.fsdecode(b"dossi\xe8r")
    folder.mkdir()
    model = saved(chain_model(), folder / "chain.onnx")

    reports: list[ProfileProgress] = []

    with pytest.raises(ModelError, match=r"dossi\\udce8r/chain\.onnx': is no utf-8 text"):
        profile_model(model, quick(profile_folder=tmp_path), reports.append)

    assert all(report.step == "read" for report in reports)
    beside = profile_model(model, quick(profile_folder=folder))
    assert beside.model_path == "chain.onnx"


def test_fewer_cuts_than_asked_for_give_fewer_blocks_and_a_note(tmp_path: Path) -> None:
    profile = profile_model(saved(add_one_model(), tmp_path / "m.onnx"), quick(blocks=10))

    assert len(profile.blocks) == 1
    assert profile.stage_times == ()
    assert "10 blocks were asked for, the model can be cut into 1" in notes(profile)


def test_several_tensors_cross_a_cut_where_that_is_allowed(tmp_path: Path) -> None:
    model = chain_model(layers=6, skips=[(0, 5)])
    path = saved(model, tmp_path / "m.onnx")

    one = profile_model(path, quick(blocks=6))
    two = profile_model(path, quick(blocks=6, cut_tensors=2))

    assert all(len(block.cut) == 1 for block in one.blocks)
    assert len(one.blocks) < len(two.blocks) == 6
    assert max(len(block.cut) for block in two.blocks) == 2


def test_half_precision_between_stages_halves_the_cuts(tmp_path: Path) -> None:
    path = saved(chain_model(layers=6), tmp_path / "m.onnx")

    half = profile_model(path, quick(boundary="float16"))

    assert [block.cut[0].dtype for block in half.blocks] == ["float16", "float16", "float32"]
    assert [block.cut_bytes for block in half.blocks] == [32, 32, 64]
    error = float(notes(half).split("largest relative error ")[1].split()[0])
    assert 0 < error <= 1e-2


def test_the_item_shape_that_was_taken_is_noted(tmp_path: Path) -> None:
    profile = profile_model(saved(free_dims_model(), tmp_path / "m.onnx"), quick())

    assert profile.inputs[0].item_shape == (3, 224, 224)
    assert "took x=3x224x224" in notes(profile)


def test_a_batch_dimension_fixed_in_the_file_is_freed(tmp_path: Path) -> None:
    model = chain_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1

    profile = profile_model(saved(model, tmp_path / "m.onnx"), quick(max_batch=3))

    assert profile.block_times[0].max_batch == 3


def with_nodes(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "test",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def test_an_operator_that_the_runtime_lacks_is_refused(tmp_path: Path) -> None:
    model = with_nodes([helper.make_node("Nonsense", ["x"], ["y"])], [])

    with pytest.raises(ModelError, match="ONNX Runtime cannot open"):
        profile_model(saved(model, tmp_path / "m.onnx"), quick())


@pytest.mark.parametrize("shape", [[2**62], [2**40, 1, 4]])
def test_a_tensor_that_no_memory_holds_is_refused(tmp_path: Path, shape: list[int]) -> None:
    size = numpy_helper.from_array(np.array(shape, np.int64), "size")
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]

    with pytest.raises(ModelError, match="does not run"):
        profile_model(saved(with_nodes(nodes, [size]), tmp_path / "m.onnx"), quick())


def test_real_items_join_the_check_and_feed_the_measurement(tmp_path: Path) -> None:
    path = saved(chain_model(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 16), np.float32))

    profile = profile_model(path, quick(examples={"": tmp_path / "x.npy"}))

    assert "on random inputs and the given examples" in notes(profile)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "gpu"}, "measures 'cpu', 'cuda' only"),
        ({"blocks": 0}, "--blocks 0: must lie between 1 and 256"),
        ({"max_batch": 5_000}, "--max-batch 5000"),
        ({"budget_s": 0.0}, "--budget-s"),
        ({"name": "../x"}, "--name"),
    ],
)
def test_options_beyond_their_bounds_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        quick(**options)


def test_the_ranges_of_all_splits_hold_every_prefix_suffix_and_block_once() -> None:
    ranges = ranges_to_measure(5, "splits")

    assert len(ranges) == len(set(ranges)) == 5 + 3 + 3 + 1
    assert set(ranges) >= {(0, k) for k in range(1, 6)} | {(k, 5) for k in range(5)}


def test_all_ranges_are_every_pair() -> None:
    assert set(ranges_to_measure(4, "all")) == {(i, k) for i in range(4) for k in range(i + 1, 5)}


def test_no_stages_leaves_the_blocks() -> None:
    assert ranges_to_measure(3, "none") == ((0, 1), (1, 2), (2, 3))


def test_sums_are_compared_with_every_stage_measured_whole(tmp_path: Path) -> None:
    profile = profile_model(saved(chain_model(), tmp_path / "m.onnx"), quick())

    ratios = sum_ratios(profile)

    assert ratios is not None
    assert ratios.count == len(profile.stage_times) * 2
    assert all(a.end_block > a.first_block + 1 for a, _ in pairwise(profile.stage_times))


def test_half_precision_that_overflows_is_refused(tmp_path: Path) -> None:
    huge = numpy_helper.from_array(np.array([1e6], np.float32), "huge")
    nodes = [
        helper.make_node("Mul", ["x", "huge"], ["large"]),
        helper.make_node("Div", ["large", "huge"], ["y"]),
    ]
    path = saved(with_nodes(nodes, [huge]), tmp_path / "m.onnx")

    with pytest.raises(ModelError, match=r"has    inf\n  try    --boundary float32"):
        profile_model(path, quick(boundary="float16"))

    assert len(profile_model(path, quick()).blocks) == 2


def test_a_text_output_is_profiled_as_strings(tmp_path: Path) -> None:
    model = with_nodes([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)], [])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.STRING, None))

    [output] = profile_model(saved(model, tmp_path / "m.onnx"), quick()).outputs
    assert (output.dtype, output.max_bytes) == ("bytes", 4096)


def test_a_split_that_answers_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Noise is the one thing that two runs never agree on; else it is refused before.
    monkeypatch.setattr(batching, "require_repeatable", lambda *asked: None)
    noise = helper.make_node("RandomNormalLike", ["a"], ["noise"])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        noise,
        helper.make_node("Add", ["a", "noise"], ["y"]),
    ]

    with pytest.raises(ModelError, match=r"answers differently\n  needs  relative error <= 0.0001"):
        profile_model(saved(with_nodes(nodes, []), tmp_path / "m.onnx"), quick())


DYNAMIC = [
    helper.make_node("DynamicQuantizeLinear", ["b"], ["q", "scale", "zero"]),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
]
WEIGHTS_ONLY = [
    helper.make_node("DequantizeLinear", ["quantised", "step"], ["weight"]),
    helper.make_node("Mul", ["b", "weight"], ["y"]),
]


def shifted(quantised: list[onnx.NodeProto]) -> onnx.ModelProto:
    """x + 1000 - 1000, of which half precision between the two leaves little, then these nodes."""
    nodes = [
        helper.make_node("Add", ["x", "far"], ["a"]),
        helper.make_node("Sub", ["a", "far"], ["b" if quantised else "y"]),
    ]
    weights = {
        "far": np.array([1e3], np.float32),
        "quantised": np.array([50], np.int8),
        "step": np.array(0.02, np.float32),
    }
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return with_nodes(nodes + quantised, tensors)


@pytest.mark.parametrize(
    ("nodes", "how"),
    [(DYNAMIC, "quantised dynamically"), (WEIGHTS_ONLY, "quantised in its weights")],
    ids=["dynamic", "weights only"],
)
def test_a_quantised_model_that_a_cut_changes_is_served_uncut(
    nodes: list[onnx.NodeProto], how: str, tmp_path: Path
) -> None:
    reports: list[ProfileProgress] = []

    profile = profile_model(
        saved(shifted(nodes), tmp_path / "q.onnx"),
        quick(boundary="float16", batch_axes={"x": 0}),
        reports.append,
    )

    assert len(profile.blocks) == 1
    assert "it answers differently" in profile.provenance.notes[0]
    assert f"being {how}: it is served uncut" in profile.provenance.notes[0]
    assert "split check: largest relative error 0 " in profile.provenance.notes[1]
    assert any("served uncut" in (report.notice or "") for report in reports)
    assert "blocks were asked for" not in notes(profile)


def test_another_model_that_a_cut_changes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="answers differently"):
        profile_model(saved(shifted([]), tmp_path / "f.onnx"), quick(boundary="float16"))


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        halved = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(halved, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def test_a_model_in_half_precision_is_served_uncut_unless_its_boundaries_may_be_half_too(
    tmp_path: Path,
) -> None:
    path = saved(in_half(chain_model(layers=6, width=64)), tmp_path / "m.onnx")

    exact, cut = profile_model(path, quick()), profile_model(path, quick(boundary="float16"))

    assert (exact.inputs[0].dtype, len(exact.blocks)) == ("float16", 1)
    assert "being in half precision" in exact.provenance.notes[0]
    assert len(cut.blocks) == 3
    assert {spec.name for spec in cut.blocks[0].cut} <= {f"h{i}" for i in range(6)} | {
        f"m{i}" for i in range(6)
    }


def test_a_model_quantised_by_fixed_scales_stays_cut(tmp_path: Path) -> None:
    weights = [
        numpy_helper.from_array(np.array(0.02, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.int8), "zero"),
    ]
    nodes = []
    current = "x"
    for i in range(3):
        nodes += [
            helper.make_node("QuantizeLinear", [current, "scale", "zero"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "scale", "zero"], [f"d{i}"]),
            helper.make_node("Tanh", [f"d{i}"], ["y" if i == 2 else f"t{i}"]),
        ]
        current = f"t{i}"

    profile = profile_model(saved(with_nodes(nodes, weights), tmp_path / "m.onnx"), quick())

    assert len(profile.blocks) == 3
