"""A toy front, as small as one can be: a line of numbers in, a line of numbers or a word out.

A line is `MODEL NUMBER NUMBER …`, one item of float32; the answer `ok NUMBER …`, `late`, `refused
REASON` or `invalid SENTENCE`. It listens on a Unix socket whose path is `FrontOptions.host`.
"""

import asyncio
from dataclasses import dataclass

import numpy as np

from headrace.serving.core.protocol import Cancellable, Ending, Invalid, Late, ProtocolCore
from headrace.serving.core.sequences import Step
from headrace.serving.core.signature import CheckedInputs, InvalidError, TensorLayout
from headrace.serving.engine.inference import Refusal
from headrace.serving.front.base import FrontOptions


@dataclass(frozen=True, slots=True)
class LineTensor:
    """All numbers of a line, as the one input that models behind this front have."""

    name: str
    words: list[bytes]
    datatype: str = "FP32"

    @property
    def shape(self) -> list[int]:
        return [1, len(self.words)]


@dataclass(frozen=True, slots=True)
class LineAsked:
    """A `core.protocol.Asked`."""

    inputs: CheckedInputs
    timeout_us: int | None = None
    priority: int = 0
    step: Step | None = None


def _read(tensor: LineTensor, layout: TensorLayout, items: int) -> bytes:
    try:
        return np.array([float(word) for word in tensor.words], np.float32).tobytes()
    except ValueError as error:
        raise InvalidError(str(error)) from error


class LineClient:
    """A `core.protocol.Client`."""

    def __init__(self, core: ProtocolCore, line: bytes, transport: asyncio.Transport) -> None:
        self.model, *self._words = [*line.split(), b""][: max(1, len(line.split()))]
        self._core = core
        self._transport = transport

    def read(self) -> LineAsked:
        signature = self._core.signature(self.model.decode())
        [name] = signature.inputs
        return LineAsked(signature.check([LineTensor(name, self._words)], _read))

    def end(self, ending: Ending) -> bool:
        self._transport.write(_told(ending).encode() + b"\n")
        return True


def _told(ending: Ending) -> str:
    match ending:
        case Late():
            return "late"
        case Refusal(reason=reason):
            return f"refused {reason}"
        case Invalid(message=message):
            return f"invalid {message}"
        case answer:
            return " ".join(["ok", *map(str, np.frombuffer(answer.outputs[0], np.float32))])


class LineConnection(asyncio.Protocol):
    """One client; it has one line under way at a time."""

    transport: asyncio.Transport

    def __init__(self, front: "LineFront") -> None:
        self._front = front
        self._buffer = b""
        self._submission: Cancellable | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._front.open.add(self)

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            client = LineClient(self._front.core, line, self.transport)
            self._submission = self._front.core.submit(client.model.decode(), client)

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.open.discard(self)
        if self._submission is not None:
            self._submission.cancel()


class LineFront:
    """A `Front`."""

    def __init__(self, core: ProtocolCore, options: FrontOptions) -> None:
        self.core = core
        self.address = options.host
        self.open: set[LineConnection] = set()
        self._listener: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self.open)

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_unix_server(lambda: LineConnection(self), self.address)

    def retire(self) -> None:
        """A line has no way to say it."""

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def drain(self) -> None:
        for connection in tuple(self.open):
            connection.transport.close()

    async def stop(self) -> None:
        self.close()
        for connection in tuple(self.open):
            connection.transport.abort()
