"""The control channel's language: typed frames, each MessagePack behind a 4-byte length.

    frame   length of the body, little-endian, 4 bytes | body
    body    MessagePack array: its kind ("run", "finished", ...), then its fields in order

What is said, and by whom:

    gateway  Expect,    Unload     Run         Stop
             Load
    worker   Loaded     Unloaded   Finished    (ends, after   Beat, all the time
             or Failed             or Failed    its batches)

Each Expect, Load, Unload and Run is answered by exactly one frame, which repeats the stage, the
slot and of a Run the batch and its attempt. A gateway that has given a batch another path therefore
knows an old answer from the one that it waits for, and no answer needs to be awaited before the
next frame is sent; frames are worked off in their order, one at a time. Tensors never pass here: a
Run names where in the arena they lie (`arena`).

A stream has no borders between messages, so that whatever arrives is cut by the lengths, and half a
frame waits for its rest; cost O(bytes). Both ends are one installation, and frames carry no
version; they are still decoded strictly, because a process that dies may leave half a frame behind,
and a length is checked before anything is kept.
"""

import struct

import msgspec

from headrace.domain.errors import HeadraceError
from headrace.executors.base import StageToLoad

MAX_FRAME_BYTES = 1 << 20
"""Far above any real frame (a Load of a stage with hundreds of tensors); checked before reading."""


class FrameError(HeadraceError):
    """The other end sent something that is not a frame; the connection cannot be used further."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all frames; on the wire a MessagePack array, its kind first."""


class Load(StageToLoad, frozen=True, array_like=True, gc=False, kw_only=True, tag="load"):
    """Gateway to worker: make a stage ready to run."""

    stage: int
    """The engine's number of it; later frames name it so."""
    executor: str
    """Its kind, as the worker's own table knows it."""
    slot: int = 0
    """Which of the process's slots; as the engine numbers them. Replies name it too."""


class Expect(Frame, frozen=True, array_like=True, gc=False, tag="expect"):
    """Gateway to worker: stages of this kind will come; get ready what runs them."""

    executor: str
    slot: int = 0


class Loaded(Frame, frozen=True, array_like=True, gc=False, tag="loaded"):
    """Worker to gateway: `stage` can run; EXPECTED: those that will come can be loaded."""

    stage: int
    took_us: int
    slot: int = 0
    ended_at_us: int = 0
    """On its host's clock."""


EXPECTED = -1


class Unload(Frame, frozen=True, array_like=True, gc=False, tag="unload"):
    """Gateway to worker: give back what a stage holds. Nothing of it runs after that."""

    stage: int
    slot: int = 0


class Unloaded(Frame, frozen=True, array_like=True, gc=False, tag="unloaded"):
    """Worker to gateway: `stage` holds nothing any more, or never did."""

    stage: int
    slot: int = 0


class Run(Frame, frozen=True, array_like=True, gc=False, tag="run"):
    """Gateway to worker: run one batch. Tensors lie in the arena, size x item bytes each."""

    batch: int
    attempt: int
    stage: int
    size: int
    input_offsets: tuple[int, ...]
    """In the order of the stage's inputs."""
    output_offsets: tuple[int, ...]
    slot: int = 0
    sizes: tuple[int, ...] = ()
    """Of the stage's dynamic dimensions, where they are smaller than those it was loaded for."""


class Finished(Frame, frozen=True, array_like=True, gc=False, tag="finished"):
    """Worker to gateway: the outputs are in the arena. Instants are on its host's clock."""

    batch: int
    attempt: int
    stage: int
    started_at_us: int
    ended_at_us: int
    slot: int = 0


class Failed(Frame, frozen=True, array_like=True, gc=False, tag="failed"):
    """Worker to gateway: a load (batch is -1) or a run ended in an error; the worker lives on,
    unless it is of no use any more."""

    batch: int
    attempt: int
    stage: int
    message: str
    slot: int = 0
    broken: bool = False
    """The worker is of no use: it cannot use its device any more; or, where a run failed, the stage
    fails on one item of zeros as well, which it ran before."""
    no_room: bool = False
    """Of a load: the device has no memory for it now, and may have later."""


class Beat(Frame, frozen=True, array_like=True, gc=False, tag="beat"):
    """Worker to gateway: the process runs, whatever its batch is doing (`pulse`)."""

    waited_us: int = 0
    """Time in which its main thread was ready to run and had no core, since it started."""


class Stop(Frame, frozen=True, array_like=True, gc=False, tag="stop"):
    """Gateway to worker: end after the current batches."""


AnyFrame = Expect | Load | Loaded | Unload | Unloaded | Run | Finished | Failed | Beat | Stop

_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AnyFrame)


def encode(frame: AnyFrame) -> bytes:
    """Return the frame with its length in front.

    Raises:
        FrameError: it is longer than MAX_FRAME_BYTES.
    """
    body = _ENCODER.encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes is longer than {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Turns received bytes into frames; holds an incomplete one until the rest arrives."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> list[AnyFrame]:
        """Return all frames that are complete now.

        Raises:
            FrameError: the bytes are no frame, or announce one that is too long.
        """
        data = self._pending + received if self._pending else received
        frames: list[AnyFrame] = []
        start, end = 0, len(data)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > MAX_FRAME_BYTES:
                raise FrameError(
                    f"frame announces {length} bytes, at most {MAX_FRAME_BYTES} allowed"
                )
            stop = start + 4 + length
            if stop > end:
                break
            try:
                frames.append(_DECODER.decode(memoryview(data)[start + 4 : stop]))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise FrameError(f"not a frame: {error}") from error
            start = stop
        self._pending = data[start:] if start else data
        return frames
