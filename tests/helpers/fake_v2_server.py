"""A tiny Open Inference Protocol server on an ephemeral port; each test says how it answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import httptools
import msgspec

METADATA = {
    "name": "m",
    "versions": ["1"],
    "platform": "fake",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 16]}],
}


def response(status: int, body: bytes = b"{}", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), headers, body)


@dataclass(slots=True)
class Call:
    """One request that the server has read, and the way to answer it."""

    path: str
    headers: dict[bytes, bytes]
    body: bytes
    transport: asyncio.Transport

    def reply(self, raw: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(raw)


Answer = Callable[[Call], None]


def answer_at_once(call: Call) -> None:
    call.reply(response(200, b'{"outputs":[]}'))


@dataclass(slots=True)
class FakeServer:
    """What a test may look at and change while it runs."""

    answer: Answer = answer_at_once
    metadata: bytes = msgspec.json.encode(METADATA)
    models: tuple[str, ...] = ("m",)
    config: bytes = b'{"parameters":{"slo_us":{"string_value":"250000"}}}'
    calls: list[Call] = field(default_factory=list)
    """Infer requests only."""
    connections: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def handle(self, call: Call) -> None:
        if call.path.endswith("/infer"):
            self.calls.append(call)
            self.answer(call)
        elif call.path in [f"/v2/models/{model}" for model in self.models]:
            document = msgspec.json.decode(self.metadata)
            document["name"] = call.path.rpartition("/")[2]
            call.reply(response(200, msgspec.json.encode(document)))
        elif call.path == "/v2/repository/index":
            call.reply(response(200, msgspec.json.encode([{"name": m} for m in self.models])))
        elif call.path in [f"/v2/models/{model}/config" for model in self.models]:
            call.reply(response(200, self.config))
        else:
            call.reply(response(404, b'{"error":"no such model"}'))


class _Connection(asyncio.Protocol):
    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path = ""
        self._headers: dict[bytes, bytes] = {}
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._server.handle(Call(self._path, self._headers, self._body, self._transport))


@asynccontextmanager
async def fake_server(answer: Answer = answer_at_once) -> AsyncIterator[FakeServer]:
    """Serve model `m` ([-1, 16] float32, SLO 250 ms) on 127.0.0.1 until the block ends."""
    fake = FakeServer(answer)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(fake), "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
