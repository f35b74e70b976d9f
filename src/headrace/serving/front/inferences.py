"""One model's `/infer`: from an exchange to an inference, from its end to a response."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from headrace.domain.errors import OverloadError
from headrace.serving.engine.engine import EngineStatus
from headrace.serving.engine.inference import Answer, Inference, Refusal, ServedModel
from headrace.serving.front.encodings import (
    COMPRESS_FROM_BYTES,
    EncodingError,
    compress,
    inflate,
    wanted_encoding,
)
from headrace.serving.front.http_messages import Exchange, Limits, Response, internal_error, problem
from headrace.serving.front.prometheus import ModelCounters
from headrace.serving.front.v2 import Ask
from headrace.serving.front.v2_apps import codec_of
from headrace.serving.front.v2_tensors import RequestError

Aside = Callable[[Callable[[], Any], Callable[["Future[Any]"], None]], None]
"""Runs the first on another thread, then the second, with its result, on the loop's."""

_OVERLOADED = frozenset(("deadline", "queue-full"))
"""Refusals that a client can mend by asking less or allowing more time: 429; the others are the
server's own: 503."""


class Backend(Protocol):
    """The part of `Engine` that a front end uses."""

    @property
    def models(self) -> Mapping[str, ServedModel]: ...

    @property
    def ready(self) -> bool: ...

    def submit(self, inference: Inference) -> None: ...

    def cancel(self, inference: Inference) -> None: ...

    def status(self) -> EngineStatus: ...


class InferenceHandler:
    """Serves `/infer` of one model."""

    def __init__(
        self,
        backend: Backend,
        model: ServedModel,
        counters: ModelCounters,
        limits: Limits,
        aside: Aside,
    ) -> None:
        self._backend = backend
        self._model = model.name
        self._codec = codec_of(model, limits.json_bytes)
        self._counters = counters
        self._limits = limits
        self._aside = aside

    def handle(self, exchange: Exchange) -> None:
        encoding = exchange.headers.get(b"content-encoding")
        if encoding is None or encoding == b"identity":
            self._submit(exchange)
            return
        self._aside(
            partial(inflate, exchange.body, encoding, self._limits.body_bytes),
            partial(self._on_inflated, exchange),
        )

    def abandon(self, inference: Inference) -> None:
        """The client went away."""
        self._backend.cancel(inference)
        self._counters.count_refusal("cancelled")

    def _on_inflated(self, exchange: Exchange, future: "Future[bytes]") -> None:
        if exchange.gone:
            return
        try:
            held = exchange.replace_body(future.result())
        except EncodingError as error:
            self._reject(exchange, error.status, str(error))
            return
        if held:
            self._submit(exchange)
        else:
            self._reject(exchange, 503, "the server holds too many requests already")

    def _submit(self, exchange: Exchange) -> None:
        try:
            ask = self._codec.decode(
                exchange.body, exchange.headers.get(b"inference-header-content-length")
            )
        except RequestError as error:
            self._reject(exchange, error.status, str(error))
            return
        inference = exchange.work = Inference(
            model=self._model,
            items=ask.items,
            inputs=ask.inputs,
            on_done=partial(self._on_done, exchange, ask),
            timeout_us=ask.timeout_us,
            priority=ask.priority,
        )
        try:
            self._backend.submit(inference)
        except OverloadError as error:
            self._counters.count_refusal("queue-full")
            exchange.respond(_refused(429, str(error), "queue-full", 0))

    def _reject(self, exchange: Exchange, status: int, sentence: str) -> None:
        self._counters.count_refusal("bad-request" if status < 500 else "queue-full")
        exchange.respond(problem(status, sentence))

    def _on_done(self, exchange: Exchange, ask: Ask, result: Answer | Refusal) -> None:
        exchange.work = None
        try:
            if isinstance(result, Answer):
                self._answer(exchange, ask, result)
            else:
                self._counters.count_refusal(result.reason)
                status = 429 if result.reason in _OVERLOADED else 503
                exchange.respond(
                    _refused(status, result.message, result.reason, result.retry_after_us)
                )
        except Exception:
            # The engine may be in the middle of a batch: nothing must reach it from here.
            exchange.respond(internal_error())

    def _answer(self, exchange: Exchange, ask: Ask, answer: Answer) -> None:
        late_us = answer.late_us
        counters = self._counters
        counters.count_answer(ask.items, answer.ended_at_us - answer.arrived_at_us, late_us > 0)
        counters.last_at_ms = int(time.time() * 1000)
        if late_us:
            exchange.respond(_late(answer, late_us))
            return
        try:
            response = self._codec.encode(ask, answer)
        except RequestError as error:
            exchange.respond(problem(error.status, str(error)))
            return
        encoding = wanted_encoding(exchange.headers.get(b"accept-encoding"))
        if encoding is None or response.content_length < COMPRESS_FROM_BYTES:
            exchange.respond(response)
        else:
            self._aside(
                partial(compress, response, encoding),
                lambda future: exchange.respond(future.result()),
            )


def _refused(status: int, sentence: str, reason: str, retry_after_us: int) -> Response:
    seconds = max(1, -(-retry_after_us // 1_000_000))
    return problem(
        status,
        sentence,
        b"Retry-After: %d\r\n" % seconds,
        reason=reason,
        retry_after_ms=retry_after_us / 1000,
    )


def _late(answer: Answer, late_us: int) -> Response:
    allowed_us = answer.deadline_at_us - answer.arrived_at_us
    return problem(
        504,
        f"the answer was ready {late_us / 1000:.1f} ms after its deadline of"
        f" {allowed_us / 1000:g} ms; it is withheld",
        reason="late",
        late_ms=late_us / 1000,
    )
