"""Layers of PyTorch's that are measured as they move, over a device whose clock counts copies."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from headrace.catalog.documents import read_profile
from headrace.catalog.onnx_graph import load_graph, whole_model
from headrace.cli import app
from headrace.executors.table import executor

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
moving = pytest.importorskip("headrace.executors.torch_moving")
cuda = pytest.importorskip("headrace.executors.cuda")
from helpers.late_device import LateDevice  # noqa: E402
from helpers.torch_networks import example, export, transformer  # noqa: E402

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]

WIDTH, WORDS = 64, 300


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = transformer(WORDS, layers=2, width=WIDTH, heads=2).eval()
    ids = example("encoder") % WORDS
    return export(network, ids, tmp_path_factory.mktemp("models") / "small.pt2")


def test_layers_begin_where_many_weights_are_read_and_are_measured_in_a_row(path: Path) -> None:
    graph, device = load_graph(path), LateDevice()
    model = moving.TorchMoving(whole_model(graph), graph.weights, device)
    # The words, and of each layer two matrices; the others are smaller than 64 KiB.
    assert len(model.names) == 1 + 2 * 2
    assert model.weights_bytes[0] >= WORDS * WIDTH * 4
    feeds = {graph.inputs[0].name: np.zeros((1, 32), np.int64)}
    visit = model.once(feeds)
    # Of each transfer: the copies between the event before it and its own.
    assert sum(visit.load) == len(model.names)
    assert min(visit.load) == max(visit.load) == 1.0
    assert len(visit.inside) == len(visit.host) == len(model.names)
    assert min(visit.on_demand, visit.pipelined, visit.in_place, visit.asking) > 0
    assert visit.asking < visit.pipelined
    # While layers run from the host, the whole block is copied for nobody.
    block = model.host.block.bytes.numel()
    assert device.told.count(f"ask {block}") == 1
    # What was loaded to be measured is given back.
    assert not device.held
    model.once(feeds)
    assert device.told.count(f"ask {block}") > 2


def test_nodes_of_one_name_are_layers_of_their_own() -> None:
    width = 128
    matrix = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="fc"),
    ]
    graph = helper.make_graph(
        nodes,
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        [numpy_helper.from_array(matrix * sign, name) for sign, name in ((1, "w"), (-1, "v"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    measured = moving.TorchMoving(model.SerializeToString(), None, LateDevice())
    assert measured.names == ("fc", "y")
    assert measured.weights_bytes == (matrix.nbytes, matrix.nbytes)


def test_a_model_of_small_layers_is_one_layer(tmp_path: Path) -> None:
    path = export(torch.nn.Linear(4, 4).eval(), torch.ones(2, 4), tmp_path / "small.pt2")
    graph = load_graph(path)
    model = moving.TorchMoving(whole_model(graph), graph.weights, LateDevice())
    assert len(model.names) == len(model.weights_bytes) == 1
    assert model.weights_bytes[0] >= (4 * 4 + 4) * 4


@pytest.fixture
def kinds_anew() -> Iterator[None]:
    yield
    executor.cache_clear()


@pytest.mark.usefixtures("kinds_anew")
def test_layers_of_an_export_are_profiled_planned_and_verified(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--layers --device cuda`, over that device."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    how = replace(
        cuda.EXECUTOR.measures,
        open=lambda content, weights: cuda.TorchModel(content, weights, "cpu"),
        moving=lambda content, weights: moving.TorchMoving(content, weights, LateDevice()),
        timer_ns=time.perf_counter_ns,
        machine=lambda: "a late device",
    )
    monkeypatch.setattr(cuda, "EXECUTOR", replace(cuda.EXECUTOR, measures=how))
    executor.cache_clear()
    profile_path = tmp_path / "small.profile.json"
    asked = ["profile", str(path), "--device", "cuda", "--layers", "--blocks", "1"]
    asked += ["--max-batch", "1", "--budget-s", "0.1", "--name", "small", "-o", str(profile_path)]
    run = CliRunner().invoke
    asked_for = run(app, asked)
    assert asked_for.exit_code == 0, asked_for.output
    profile = read_profile(profile_path)
    (times,) = profile.layer_times
    assert times.count == len(profile.layers) == 5
    assert times.device == "cuda"
    assert all(layer.weights_bytes for layer in profile.layers)
    (tmp_path / "problem.yaml").write_text(
        "schema: headrace.problem/1\n"
        "cluster:\n"
        f"  devices: {{cuda: {{memory_bytes: {1 << 30}, copy_stream: true}}}}\n"
        "  nodes: [{name: local, devices: {cuda: 1}}]\n"
        "models: [{profile: small.profile.json, slo_ms: 20000, rate_rps: 0.01}]\n"
        "options: {planner: provisioned, provision: exact}\n"
    )
    plan = str(tmp_path / "plan.json")
    assert run(app, ["plan", str(tmp_path / "problem.yaml"), "-o", plan]).exit_code == 0
    assert run(app, ["verify", plan]).exit_code == 0
    # A worker finds the layers by these names.
    graph = load_graph(path)
    host = moving.HostModel(
        whole_model(graph), graph.weights, [layer.name for layer in profile.layers], LateDevice()
    )
    assert len(host.layers) == 5
