"""A lean client of gRPC for load: prepared frames, many calls on few connections.

The libraries' clients spend several times what the server does on a small call, and would measure
themselves. This one knows no more of HTTP/2 than a load run with small answers needs.
"""

import asyncio
import socket
from typing import cast

import numpy as np
from benchmarks.serving.open_loop import Target

from headrace.load.client import Endpoint, SentRequest
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.grpc import frames
from headrace.serving.front.grpc.messages import message

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
CONNECTIONS = 8
OPENING = (
    frames.PREFACE
    + frames.settings(((frames.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW),))
    + frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
)
_OK = b"grpc-status\x010"


def grpc_request(width: int) -> bytes:
    """A ModelInferRequest for x + 1."""
    request = message("ModelInferRequest")(model_name="addone")
    request.inputs.add(name="x", datatype="FP32", shape=[1, width])
    request.raw_input_contents.append(np.full(width, 0.5, np.float32).tobytes())
    written: bytes = request.SerializeToString()
    return written


def call(path: str, body: bytes, stream: int, *, end: bool = True) -> bytes:
    """All frames of a call with one message; header fields as literals, which have no state."""
    block = frames.header_block(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
        )
    )
    data = b"\0" + len(body).to_bytes(4) + body
    flags = frames.END_STREAM if end else 0
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block)
    return head + frames.frame(frames.DATA, flags, stream, data)


class GrpcTarget(Target):
    """One server and the call that asks it for x + 1 of 16 numbers."""

    def request(self) -> bytes:
        return call(self.path, self.body, 0)

    def pool(self) -> "GrpcPool":
        return GrpcPool(self.endpoint(), CONNECTIONS)

    def ask_once(self) -> bytes:
        """The bytes that came back."""
        address = self.endpoint()
        with socket.create_connection((address.host, address.port), timeout=10) as connection:
            connection.sendall(OPENING + call(self.path, self.body, 1))
            told = b""
            while b"grpc-status" not in told:
                told += connection.recv(1 << 16)
        return told


class GrpcPool:
    """Calls go to the connections in turn."""

    def __init__(self, endpoint: Endpoint, connections: int) -> None:
        self._endpoint = endpoint
        self._connections = [GrpcConnection() for _ in range(connections)]
        self._next = 0

    def submit(self, exchange: SentRequest) -> None:
        self._next = (self._next + 1) % len(self._connections)
        self._connections[self._next].start(exchange, self._endpoint)

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()


class GrpcConnection(asyncio.Protocol):
    """Opened with its first call."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[object] | None = None
        self._waiting: list[SentRequest] = []
        self._open: dict[int, SentRequest] = {}
        self._stream = -1
        self._rest = b""

    def start(self, exchange: SentRequest, endpoint: Endpoint) -> None:
        if self._transport is None:
            self._waiting.append(exchange)
            if self._connecting is None:
                loop = asyncio.get_running_loop()
                self._connecting = loop.create_task(
                    loop.create_connection(lambda: self, endpoint.host, endpoint.port)
                )
            return
        self._stream += 2
        self._open[self._stream] = exchange
        exchange.sent_at_us = monotonic_us()
        [template] = exchange.parts
        number = frames.WORD.pack(self._stream)
        second = 9 + int.from_bytes(template[:3])
        self._transport.write(
            b"".join(
                (template[:5], number, template[9 : second + 5], number, template[second + 9 :])
            )
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(OPENING)
        waiting, self._waiting = self._waiting, []
        for exchange in waiting:
            self.start(exchange, Endpoint(host="", port=1))

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= 9:
            high, low, kind, flags, stream = frames.HEADER.unpack_from(data, at)
            end = at + 9 + (high << 16 | low)
            if end > len(data):
                break
            if kind == frames.PING and not flags and self._transport is not None:
                self._transport.write(frames.frame(kind, frames.ACK, 0, data[at + 9 : end]))
            ended = kind == frames.HEADERS and flags & frames.END_STREAM
            if ended or kind == frames.RST_STREAM:
                exchange = self._open.pop(stream, None)
                if exchange is not None:
                    exchange.status = 200 if _OK in data[at:end] else 500
                    exchange.finish()
            at = end
        self._rest = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for exchange in [*self._open.values(), *self._waiting]:
            exchange.finish("closed")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
