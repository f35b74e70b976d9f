"""One model's `/infer`: an exchange becomes an inference to the core, its ending a response."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from headrace.serving.core.protocol import (
    Ending,
    Invalid,
    Late,
    ProtocolCore,
    Submission,
    kind_of,
)
from headrace.serving.core.signature import Fault, InvalidError
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.encodings import (
    COMPRESS_FROM_BYTES,
    compress,
    inflate,
    wanted_encoding,
)
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Limits, Response, internal_error, problem
from headrace.serving.front.v2 import Ask
from headrace.serving.front.v2_apps import codec_of

Aside = Callable[[Callable[[], Any], Callable[["Future[Any]"], None]], None]
"""Runs the first on another thread, then the second, with its result, on the loop's."""

Later = Callable[[float, Callable[[], None]], Any]
"""Calls the second after so many seconds, on the loop's thread."""

SHORTEST_PACE_US, LONGEST_PACE_US = 5_000, 50_000
"""How long a refusal is held back from a client that came back before its time."""

_STATUS_OF: dict[Fault, int] = {
    "malformed": 400,
    "unknown-model": 404,
    "too-large": 413,
    "unknown-encoding": 415,
    "not-representable": 422,
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
    ) -> None:
        self._core = core
        self._model = model
        self._limits = limits
        self.codec = codec_of(core.signature(model), limits.json_bytes)
        self.aside = aside
        self._later = later

    def handle(self, exchange: HttpExchange) -> None:
        refusal = self._core.hopeless(self._model)
        if refusal is not None and _states_no_objective(exchange):
            self.refuse(exchange, self._core.refuse(self._model, refusal))
            return
        encoding = exchange.headers.get(b"content-encoding")
        if encoding is None or encoding == b"identity":
            exchange.work = self._submit(exchange)
            return
        self.aside(
            partial(inflate, exchange.body, encoding, self._limits.body_bytes),
            partial(self._on_inflated, exchange),
        )

    def _submit(self, exchange: HttpExchange) -> Submission | None:
        client = HttpInference(self, exchange)
        return self._core.submit(
            self._model, client, exchange.connection.number, exchange.arrived_at_us
        )

    def refuse(self, exchange: HttpExchange, refusal: Refusal) -> None:
        """Tell it at once; or, to a client that was told to come later and came back before, a
        little later. It can ask nothing else meanwhile, so a connection is refused at most some
        hundred times per second however fast it asks again, and costs others little."""
        response = _refused(refusal)
        if kind_of(refusal) != "overloaded":
            exchange.respond(response)
            return
        connection, now_us = exchange.connection, monotonic_us()
        wait_us = max(SHORTEST_PACE_US, refusal.retry_after_us)
        if now_us >= connection.retry_at_us:
            connection.retry_at_us = now_us + wait_us
            exchange.respond(response)
            return
        held_us = min(wait_us, LONGEST_PACE_US)
        connection.retry_at_us = now_us + held_us + wait_us
        exchange.replace_body(b"")
        self._later(held_us / 1e6, partial(exchange.respond, response))

    def _on_inflated(self, exchange: HttpExchange, future: "Future[bytes]") -> None:
        if exchange.gone:
            return
        try:
            held = exchange.replace_body(future.result())
        except InvalidError as error:
            exchange.respond(_invalid(self._core.invalid(self._model, error)))
            return
        if held:
            exchange.work = self._submit(exchange)
            return
        message = "the server holds too many requests already"
        refusal = Refusal(reason="queue-full", message=message, retry_after_us=0)
        exchange.respond(problem(503, self._core.refuse(self._model, refusal).message))


class HttpInference:
    """One inference asked for over HTTP; a `core.protocol.Client`."""

    __slots__ = ("_ask", "_exchange", "_handler")

    def __init__(self, handler: InferenceHandler, exchange: HttpExchange) -> None:
        self._handler = handler
        self._exchange = exchange
        self._ask: Ask | None = None

    def read(self) -> Ask:
        exchange = self._exchange
        ask = self._ask = self._handler.codec.decode(
            exchange.body, exchange.headers.get(b"inference-header-content-length")
        )
        return ask

    def end(self, ending: Ending) -> None:
        try:
            if isinstance(ending, Answer):
                self._answer(ending)
            elif isinstance(ending, Refusal):
                self._handler.refuse(self._exchange, ending)
            else:
                self._exchange.respond(_told(ending))
        except Exception:
            # The engine may be in the middle of a batch: nothing must reach it from here.
            self._exchange.respond(internal_error())

    def _answer(self, answer: Answer) -> None:
        exchange, ask = self._exchange, self._ask
        assert ask is not None, "only what was read is answered"
        try:
            response = self._handler.codec.encode(ask, answer)
        except InvalidError as error:
            exchange.respond(_invalid(Invalid(str(error), error.fault)))
            return
        accepted = exchange.headers.get(b"accept-encoding")
        encoding = None if accepted is None else wanted_encoding(accepted)
        if encoding is None or response.content_length < COMPRESS_FROM_BYTES:
            exchange.respond(response)
            return
        self._handler.aside(
            partial(compress, response, encoding),
            lambda future: exchange.respond(future.result()),
        )


def _states_no_objective(exchange: HttpExchange) -> bool:
    """Whether the model's own objective and priority hold for it, seen without parsing it."""
    if b"content-encoding" in exchange.headers:
        return False
    body, length = exchange.body, exchange.headers.get(b"inference-header-content-length")
    end = len(body) if length is None or not length.isdigit() else int(length[:12])
    # An escape could spell any name.
    return all(body.find(word, 0, end) < 0 for word in (b'"timeout"', b'"priority"', b"\\u"))


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
    seconds = max(1, -(-refusal.retry_after_us // 1_000_000))
    return problem(
        429 if kind == "overloaded" else 503,
        refusal.message,
        b"Retry-After: %d\r\n" % seconds,
        reason=refusal.reason,
        retry_after_ms=refusal.retry_after_us / 1000,
    )


def _invalid(invalid: Invalid) -> Response:
    return problem(_STATUS_OF[invalid.fault], invalid.message)
