"""Profiling one model at several sizes of its dynamic dimensions, on real ONNX files."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from benchmarks.shapes.encoder import Encoder, build_encoder
from onnx import TensorProto, helper

from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.stage_files import stage_path
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.domain.tensors import OTHERWISE
from headrace.profiling.buckets import split_shapes
from headrace.profiling.item_shapes import choose_shapes
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.profiling.shares import with_shares
from helpers.pt2_archives import chain_archive, write_archive

ENCODER = Encoder(layers=1, width=16, heads=2, vocabulary=20, longest=64)
SIZES = (8, 32, 64)


def profiled(path: Path, shapes: dict[str, tuple[int, ...]], **options: object) -> Profile:
    chosen = {"budget_s": 0.5, "max_batch": 2, "use_cache": False, "blocks": 1, **options}
    return profile_model(path, ProfileOptions(shapes=shapes, **chosen))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_encoder(ENCODER, tmp_path_factory.mktemp("encoder") / "encoder.onnx")


@pytest.fixture(scope="module")
def profile(encoder: Path) -> Profile:
    return profiled(encoder, {"tokens": SIZES}, cut_tensors=2, blocks=2)


def test_every_size_has_its_own_tensors_and_times(profile: Profile) -> None:
    assert profile.dimensions == ("tokens",)
    assert profile.all_sizes == ((8,), (32,), (64,))
    for flat, size in zip(profile.flat(), SIZES, strict=True):
        assert flat.model == f"encoder.{size}"
        assert [spec.item_shape for spec in flat.inputs] == [(size,), (size,)]
        assert [spec.item_shape for spec in flat.outputs] == [(size, 16), (16,)]
        assert [spec.dims for spec in flat.outputs] == [("tokens", ""), ()]
        assert flat.blocks[-1].cut == flat.outputs
        assert flat.blocks[-1].cut_bytes == 4 * 16 * (size + 1)
        assert flat.block_times[0].max_batch == 2
    assert all(spec.follows for block in profile.blocks for spec in block.cut)


def test_all_sizes_are_served_by_one_file_that_answers_alike_at_any(
    encoder: Path, profile: Profile
) -> None:
    count = len(profile.blocks)
    files = {stage_path(flat, encoder.parent, 0, count) for flat in profile.flat()}
    assert len(files) == 1
    stage = onnxruntime.InferenceSession(files.pop())
    whole = onnxruntime.InferenceSession(encoder)
    for size in (1, 8, 21, 64):
        ids = np.arange(2 * size).reshape(2, size) % 20
        feeds = {"ids": ids, "mask": np.ones_like(ids)}
        for got, wanted in zip(stage.run(None, feeds), whole.run(None, feeds), strict=True):
            assert np.array_equal(got, wanted)


def test_parts_of_a_core_are_stated_of_every_size(profile: Profile) -> None:
    half = with_shares(profile, "cpu", [Fraction(1, 2)])
    for flat in half.flat():
        whole, part = (flat.times("cpu", share) for share in (Fraction(1), Fraction(1, 2)))
        assert whole is not None
        assert part is not None
        assert part.p50_us[0][0] == 2 * whole.p50_us[0][0]


def test_one_size_is_known_between_too(encoder: Path) -> None:
    only = profiled(encoder, {"tokens": (16,)})
    assert only.buckets == ()
    assert only.outputs[0].dims == ("tokens", "")
    assert only.flat()[0].model == "encoder.16"


def test_a_tensor_that_changes_otherwise_is_marked(tmp_path: Path) -> None:
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1, *dims])
        for name, dims in (("x", ("height", "width")), ("y", (None, None)))
    ]
    graph = helper.make_graph([pool], "g", [ends[0]], [ends[1]])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "pool.onnx",
    )
    found = profiled(tmp_path / "pool.onnx", {"height": (8, 16), "width": (8,)})
    assert found.all_sizes == ((8, 8), (16, 8))
    assert found.inputs[0].dims == ("", "height", "width")
    assert found.outputs[0].dims == ("", OTHERWISE, OTHERWISE)
    assert [flat.outputs[0].item_shape for flat in found.flat()] == [(1, 4, 4), (1, 8, 4)]


def test_several_sizes_of_a_pytorch_export_are_refused_with_what_to_do(tmp_path: Path) -> None:
    graph = load_graph(write_archive(tmp_path / "m.pt2", chain_archive()))

    with pytest.raises(ModelError, match=r"one size\n  try    --shape x=.*export to ONNX"):
        split_shapes(graph, {"dim1": (4, 8)})


def test_what_cannot_be_measured_is_refused_with_what_can(encoder: Path) -> None:
    graph = load_graph(encoder)
    for given, said in (
        ({"words": (8,)}, "dynamic dimensions: tokens"),
        ({"tokens": (0, 8)}, "no size of it"),
        ({"tokens": tuple(range(1, 70))}, "more than 64 points"),
        ({"tokens": (8,), "ids": (8,)}, "named on their own too"),
    ):
        with pytest.raises(ModelError, match=said):
            split_shapes(graph, given)


def named_alike(folder: Path, dims: list[str | int]) -> Path:
    """A model whose input is called as its dynamic dimension is: tokens."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
        for name in ("tokens", "y")
    ]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["tokens"], ["y"])], "g", [ends[0]], [ends[1]]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "alike.onnx")
    return folder / "alike.onnx"


def test_a_dimension_called_as_an_input_is_has_sizes_of_its_own(tmp_path: Path) -> None:
    graph = load_graph(named_alike(tmp_path, ["tokens"]))

    shapes, points = split_shapes(graph, {"tokens": (32, 16)})
    assert (shapes, points.sizes) == ({"tokens": (32,)}, ((16,), (32,)))
    assert points.dims == {"tokens": ("tokens",)}

    shapes, points = split_shapes(graph, {"tokens": (32,)})
    assert (shapes, points.sizes) == ({"tokens": (32,)}, ()), "as its item has one dimension"


def test_sizes_taken_as_the_shape_of_an_input_of_that_name_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    graph = load_graph(named_alike(tmp_path, ["tokens", 3]))
    shapes, _ = split_shapes(graph, {"tokens": (16, 32)})

    with pytest.raises(ModelError, match=r"an item is \?x3.*\n.*called tokens too: 2 numbers are"):
        choose_shapes(graph, shapes, {})
