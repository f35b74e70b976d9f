"""Layers of a model, and what they take: what `headrace profile --layers` measures."""

import json
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.catalog.documents import read_plan, read_profile
from headrace.catalog.onnx_graph import load_graph
from headrace.cli import app
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.onnx_layers import SavedLayer
from headrace.load.gateway_cost import GatewayCost
from headrace.profiling.held import MemoryWatch, held_memory
from headrace.profiling.items import random_items
from headrace.profiling.layers import Parted, part, with_layers, with_opening
from headrace.profiling.options import ProfileOptions, ProfileProgress
from headrace.profiling.profiler import profile_model
from helpers.layers import HOST_US, INSIDE_US, LOAD_US
from helpers.layers import with_layers as with_times
from helpers.onnx_models import chain_model, residual_model, saved, saved_beside
from helpers.problems import make_profile

WIDTH = 128
WEIGHTS_BYTES = 4 * WIDTH * WIDTH
PROBLEM = """
schema: headrace.problem/1
models:
  - profile: chain.profile.json
    slo_ms: 200
cluster:
  devices:
    cpu: {memory_bytes: 1000000000}
  nodes:
    - {name: n0, devices: {cpu: 1}}
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "headrace.load.gateway_cost.measure_gateway", lambda *_: GatewayCost(250, 300)
    )


def profiled(path: Path) -> Profile:
    options = ProfileOptions(blocks=1, max_batch=1, budget_s=0.02, profile_folder=path.parent)
    return profile_model(path, options)


def parts_of(path: Path, many_bytes: int = WEIGHTS_BYTES) -> tuple[Parted, ...]:
    profile = profiled(path)
    items = random_items(profile.inputs, 2, np.random.default_rng(0))
    return part(load_graph(path), profile, items, many_bytes)


def test_a_layer_begins_with_a_node_of_many_weights_and_holds_what_follows(tmp_path: Path) -> None:
    parts = parts_of(saved(chain_model(width=WIDTH), tmp_path / "chain.onnx"))

    assert [each.layer.name for each in parts] == [f"matmul{i}" for i in range(4)]
    assert {each.layer.kind for each in parts} == {"MatMul"}
    assert [each.layer.weights_bytes for each in parts] == [WEIGHTS_BYTES] * 4
    assert [each.outputs[0].name for each in parts] == ["h0", "h1", "h2", "y"]


def test_several_tensors_may_cross_between_two_layers(tmp_path: Path) -> None:
    model = chain_model(width=WIDTH, skips=[(0, 2)])
    parts = parts_of(saved(model, tmp_path / "chain.onnx"))

    assert [len(each.outputs) for each in parts] == [1, 2, 1, 1]


def test_a_model_of_few_weights_is_one_layer(tmp_path: Path) -> None:
    (only,) = parts_of(saved(chain_model(), tmp_path / "chain.onnx"))

    assert only.layer.weights_bytes == 4 * 4 * 16 * 16


@pytest.mark.parametrize("beside", [False, True])
def test_a_layer_answers_alike_loaded_and_in_place(tmp_path: Path, beside: bool) -> None:
    write = saved_beside if beside else saved
    path = write(residual_model(channels=16), tmp_path / "residual.onnx")
    graph = load_graph(path)
    (whole,) = parts_of(path, 1 << 30)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)}

    layer = SavedLayer(whole.content, graph.weights, tmp_path / "layer.onnx")
    layer.read()
    loaded, in_place = (layer.open(in_place=flag).run(["y"], feeds)[0] for flag in (False, True))

    assert (tmp_path / "layer.bin").stat().st_size >= 4 * 16 * 16 * 9
    np.testing.assert_allclose(loaded, in_place, rtol=1e-5)


def test_layers_join_the_profile_with_their_times_and_progress(tmp_path: Path) -> None:
    profile = profiled(saved(chain_model(width=WIDTH), tmp_path / "chain.onnx"))
    told: list[ProfileProgress] = []

    found = with_layers(profile, tmp_path, "cpu", 0.05, told.append)

    times = found.timed_layers("cpu", Fraction(1))
    assert times is not None
    assert len(found.layers) == times.count == 4
    assert min(times.load_p50_us) > 0
    assert min(times.inside_p50_us) > 0
    if times.held_bytes:
        # However it is started, no plan of one kind of layers foretells less than a start takes.
        assert times.open_p99_us >= times.open_p50_us >= 0
    assert {report.step for report in told} == {"layers"}
    assert [report.done for report in told] == sorted(report.done for report in told)
    assert told[-1].done == 1.0


def test_another_file_than_was_profiled_is_refused(tmp_path: Path) -> None:
    profile = profiled(saved(chain_model(width=WIDTH), tmp_path / "chain.onnx"))
    saved(chain_model(width=WIDTH, seed=1), tmp_path / "chain.onnx")

    with pytest.raises(ModelError, match="is not the model that was profiled"):
        with_layers(profile, tmp_path, "cpu", 0.05)


def test_from_profile_to_a_planned_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(chain_model(width=WIDTH), tmp_path / "chain.onnx")
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    run = CliRunner().invoke
    quick = ["--max-batch", "1", "--blocks", "2", "--budget-s", "0.05"]

    table = run(app, ["profile", "chain.onnx", "--layers", *quick])
    summary = run(app, ["profile", "chain.onnx", "--layers", "--json", *quick])
    planned = run(app, ["plan", "problem.yaml", "-o", "plan.json", "--provision", "exact"])

    assert table.exit_code == 0, table.output
    assert "layers, at batch size 1" in table.output
    assert "matmul3" in table.output
    assert [layer["kind"] for layer in json.loads(summary.stdout)["layers"]] == ["MatMul"] * 4
    assert len(read_profile(tmp_path / "chain.profile.json").layers) == 4
    assert planned.exit_code == 0, planned.output
    start = read_plan(tmp_path / "plan.json").deployments[0].start
    assert start is not None
    assert start.bound_us == start.start_us


@pytest.mark.lengthy
def test_what_a_model_takes_of_memory_is_measured_as_a_worker_holds_it(tmp_path: Path) -> None:
    path = saved(chain_model(layers=8, width=1024), tmp_path / "chain.onnx")
    weights_bytes = 8 * 4 * 1024 * 1024
    found = held_memory(profiled(path), tmp_path, "cpu")
    if found is None:
        pytest.skip("this system does not tell what a process has in memory")
    assert weights_bytes * 0.9 < found.held_bytes < 4 * weights_bytes
    assert found.working_bytes >= 0
    assert 0 < found.start_p50_us <= found.start_p99_us


def test_what_starts_take_beyond_their_layers_is_the_time_to_open_them() -> None:
    times = with_times(make_profile()).layer_times[0]
    in_place, loaded = sum(HOST_US), sum(LOAD_US) + sum(INSIDE_US)
    assert loaded < in_place

    slow = with_opening(times, loaded + 700, loaded + 900)
    quick = with_opening(times, loaded - 1, loaded + 5)

    assert (slow.open_p50_us, slow.open_p99_us) == (700, 900)
    assert (quick.open_p50_us, quick.open_p99_us) == (0, 5)


def test_memory_is_watched_no_longer_than_what_is_watched_takes_however_that_ends() -> None:
    before = threading.active_count()
    with pytest.raises(ModelError), MemoryWatch() as watch:
        raise ModelError("cannot be opened")
    assert threading.active_count() == before
    assert watch.most_bytes > 0
