"""The HTTP path of this tree against another's, in turn: processor time per small request.

    python -m benchmarks.serving.in_turn FOLDER

FOLDER is another checkout of this repository (`git worktree add`). Three lengths of the path:

    fed       bytes handed to a connection, an engine that answers at once; no sockets
    gateway   the same over sockets
    served    `headrace serve` of a model that does nothing: dispatcher and tensors too, the
              processor time of the gateway's process

One after the other, this tree and the other take the same load, so that both see the same
minute of the machine; said is the median, and the median of what a pair's quotient is.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parents[2]
FED, SENT, RPS = 2_000, 1_500, 3_000.0
HEADRACE = "from headrace.cli import main; main()"
PROBLEM = """schema: headrace.problem/1
cluster:
  devices:
    cpu: {}
  nodes:
    - {name: local, devices: {cpu: 1}}
models:
  - {profile: addone.profile.json, slo_ms: 50.0}
"""

Take = Callable[[str], float]
"""Form of the request -> microseconds of a processor per request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--lengths", default="fed,gateway,served")
    parser.add_argument("--child", choices=("fed", "gateway"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child == "fed":
        _feed_until_told()
    elif asked.child == "gateway":
        import uvloop

        uvloop.run(_serve_until_told())
    else:
        for length in asked.lengths.split(","):
            _compare(length, asked.folder.resolve(), asked.rounds)


def _compare(length: str, other: Path, rounds: int) -> None:
    with ExitStack() as stack:
        take = {tree: stack.enter_context(_LENGTHS[length](tree)) for tree in (other, HERE)}
        for form in ("binary", "JSON"):
            for each in take.values():
                each(form)  # To warm up.
            pairs = []
            for number in range(rounds):
                order = (other, HERE) if number % 2 else (HERE, other)
                took = {tree: take[tree](form) for tree in order}
                pairs.append((took[other], took[HERE]))
            theirs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
            quotient = statistics.median(first / second for first, second in pairs)
            print(
                f"{length:8} {form:7} other {theirs:6.1f} us, this {ours:6.1f} us: {quotient:.0%}"
                f" of the other's throughput (least {min(p[0] for p in pairs):.1f} and"
                f" {min(p[1] for p in pairs):.1f} us)",
                flush=True,
            )


# -- the driver's side ----------------------------------------------------------------------------


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"}


@contextmanager
def _child(tree: Path, what: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, "--child", what],
        env=_environment(tree),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def _ask(process: "subprocess.Popen[str]", line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    print(line, file=process.stdin, flush=True)
    return process.stdout.readline()


@contextmanager
def _fed(tree: Path) -> Iterator[Take]:
    with _child(tree, "fed") as process:
        yield lambda form: float(_ask(process, form))


@contextmanager
def _gateway(tree: Path) -> Iterator[Take]:
    with _child(tree, "gateway") as process:
        yield _over_sockets(f"http://127.0.0.1:{int(_ask(process, 'port'))}", process.pid)


@contextmanager
def _served(tree: Path) -> Iterator[Take]:
    from benchmarks.live.networks import add_one

    environment = _environment(tree)
    with TemporaryDirectory() as name:
        folder = Path(name)
        environment["HEADRACE_CACHE"] = str(folder / "cache")
        command = [sys.executable, "-c", HEADRACE]

        def headrace(*arguments: str) -> None:
            subprocess.run(
                [*command, *arguments], cwd=folder, env=environment, check=True, capture_output=True
            )

        add_one(folder / "addone.onnx", 16)
        headrace(
            *("profile", "addone.onnx", "--blocks", "1", "--max-batch", "16", "--budget-s", "3"),
            *("-o", "addone.profile.json"),
        )
        (folder / "problem.yaml").write_text(PROBLEM)
        headrace("plan", "problem.yaml", "-o", "plan.json")
        process = subprocess.Popen(
            [*command, "serve", "plan.json", "--port", "0", "--json", "--no-auth"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield _over_sockets(json.loads(process.stdout.readline())["url"], process.pid)
        finally:
            process.terminate()
            process.wait(60)


_LENGTHS = {"fed": _fed, "gateway": _gateway, "served": _served}


def _over_sockets(url: str, pid: int) -> Take:
    from benchmarks.serving.open_loop import measure

    def take(form: str) -> float:
        before_us = _processor_us(pid)
        measure(_target(url, form), RPS, SENT / RPS)
        return (_processor_us(pid) - before_us) / SENT

    return take


def _processor_us(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def _target(url: str, form: str) -> Any:
    from benchmarks.serving.open_loop import Target
    from benchmarks.serving.servers import BINARY_HEADER, V2_BINARY, V2_JSON

    path = "/v2/models/addone/infer"
    if form == "JSON":
        return Target(url, path, V2_JSON)
    return Target(url, path, V2_BINARY, (BINARY_HEADER,))


# -- a tree's own side ----------------------------------------------------------------------------


def _server() -> Any:
    from benchmarks.serving.gateway_cost import InstantEngine

    from headrace.serving.core.protocol import ProtocolCore
    from headrace.serving.front.access import Access
    from headrace.serving.front.gateway import Gateway
    from headrace.serving.front.http_server import HttpServer

    access = Access(bind_host="127.0.0.1", token=None)
    return HttpServer(Gateway(ProtocolCore(InstantEngine()), access, lambda *_: None))


class _Nowhere:
    """A transport as far as a connection uses one between two requests."""

    written = 0

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("192.0.2.7", 40_000), "sockname": ("127.0.0.1", 80)}.get(name)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += 1


def _feed_until_told() -> None:
    """Each line names a form; the answer is microseconds per request."""
    server, transport = _server(), _Nowhere()
    connection = server.connect()
    connection.connection_made(transport)
    for line in sys.stdin:
        request = _target("http://127.0.0.1:80", line.strip()).request()
        before, began_ns = transport.written, time.thread_time_ns()
        for _ in range(FED):
            connection.get_buffer(-1)[: len(request)] = request
            connection.buffer_updated(len(request))
        took_ns = time.thread_time_ns() - began_ns
        assert transport.written == before + FED, "every request was answered"
        print(took_ns / FED / 1e3, flush=True)


async def _serve_until_told() -> None:
    """Answers one line with its port, and ends when no more can come."""
    loop = asyncio.get_running_loop()
    server = _server()
    listener = await loop.create_server(server.connect, "127.0.0.1", 0)
    sys.stdin.readline()
    print(listener.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: None if sys.stdin.readline() else ended.set())
    await ended.wait()
    listener.close()
    server.abort()


if __name__ == "__main__":
    main()
