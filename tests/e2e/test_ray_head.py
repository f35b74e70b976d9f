"""The head of a Ray cluster is killed under load: nothing of ours asks it while it serves."""

import signal
from pathlib import Path

import pytest

from helpers.asking import Asking
from helpers.live_server import serving, write_plan
from helpers.ray_cluster import agents, children, commands, kill, ray_cluster
from helpers.served import served_chain
from helpers.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.extras, pytest.mark.xdist_group("ray")]
pytest.importorskip("ray", reason="needs the package ray: pip install 'headrace[ray]'")


ALONE_S = "30"
"""After which Ray ends what is connected to it; a minute unless it is told."""


def test_answers_go_on_without_the_head_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", ALONE_S)
    plan = write_plan(served_chain(tmp_path, pools=(1, 1, 1), nodes=3), tmp_path)
    with ray_cluster() as cluster:
        on_ray = ("--cluster=ray", f"--address={cluster.address}")
        log = tmp_path / "log"
        with serving(plan, *on_ray, environment={}, redirections=f"2>{log}") as server:
            with Asking(server.url, tmp_path / "m.onnx") as asking:
                asking.until_answered()
                before = {child for agent in agents() for child in children(agent)}
                # Ray would end this process as well.
                ray.shutdown()
                (head,) = commands("gcs_server")
                kill(head)
                answered = asking.outcomes["answered"]
                for _ in range(50):
                    asking.until_answered()
                assert {child for agent in agents() for child in children(agent)} == before
                assert set(asking.outcomes) == {"answered"}, asking.outcomes
                assert asking.outcomes["answered"] >= answered + 100
                wait_until(
                    lambda: "Ray's head has said nothing for 3 s" in log.read_text(),
                    "nobody is told that the head is away",
                )
            server.signal(signal.SIGTERM)
            code, _ = server.wait()
            assert code == 0, log.read_text()
    wait_until(lambda: not agents() and not commands("AgentActor"), "processes are left behind")
