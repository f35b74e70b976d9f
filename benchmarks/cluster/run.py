"""What a network between stages costs: the same plan on one node and on two, over loopback.

    PYTHONPATH=tests python -m benchmarks.cluster.run [rates] [tensors] [idle]

rates    trivial stages (a MatMul and a Tanh of 16 numbers), a client inside the gateway's process,
         so that nothing but the data plane is compared: requests/s of 64 at a time, and the median
         latency of one at a time. `here`: no agent; `1 agent`: all slots on one; `2 agents`: each
         stage on its own. Rounds take turns, so that a busy machine is busy for all; workers stay
         on the first core in all setups, and gateway and agents go where they like.
tensors  3 MB at a time from one agent's arena to another's, eight under way.
idle     resident memory of an agent that nobody has called.

Every answer is compared with that of the first.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import uvloop
from benchmarks.command_line import new_parser

from headrace.domain.tensors import TensorSpec
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.served_plan import ServiceOptions
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.remote.cluster import close_links
from headrace.serving.workers.remote.transport import NetworkTransport
from headrace.serving.workers.stage_io import HERE, Region, TensorGroup
from helpers.agents import AgentProcess, agents, cluster_of, opened_links
from helpers.served import WIDTH, Client, Served, rows_of, served_chain

AT_ONCE, ROUNDS, ROUND_S, SINGLES = 64, 5, 2.0, 300
TENSOR_BYTES, UNDER_WAY, TENSORS = 3_000_000, 8, 1_000
CORE = min(os.sched_getaffinity(0))
ROW = np.ones((1, WIDTH), np.float32)


async def rate_rps(engine: Engine, expected: np.ndarray) -> float:
    """Closed loop, AT_ONCE at a time."""
    client, loop = Client(engine), asyncio.get_running_loop()
    until_s, answered = loop.time() + ROUND_S, 0

    async def ask() -> None:
        nonlocal answered
        while loop.time() < until_s:
            assert (rows_of(await client.send(ROW)) == expected).all(), "a wrong answer"
            answered += 1

    began_s = loop.time()
    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return answered / (loop.time() - began_s)


async def latency_us(engine: Engine) -> float:
    """Median of one at a time."""
    client, took = Client(engine), []
    for _ in range(SINGLES):
        began_ns = time.perf_counter_ns()
        await client.send(ROW)
        took.append((time.perf_counter_ns() - began_ns) / 1000)
    return median(took)


async def rates(folder: Path, nodes: list[AgentProcess]) -> None:
    pair: Served = served_chain(folder / "pair", pools=(1, 1), batch_size=16, nodes=2, gbps=100.0)
    alone: Served = served_chain(folder / "alone", pools=(1, 1), batch_size=16, nodes=1)
    single: Served = served_chain(folder / "single", pools=(1,), batch_size=16, nodes=1)
    setups = {
        "two stages, here": (alone, nodes[:0]),
        "two stages, 1 agent": (alone, nodes[:1]),
        "two stages, 2 agents": (pair, nodes),
        "one stage, here": (single, nodes[:0]),
        "one stage, 1 agent": (single, nodes[:1]),
    }
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in setups}
    for _ in range(ROUNDS):
        for name, (served, on) in setups.items():
            # Each a gateway of its own, which follows the one before.
            engine = served.engine(
                ServiceOptions(cluster=cluster_of(*on) if on else None, cores=(CORE,))
            )
            await engine.start()
            try:
                expected = rows_of(await Client(engine).send(ROW))
                found[name][1].append(await latency_us(engine))
                found[name][0].append(await rate_rps(engine, expected))
            finally:
                await engine.stop()
    for name, (of_rate, of_latency) in found.items():
        print(
            f"{name:22} {median(of_rate):8.0f} requests/s  (rounds: "
            + ", ".join(f"{each:.0f}" for each in of_rate)
            + f")   p50 {median(of_latency):6.0f} us"
        )
    rps = {name: median(of_rate) for name, (of_rate, _) in found.items()}
    p50 = {name: median(of_latency) for name, (_, of_latency) in found.items()}
    print(
        f"2 agents beside here: {rps['two stages, 2 agents'] / rps['two stages, here']:.2f}x"
        f" requests/s (target >= 0.6), p50 +"
        f"{p50['two stages, 2 agents'] - p50['two stages, here']:.0f} us (target <= 500)"
    )
    for stages in ("one stage", "two stages"):
        ratio = rps[f"{stages}, 1 agent"] / rps[f"{stages}, here"]
        print(f"{stages}, 1 agent beside here: {ratio:.2f}x requests/s (target >= 0.9)")


async def tensors(nodes: list[AgentProcess]) -> None:
    group = TensorGroup.of((TensorSpec(name="x", dtype="uint8", item_shape=(TENSOR_BYTES,)),))
    cluster = cluster_of(*nodes)
    arena = Arena(64 << 20)
    links = await opened_links(cluster, "n0", "n1", arena_bytes=arena.size_bytes)
    transport = NetworkTransport(arena, links, LiveClock(asyncio.get_running_loop()))
    for link in links.values():
        link.keep()
    content = np.random.default_rng(0).integers(0, 256, TENSOR_BYTES, np.uint8).tobytes()
    here = transport.allocate(group, 1, HERE)
    transport.view[here.offset : here.offset + TENSOR_BYTES] = content
    first = await moved(transport, here, links["n0"].home)

    for source, target in (("n0", "n1"), ("n1", "here"), ("here", "n1")):
        home = HERE if target == "here" else links[target].home
        start = here if source == "here" else await moved(transport, first, links[source].home)
        left = TENSORS

        async def carry(start: Region, home: str) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                transport.free(await moved(transport, start, home))

        for _ in range(3):
            left = TENSORS
            began_s = time.perf_counter()
            await asyncio.gather(*(carry(start, home) for _ in range(UNDER_WAY)))
            took_s = time.perf_counter() - began_s
            print(f"{source} to {target}: {TENSORS * TENSOR_BYTES / took_s / 1e9:.2f} GB/s")
    back = await moved(transport, await moved(transport, first, links["n1"].home), HERE)
    assert bytes(transport.view[back.offset : back.offset + TENSOR_BYTES]) == content, "torn"
    await close_links(links)
    arena.close()


async def moved(transport: NetworkTransport, region: Region, home: str) -> Region:
    """As it is there; where it was it stays."""
    if region.home == home:
        return region
    done: asyncio.Future[Region | None] = asyncio.get_running_loop().create_future()
    transport.move(region, home, 0, sys.maxsize, done.set_result)
    there = await done
    assert there is not None, "the tensors did not arrive"
    return there


def idle(nodes: list[AgentProcess]) -> None:
    for node in nodes:
        status = Path(f"/proc/{node.process.pid}/status").read_text()
        [resident] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        print(f"agent {node.name}: {int(resident.split()[1]) / 1000:.0f} MB resident")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("wanted", nargs="*", metavar="rates, tensors, idle", help="[all]")
    wanted = parser.parse_args().wanted
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("pair", "alone", "single"):
            (folder / each).mkdir()
        with agents(folder, "n0", "n1", arguments=("--cores", str(CORE))) as nodes:
            if not wanted or "idle" in wanted:
                idle(nodes)
            if not wanted or "tensors" in wanted:
                uvloop.run(tensors(nodes))
            if not wanted or "rates" in wanted:
                uvloop.run(rates(folder, nodes))


if __name__ == "__main__":
    main()
