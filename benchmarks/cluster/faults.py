"""A node is killed, frozen or cut off for ten seconds, or loses a worker; the gateway is killed.

    PYTHONPATH=tests python -m benchmarks.cluster.faults [cut] [slow] [gateway]

Two nodes, a stage each, four clients that ask all the time. Printed: requests answered and refused,
wrong answers (each is compared), and how long the slot is out after its node is there again. Then
the same with a slow and lossy network to one node for ten seconds (a proxy in the path, which holds
bytes back), and the time from a gateway's death to the first right answer of the next one.
"""

import asyncio
import json
import os
import signal
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import uvloop
from benchmarks.cluster.run import CORE
from benchmarks.command_line import new_parser

from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.served_plan import ServiceOptions
from headrace.serving.workers.remote.handshake import SECRET_VARIABLE
from helpers.agents import SECRET, AgentProcess, Proxy, agents, cluster_of
from helpers.live_server import serving, write_plan
from helpers.served import WIDTH, Client, Served, rows_of, served_chain

CUT, SLOW = "cut", "slow"
AWAY_S, BEFORE_S, AFTER_S = 10.0, 1.0, 2.0


async def scene(served: Served, nodes: list[AgentProcess], what: str) -> None:
    loop = asyncio.get_running_loop()
    proxy = await Proxy(nodes[1].address).__aenter__()
    engine = served.engine(ServiceOptions(cluster=cluster_of(nodes[0], n1=proxy.address)))
    await engine.start()
    try:
        client, ended, over = Client(engine), Counter[str](), False
        inputs = [np.full((1, WIDTH), i / 10, np.float32) for i in range(8)]
        expected = [rows_of(await client.send(rows)) for rows in inputs]

        async def ask(i: int) -> None:
            while not over:
                i = (i + 1) % len(inputs)
                result = await client.send(inputs[i])
                if isinstance(result, Refusal):
                    ended[f"refused: {result.reason}"] += 1
                    await asyncio.sleep(0.01)
                elif isinstance(result, Answer):
                    right = bool((rows_of(result) == expected[i]).all())
                    ended["answered" if right else "WRONG"] += 1

        asking = [asyncio.ensure_future(ask(i)) for i in range(4)]
        await asyncio.sleep(BEFORE_S)
        if what == CUT:
            proxy.cut()
            await asyncio.sleep(AWAY_S)
            proxy.mend()
        elif what == SLOW:
            proxy.delay_s, proxy.loss = 0.05, 0.02
            await asyncio.sleep(AWAY_S)
            proxy.delay_s, proxy.loss = 0.0, 0.0
        else:
            await asyncio.to_thread(break_and_mend, nodes[1], what)
        mended_at_s = loop.time()
        # A worker's death may not have been noticed yet; a slow network need not cost a slot.
        while not (engine.ready and (what == SLOW or engine.status().slots[1].restarts)):
            await asyncio.sleep(0.005)
        back_s = loop.time() - mended_at_s
        await asyncio.sleep(AFTER_S)
        over = True
        await asyncio.gather(*asking)
        left = engine.status().open_inferences
        print(f"{what}: slots back after {back_s:.2f} s; {dict(ended)}; {left} unanswered")
    finally:
        await engine.stop()
        await proxy.__aexit__()


def gateway_killed(served: Served, nodes: list[AgentProcess], folder: Path) -> None:
    """From its death until the next one, started at once, has answered right."""
    plan = write_plan(served, folder)
    places = [f"--node={each.name}=127.0.0.1:{each.port}" for each in nodes]
    environment = {SECRET_VARIABLE: SECRET, "HEADRACE_CACHE": str(folder / "cache")}
    with serving(plan, *places, "--no-auth", environment=environment) as first:
        expected = answer_of(first.url)
        first.process.kill()
        killed_at_s = time.monotonic()
        first.process.wait()
    with serving(plan, *places, "--no-auth", environment=environment) as second:
        assert answer_of(second.url) == expected, "a wrong answer"
        print(f"kill -9 of the gateway: answers after {time.monotonic() - killed_at_s:.2f} s")


def answer_of(url: str) -> object:
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0] * WIDTH}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/m/infer", body) as response:
        return json.load(response)["outputs"]


def break_and_mend(node: AgentProcess, what: str) -> None:
    """Blocks; returns when the node is there again."""
    if what == "kill -9 of an agent":
        node.kill()
        node.start()
    elif what == "kill -9 of a worker":
        pid = node.process.pid
        [worker] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)
    else:
        node.signal(signal.SIGSTOP)
        time.sleep(AWAY_S)
        node.signal(signal.SIGCONT)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("wanted", nargs="*", help="only these; as they are printed [all]")
    wanted = parser.parse_args().wanted
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        served = served_chain(folder, pools=(1, 1), nodes=2, gbps=100.0)
        with agents(folder, "n0", "n1", arguments=("--cores", str(CORE))) as nodes:
            kills = ("kill -9 of a worker", "kill -9 of an agent", "a node frozen for 10 s")
            for what in (*kills, CUT, SLOW):
                if not wanted or what in wanted:
                    uvloop.run(scene(served, nodes, what))
            if not wanted or "gateway" in wanted:
                gateway_killed(served, nodes, folder)


if __name__ == "__main__":
    main()
