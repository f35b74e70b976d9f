"""A Ray cluster of three nodes on this machine: plans served on it, and what is killed meanwhile.

Each answer is compared with what the model's file says. How long things take is printed, and is no
verdict.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.catalog.documents import read_problem, write_document
from headrace.commands.studies import chosen_jobs
from headrace.domain.errors import ClusterError, InfeasibleError
from headrace.on_ray.jobs import other_version
from headrace.studies.jobs import results_of
from helpers import study_functions as functions
from helpers.asking import Asking
from helpers.live_server import PATIENCE_S, LiveServer, serving, write_plan
from helpers.problems import make_profile
from helpers.ray_cluster import RayCluster, agents, children, commands, kill, parent, ray_cluster
from helpers.served import served_chain
from helpers.study_functions import Halved
from helpers.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    pytest.mark.xdist_group("ray"),
]
pytest.importorskip("ray", reason="needs the package ray: pip install 'headrace[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain over n0, n1 and n2, one stage on each."""
    folder = tmp_path_factory.mktemp("served")
    return write_plan(served_chain(folder, pools=(1, 1, 1), nodes=3), folder)


@contextmanager
def served_on(cluster: RayCluster, plan: Path, *arguments: str) -> Iterator[LiveServer]:
    options = "--cluster=ray", f"--address={cluster.address}", *arguments
    with serving(plan, *options, environment={}) as server:
        yield server


def free_cpus() -> float:
    import ray

    free: float = ray.available_resources().get("CPU", 0.0)
    return free


def nothing_runs() -> bool:
    return not agents() and not commands("headrace", "serve") and not commands("AgentActor")


def loaded_workers() -> set[int]:
    return {child for agent in agents() for child in children(agent)}


def test_a_plan_is_served_while_parts_of_the_cluster_are_killed(
    cluster: RayCluster, plan: Path
) -> None:
    took_s: dict[str, float] = {}
    with served_on(cluster, plan) as server, Asking(server.url, plan.parent / "m.onnx") as asking:
        asking.until_answered()
        assert free_cpus() == 3.0, "Ray keeps one CPU on each of three nodes of two"
        kills: dict[str, Callable[[], None]] = {
            "worker": lambda: kill(min(children(next(iter(agents("--name=n1")))))),
            "agent": lambda: kill(next(iter(agents("--name=n1")))),
            "actor": lambda: kill(parent(next(iter(agents("--name=n1"))))),
        }
        for name, strike in kills.items():
            strike()
            took_s[name] = asking.until_answered()
        (gateway,) = children(server.process.pid) & set(commands("serve", "--node"))
        before = loaded_workers()
        kill(gateway)
        took_s["gateway"] = asking.until_answered()
        assert loaded_workers() & before
        cluster.kill_raylet("n1")
        wait_until(lambda: not agents("--name=n1"), "the agent outlives its node")
        cluster.join("n1")
        took_s["raylet, from a new node on"] = asking.until_answered()
        server.signal(signal.SIGTERM)
        code, said = server.wait()
        assert code == 0, said
    assert asking.outcomes["answered"] > 0
    wait_until(nothing_runs, "processes are left behind")
    wait_until(lambda: free_cpus() == 6.0, "Ray still keeps CPUs")
    sys.stderr.write(f"\n{dict(asking.outcomes)}, back after {took_s}\n")


def test_a_driver_that_is_killed_leaves_nothing_behind(cluster: RayCluster, plan: Path) -> None:
    with served_on(cluster, plan) as server, Asking(server.url, plan.parent / "m.onnx") as asking:
        asking.until_answered()
        assert len(agents()) == 3
        server.process.kill()
        wait_until(nothing_runs, "processes are left behind")
        wait_until(lambda: free_cpus() == 6.0, "Ray still keeps CPUs")
    assert not loaded_workers()


def headrace(*arguments: str, **env: str) -> tuple[int, str, str]:
    program = str(Path(sys.executable).with_name("headrace"))
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "COLUMNS": "200", **env},
    )
    return done.returncode, done.stdout, done.stderr


def refusal_of(plan: Path, address: str) -> str:
    code, _, said = headrace("serve", str(plan), "--cluster", "ray", "--address", address)
    assert code == 2, said
    assert not agents()
    return said


def test_bad_input_is_one_sentence_and_nothing_is_started(
    cluster: RayCluster, plan: Path, tmp_path: Path
) -> None:
    assert "no Ray cluster answers there" in refusal_of(plan, "127.0.0.1:1")
    assert "expected HOST:PORT" in refusal_of(plan, "127.0.0.1:http")

    (tmp_path / "four").mkdir()
    four = write_plan(served_chain(tmp_path / "four", pools=(2, 2), nodes=4), tmp_path / "four")
    said = refusal_of(four, cluster.address)
    assert "the cluster has no node for 'n3' of the plan; nothing was started" in said
    assert "labelled headrace.io/node=n0" in said

    (tmp_path / "large").mkdir()
    large = write_plan(served_chain(tmp_path / "large", pools=(9,), nodes=1), tmp_path / "large")
    assert "n0: has 2 CPU of 9" in refusal_of(large, cluster.address)

    (tmp_path / "changed").mkdir()
    changed = write_plan(served_chain(tmp_path / "changed", nodes=2), tmp_path / "changed")
    with (tmp_path / "changed" / "m.onnx").open("ab") as file:
        file.write(b"\0")
    assert "m.onnx" in refusal_of(changed, cluster.address)


def test_a_node_whose_cpus_others_have_is_said(cluster: RayCluster, plan: Path) -> None:
    import ray

    class Other:
        def ready(self) -> None:
            pass

    other = (
        ray.remote(num_cpus=2)(Other).options(label_selector={"headrace.io/node": "n2"}).remote()
    )
    ray.get(other.ready.remote())
    said = refusal_of(plan, cluster.address)
    assert "node 'n2' has too little that is free for 'n2' of the plan" in said
    ray.kill(other)
    wait_until(lambda: free_cpus() == 6.0, "Ray still keeps CPUs")


def test_the_nodes_of_a_cluster_become_a_problem(
    cluster: RayCluster, plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cluster.yaml"
    arguments = "--address", cluster.address, "--measure", "--json", "-o", str(out)
    code, printed, said = headrace("nodes", str(plan), *arguments)
    assert code == 0, said
    told = json.loads(printed)
    assert set(told["matching"]["pairs"]) == {"n0", "n1", "n2"}
    assert len(told["links"]["links"]) == 4 * 3
    write_document(make_profile("m", devices={"cpu": 1.0}), tmp_path / "m.profile.json")
    models = "models: [{profile: m.profile.json, slo_ms: 1000}]\n"
    out.write_text(f"schema: headrace.problem/1\n{out.read_text()}{models}")
    nodes = read_problem(out).cluster.nodes
    assert [(node.name, node.devices) for node in nodes] == [
        (f"n{i}", {"cpu": 2}) for i in range(3)
    ]
    assert all(node.bandwidth_gbps for node in nodes)


def test_a_link_slower_than_planned_is_said(cluster: RayCluster, tmp_path: Path) -> None:
    fast = write_plan(served_chain(tmp_path, nodes=2, gbps=1e6), tmp_path)
    code, _, said = headrace("nodes", str(fast), "--address", cluster.address, "--measure")
    assert code == 2
    assert "the link of node 'n0' is slower than planned: needs 1000000 Gbit/s" in said


def test_calls_on_the_cluster_give_what_they_give_here(cluster: RayCluster) -> None:
    tasks = [Halved(value=float(value)) for value in range(8)]
    with chosen_jobs(1, "ray", cluster.address, ("helpers",)) as jobs:
        assert jobs.count == 6
        assert list(results_of(functions.halved, tasks, jobs)) == list(map(functions.halved, tasks))
        ids = set(results_of(functions.process_id, [1, 2], jobs))
        with pytest.raises(InfeasibleError, match="no plan for 2"):
            list(results_of(functions.refused, [1, 2], jobs))
    assert os.getpid() not in ids


def test_another_headrace_on_a_node_is_said(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.on_ray import jobs as on_ray

    monkeypatch.setattr(on_ray, "sources_of", lambda *packages: "0.0+other")
    with (
        chosen_jobs(1, "ray", cluster.address) as jobs,
        pytest.raises(ClusterError, match=r"(?s)another Headrace.*needs     0.0\+other"),
    ):
        list(results_of(functions.process_id, [1], jobs))
    assert "nothing was started" in other_version("1", "2", "n0")
