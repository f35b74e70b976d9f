"""One model's `/infer`: an exchange becomes an inference to the core, its ending a response."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from headrace.serving.core.protocol import Ending, Invalid, Late, ProtocolCore, kind_of
from headrace.serving.core.signature import Fault, InvalidError
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.front.encodings import (
    COMPRESS_FROM_BYTES,
    compress,
    inflate,
    wanted_encoding,
)
from headrace.serving.front.http import HttpExchange
from headrace.serving.front.http_messages import Limits, Response, internal_error, problem
from headrace.serving.front.v2 import Ask
from headrace.serving.front.v2_apps import codec_of

Aside = Callable[[Callable[[], Any], Callable[["Future[Any]"], None]], None]
"""Runs the first on another thread, then the second, with its result, on the loop's."""

_STATUS_OF: dict[Fault, int] = {
    "malformed": 400,
    "unknown-model": 404,
    "too-large": 413,
    "unknown-encoding": 415,
    "not-representable": 422,
}


class InferenceHandler:
    """Serves `/infer` of one model."""

    def __init__(self, core: ProtocolCore, model: str, limits: Limits, aside: Aside) -> None:
        self._core = core
        self._model = model
        self._limits = limits
        self.codec = codec_of(core.signature(model), limits.json_bytes)
        self.aside = aside

    def handle(self, exchange: HttpExchange) -> None:
        encoding = exchange.headers.get(b"content-encoding")
        if encoding is None or encoding == b"identity":
            exchange.work = self._core.submit(self._model, HttpInference(self, exchange))
            return
        self.aside(
            partial(inflate, exchange.body, encoding, self._limits.body_bytes),
            partial(self._on_inflated, exchange),
        )

    def _on_inflated(self, exchange: HttpExchange, future: "Future[bytes]") -> None:
        if exchange.gone:
            return
        try:
            held = exchange.replace_body(future.result())
        except InvalidError as error:
            exchange.respond(_invalid(self._core.invalid(self._model, error)))
            return
        if held:
            exchange.work = self._core.submit(self._model, HttpInference(self, exchange))
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


def _told(ending: Late | Refusal | Invalid) -> Response:
    if isinstance(ending, Refusal):
        return _refused(ending)
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
