"""The same over HTTP: `headrace serve` with its nodes here, on one agent, and on two.

    PYTHONPATH=tests python -m benchmarks.cluster.over_http

64 connections of a client process ask without pause (JSON, 16 numbers); requests/s, and then the
median latency of one connection alone. The gateway has the last core, agents have their workers on
the first. Rounds take turns. Every answer is compared with the first.
"""

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import uvloop
from benchmarks.cluster.run import CORE
from benchmarks.command_line import new_parser

from headrace.serving.workers.remote.handshake import SECRET_VARIABLE
from helpers.agents import SECRET, agents
from helpers.live_server import serving, write_plan
from helpers.served import WIDTH, served_chain

AT_ONCE, ROUNDS, ROUND_S, SINGLES = 64, 3, 3.0, 300
BODY = json.dumps(
    {
        "inputs": [
            {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": np.ones(WIDTH).tolist()}
        ]
    }
)


class Asking:
    """One connection that asks the same again and again."""

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._request = (
            f"POST /v2/models/m/infer HTTP/1.1\r\nHost: {self._host}:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
        ).encode()

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def ask(self) -> bytes:
        """The answer's outputs; refusals fail."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0])
        body = await self._reader.readexactly(length)
        return body[body.index(b'"outputs"') :]

    def close(self) -> None:
        self._writer.close()


async def measure(url: str) -> tuple[float, float]:
    """(requests/s of AT_ONCE, median microseconds of one alone)."""
    connections = [Asking(url) for _ in range(AT_ONCE)]
    for each in connections:
        await each.open()
    first, took = await connections[0].ask(), []
    for _ in range(SINGLES):
        began_ns = time.perf_counter_ns()
        assert await connections[0].ask() == first, "a wrong answer"
        took.append((time.perf_counter_ns() - began_ns) / 1000)
    loop, answered = asyncio.get_running_loop(), 0
    began_s = loop.time()

    async def ask(connection: Asking) -> None:
        nonlocal answered
        while loop.time() < began_s + ROUND_S:
            assert await connection.ask() == first, "a wrong answer"
            answered += 1

    await asyncio.gather(*map(ask, connections))
    rate_rps = answered / (loop.time() - began_s)
    for each in connections:
        each.close()
    return rate_rps, median(took)


def main() -> None:
    new_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plans = {}
        for each, (pools, nodes, gbps) in {
            "pair": ((1, 1), 2, 100.0),
            "alone": ((1, 1), 1, None),
            "single": ((1,), 1, None),
        }.items():
            (folder / each).mkdir()
            served = served_chain(folder / each, pools=pools, batch_size=16, nodes=nodes, gbps=gbps)
            plans[each] = write_plan(served, folder / each)
        environment = {SECRET_VARIABLE: SECRET, "HEADRACE_CACHE": str(folder / "cache")}
        with agents(folder, "n0", "n1", arguments=("--cores", str(CORE))) as started:
            where = [f"--node={each.name}=127.0.0.1:{each.port}" for each in started]
            setups = {
                "two stages, here": ("alone", []),
                "two stages, 2 agents": ("pair", where),
                "one stage, here": ("single", []),
                "one stage, local node": ("single", ["--node=n0=local"]),
                "one stage, 1 agent": ("single", where[:1]),
            }
            # Else the workers of the server's own machine would leave it no core.
            kept = ("--core", str(max(os.sched_getaffinity(0))))
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in setups}
            for _ in range(ROUNDS):
                for name, (plan, on) in setups.items():
                    with serving(
                        plans[plan], "--no-auth", *kept, *on, environment=environment
                    ) as server:
                        found[name].append(uvloop.run(measure(server.url)))
        for name, rounds in found.items():
            rates = ", ".join(f"{rate:.0f}" for rate, _ in rounds)
            rate, p50 = (median(column) for column in zip(*rounds, strict=True))
            print(f"{name:22} {rate:8.0f} requests/s  (rounds: {rates})   p50 {p50:6.0f} us")


if __name__ == "__main__":
    main()
