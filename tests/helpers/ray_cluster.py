"""A Ray cluster of several nodes on this machine, and what of ours runs on it."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NODE = "headrace.io/node"
KIND = "headrace.io/kind"
STORE_BYTES = 80_000_000
"""Ray's least; nothing of ours lies there."""
MARK = "HEADRACE_TEST_RAY_CLUSTER"
"""In the environment of all that such a cluster starts, and of what serves on it: other tests run
servers and agents at the same time."""


class RayCluster:
    """A head without CPUs, and nodes n0, n1, … with two each."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.nodes: dict[str, Any] = {}
        for number in range(nodes):
            self.join(f"n{number}")

    def join(self, name: str, cpus: int = 2, kind: str = "") -> None:
        """A node of this name, and of this kind for profiles."""
        labels = {NODE: name, **({KIND: kind} if kind else {})}
        self.nodes[name] = self._cluster.add_node(
            num_cpus=cpus, object_store_memory=STORE_BYTES, labels=labels
        )

    def kill_raylet(self, name: str) -> None:
        """As a machine that loses its power, as far as Ray sees."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_cluster(nodes: int = 3) -> Iterator[RayCluster]:
    """One cluster, with this process connected to it."""
    import ray

    # Read by the nodes' processes: what they start is to compute beside the tests, not after them.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    os.environ[MARK] = str(os.getpid())
    # What tests have called there is found by name, as here.
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    cluster = RayCluster(nodes)
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": found},
        )
        yield cluster
    finally:
        ray.shutdown()
        cluster.close()


def commands(*words: str) -> dict[int, str]:
    """Process id -> command line, of the cluster's that have all these words in theirs."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and all(word in line for word in words) and _of_cluster(entry):
                found[int(entry.name)] = line
    return found


def _of_cluster(entry: Path) -> bool:
    """Marked, or below this process: what gives itself a title, as Ray's actors do, writes it over
    its environment."""
    try:
        if f"{MARK}={os.getpid()}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
        process = int(entry.name)
        while process > 1 and process != os.getpid():
            process = parent(process)
    except OSError:
        return False
    return process == os.getpid()


def agents(*words: str) -> dict[int, str]:
    """Agents' processes; not those that start them, nor the actors that hold them."""
    return {
        number: line
        for number, line in commands("headrace agent", *words).items()
        if "launch" not in line
    }


def children(process: int) -> set[int]:
    return {
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    }


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
