"""Parts of a Ray cluster are killed with -9 under load: how long until answers come again.

    PYTHONPATH=tests python -m benchmarks.cluster.ray_faults [gateway|node|head|minute] [--tries N]

Three Ray nodes on this machine (`ray.cluster_utils.Cluster`), a chain over all of them, one client
that asks all the time and compares each answer.

    gateway   killed; it is started again and adopts the workers: seconds until the next answer,
              and whether every worker is the same process as before
    node      a raylet is killed, with all that Ray has started there, and another node joins in its
              place: seconds from then on, and what `headrace serve` says meanwhile with its times
    minute    a worker, an agent, a raylet (another node takes its place) and the gateway killed,
              a minute each: how many of the requests of that minute were answered
    head      the cluster's own server (GCS) is killed, which nothing of ours asks while it serves:
              how long answers go on, what ends, and what `headrace serve` says and does then
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from helpers.asking import Asking
from helpers.live_server import LiveServer, serving, write_plan
from helpers.ray_cluster import RayCluster, agents, children, commands, kill, ray_cluster
from helpers.served import served_chain
from helpers.waiting import wait_until

MINUTE_S = 60.0
HEAD_S = 100.0
"""Ray's nodes end a minute after their head, unless it is there again."""


def loaded_workers() -> set[int]:
    return {child for agent in agents() for child in children(agent)}


def gateway_killed(server: LiveServer, asking: Asking) -> None:
    (gateway,) = children(server.process.pid) & set(commands("serve", "--node"))
    before, asked = loaded_workers(), asking.outcomes.copy()
    kill(gateway)
    took_s = asking.until_answered()
    adopted, found = len(loaded_workers() & before), dict(asking.outcomes - asked)
    print(
        f"gateway: {took_s:.2f} s, {adopted} of {len(before)} workers adopted; {found}", flush=True
    )


Said = list[tuple[float, str]]
"""What a server has said, with the instants."""


def kill_node(cluster: RayCluster) -> None:
    """With all that Ray has started there."""
    cluster.kill_raylet("n1")
    wait_until(lambda: not agents("--name=n1"), "the agent outlives its node")


def tell(said: Said, since_s: float, from_s: float) -> None:
    """What was said since then, in seconds from `from_s` on."""
    for at_s, line in said:
        if at_s > since_s:
            print(f"  {at_s - from_s:+6.2f} s  {line.rstrip()[:150]}", flush=True)


def node_killed(cluster: RayCluster, asking: Asking, said: Said) -> None:
    killed_s = time.monotonic()
    kill_node(cluster)
    gone_s = time.monotonic()
    cluster.join("n1")
    joined_s = time.monotonic()
    took_s = asking.until_answered()
    print(
        f"node: {took_s:.2f} s from the new one on; its agent ended {gone_s - killed_s:.2f} s after"
        f" the raylet, the new node took {joined_s - gone_s:.2f} s to join",
        flush=True,
    )
    tell(said, killed_s, joined_s)


def minutes(cluster: RayCluster, server: LiveServer, asking: Asking) -> None:
    def node() -> None:
        kill_node(cluster)
        cluster.join("n1")

    kills: dict[str, Callable[[], None]] = {
        "worker": lambda: kill(min(children(next(iter(agents("--name=n1")))))),
        "agent": lambda: kill(next(iter(agents("--name=n1")))),
        "raylet": node,
        "gateway": lambda: kill(
            min(children(server.process.pid) & set(commands("serve", "--node")))
        ),
    }
    for what, strike in kills.items():
        began_s, before = time.monotonic(), asking.outcomes.copy()
        strike()
        asking.until_answered()
        time.sleep(max(0.0, began_s + MINUTE_S - time.monotonic()))
        found = asking.outcomes - before
        print(
            f"{what}: {found['answered'] / found.total():.2%} of {found.total()} requests of the"
            f" minute answered; {dict(found)}",
            flush=True,
        )


def head_killed(server: LiveServer, asking: Asking, said: Said) -> None:
    """The cluster does not come back from it."""
    import ray

    # Ray would end this process as well.
    ray.shutdown()
    (head,) = commands("gcs_server")
    kill(head)
    killed_s = time.monotonic()
    there, answered = len(agents()), asking.outcomes["answered"]
    seen = killed_s
    while time.monotonic() - killed_s < HEAD_S and server.process.poll() is None:
        time.sleep(1.0)
        if asking.outcomes["answered"] > answered:
            answered, seen = asking.outcomes["answered"], time.monotonic()
        if len(agents()) != there:
            there = len(agents())
            print(f"head: {time.monotonic() - killed_s:.0f} s after it, {there} agents", flush=True)
    print(
        f"head: answers until {seen - killed_s:.0f} s after it, of {HEAD_S:g} that were watched;"
        f" `headrace serve` has ended with {server.process.poll()}; {there} agents",
        flush=True,
    )
    tell(said, killed_s, killed_s)


def listening(server: LiveServer) -> Said:
    """What it says on standard error, as it comes, with the instants."""
    said: Said = []
    stream = server.process.stderr
    assert stream is not None

    def listen() -> None:
        for line in stream:
            said.append((time.monotonic(), line))

    threading.Thread(target=listen, daemon=True).start()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    what = ("gateway", "node", "head", "minute")
    parser.add_argument("what", nargs="?", choices=what, help="only this one")
    parser.add_argument("--tries", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ray_cluster() as cluster:
        folder = Path(name)
        plan = write_plan(served_chain(folder, pools=(1, 1, 1), nodes=3), folder)
        on_ray = ("--cluster=ray", f"--address={cluster.address}")
        os.environ["HEADRACE_CACHE"] = str(folder / "cache")
        with serving(plan, *on_ray, environment={}) as server:
            said = listening(server)
            with Asking(server.url, folder / "m.onnx") as asking:
                asking.until_answered()
                if options.what in (None, "minute"):
                    minutes(cluster, server, asking)
                for _ in range(0 if options.what in ("head", "minute") else options.tries):
                    if options.what != "node":
                        gateway_killed(server, asking)
                    if options.what != "gateway":
                        node_killed(cluster, asking, said)
                if options.what in (None, "head"):
                    head_killed(server, asking, said)
            print(f"all: {dict(asking.outcomes)}, every answer right")


if __name__ == "__main__":
    main()
