"""A gateway without sockets or processes: a fake engine behind, a fake transport before."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np

from headrace.domain.tensors import TensorSpec
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.core.repository import Residences
from headrace.serving.engine.engine import EngineStatus
from headrace.serving.engine.inference import Answer, Inference, Refusal, ServedModel
from headrace.serving.front.access import Access
from headrace.serving.front.gateway import Gateway
from headrace.serving.front.http import HttpConnection
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.http_server import HttpServer
from headrace.serving.workers.host import HostGoneError
from headrace.serving.workers.status import AppsStatus

TOKEN = "a-token-of-some-length"


def served_model(
    name: str = "adder",
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = (("x", "float32", (4,)),),
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...] = (("y", "float32", (4,)),),
    max_items: int = 8,
) -> ServedModel:
    def spec(tensor: tuple[str, str, tuple[int, ...]]) -> TensorSpec:
        return TensorSpec(name=tensor[0], dtype=tensor[1], item_shape=tensor[2])

    return ServedModel(
        name=name,
        inputs=tuple(spec(tensor) for tensor in inputs),
        outputs=tuple(spec(tensor) for tensor in outputs),
        slo_us=100_000,
        fastest_us=1_000,
        max_items=max_items,
    )


def moved() -> ServedModel:
    """Takes and gives [2, batch, 3]."""
    spec = {"dtype": "float32", "item_shape": (2, 3), "batch_axis": 1}
    return ServedModel(
        name="adder",
        inputs=(msgspec.convert({"name": "state", **spec}, TensorSpec),),
        outputs=(msgspec.convert({"name": "next", **spec}, TensorSpec),),
        slo_us=100_000,
        fastest_us=1_000,
        max_items=8,
    )


def one_by_one() -> ServedModel:
    """Takes [1, 4] and a scalar, and nothing else."""
    model = served_model(
        inputs=(("x", "float32", (1, 4)), ("rate", "int64", ())),
        outputs=(("y", "float32", (1, 4)),),
        max_items=1,
    )
    return ServedModel(
        name=model.name,
        inputs=model.inputs,
        outputs=model.outputs,
        slo_us=model.slo_us,
        fastest_us=model.fastest_us,
        max_items=1,
        batched=False,
    )


def zeros(model: ServedModel, items: int) -> tuple[memoryview, ...]:
    return tuple(
        memoryview(np.zeros((items, *spec.item_shape), dtype=spec.dtype).tobytes())
        for spec in model.outputs
    )


def plus_one(model: ServedModel, inference: Inference) -> tuple[memoryview, ...]:
    """Each output is the input of the same place, plus one."""
    return tuple(
        memoryview((np.frombuffer(given, dtype=spec.dtype) + 1).astype(spec.dtype).tobytes())
        for given, spec in zip(inference.inputs, model.outputs, strict=False)
    )


class FakeEngine:
    """Answers when told to, or at once with x + 1."""

    def __init__(self, *models: ServedModel, at_once: bool = True) -> None:
        self._models = {model.name: model for model in models or (served_model(),)}
        self.is_ready = True
        self.apps: AppsStatus | None = None
        self.at_once = at_once
        self.open: list[Inference] = []
        self.cancelled: list[Inference] = []
        self.submitted: list[Inference] = []
        self.logged: list[tuple[str, Refusal]] = []
        """Refused before they were read."""

    @property
    def models(self) -> Mapping[str, ServedModel]:
        return self._models

    @property
    def ready(self) -> bool:
        return self.is_ready

    def submit(self, inference: Inference) -> None:
        self.submitted.append(inference)
        if self.at_once:
            inference.on_done(self.answer_to(inference))
        else:
            self.open.append(inference)

    def cancel(self, inference: Inference) -> None:
        self.cancelled.append(inference)
        if inference in self.open:
            self.open.remove(inference)

    def log_refused(self, model: str, refusal: Refusal) -> None:
        self.logged.append((model, refusal))

    def status(self) -> EngineStatus:
        return EngineStatus(
            slots=(),
            open_inferences=len(self.open),
            open_requests=sum(inference.items for inference in self.open),
            running_batches=0,
            arena_used_bytes=0,
            arena_size_bytes=0,
            draining=False,
            apps=self.apps,
        )

    def answer_to(self, inference: Inference, *, ended_at_us: int = 5_000) -> Answer:
        return Answer(
            outputs=plus_one(self._models[inference.model], inference),
            arrived_at_us=0,
            deadline_at_us=inference.timeout_us or 100_000,
            ended_at_us=ended_at_us,
        )

    def finish(self, result: Answer | Refusal | None = None) -> None:
        """End the oldest open inference."""
        inference = self.open.pop(0)
        inference.on_done(result or self.answer_to(inference))


class StartedEngine(FakeEngine):
    """Keeps what a server did with it."""

    def __init__(self, *, at_once: bool = True) -> None:
        super().__init__(at_once=at_once)
        self.life: list[str] = []
        self.gone = asyncio.Event()

    async def until_gone(self) -> None:
        await self.gone.wait()
        raise HostGoneError("refused by all agents")

    async def start(self) -> None:
        self.life.append("start")

    async def drain(self, grace_s: float) -> bool:
        self.life.append("drain")
        return not self.open

    async def stop(self) -> None:
        self.life.append("stop")
        while self.open:
            self.finish(Refusal(reason="draining", message="it ends", retry_after_us=0))


class FakeTransport(asyncio.Transport):
    """Keeps what is written; never touches a socket."""

    def __init__(self, peer: tuple[str, int] = ("127.0.0.1", 40_000)) -> None:
        super().__init__({"peername": peer, "sockname": ("127.0.0.1", 8000)})
        self.protocol: asyncio.BaseProtocol | None = None
        self.written = bytearray()
        self.closed = False
        self.half_closed = False
        self.aborted = False
        self.reading = True
        self.stuck = False
        """The other end reads nothing: `close` waits until `abort`."""
        self.untaken_bytes = 0
        """Of what is written; set it, and `pause_writing` as a transport would."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.half_closed, "written after the end of the stream"
        if not self.closed:
            self.written += data

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self.stuck:
                self._lost()

    def abort(self) -> None:
        if not self.closed or self.stuck:
            self.aborted = self.closed = True
            self.stuck = False
            self._lost()

    def _lost(self) -> None:
        if self.protocol is not None:
            self.protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.untaken_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def at_once(work: Callable[[], Any], then: Callable[["Future[Any]"], None]) -> None:
    """An `Aside` on the same thread."""
    future: Future[Any] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    then(future)
    del future  # An error refers to this frame.


class Bench:
    """One server without sockets; `connect` as often as you like."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        *,
        limits: Limits | None = None,
        token: str | None = None,
        residences: Residences | None = None,
    ) -> None:
        self.engine = engine or FakeEngine()
        limits = limits or Limits()
        access = Access(bind_host="127.0.0.1", token=token)
        self.core = ProtocolCore(self.engine, residences=residences)
        self.held_s: list[float] = []
        """How long answers were held back; they are given at once."""
        self.gateway = Gateway(self.core, access, at_once, limits, self._at_once)
        self.later: deque[Callable[[], None]] = deque()
        """What is done after others have had their turn; `Client.send` lets it."""
        self.server = HttpServer(self.gateway, limits, self.later.append)

    def _at_once(self, delay_s: float, call: Callable[[], None]) -> None:
        if not delay_s:
            self.later.append(call)
            return
        self.held_s.append(delay_s)
        call()

    def connect(self, peer: tuple[str, int] = ("127.0.0.1", 40_000)) -> "Client":
        return Client(self.server.connect(), FakeTransport(peer), self.later)

    def ask(self, request: bytes) -> "Reply":
        """One request on a connection of its own."""
        client = self.connect()
        client.send(request)
        return client.reply()


class Client:
    """One connection's other end."""

    def __init__(
        self,
        connection: HttpConnection,
        transport: FakeTransport,
        later: deque[Callable[[], None]] | None = None,
    ) -> None:
        self.connection = connection
        self.transport = transport
        self.later = deque() if later is None else later
        transport.protocol = connection
        connection.connection_made(transport)

    def send(self, data: bytes, *, turns: bool = True) -> None:
        """As a transport has it: into the buffer that the connection names.

        Args:
            turns: whether the loop then does what connections have left for later.
        """
        rest = memoryview(data)
        while rest and not self.transport.closed:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.connection.buffer_updated(count)
            rest = rest[count:]
            if turns:
                self.take_turns()

    def take_turns(self) -> None:
        """Until no connection waits for one."""
        while self.later:
            self.later.popleft()()

    def replies(self) -> list["Reply"]:
        """What came so far, whole responses only."""
        replies = []
        rest = bytes(self.transport.written)
        while rest:
            reply, rest = parse_reply(rest)
            replies.append(reply)
        return replies

    def reply(self) -> "Reply":
        replies = self.replies()
        assert len(replies) == 1, f"expected one response, got {len(replies)}"
        return replies[0]


class Reply:
    """A parsed response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        import json

        length = self.headers.get("inference-header-content-length")
        return json.loads(self.body[: int(length)] if length else self.body)

    @property
    def error(self) -> str:
        error = self.json["error"]
        assert isinstance(error, str)
        return error


def parse_reply(data: bytes) -> tuple[Reply, bytes]:
    """(first response, rest)."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    assert separator, f"no complete response head in {data[:200]!r}"
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    length = int(headers.get("content-length", "0"))
    assert len(rest) >= length, "the response is shorter than its Content-Length"
    return Reply(int(first.split(" ")[1]), headers, rest[:length]), rest[length:]


def receive(connection: socket.socket) -> Reply:
    """One whole response."""
    data = b""
    while True:
        piece = connection.recv(1 << 16)
        assert piece, f"the connection ended after {data!r}"
        data += piece
        try:
            return parse_reply(data)[0]
        except AssertionError:
            continue


def post(path: str, body: bytes, *headers: str) -> bytes:
    """An HTTP request with a body."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()
