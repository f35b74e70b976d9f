"""ModelInfer and ModelStreamInfer: a message becomes an inference, its ending a message.

A stream's inferences are under way at once, up to `Limits.calls_streamed`, and answered in the
order in which they were asked; what comes beyond waits, and the client's window with it. One that
has no answer gets `error_message`, and the stream goes on; its sequence does not (`sequence_gaps`).
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from headrace.serving.core.held import LEAST_HELD_US
from headrace.serving.core.protocol import Cancellable, Ending, Invalid, ProtocolCore
from headrace.serving.core.sequence_gaps import SequenceGaps
from headrace.serving.core.sequences import Step
from headrace.serving.core.signature import InvalidError
from headrace.serving.engine.inference import Answer
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.encodings import inflate, inflated
from headrace.serving.front.grpc.call import MESSAGE_BYTES, Call
from headrace.serving.front.grpc.codec import Ask, MessageCodec, codec_of
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.grpc.status import (
    ENDED_WELL,
    UNAVAILABLE,
    Status,
    internal_error,
    status_of,
)
from headrace.serving.front.grpc.wire import Parts, field_head, take_apart
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.inferences import Aside

Body = bytes | bytearray
Outcome = list[bytes | memoryview] | Status
"""An answer's message in pieces, or why there is none."""
Tell = Callable[[str, Outcome], None]
"""Of the inference with this id; empty where it has none, or none that could be read."""

_StreamResponse = message("ModelStreamInferResponse")
_INFER_RESPONSE = 2
DRAINING = Status(UNAVAILABLE, "the server is shutting down")


class GrpcInference:
    """One inference asked for over gRPC; a `core.protocol.Client`."""

    __slots__ = ("_ask", "_codec", "_gaps", "_parts", "_step", "_tell", "_timeout_us")

    def __init__(
        self,
        codec: MessageCodec,
        parts: Parts,
        timeout_us: int | None,
        tell: Tell,
        gaps: SequenceGaps | None = None,
    ) -> None:
        """`gaps`: in the stream that it belongs to."""
        self._codec = codec
        self._gaps = gaps
        self._parts = parts
        self._timeout_us = timeout_us
        self._tell = tell
        self._ask: Ask | None = None
        self._step: Step | None = None

    def read(self) -> Ask:
        parts, gaps = self._parts, self._gaps
        try:
            ask = self._ask = self._codec.decode(parts, self._timeout_us)
        except InvalidError:
            # It may be a step however wrong the rest of it is.
            self._step = None if gaps is None else self._codec.step_of(parts)
            raise
        self._step = ask.step
        if gaps is not None and ask.step is not None:
            gaps.check(parts.model, ask.step)
        return ask

    def end(self, ending: Ending) -> bool:
        # The engine may be in the middle of a batch: nothing must reach it from here.
        outcome: Outcome
        told = True
        try:
            if isinstance(ending, Answer):
                assert self._ask is not None, "only what was read is answered"
                outcome = self._codec.encode(self._ask, ending)
            else:
                outcome = status_of(ending)
        except Exception:
            outcome, told = internal_error(), False
        if self._gaps is not None and self._step is not None and isinstance(outcome, Status):
            # Before its client is told: the stream may go on from there.
            self._gaps.add(self._parts.model, self._step)
        try:
            self._tell(self._parts.id, outcome)
        except Exception:
            internal_error()
            told = False
        return told


class Inferences:
    """What all inferences of a server need."""

    def __init__(self, core: ProtocolCore, limits: Limits, aside: Aside) -> None:
        self._core = core
        self.limits = limits
        self._aside = aside
        self._codecs: dict[str, MessageCodec] = {}
        self._refresh()
        core.on_change(self._refresh)

    def _refresh(self) -> None:
        """The core's models are others now."""
        known = {name: self._core.signature(name) for name in self._core.models}
        self._codecs = {
            name: codec
            if (codec := self._codecs.get(name)) and codec.signature is signature
            else codec_of(signature)
            for name, signature in known.items()
        }

    def submit(
        self,
        call: Call,
        body: Body,
        tell: Tell,
        gaps: SequenceGaps | None = None,
        turn: "_Turn | None" = None,
    ) -> Cancellable | None:
        """One message. Returns what can be cancelled; None: it was told already.

        Args:
            gaps, turn: in the stream; None: the message is alone.
        """
        core = self._core
        try:
            parts = take_apart(body, self.limits.json_bytes)
        except InvalidError as error:
            tell("", _invalid(error))
            return None
        codec = self._codecs.get(parts.model)
        if codec is None:
            tell(parts.id, status_of(core.unknown(parts.model)))
            return None
        arrived_at_us = call.arrived_at_us if turn is None else turn.arrived_at_us
        held_us = 0 if turn is None else turn.held_us
        if not (parts.has_parameters or held_us):
            # Neither timeout nor priority of its own: what is hopeless need not be parsed.
            refusal = core.hopeless(parts.model, arrived_at_us)
            if refusal is not None:
                tell(parts.id, status_of(core.refuse(parts.model, refusal)))
                return None
        timeout_us = None
        if call.deadline_at_us is not None:
            timeout_us = call.deadline_at_us - (arrived_at_us or monotonic_us())
        client = GrpcInference(codec, parts, timeout_us, tell, gaps)
        connection = call.connection
        try:
            return core.submit(
                parts.model, client, connection.number, connection.owner, arrived_at_us, held_us
            )
        except Exception:
            tell(parts.id, internal_error())
            return None

    def inflate(self, call: Call, body: Body, then: Callable[[Body | Status], None]) -> None:
        """Decompress a message on another thread."""
        encoding = call.headers.get(b"grpc-encoding", b"identity")
        if encoding == b"identity":
            message = "the message is compressed, and no grpc-encoding says how"
            then(_invalid(InvalidError(message)))
            return

        def on_inflated(future: "Future[bytes]") -> None:
            if call.over:
                return
            try:
                plain = inflated(future)
            except Exception:
                then(internal_error())
                return
            if isinstance(plain, InvalidError):
                then(_invalid(plain))
            elif call.may_hold(len(plain)):
                call.release(len(body))
                then(plain)

        self._aside(partial(inflate, body, encoding, call.message_bytes), on_inflated)


class UnaryInference:
    """ModelInfer: what a call works on."""

    def __init__(self, inferences: Inferences, call: Call, body: Body, compressed: bool) -> None:
        self._call = call
        self._inferences = inferences
        self._submission: Cancellable | None = None
        if compressed:
            inferences.inflate(call, body, self._start)
        else:
            self._start(body)

    def _start(self, body: Body | Status) -> None:
        if isinstance(body, Status):
            self._call.finish(body)
        else:
            self._submission = self._inferences.submit(self._call, body, self._told)

    def _told(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome, Status):
            self._call.finish(outcome)
        else:
            self._call.respond(outcome)

    def cancel(self) -> None:
        if self._submission is not None:
            self._submission.cancel()


class _Turn:
    """When a message of a stream came, and how long it then waited for the stream to have room."""

    __slots__ = ("_waits_from_us", "arrived_at_us", "held_us")

    def __init__(self, arrived_at_us: int | None) -> None:
        self.arrived_at_us = arrived_at_us
        self.held_us = 0
        self._waits_from_us = monotonic_us()

    def come(self) -> None:
        """There is room."""
        held_us = monotonic_us() - self._waits_from_us
        self.held_us = held_us if held_us >= LEAST_HELD_US else 0


class _Asked:
    """One message of a stream, until it is answered."""

    __slots__ = ("outcome", "size", "submission")

    def __init__(self, size: int) -> None:
        self.size = size
        self.submission: Cancellable | None = None
        self.outcome: list[bytes | memoryview] | None = None


class InferenceStream:
    """ModelStreamInfer: what a call works on."""

    def __init__(self, inferences: Inferences, call: Call) -> None:
        self._call = call
        self._inferences = inferences
        self._asked: deque[_Asked] = deque()
        """In order; the first is answered first."""
        self._gaps = SequenceGaps()
        self._waiting: deque[tuple[Body, bool, _Turn]] = deque()
        self._inflating = False
        self._advancing = False
        self.draining = False

    @property
    def awaited(self) -> bool:
        return bool(self._asked or self._waiting or self._inflating)

    def push(self, body: Body, compressed: bool) -> None:
        self._waiting.append((body, compressed, _Turn(self._call.arrived_at_us)))
        self.advance()

    def advance(self) -> None:
        """Take what waits, as far as there is room; and end the call when it is over."""
        if self._advancing:
            return
        self._advancing = True
        call = self._call
        while self._waiting and self._has_room():
            body, compressed, turn = self._waiting.popleft()
            turn.come()
            if compressed:
                self._inflating = True
                self._inferences.inflate(call, body, partial(self._on_inflated, turn))
            else:
                self._start(body, turn)
        self._advancing = False
        call.paused = bool(self._waiting)
        if call.over:
            return
        if not call.paused:
            call.open_window()
        if not self.awaited and call.whole:
            call.finish(ENDED_WELL)
        elif not self.awaited and self.draining:
            call.finish(DRAINING)

    def _has_room(self) -> bool:
        if self._call.over or self._inflating or self._call.pending:
            return False  # a client that does not take its answers gets no more of them
        return len(self._asked) < self._inferences.limits.calls_streamed

    def _on_inflated(self, turn: _Turn, body: Body | Status) -> None:
        self._inflating = False
        if isinstance(body, Status):
            self._call.finish(body)
        else:
            self._start(body, turn)
            self.advance()

    def _start(self, body: Body, turn: _Turn) -> None:
        asked = _Asked(len(body) + MESSAGE_BYTES)
        self._asked.append(asked)
        asked.submission = self._inferences.submit(
            self._call, body, partial(self._told, asked), self._gaps, turn
        )

    def _told(self, asked: _Asked, name: str, outcome: Outcome) -> None:
        asked.outcome = _error(outcome, name) if isinstance(outcome, Status) else _wrapped(outcome)
        while self._asked and self._asked[0].outcome is not None:
            first = self._asked.popleft()
            assert first.outcome is not None
            self._call.send(first.outcome)
            self._call.release(first.size)
        self.advance()

    def cancel(self) -> None:
        self._waiting.clear()
        while self._asked:
            submission = self._asked.popleft().submission
            if submission is not None:
                submission.cancel()


def _wrapped(pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """As the answer of a stream."""
    size = sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)
    return [field_head(_INFER_RESPONSE, size), *pieces]


def _error(status: Status, name: str) -> list[bytes | memoryview]:
    response = _StreamResponse(error_message=status.message)
    response.infer_response.id = name
    for key, value in status.fields:
        response.infer_response.parameters[key.decode()].string_param = value.decode()
    return [response.SerializeToString()]


def _invalid(error: InvalidError) -> Status:
    return status_of(Invalid(str(error), error.fault))
