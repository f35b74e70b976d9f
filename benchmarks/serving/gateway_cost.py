"""CPU time of the gateway alone, per small request: sockets, HTTP or gRPC, protocol, metrics.

An engine that answers at once stands behind it; one client on the same machine keeps eight
connections busy. CPU time of the server's process is counted, so other load on the machine
disturbs little.

    python -m benchmarks.serving.gateway_cost
"""

import asyncio
import multiprocessing
import resource
from collections.abc import Mapping
from multiprocessing.connection import Connection

import uvloop
from benchmarks.command_line import new_parser
from benchmarks.serving.grpc_pool import INFER, GrpcTarget, grpc_request
from benchmarks.serving.open_loop import Target, measure
from benchmarks.serving.servers import BINARY_HEADER, V2_BINARY, V2_JSON, WIDTH

from headrace.domain.tensors import TensorSpec
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.engine.engine import EngineStatus
from headrace.serving.engine.inference import Answer, Inference, Refusal, ServedModel
from headrace.serving.front.access import Access
from headrace.serving.front.gateway import Gateway
from headrace.serving.front.grpc.front import GrpcServer
from headrace.serving.front.grpc.service import GrpcService
from headrace.serving.front.http_server import HttpServer

REQUESTS = 20_000
TARGET_US = 120.0


class InstantEngine:
    """Answers with zeros before `submit` returns."""

    def __init__(self) -> None:
        spec = {"dtype": "float32", "item_shape": (WIDTH,)}
        model = ServedModel(
            name="addone",
            inputs=(TensorSpec(name="x", **spec),),  # type: ignore[arg-type]
            outputs=(TensorSpec(name="y", **spec),),  # type: ignore[arg-type]
            slo_us=50_000,
            fastest_us=10,
            max_items=32,
        )
        self.models: Mapping[str, ServedModel] = {"addone": model}
        self.ready = True
        self._answer = Answer(
            outputs=(memoryview(bytes(4 * WIDTH)),),
            arrived_at_us=0,
            deadline_at_us=50_000,
            ended_at_us=100,
        )

    def submit(self, inference: Inference) -> None:
        inference.on_done(self._answer)

    def cancel(self, inference: Inference) -> None:
        """Nothing is ever open."""

    def log_refused(self, model: str, refusal: Refusal) -> None:
        """Nothing is ever refused."""

    def status(self) -> EngineStatus:
        raise NotImplementedError


def main() -> None:
    new_parser(__doc__).parse_args()
    pipe, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    server.start()
    port, grpc_port = pipe.recv()
    url, grpc_url = f"http://127.0.0.1:{port}", f"grpc://127.0.0.1:{grpc_port}"
    path = "/v2/models/addone/infer"
    for name, target in (
        ("gRPC", GrpcTarget(grpc_url, INFER, grpc_request(WIDTH))),
        ("binary", Target(url, path, V2_BINARY, (BINARY_HEADER,))),
        ("JSON", Target(url, path, V2_JSON)),
    ):
        pipe.send("usage")
        before = pipe.recv()
        found = measure(target, rps=3000, duration_s=REQUESTS / 3000)
        pipe.send("usage")
        cpu_us = (pipe.recv() - before) / REQUESTS * 1e6
        print(
            f"{name:7} {cpu_us:6.1f} us CPU per request, {1e6 / cpu_us:8.0f} req/s of one core"
            f"   (target <= {TARGET_US:g} us; p50 {found.p50_ms:.2f} ms at 3000/s)"
        )
    pipe.send("end")
    server.join()


def _serve(pipe: Connection) -> None:
    uvloop.run(_serve_until_told(pipe))


async def _serve_until_told(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    access = Access(bind_host="127.0.0.1", token="the-owner-needs-none")
    server = HttpServer(Gateway(ProtocolCore(InstantEngine()), access, lambda *_: None))
    listener = await loop.create_server(server.connect, "127.0.0.1", 0)
    grpc = GrpcServer(GrpcService(ProtocolCore(InstantEngine()), access, lambda *_: None))
    grpc_listener = await loop.create_server(grpc.connect, "127.0.0.1", 0)
    pipe.send([own.sockets[0].getsockname()[1] for own in (listener, grpc_listener)])
    ended = asyncio.Event()

    def on_message() -> None:
        if pipe.recv() == "usage":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(usage.ru_utime + usage.ru_stime)
        else:
            ended.set()

    loop.add_reader(pipe.fileno(), on_message)
    await ended.wait()
    for own in (listener, grpc_listener):
        own.close()
    server.abort()
    grpc.abort()


if __name__ == "__main__":
    main()
