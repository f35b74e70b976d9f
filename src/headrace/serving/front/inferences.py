"""One model's `/infer`: an exchange becomes an inference to the core, its ending a response."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from headrace.serving.core.protocol import (
    Cancellable,
    Ending,
    Invalid,
    Late,
    ProtocolCore,
)
from headrace.serving.core.refusals import kind_of
from headrace.serving.core.signature import Fault, InvalidError, fewer_items
from headrace.serving.engine.inference import LEAST_WAIT_US, Answer, Refusal
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.answer_turns import AnswerTurns
from headrace.serving.front.encodings import (
    COMPRESS_FROM_BYTES,
    compress,
    inflate,
    inflated,
    wanted_encoding,
)
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Limits, Response, internal_error, problem
from headrace.serving.front.v2 import Ask
from headrace.serving.front.v2_answers import LongAnswer
from headrace.serving.front.v2_apps import codec_of

Aside = Callable[[Callable[[], Any], Callable[["Future[Any]"], None]], None]
"""Runs the first on another thread, then the second, with its result, on the loop's."""

Later = Callable[[float, Callable[[], None]], Any]
"""Calls the second after so many seconds, on the loop's thread."""

_JSON_LENGTH = b"inference-header-content-length"

HELD_US, LONGEST_HELD_US = 50_000, 200_000
"""How much later its refusal is told: the first time, and doubled each time up to the second."""

_STATUS_OF: dict[Fault, int] = {
    "malformed": 400,
    "unknown-model": 404,
    "too-large": 413,
    "unknown-encoding": 415,
    "not-representable": 422,
    "queue-full": 503,
}


class InferenceHandler:
    """Serves `/infer` of one model."""

    def __init__(
        self,
        core: ProtocolCore,
        model: str,
        limits: Limits,
        aside: Aside,
        later: Later,
        turns: AnswerTurns,
    ) -> None:
        self._core = core
        self._model = model
        self._limits = limits
        self.codec = codec_of(core.signature(model), limits)
        served = core.signature(model).model
        self._most_bytes = served.max_items * sum(served.input_item_bytes)
        self._keeps_state = served.sequence_idle_us is not None
        self._in_items = f", which {served.max_items} items have{fewer_items(served)}"
        if served.app:
            self._most_bytes = limits.body_bytes  # its tensors are of any length
            self._in_items = ""
        self.aside = aside
        self._later = later
        self.turns = turns

    def admit(self, exchange: HttpExchange) -> Response | None:
        """What the head alone tells: which model, and with binary tensors how large they are. A
        timeout and a priority stand in the body."""
        exchange.leads = self._keeps_state
        headers = exchange.headers
        length, json_length = headers.get(b"content-length"), headers.get(_JSON_LENGTH)
        if length is None or json_length is None or b"content-encoding" in headers:
            return None
        if not json_length.isdigit() or len(json_length) > 12:
            return None  # said when the body is read
        tensors_bytes = int(length) - int(json_length)
        if tensors_bytes <= self._most_bytes:
            return None
        message = (
            f"the tensors are {tensors_bytes} bytes; model {self._model!r} takes at most"
            f" {self._most_bytes} in one request{self._in_items}"
        )
        return _invalid(self._core.invalid(self._model, InvalidError(message, "too-large")))

    def handle(self, exchange: HttpExchange) -> None:
        refusal = self._core.hopeless(self._model, exchange.arrived_at_us)
        if refusal is not None and _states_no_objective(exchange):
            self.refuse(exchange, self._core.refuse(self._model, refusal))
            return
        encoding = exchange.headers.get(b"content-encoding")
        if encoding is None or encoding.lower() == b"identity":
            exchange.work = self._submit(exchange)
            return
        self.aside(
            partial(inflate, exchange.body, encoding, self._limits.body_bytes),
            partial(self._on_inflated, exchange),
        )

    def _submit(self, exchange: HttpExchange) -> Cancellable | None:
        client, connection = HttpInference(self, exchange), exchange.connection
        return self._core.submit(
            self._model, client, connection.number, connection.owner, exchange.arrived_at_us
        )

    def refuse(self, exchange: HttpExchange, refusal: Refusal) -> None:
        """Tell it at once; or later, to a client that came back before its time. It can ask nothing
        else meanwhile, so however fast it asks again it is soon refused 5 times per second and
        costs others little."""
        response = _refused(refusal)
        if kind_of(refusal) != "overloaded":
            exchange.respond(response)
            return
        connection, now_us = exchange.connection, monotonic_us()
        # Where nobody knows when it gets better, it may try sooner than it was told.
        wait_us = max(LEAST_WAIT_US, refusal.retry_after_us)
        # By when it came: one that waited to be read is no later for that.
        early = (exchange.arrived_at_us or now_us) < connection.retry_at_us
        held_us = min(max(HELD_US, 2 * connection.held_us), LONGEST_HELD_US) if early else 0
        connection.held_us, connection.retry_at_us = held_us, now_us + held_us + wait_us
        if not early:
            exchange.respond(response)
            return
        exchange.replace_body(b"")
        self._later(held_us / 1e6, partial(exchange.respond, response))

    def untold(self, ask: Ask, answer: Answer, error: InvalidError) -> Response:
        """What is said where an answer cannot be."""
        return _invalid(self._core.unrepresentable(self._model, ask, answer, error))

    def _on_inflated(self, exchange: HttpExchange, future: "Future[bytes]") -> None:
        if exchange.gone:
            return
        try:
            plain = inflated(future)
        except Exception:
            exchange.respond(internal_error())
            return
        if isinstance(plain, InvalidError):
            exchange.respond(_invalid(self._core.invalid(self._model, plain)))
        elif exchange.replace_body(plain):
            exchange.work = self._submit(exchange)
        else:
            message = "the server holds too many requests already"
            refusal = Refusal(reason="queue-full", message=message, retry_after_us=0)
            sentence = self._core.refuse(self._model, refusal).message
            exchange.respond(problem(503, sentence, b"Retry-After: 1\r\n"))


class HttpInference(msgspec.Struct, eq=False):
    """One inference asked for over HTTP; a `core.protocol.Client`."""

    _handler: InferenceHandler
    _exchange: HttpExchange
    _ask: Ask | None = None

    def read(self) -> Ask:
        exchange = self._exchange
        ask = self._ask = self._handler.codec.decode(
            exchange.body, exchange.headers.get(_JSON_LENGTH)
        )
        return ask

    def end(self, ending: Ending) -> bool:
        try:
            if isinstance(ending, Answer):
                return self._answer(ending)
            if isinstance(ending, Refusal):
                self._handler.refuse(self._exchange, ending)
            else:
                self._exchange.respond(_told(ending))
        except Exception:
            # The engine may be in the middle of a batch: nothing must reach it from here.
            self._exchange.respond(internal_error())
            return False
        return True

    def _answer(self, answer: Answer) -> bool:
        """False: it cannot be written as its client wants it. What is found only while a long one
        is written or waits, strings that are not UTF-8, too long in all, that it has to give way,
        its client is told too; but then a step of a sequence has happened, and whoever looked
        meanwhile saw it counted as answered."""
        exchange, ask = self._exchange, self._ask
        assert ask is not None, "only what was read is answered"
        try:
            response = self._handler.codec.encode(ask, answer)
            if isinstance(response, LongAnswer):
                untold = partial(self._handler.untold, ask, _without_tensors(answer))
                peer = exchange.connection.owner
                self._handler.turns.write(response, exchange, peer, self._respond, untold)
                return True
        except InvalidError as error:
            exchange.respond(self._handler.untold(ask, answer, error))
            return False
        self._respond(response)
        return True

    def _respond(self, response: Response) -> None:
        exchange = self._exchange
        accepted = exchange.headers.get(b"accept-encoding")
        encoding = None if accepted is None else wanted_encoding(accepted)
        if encoding is None or response.content_length < COMPRESS_FROM_BYTES:
            exchange.respond(response)
            return
        self._handler.aside(
            partial(compress, response, encoding),
            lambda future: exchange.respond(future.result()),
        )


def _without_tensors(answer: Answer) -> Answer:
    """Those that a long answer needs it holds itself."""
    return Answer(
        outputs=(),
        arrived_at_us=answer.arrived_at_us,
        deadline_at_us=answer.deadline_at_us,
        ended_at_us=answer.ended_at_us,
        run_us=answer.run_us,
    )


def _states_no_objective(exchange: HttpExchange) -> bool:
    """Whether the model's own objective and priority hold for it, seen without parsing it."""
    if b"content-encoding" in exchange.headers:
        return False
    body, length = exchange.body, exchange.headers.get(_JSON_LENGTH)
    end = len(body) if length is None or not length.isdigit() else int(length[:12])
    said = bytes(body[:end])
    # An escape could spell any name.
    return all(word not in said for word in (b'"timeout"', b'"priority"', b"\\u"))


def _told(ending: Late | Invalid) -> Response:
    if isinstance(ending, Late):
        return problem(504, ending.message, reason="late", late_ms=ending.late_us / 1000)
    return _invalid(ending)


def _refused(refusal: Refusal) -> Response:
    kind = kind_of(refusal)
    if kind == "invalid":
        return problem(400, refusal.message, reason=refusal.reason)
    if kind == "broken":
        return problem(500, refusal.message, reason=refusal.reason)
    status = 429 if kind == "overloaded" else 503
    if refusal.never:
        return problem(status, refusal.message, reason=refusal.reason)
    wait_us = refusal.told_wait_us
    return problem(
        status,
        refusal.message,
        b"Retry-After: %d\r\n" % -(-wait_us // 1_000_000),
        reason=refusal.reason,
        retry_after_ms=wait_us / 1000,
    )


def _invalid(invalid: Invalid) -> Response:
    status = _STATUS_OF[invalid.fault]
    if status != 503:
        return problem(status, invalid.message)
    later = b"Retry-After: 1\r\n"
    return problem(status, invalid.message, later, reason=invalid.fault, retry_after_ms=1000.0)
