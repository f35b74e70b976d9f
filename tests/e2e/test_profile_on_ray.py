"""From a model to a plan on a Ray cluster of two kinds of nodes; nobody types hardware by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.catalog.documents import read_plan, read_profile
from headrace.cli import app
from headrace.domain.errors import ClusterError
from headrace.load.gateway_cost import GatewayCost
from headrace.on_ray import agents, profiling
from headrace.on_ray.kinds import kinds_of, processors_of
from headrace.on_ray.nodes import nodes_of
from helpers.onnx_models import chain_model, saved
from helpers.ray_cluster import RayCluster, commands, ray_cluster
from helpers.ray_cluster import agents as agents_of_plans
from helpers.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras, pytest.mark.xdist_group("ray")]
pytest.importorskip("ray", reason="needs the package ray: pip install 'headrace[ray]'")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patched, ray_cluster(0) as running:
        # Of the nodes' processes; they are started after this.
        patched.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        running.join("n0", kind="old")
        running.join("n1", kind="new")
        yield running


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})


def test_from_a_model_to_a_plan(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def gateway(*arguments: object) -> GatewayCost:
        asked.append(arguments)
        return GatewayCost(40 + len(asked), 60)

    monkeypatch.setattr("headrace.load.gateway_cost.measure_gateway", gateway)
    monkeypatch.chdir(tmp_path)
    saved(chain_model(layers=6), tmp_path / "chain.onnx")
    on_ray = "--cluster", "ray", "--address", cluster.address
    quick = "--blocks", "3", "--max-batch", "2", "--budget-s", "0.1"
    profiled = headrace("profile", "chain.onnx", *on_ray, *quick)
    assert profiled.exit_code == 0, profiled.output
    assert "the whole model on each kind of device" in profiled.output
    profile = read_profile(tmp_path / "chain.profile.json")
    assert [times.device for times in profile.block_times] == ["cpu-new", "cpu-old"]
    assert profile.batch_overhead_us > 0
    assert (profile.gateway_us, len(asked)) == (42, 2), "by way of an agent on each kind"

    written = headrace("nodes", *on_ray, "-o", "cluster.yaml")
    assert written.exit_code == 0, written.output
    (tmp_path / "problem.yaml").write_text(
        "schema: headrace.problem/1\n"
        + (tmp_path / "cluster.yaml").read_text()
        + "models: [{profile: chain.profile.json, slo_ms: 1000}]\n"
    )
    planned = headrace("plan", "problem.yaml", "-o", "plan.json")
    assert planned.exit_code == 0, planned.output
    nodes = read_plan(tmp_path / "plan.json").cluster.nodes
    assert [node.devices for node in nodes] == [{"cpu-old": 2}, {"cpu-new": 2}]
    matched = headrace("nodes", "plan.json", *on_ray)
    assert matched.exit_code == 0, matched.output
    wait_until(lambda: not agents_of_plans(), "an agent is left behind")
    assert not commands("headrace.on_ray.measure")


def test_bad_input_is_one_sentence(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    model = str(saved(chain_model(), tmp_path / "m.onnx"))
    out = str(tmp_path / "m.json")

    def refusal(*arguments: str) -> str:
        result = headrace("profile", model, "-o", out, "--cluster", "ray", *arguments)
        assert isinstance(result.exception, ClusterError), result.output
        return str(result.exception)

    said = refusal("--device", "cuda")
    assert "no node of the cluster has one" in said
    assert "cpu-new, cpu-old" in said

    there = nodes_of(ray)
    kinds = kinds_of(there, processors_of(ray, there))

    class Other:
        def ready(self) -> None:
            pass

    label = {"headrace.io/node": "n0"}
    other = ray.remote(num_cpus=2)(Other).options(label_selector=label).remote()
    ray.get(other.ready.remote())
    monkeypatch.setattr(profiling, "KEPT_S", 0.5)
    with (
        pytest.raises(ClusterError, match="no CPU of kind 'cpu-old' is free"),
        profiling.place_on_ray(ray, kinds[1]),
    ):
        pass
    ray.kill(other)

    monkeypatch.setattr(agents, "sources_of", lambda: "0.0+other")
    assert "has another Headrace" in refusal()
    assert not Path(out).exists()
