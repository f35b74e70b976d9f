"""The gRPC front without sockets or a gRPC library, between a fake engine and a fake transport."""

from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import numpy as np
from hpack import Decoder, Encoder

from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.core.repository import Residences
from headrace.serving.front.access import Access
from headrace.serving.front.grpc import frames
from headrace.serving.front.grpc.front import GrpcServer
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.grpc.service import GrpcService
from headrace.serving.front.http_messages import Limits
from helpers.gateway import FakeEngine, FakeTransport, at_once

SERVICE = "/inference.GRPCInferenceService/"
X = np.array([[1, 2, 3, 4]], np.float32)


class GrpcBench:
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
        self.core = ProtocolCore(self.engine, residences=residences)
        access = Access(bind_host="127.0.0.1", token=token)
        limits = limits or Limits()
        self.later: deque[Callable[[], None]] = deque()
        """What connections do after others have had their turn; `GrpcPeer.send` lets them."""
        service = GrpcService(self.core, access, at_once, limits)
        self.server = GrpcServer(service, limits, self.later.append)

    def connect(self, peer: tuple[str, int] = ("127.0.0.1", 40_000)) -> "GrpcPeer":
        return GrpcPeer(self, peer)


class Told:
    """What came back for one call."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.data = b""
        self.reset: int | None = None
        self.over = False

    @property
    def status(self) -> int:
        return int(self.trailers["grpc-status"])

    @property
    def sentence(self) -> str:
        return unquote(self.trailers.get("grpc-message", ""))

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], self.data
        while rest:
            assert rest[0] == 0, "a message is compressed that nobody asked to have compressed"
            size = int.from_bytes(rest[1:5])
            assert len(rest) >= 5 + size
            found.append(rest[5 : 5 + size])
            rest = rest[5 + size :]
        return found

    def parsed(self, name: str) -> Any:
        [only] = self.messages
        return message(name).FromString(only)


class GrpcPeer:
    """A client of HTTP/2 that does what a test wants, also what no client should do."""

    def __init__(self, bench: GrpcBench, peer: tuple[str, int]) -> None:
        self.later = bench.later
        self.transport = FakeTransport(peer)
        self.connection = bench.server.connect()
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._read = 0
        self._next = 1
        self.calls: dict[int, Told] = {}
        self.goaway: tuple[int, int, str] | None = None
        self.frames: list[tuple[int, int, int, bytes]] = []
        """All that came: kind, flags, stream, payload."""

    # -- sending ------------------------------------------------------------------------------

    def send(self, data: bytes, *, turns: bool = True) -> None:
        """
        Args:
            turns: whether the loop then does what connections have left for later.
        """
        if not self.transport.closed:
            self.connection.data_received(data)
        while turns and self.later:
            self.later.popleft()()
        self._take()

    def greet(self, window: int = frames.DEFAULT_WINDOW) -> "GrpcPeer":
        """`window`: bytes that it takes in, of each call and in all."""
        self.send(frames.PREFACE + frames.settings(((frames.INITIAL_WINDOW_SIZE, window),)))
        if window > frames.DEFAULT_WINDOW:
            self.send(frames.window_update(0, window - frames.DEFAULT_WINDOW))
        return self

    def shrink_table(self, size: int) -> None:
        """Of what it decodes, bytes; answers that use more are an error from here on."""
        self._decoder.max_allowed_table_size = size
        self.send(frames.settings(((frames.HEADER_TABLE_SIZE, size),)))

    def head(self, method: str, **fields: str) -> bytes:
        path = method if method.startswith("/") else SERVICE + method
        named = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost:8001",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        named |= {name.replace("_", "-"): value for name, value in fields.items()}
        block: bytes = self._encoder.encode(list(named.items()))
        return block

    def open(self, method: str, **fields: str) -> int:
        """Begin a call; returns its stream."""
        stream, self._next = self._next, self._next + 2
        self.calls[stream] = Told()
        block = self.head(method, **fields)
        self.send(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block))
        return stream

    def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        flags = frames.END_STREAM if end else 0
        self.send(frames.frame(frames.DATA, flags, stream, data))

    def call(self, method: str, body: bytes = b"", **fields: str) -> Told:
        """A whole unary call; returns what came so far."""
        stream = self.open(method, **fields)
        if not self.calls[stream].over:
            self.data(stream, prefixed(body), end=True)
        return self.calls[stream]

    # -- receiving ----------------------------------------------------------------------------

    def _take(self) -> None:
        written = self.transport.written
        while len(written) - self._read >= 9:
            high, low, kind, flags, stream = frames.HEADER.unpack_from(written, self._read)
            length = high << 16 | low
            start = self._read + 9
            if len(written) < start + length:
                return
            self._read = start + length
            payload = bytes(written[start : start + length])
            self.frames.append((kind, flags, stream, payload))
            self._on_frame(kind, flags, stream, payload)

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        told = self.calls.get(stream, Told())
        if kind == frames.HEADERS:
            fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
            if flags & frames.END_STREAM:
                told.trailers, told.over = fields, True
            else:
                told.headers = fields
        elif kind == frames.DATA:
            assert told.headers, "data before headers"
            told.data += payload
        elif kind == frames.RST_STREAM:
            told.reset, told.over = int.from_bytes(payload), True
        elif kind == frames.GOAWAY:
            last, code = frames.GONE.unpack_from(payload)
            self.goaway = last, code, payload[8:].decode()

    def look(self) -> "GrpcPeer":
        """Take in what came since."""
        self._take()
        return self


def prefixed(body: bytes, *, compressed: bool = False) -> bytes:
    return bytes((compressed,)) + len(body).to_bytes(4) + body


def infer_request(x: Any = X, *, raw: bool = True, **fields: Any) -> Any:
    """A ModelInferRequest for the model "adder"."""
    request = message("ModelInferRequest")(model_name="adder", **fields)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    if raw:
        request.raw_input_contents.append(x.tobytes())
    else:
        tensor.contents.fp32_contents.extend(x.ravel().tolist())
    return request


def infer(**fields: Any) -> bytes:
    written: bytes = infer_request(**fields).SerializeToString()
    return written


def answer_of(told: Told) -> Any:
    """The first output of a unary answer."""
    assert told.status == 0, told.sentence
    return np.frombuffer(told.parsed("ModelInferResponse").raw_output_contents[0], np.float32)
