"""What gateway and apps' process say to each other: typed frames, tensors raw behind them.

    frame   length of the body, length of the tail (little-endian, 4 bytes each) | body | tail
    body    MessagePack: [the frame (its kind, then its fields), [[data type, shape] per tensor]]
    tail    the tensors' bytes, one after the other; of strings each with its length before it

    gateway    Modules   Begin     Answer    Cancel    Stop
    apps       Ready     or NotReady, once
               Call      GiveUp    Returned  or Invalid  or Erred, of a request that was begun

A request that was begun ends by one frame of the apps', or by Cancel. Lengths are checked before
room is made, and tensors against the tail; nothing is ever unpickled. A frame that is complete when
it is read costs one copy, a larger one is received into its own memory, and its tensors are views.

Signs of life (`Beat`) travel on a socket of their own, a packet each: they come from a thread that
goes on while the loop is held up.
"""

import asyncio
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.domain.elements import number_dtype, raw
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import DATATYPES
from headrace.serving.workers.frames import FrameError

Tensors = Sequence[NDArray[Any]]

MAX_BODY_BYTES = 1 << 20
MAX_TAIL_BYTES = (1 << 31) - 1
_SCRATCH_BYTES = 1 << 16
_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all frames."""


class ModuleSpecs(msgspec.Struct, frozen=True, array_like=True):
    """One item of a module."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool = True
    """False: it takes one request per run, whose tensors are items."""


class Modules(Frame, frozen=True, array_like=True, tag="modules"):
    """Gateway: what can be called under the plan in service, by APP.MODULE."""

    specs: dict[str, ModuleSpecs]


class Begin(Frame, frozen=True, array_like=True, gc=False, tag="begin"):
    """Gateway: run a function; its inputs are the tensors."""

    request: int
    app: str
    deadline_at_us: int
    """On the system's monotonic clock."""


class Answer(Frame, frozen=True, array_like=True, gc=False, tag="answer"):
    """Gateway: what a call gave, one item."""

    call: int


class Cancel(Frame, frozen=True, array_like=True, gc=False, tag="cancel"):
    """Gateway: nobody waits for the request any more."""

    request: int


class Stop(Frame, frozen=True, array_like=True, gc=False, tag="stop"):
    """Gateway: cancel all, and end."""


class DescribedApp(msgspec.Struct, frozen=True, array_like=True):
    """An app function as the gateway knows it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class DescribedFile(msgspec.Struct, frozen=True, array_like=True):
    """What an app file has."""

    path: str
    apps: tuple[DescribedApp, ...]
    modules: tuple[str, ...]
    """That it has handles for."""


class Ready(Frame, frozen=True, array_like=True, tag="ready"):
    """Apps: all files are loaded."""

    files: tuple[DescribedFile, ...]


class NotReady(Frame, frozen=True, array_like=True, tag="not-ready"):
    """Apps: a file cannot be loaded, and why."""

    message: str


class Call(Frame, frozen=True, array_like=True, gc=False, tag="call"):
    """Apps: a request calls a module; the tensors are one item of it."""

    request: int
    call: int
    """Its number in this process."""
    module: str


class GiveUp(Frame, frozen=True, array_like=True, gc=False, tag="give-up"):
    """Apps: the function does not wait for the call any more."""

    request: int
    call: int


class Returned(Frame, frozen=True, array_like=True, gc=False, tag="returned"):
    """Apps: the outputs, checked."""

    request: int


class Invalid(Frame, frozen=True, array_like=True, gc=False, tag="invalid"):
    """Apps: the function refuses its input."""

    request: int
    sentence: str


class Erred(Frame, frozen=True, array_like=True, gc=False, tag="erred"):
    """Apps: the function failed."""

    request: int
    kind: str
    where: str
    trace: str


class LeftWork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Work `aside` that goes on after its request has ended."""

    threads: int = 0
    """That it has had for more than a moment."""
    all_us: int = 0
    """For how long it has had all threads; 0: it has not."""
    app: str = ""
    """Whose the longest is."""
    what: str = ""
    """The function that it is: one that is not Python's own has no line."""
    stack: str = ""
    """Of its thread."""


class Beat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Apps' watchdog: how they do."""

    cpu_us: int
    """Of the process, all threads, since it began."""
    lag_us: int
    """How late the loop was, or is, to do what was due."""
    held: bool
    """It is held up now."""
    app: str | None
    """Whose function runs; "": that of some app, which cannot be told; None: nobody's."""
    stack: str
    """Of whoever holds it."""
    left: LeftWork = LeftWork()


FromGateway = Modules | Begin | Answer | Cancel | Stop
FromApps = Ready | NotReady | Call | GiveUp | Returned | Invalid | Erred
AnyFrame = FromGateway | FromApps


class _Body(msgspec.Struct, array_like=True, gc=False):
    frame: AnyFrame
    tensors: list[tuple[str, list[int]]]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Body)
_BEATS = msgspec.msgpack.Decoder(Beat)


def encode(frame: AnyFrame, tensors: Tensors = ()) -> list[bytes | memoryview]:
    """What to send, in order. Tensors must be contiguous, and are not copied.

    Raises:
        FrameError: it is too long.
    """
    tail = [_raw(array) for array in tensors]
    described = [("bytes" if a.dtype == object else a.dtype.name, list(a.shape)) for a in tensors]
    body = _encoded(_Body(frame, described))
    size = sum(len(part) for part in tail)
    if len(body) > MAX_BODY_BYTES or size > MAX_TAIL_BYTES:
        raise FrameError(f"a frame of {len(body)} and {size} bytes is too long")
    return [_HEAD.pack(len(body), size), body, *tail]


def _encoded(message: msgspec.Struct) -> bytes:
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:
        # An app's exceptions and paths may hold bytes that are no UTF-8 (PEP 383): shown escaped.
        return _ENCODER.encode(_escaped(msgspec.to_builtins(message)))


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list() | tuple():
            return [_escaped(one) for one in value]
        case dict():
            return {_escaped(key): _escaped(one) for key, one in value.items()}
    return value


def _raw(array: NDArray[Any]) -> bytes | memoryview:
    if array.dtype == object:
        return b"".join(_LENGTH.pack(len(text)) + text for text in array.ravel())
    return raw(array).data if array.nbytes else b""


def decode(data: memoryview, body_bytes: int) -> tuple[AnyFrame, list[NDArray[Any]]]:
    """A whole frame, without its head.

    Raises:
        FrameError: it is none.
    """
    try:
        body = _DECODER.decode(data[:body_bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"not a frame: {error}") from error
    tail, at = data[body_bytes:], 0
    arrays = []
    for dtype, shape in body.tensors:
        if dtype not in DATATYPES or len(shape) > 8 or any(dim < 0 for dim in shape):
            raise FrameError(f"not a tensor: {dtype[:32]!a} of {len(shape)} dimensions")
        array, at = (_strings if dtype == "bytes" else _numbers)(dtype, shape, tail, at)
        arrays.append(array)
    if at != len(tail):
        raise FrameError(f"{len(tail) - at} bytes are left over")
    return body.frame, arrays


def _numbers(dtype: str, shape: list[int], tail: memoryview, at: int) -> tuple[NDArray[Any], int]:
    numbers = number_dtype(dtype)
    end = at + math.prod(shape) * numbers.itemsize
    if end > len(tail) or math.prod(max(1, dim) for dim in shape) > MAX_TAIL_BYTES:
        raise FrameError("a tensor is longer than its frame")
    return np.frombuffer(tail[at:end], dtype=numbers).reshape(shape), end


def _strings(dtype: str, shape: list[int], tail: memoryview, at: int) -> tuple[NDArray[Any], int]:
    count = math.prod(shape)
    if count * _LENGTH.size > len(tail) - at:
        raise FrameError("strings are cut off")
    texts: list[bytes | None] = []
    for _ in range(count):
        start = at + _LENGTH.size
        at = start + (_LENGTH.unpack_from(tail, at)[0] if start <= len(tail) else len(tail))
        if at > len(tail):
            raise FrameError("strings are cut off")
        texts.append(bytes(tail[start:at]))
    return np.array([*texts, None], dtype=object)[:-1].reshape(shape), at


def encode_beat(beat: Beat) -> bytes:
    return _encoded(beat)


def decode_beat(packet: bytes) -> Beat:
    """
    Raises:
        FrameError: it is none.
    """
    try:
        return _BEATS.decode(packet)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a sign of life: {error}") from error


class Link(asyncio.BufferedProtocol):
    """One end of the stream, on a loop: sends at once, reports every frame, and the end."""

    def __init__(
        self,
        on_frame: Callable[[AnyFrame, Tensors], None],
        on_closed: Callable[[str], None],
    ) -> None:
        """`on_closed` gets the reason, once, unless `close` was called."""
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._have = 0
        """Bytes of an incomplete frame at the beginning of the scratch memory."""
        self._large: bytearray | None = None
        """A frame on its way that does not fit there; filled up to `_filled`."""
        self._filled = 0
        self._closed = False

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: AnyFrame, tensors: Tensors = ()) -> None:
        """Without effect once it is closed."""
        if self._transport is not None and not self._closed:
            self._transport.writelines(encode(frame, tensors))

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "the channel is closed")

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return memoryview(self._scratch)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._large is None:
                self._have += nbytes
                self._cut()
                return
            self._filled += nbytes
            if self._filled == len(self._large):
                whole, self._large = self._large, None
                self._report(memoryview(whole)[_HEAD.size :], _HEAD.unpack_from(whole)[0])
        except FrameError as error:
            self._fail(str(error))

    def _cut(self) -> None:
        """Report what is complete, and keep the rest."""
        at = 0
        while self._have - at >= _HEAD.size and not self._closed:
            body, tail = _HEAD.unpack_from(self._scratch, at)
            if body > MAX_BODY_BYTES or tail > MAX_TAIL_BYTES:
                raise FrameError(f"a frame announces {body} and {tail} bytes")
            size = _HEAD.size + body + tail
            if size > self._have - at:
                if size > _SCRATCH_BYTES:
                    self._large = bytearray(size)
                    self._filled = self._have - at
                    self._large[: self._filled] = self._scratch[at : self._have]
                    self._have = 0
                    return
                break
            whole = self._scratch[at + _HEAD.size : at + size]
            at += size
            self._report(memoryview(whole), body)
        self._scratch[: self._have - at] = self._scratch[at : self._have]
        self._have -= at

    def _report(self, data: memoryview, body_bytes: int) -> None:
        frame, tensors = decode(data, body_bytes)
        self._on_frame(frame, tensors)

    def _fail(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._on_closed(reason)
