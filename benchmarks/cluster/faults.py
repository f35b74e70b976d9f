"""A node is killed, frozen for ten seconds, or loses a worker, under load: what it costs.

    PYTHONPATH=tests python -m benchmarks.cluster.faults

Two nodes, a stage each, four clients that ask all the time. Printed: requests answered and refused,
wrong answers (each is compared), and how long the slot is out after its node is there again.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import uvloop
from benchmarks.cluster.run import CORE

from headrace.serving.engine.inference import Answer, Refusal
from helpers.agents import AgentProcess, agents, cluster_of
from helpers.served import WIDTH, Client, Served, rows_of, served_chain

AWAY_S, BEFORE_S, AFTER_S = 10.0, 1.0, 2.0


async def scene(served: Served, nodes: list[AgentProcess], what: str) -> None:
    loop = asyncio.get_running_loop()
    engine = served.engine(cluster=cluster_of(*nodes))
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
        await asyncio.to_thread(break_and_mend, nodes[1], what)
        mended_at_s = loop.time()
        # A worker's death may not have been noticed yet.
        while not (engine.ready and engine.status().slots[1].restarts):
            await asyncio.sleep(0.005)
        back_s = loop.time() - mended_at_s
        await asyncio.sleep(AFTER_S)
        over = True
        await asyncio.gather(*asking)
        left = engine.status().open_inferences
        print(f"{what}: slots back after {back_s:.2f} s; {dict(ended)}; {left} unanswered")
    finally:
        await engine.stop()


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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        served = served_chain(folder, pools=(1, 1), nodes=2, gbps=100.0)
        with agents(folder, "n0", "n1", arguments=("--cores", str(CORE))) as nodes:
            for what in ("kill -9 of a worker", "kill -9 of an agent", "a node frozen for 10 s"):
                uvloop.run(scene(served, nodes, what))


if __name__ == "__main__":
    main()
