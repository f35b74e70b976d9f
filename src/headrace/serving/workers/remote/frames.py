"""What gateway and agents say to each other: typed frames, some with tensors behind them.

    message   body's length, 4 bytes | payload's length, 8 bytes | body | payload
    body      MessagePack array: its kind, then its fields in order
    payload   raw bytes; no more than the receiver has announced room for

After the handshake:

    agent     Hello
    gateway   Reach
    agent     Reached
    gateway   Open       Start        Chunk+    Order          Put+    Push      Expect     End
    agent     Opened     Missing,               Report(+)              Undelivered,         Ended
              or Refused Ready                                         Arrived
    both      Ping, Pong; agent: Lost; gateway: Cancel, Kill, Nice, Bye
    agent to another, or to the gateway:   Tensors+
    agent to the agent that has called it: Received, all the time

(+: with a payload.) Frames of one connection are handled in the order in which they were sent, so
that an Order may name what the Put before it has brought. Sizes are checked before anything is
kept: a body is at most MAX_BODY_BYTES, and a payload must have the length that its receiver expects
of that very frame.
"""

import struct

import msgspec

from headrace.serving.workers.frames import Beat, Failed, Finished, FrameError, Load, Run

MAX_BODY_BYTES = 4 << 20
"""Far above any real frame (a Start with hundreds of stages)."""
MAX_PAYLOAD_BYTES = 1 << 36
"""No arena is larger; what a payload may really have, its frame's receiver knows."""
CHUNK_BYTES = 1 << 20
"""Of a file at a time: heartbeats and orders go between."""

HEADER = struct.Struct("<IQ")


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all; on the wire a MessagePack array, its kind first."""


class Hello(_Frame, frozen=True, array_like=True, gc=False, tag="hello"):
    """Agent: the first frame of a gateway's connection."""

    name: str
    version: str
    """Headrace's; both ends must be the same."""
    epoch: int
    """The highest that it has seen; 0: none."""
    obeys: bool
    """Whether a gateway has a session with it, and is there."""
    cores: tuple[int, ...]
    """That its workers may be kept on."""
    undivided: str
    """Why it keeps no slots to parts of a device that is no processor; empty: it does."""


class Open(_Frame, frozen=True, array_like=True, gc=False, tag="open"):
    """Gateway: serve a plan, or go on serving it."""

    epoch: int
    """Of the gateway; an agent obeys the highest."""
    gateway: str
    """Tells gateways of one epoch apart."""
    key: str
    """CONTENT/NUMBER: of the plan, and how often the gateway has served it. Equal keys find the
    workers of a session that was cut off, equal contents those of the gateway before."""
    arena_bytes: int
    memory_bytes: int | None
    """Most data memory of one worker; None: any."""


class Reach(_Frame, frozen=True, array_like=True, gc=False, tag="reach"):
    """Gateway, before it opens a session: do you get through to the agents there?"""

    addresses: tuple[tuple[str, int], ...]


class Reached(_Frame, frozen=True, array_like=True, gc=False, tag="reached"):
    """Agent: for each of them why not; empty: it does."""

    failures: tuple[str, ...]


class Opened(_Frame, frozen=True, array_like=True, gc=False, tag="opened"):
    """Agent: from now on, under this number."""

    session: int


class Refused(_Frame, frozen=True, array_like=True, gc=False, tag="refused"):
    """Agent: no, because."""

    reason: str
    for_ever: bool = False
    """Whether it will say so again whenever it is asked."""


class FileRef(_Frame, frozen=True, array_like=True, gc=False):
    """A file by its content."""

    sha256: str
    size_bytes: int
    name: str = ""
    """Of weights beside a model: as the model refers to them."""


class RemoteLoad(_Frame, frozen=True, array_like=True, gc=False):
    """A stage and the files that it needs."""

    load: Load
    """Without paths."""
    file: FileRef | None
    weights: tuple[FileRef, ...]


class RemoteSpec(_Frame, frozen=True, array_like=True, gc=False):
    """See `WorkerSpec`."""

    slot: str
    executor: str
    loads: tuple[RemoteLoad, ...]
    cores: tuple[int, ...]
    quota: str
    """A fraction; empty: none."""
    device: int | None
    percent: int | None


class Start(_Frame, frozen=True, array_like=True, gc=False, tag="start"):
    """Gateway: a process for these slots, loaded; or the one that has served them before."""

    worker: int
    """The gateway's number of it."""
    specs: tuple[RemoteSpec, ...]
    timeout_s: float


class Missing(_Frame, frozen=True, array_like=True, gc=False, tag="missing"):
    """Agent: send me these files first, each by its hash."""

    worker: int
    files: tuple[str, ...]


class Chunk(_Frame, frozen=True, array_like=True, gc=False, tag="chunk"):
    """Gateway: the next bytes of a file, as payload."""

    sha256: str
    size_bytes: int
    """Of the whole file."""
    error: str = ""
    """The file cannot be read; nothing more follows."""


class Ready(_Frame, frozen=True, array_like=True, gc=False, tag="ready"):
    """Agent: the worker has loaded, or why not."""

    worker: int
    process_id: int
    error: str = ""


class Order(_Frame, frozen=True, array_like=True, gc=False, tag="order"):
    """Gateway: run a batch."""

    worker: int
    run: Run
    answer_bytes: int = 0
    """Of what it writes, from the first output on, to be sent with the report; 0: nothing."""


class Report(_Frame, frozen=True, array_like=True, gc=False, tag="report"):
    """Agent: what a worker said."""

    worker: int
    frame: Finished | Failed | Beat


class Lost(_Frame, frozen=True, array_like=True, gc=False, tag="lost"):
    """Agent: a worker has ended though nobody asked it to."""

    worker: int
    reason: str


class End(_Frame, frozen=True, array_like=True, gc=False, tag="end"):
    """Gateway: end a worker, after its batch or at once."""

    worker: int
    at_once: bool


class Ended(_Frame, frozen=True, array_like=True, gc=False, tag="ended"):
    """Agent: nothing is left of it."""

    worker: int
    status: int


class Kill(_Frame, frozen=True, array_like=True, gc=False, tag="kill"):
    """Gateway: the worker is of no use; Lost follows when it is gone."""

    worker: int


class Nice(_Frame, frozen=True, array_like=True, gc=False, tag="nice"):
    """Gateway: a worker's niceness."""

    worker: int
    niceness: int


class Put(_Frame, frozen=True, array_like=True, gc=False, tag="put"):
    """Gateway: the payload belongs here in the agent's arena."""

    offset: int


class Expect(_Frame, frozen=True, array_like=True, gc=False, tag="expect"):
    """Gateway: so many bytes will come from elsewhere, and belong here. Numbers grow."""

    transfer: int
    offset: int
    length: int


class Cancel(_Frame, frozen=True, array_like=True, gc=False, tag="cancel"):
    """Gateway: they will not, or are not to be kept: their place is somebody else's from now on."""

    transfer: int


class Push(_Frame, frozen=True, array_like=True, gc=False, tag="push"):
    """Gateway: send so many bytes to another agent, or, where no host is named, to me."""

    transfer: int
    offset: int
    length: int
    session: int = 0
    """The receiver's."""
    host: str = ""
    port: int = 0


class Tensors(_Frame, frozen=True, array_like=True, gc=False, tag="tensors"):
    """The payload is what the receiver expects under this number."""

    session: int
    transfer: int


class Received(_Frame, frozen=True, array_like=True, gc=False, tag="received"):
    """Agent, to the one that has called it: so many Tensors of this connection are here, wanted or
    not. Said all the time, so that silence says that the connection is dead."""

    tensors: int
    waits: bool = False
    """Those that come next wait there, since it is not known yet where they belong."""


class Arrived(_Frame, frozen=True, array_like=True, gc=False, tag="arrived"):
    """Agent: what was expected is here."""

    transfer: int


class Undelivered(_Frame, frozen=True, array_like=True, gc=False, tag="undelivered"):
    """Agent: what was to be pushed cannot be."""

    transfer: int
    reason: str


class Ping(_Frame, frozen=True, array_like=True, gc=False, tag="ping"):
    """Gateway, all the time."""

    sent_at_us: int


class ActivityOf(_Frame, frozen=True, array_like=True, gc=False):
    """Of a worker that has said nothing for a while; see `activity`."""

    worker: int
    runnable: bool
    ran_us: int


class RunsFor(_Frame, frozen=True, array_like=True, gc=False):
    """Of a batch that a worker has: since its order was handed to it."""

    worker: int
    slot: int
    us: int


class Pong(_Frame, frozen=True, array_like=True, gc=False, tag="pong"):
    """Agent: the answer to each Ping, at once."""

    sent_at_us: int
    """As the Ping has it."""
    now_us: int
    """On the agent's clock."""
    available_bytes: int | None
    """Memory; see `Host.available_memory_bytes`."""
    silent: tuple[ActivityOf, ...] = ()
    runs: tuple[RunsFor, ...] = ()


class Bye(_Frame, frozen=True, array_like=True, gc=False, tag="bye"):
    """Gateway: end the session with all its workers."""


FromGateway = (
    Open
    | Reach
    | Start
    | Chunk
    | Order
    | End
    | Kill
    | Nice
    | Put
    | Expect
    | Cancel
    | Push
    | Ping
    | Bye
    | Tensors
)
"""To an agent, by a gateway; or by another agent, which sends Tensors alone."""
FromAgent = (
    Hello
    | Reached
    | Opened
    | Refused
    | Missing
    | Ready
    | Report
    | Lost
    | Ended
    | Arrived
    | Undelivered
    | Pong
    | Tensors
    | Received
)
AnyRemoteFrame = FromGateway | FromAgent

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyRemoteFrame] = msgspec.msgpack.Decoder(AnyRemoteFrame)


def encode(frame: AnyRemoteFrame, payload_bytes: int = 0) -> bytes:
    """Return the frame with its header in front; so many bytes are to follow.

    Raises:
        FrameError: it is longer than MAX_BODY_BYTES.
    """
    body = _ENCODER.encode(frame)
    if len(body) > MAX_BODY_BYTES:
        raise FrameError(f"frame of {len(body)} bytes is longer than {MAX_BODY_BYTES}")
    return HEADER.pack(len(body), payload_bytes) + body


def read_header(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Lengths of body and payload.

    Raises:
        FrameError: one is more than any frame has.
    """
    body_bytes, payload_bytes = HEADER.unpack_from(data)
    if body_bytes > MAX_BODY_BYTES:
        raise FrameError(f"frame announces {body_bytes} bytes, at most {MAX_BODY_BYTES} allowed")
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameError(
            f"frame announces a payload of {payload_bytes} bytes, at most {MAX_PAYLOAD_BYTES}"
            " allowed"
        )
    return body_bytes, payload_bytes


def decode(body: bytes | memoryview) -> AnyRemoteFrame:
    """
    Raises:
        FrameError: the bytes are no frame.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"not a frame: {error}") from error
