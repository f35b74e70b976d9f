"""Bursts in which one request of twelve has an index out of range: is every other answered rightly?

    python -m benchmarks.live.bad_inputs

A table is looked up, as in an embedding. Server and workers stay on core 0, the client, a process
of its own with one connection per request of a burst, on core 1.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import onnx
from benchmarks.live.result import Check, Result, table
from examples.demo.shell import Server, headrace
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

ROWS, WORDS, WIDTH = 1_000, 16, 256
BURST, BAD_EVERY = 24, 12
EVERY_S = 0.25
SLO_MS = 200

PROBLEM = f"""\
schema: headrace.problem/1
cluster:
  devices:
    cpu: {{max_utilisation: 0.5}}
  nodes:
    - {{name: local, devices: {{cpu: 1}}}}
models:
  - {{profile: lookup.profile.json, slo_ms: {SLO_MS}}}
options:
  max_batch: 8
"""


def lookup_model() -> onnx.ModelProto:
    """int64 `words` [N, WORDS] -> `y` [N, WIDTH], the mean of their rows; row w is all w."""
    rows = np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], WIDTH, axis=1)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["rows", "words"], ["found"], name="gather"),
            helper.make_node("ReduceMean", ["found"], ["y"], name="mean", axes=[1], keepdims=0),
        ],
        "lookup",
        [helper.make_tensor_value_info("words", TensorProto.INT64, ["N", WORDS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", WIDTH])],
        [numpy_helper.from_array(rows, "rows")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def ends_of_bursts(url: str, core: int, bursts: int, seed: int) -> Counter[str]:
    """How requests ended, by "good" or "bad" and what came; in this process, kept on a core."""
    os.sched_setaffinity(0, {core})
    return asyncio.run(_ends(url, bursts, np.random.default_rng(seed)))


async def _ends(url: str, bursts: int, rng: np.random.Generator) -> Counter[str]:
    parts = urlsplit(url)
    streams = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(BURST)]
    ends: Counter[str] = Counter()
    begin_s = time.monotonic()
    for burst in range(bursts):
        await asyncio.sleep(max(0.0, begin_s + burst * EVERY_S - time.monotonic()))
        words = rng.integers(0, ROWS, BURST)
        # Not always on the same connections, or these would soon run apart.
        words[rng.choice(BURST, BURST // BAD_EVERY, replace=False)] = ROWS + 5
        asked = [_ask(*stream, int(word)) for stream, word in zip(streams, words, strict=True)]
        ends.update(await asyncio.gather(*asked))
    for _, writer in streams:
        writer.close()
    return ends


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, word: int) -> str:
    tensor = {"name": "words", "shape": [1, WORDS], "datatype": "INT64", "data": [word] * WORDS}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = (
        f"POST /v2/models/lookup/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + body)
    reply = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(reply.split()[1])
    length = int(reply.partition("content-length:")[2].split()[0])
    answer = json.loads(await reader.readexactly(length))
    if word >= ROWS:
        return f"bad {status}"
    if status == 200 and set(answer["outputs"][0]["data"]) == {float(word)}:
        return "good right"
    return f"good {status} {answer.get('reason', 'wrong')}"


def measure(folder: Path, duration_s: float, seed: int) -> Result:
    os.environ["HEADRACE_CACHE"] = str(folder / "cache")
    (folder / "lookup.onnx").write_bytes(lookup_model().SerializeToString())
    (folder / "problem.yaml").write_text(PROBLEM)
    options = ("--shape", f"words={WORDS}", "--blocks", "1", "--max-batch", "8", "--budget-s", "5")
    headrace(folder, "profile", "lookup.onnx", *options, "-o", "lookup.profile.json")
    headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
    allowed = os.sched_getaffinity(0)
    first, last = min(allowed), max(allowed)
    os.sched_setaffinity(0, {first})
    try:
        with (
            Server(folder, "plan.json", "--port", "0", "--no-auth") as server,
            # Started anew, not forked: this process has threads.
            multiprocessing.get_context("spawn").Pool(1) as pool,
        ):
            arguments = (server.url, last, max(1, round(duration_s / EVERY_S)), seed)
            ends = pool.apply(ends_of_bursts, arguments)
    finally:
        os.sched_setaffinity(0, allowed)
    return _judge(ends)


def _judge(ends: Counter[str]) -> Result:
    good = sum(count for end, count in ends.items() if end.startswith("good"))
    bad = sum(count for end, count in ends.items() if end.startswith("bad"))
    listed = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    return Result(
        name="bad_inputs",
        what=f"bursts of {BURST} with one bad request in {BAD_EVERY}",
        checks=(
            Check(
                what="right requests answered rightly",
                target="all",
                measured=f"{ends['good right']} of {good} ({listed})",
                met=ends["good right"] == good,
            ),
            Check(
                what="bad requests told so",
                target="400, all",
                measured=f"{ends['bad 400']} of {bad}",
                met=ends["bad 400"] == bad,
            ),
        ),
        details=dict(ends),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1, help="of the inputs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options.duration_s, options.seed)
    Console(width=120, highlight=False).print(table(result))
    return 0 if result.met else 1


if __name__ == "__main__":
    sys.exit(main())
