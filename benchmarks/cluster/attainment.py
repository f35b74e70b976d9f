"""The same plan served on this machine and on a local Ray cluster: attainment, answers.

    python -m benchmarks.cluster.attainment PLAN --model NAME --rps 40 [--duration-s 20]

The cluster has one Ray node for each node of the plan, all on this machine, so that both use the
same cores; Ray's own processes are extra. Both get the same arrivals, one after the other.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.catalog.documents import read_plan

AT_MOST_POINTS = 1.0
STORE_BYTES = 80_000_000
PROGRAM = str(Path(sys.executable).with_name("headrace"))


@contextmanager
def local_cluster(names: Sequence[str | None], cpus: int) -> Iterator[str]:
    """A head without CPUs and a node of each name, None: of no name; its address."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for name in names:
            labels = {} if name is None else {"headrace.io/node": name}
            cluster.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES, labels=labels)
        yield cluster.address
    finally:
        cluster.shutdown()


@contextmanager
def serving(plan: Path, *options: str) -> Iterator[str]:
    """A server; its URL."""
    server = subprocess.Popen(
        [PROGRAM, "serve", str(plan), "--port=0", "--json", "--no-rehearsal", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise SystemExit(f"the server ended with {server.wait()}")
        yield json.loads(line)["url"]
    finally:
        server.terminate()
        server.wait()


def loaded(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """What `headrace load` reports."""
    done = subprocess.run(
        [
            *(PROGRAM, "load", url, "--model", given.model, "--rps", f"{given.rps:g}"),
            *("--duration-s", f"{given.duration_s:g}", "--slo-ms", f"{given.slo_ms:g}", "--json"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rps", type=float, required=True)
    parser.add_argument("--duration-s", type=float, default=20.0)
    parser.add_argument("--slo-ms", type=float, default=300.0)
    given = parser.parse_args()
    slots = read_plan(given.plan).slots
    names = sorted({slot.node for slot in slots})
    with serving(given.plan) as url:
        here = loaded(url, given)
    with (
        local_cluster(names, len(slots)) as address,
        serving(given.plan, "--cluster=ray", f"--address={address}") as url,
    ):
        there = loaded(url, given)
    print(json.dumps({"local": here, "cluster": there}, indent=1))
    kept = [100 * report["total"]["slo_attainment"] for report in (here, there)]
    verdict = "holds" if kept[1] >= kept[0] - AT_MOST_POINTS else "MISSED"
    print(f"attainment: local {kept[0]:.2f} %, {len(names)} Ray nodes {kept[1]:.2f} %: {verdict}")


if __name__ == "__main__":
    main()
