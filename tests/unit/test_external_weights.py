"""Weights in files beside the model: referred to, hashed, and never read from anywhere else."""

import os
import shutil
from collections.abc import Callable
from mmap import mmap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.stage_files import stage_path, stage_weights
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.base import StageToLoad, TensorMemory
from headrace.executors.onnx import OnnxExecutor
from headrace.executors.onnx_session import open_session, runs_on_gpus
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import chain_model, refer, saved, saved_beside

WIDTH = 64


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A chain of six layers, its weights beside it."""
    folder = tmp_path / "models"
    folder.mkdir()
    return saved_beside(chain_model(layers=6, width=WIDTH), folder / "chain.onnx")


def profiled(path: Path) -> Profile:
    options = ProfileOptions(blocks=3, max_batch=2, budget_s=0.05, profile_folder=path.parent)
    return profile_model(path, options)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_graph(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def with_reference(path: Path, change: Callable[[onnx.TensorProto], None]) -> Path:
    """The model of `path`, its first reference changed."""
    model = onnx.load_model(path, load_external_data=False)
    change(model.graph.initializer[0])
    return saved(model, path)


def test_a_model_is_profiled_and_its_stages_answer_as_it_does_with_weights_inside(
    path: Path, tmp_path: Path
) -> None:
    profile = profiled(path)
    inside = saved(chain_model(layers=6, width=WIDTH), tmp_path / "inside.onnx")
    x = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)

    flowing = {"x": x}
    for index, block in enumerate(profile.blocks):
        stage = stage_path(profile, path.parent, index, index + 1)
        session = open_session(stage, stage_weights(profile, path.parent))
        names = [spec.name for spec in block.cut]
        flowing = dict(zip(names, session.run(names, flowing), strict=True))

    assert profile.weights_files == ("chain.onnx.data",)
    assert profile.weights_bytes(0, 3) == 6 * WIDTH * WIDTH * 4
    np.testing.assert_allclose(
        flowing["y"], open_session(inside).run(["y"], {"x": x})[0], rtol=1e-5
    )


def test_no_stage_has_a_copy_of_the_weights(path: Path) -> None:
    profile = profiled(path)

    for end in (1, 2, 3):
        assert stage_path(profile, path.parent, 0, end).stat().st_size < WIDTH * WIDTH * 4


def test_a_worker_loads_a_stage_by_its_references(path: Path) -> None:
    profile = profiled(path)
    stage = StageToLoad(
        name="chain",
        path=str(stage_path(profile, path.parent, 0, 3)),
        weights=stage_weights(profile, path.parent),
        inputs=profile.inputs,
        outputs=profile.outputs,
        max_batch=2,
        p50_us=(1, 1),
        p99_us=(1, 1),
        seed=0,
    )
    memory = TensorMemory(mmap(-1, 1 << 16))
    x = memory.tensor(profile.inputs[0], 2, 0)
    x[...] = np.random.default_rng(0).standard_normal(x.shape)

    OnnxExecutor(stage, memory).run(2, (0,), (4096,))

    wanted = open_session(path).run(["y"], {"x": x})[0]
    np.testing.assert_allclose(memory.tensor(profile.outputs[0], 2, 4096), wanted, rtol=1e-5)


def test_other_weights_make_another_model(path: Path) -> None:
    before = load_graph(path).sha256
    beside = path.with_name("chain.onnx.data")
    beside.write_bytes(bytes(8) + beside.read_bytes()[8:])

    assert load_graph(path).sha256 != before


def test_weights_that_changed_since_they_were_profiled_are_refused(path: Path) -> None:
    profile = profiled(path)
    stage_path(profile, path.parent, 0, 1)
    beside = path.with_name("chain.onnx.data")
    beside.write_bytes(bytes(8) + beside.read_bytes()[8:])

    with pytest.raises(ModelError, match="is not the model that was profiled"):
        stage_path(profile, path.parent, 0, 1)


def test_weights_that_are_replaced_after_their_hash_was_checked_are_not_loaded(path: Path) -> None:
    profile = profiled(path)
    stage, weights = stage_path(profile, path.parent, 0, 1), stage_weights(profile, path.parent)
    beside = path.with_name("chain.onnx.data")
    shutil.copy(beside, path.parent / "other")
    (path.parent / "other").replace(beside)

    with pytest.raises(ModelError, match=r"chain\.onnx\.data: has changed since"):
        open_session(stage, weights)


def test_small_tensors_are_taken_in_because_they_may_hold_shapes(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([0, 2, 2], np.int64), "shape")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "shape"], ["r"]),
            helper.make_node("Flatten", ["r"], ["y"], axis=1),
        ],
        "reshape",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    graph_read = load_graph(saved_beside(model, tmp_path / "m.onnx"))

    assert numpy_helper.to_array(graph_read.initialisers["shape"]).tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "sub/../../secret", "", "*/_ORT_MEM_ADDR_/*", "a\0b"]
)
def test_names_that_lead_out_of_the_folder_are_refused(path: Path, location: str) -> None:
    (path.parent.parent / "secret").write_bytes(bytes(1 << 20))

    message = refusal(with_reference(path, lambda t: refer(t, location, 0, WIDTH * WIDTH * 4)))

    assert "is not the name of a file in the model's folder" in message


def test_references_in_subgraphs_and_attributes_are_checked_too(path: Path) -> None:
    model = onnx.load_model(path, load_external_data=False)
    hidden = numpy_helper.from_array(np.zeros(4096, np.float32), "hidden")
    refer(hidden, "../secret", 0, 16_384)
    branch = helper.make_graph([], "branch", [], [], [hidden])
    model.graph.node[0].attribute.append(helper.make_attribute("body", branch))

    assert "../secret" in refusal(saved(model, path))


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_weights_behind_a_link_are_refused(path: Path, tmp_path: Path, linked: str) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (away / "w").write_bytes(bytes(1 << 20))
    if linked == "file":
        (path.parent / "w").symlink_to(away / "w")
        name = "w"
    else:
        (path.parent / "sub").symlink_to(away)
        name = "sub/w"

    message = refusal(with_reference(path, lambda t: refer(t, name, 0, WIDTH * WIDTH * 4)))

    assert "is reached over a link" in message
    assert "cp -L" in message


def test_weights_in_a_pipe_are_refused_at_once(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")

    message = refusal(with_reference(path, lambda t: refer(t, "pipe", 0, WIDTH * WIDTH * 4)))

    assert "is a pipe, not an ordinary file" in message


def test_weights_that_are_not_there_are_named(path: Path) -> None:
    path.with_name("chain.onnx.data").unlink()

    message = refusal(path)

    assert "chain.onnx.data: holds weights of a model beside it, and cannot be read" in message
    assert "keep the files of an export together" in message


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 10), (-4, 16_384), (6 * 16_384 - 8, 16_384), (2**62, 16_384), (0, 2**62), ("x", 16_384)],
)
def test_ranges_that_do_not_fit_the_file_or_the_tensor_are_refused(
    path: Path, offset: int, length: int
) -> None:
    def change(tensor: onnx.TensorProto) -> None:
        refer(tensor, "chain.onnx.data", offset, length)

    message = refusal(with_reference(path, change))

    assert "need 16,384 bytes, but refer to" in message
    assert "which has 98,304" in message


def test_a_truncated_file_of_weights_is_refused(path: Path) -> None:
    os.truncate(path.with_name("chain.onnx.data"), 90_000)

    assert "which has 90,000" in refusal(path)


@pytest.mark.parametrize("dims", [[2**31, 2**31], [-1, 4], [2**62]])
def test_shapes_beyond_all_files_are_refused(path: Path, dims: list[int]) -> None:
    def change(tensor: onnx.TensorProto) -> None:
        del tensor.dims[:]
        tensor.dims.extend(dims)

    assert "bytes, but refer to" in refusal(with_reference(path, change))


def test_text_cannot_be_kept_beside_a_model(path: Path) -> None:
    def change(tensor: onnx.TensorProto) -> None:
        tensor.data_type = TensorProto.STRING

    assert "bytes, but refer to" in refusal(with_reference(path, change))


def test_more_files_than_may_be_open_are_refused(path: Path) -> None:
    model = onnx.load_model(path, load_external_data=False)
    for number in range(600):
        (path.parent / f"w{number}").write_bytes(bytes(8192))
        tensor = TensorProto(name=f"u{number}", data_type=TensorProto.FLOAT, dims=[2048])
        refer(tensor, f"w{number}", 0, 8192)
        model.graph.initializer.append(tensor)

    assert "in more than 512 files" in refusal(saved(model, path))


def test_a_model_that_was_to_be_on_a_gpu_is_not_run_on_the_cpu_instead(tmp_path: Path) -> None:
    if runs_on_gpus():
        pytest.skip("this ONNX Runtime has a GPU")
    path = saved(chain_model(layers=1, width=4), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="needs  CUDAExecutionProvider"):
        open_session(path, gpu=0)
