"""Open-loop load: requests leave on schedule, whatever became of those before them.

Latency counts from the scheduled instant. A client that waits for an answer before it sends the
next request, or that counts from when it got round to sending, spares a stalled server the very
requests that would have suffered ("coordinated omission").
"""

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import uvloop

from headrace.domain.base import is_name
from headrace.domain.errors import DocumentError, HeadraceError
from headrace.load.client import ConnectionPool, Endpoint, SentRequest, fetch, parse_url
from headrace.load.payload import (
    ModelInfo,
    RequestEncoder,
    decode_index,
    decode_model_info,
    decode_rate_rps,
    decode_slo_us,
    example_files,
    file_input,
    random_inputs,
)
from headrace.load.result import LoadResult, RequestResult
from headrace.metrics import distribution
from headrace.serving.engine.timer import Timer, make_timer, monotonic_us
from headrace.simulation.offered.arrivals import Arrival

MAX_CONNECTIONS: Final = 256
_LEAD_US: Final = 20_000
"""Between the decision to start and the first instant of the schedule."""
_BURST: Final = 64
"""Overdue requests sent in one go before answers are looked at."""
_HOUSEKEEPING_S: Final = 0.05


class LoadError(HeadraceError):
    """The server cannot be loaded: not there, not speaking the protocol, no such model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to send, beside the schedule itself."""

    slo_us: int | None = None
    """Sent with every request and the yardstick of attainment; None: the server's own."""
    timeout_s: float = 30.0
    """After this long from its scheduled instant a request counts as lost."""
    connections: int = MAX_CONNECTIONS
    binary: bool = True
    """Tensors as raw bytes behind the JSON (the binary-tensor extension), not as JSON numbers."""
    items: int = 1
    """Length of the batch dimension of every request."""
    input_paths: tuple[Path, ...] = ()
    """.npy or .npz files, or folders of them, sent in turn; none: random values from the seed."""
    model_inputs: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Model -> the same for this model alone, instead of `input_paths`."""
    on_answer: Callable[[int, bytes], None] | None = None
    """Gets every result (number of its arrival, body of the response), for checks; must be fast."""
    seed: int = 1
    token: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise DocumentError(
                f"load: {self.connections} connections; expected 1 to {MAX_CONNECTIONS}"
            )
        if not 1 <= self.items <= 1 << 20:
            raise DocumentError(f"load: {self.items} items; expected 1 to {1 << 20}")
        if not 0 < self.timeout_s <= 3600 or (self.slo_us is not None and self.slo_us < 1):
            raise DocumentError("load: SLO and timeout must be positive, the latter at most 1 h")


_Result = TypeVar("_Result")
OnProgress = Callable[[int, int], None]
"""(requests sent, requests ended), some twenty times per second."""


def run_load(
    url: str,
    model: str,
    arrivals: Sequence[Arrival],
    options: LoadOptions = LoadOptions(),
    *,
    span_us: int | None = None,
    on_progress: OnProgress | None = None,
) -> LoadResult:
    """Send `arrivals` to the server at `url` on schedule and wait for every answer.

    Args:
        arrivals: of this model, in order of time.
        span_us: how long the schedule lasts, for the rates; None: estimated from the arrivals.

    Raises:
        LoadError: the server is not there or does not serve this model.
        DocumentError: the arrivals or options do not fit.
    """
    return _uncollected(
        drive_load(url, model, arrivals, options, span_us=span_us, on_progress=on_progress)
    )


def run_load_of_models(
    url: str,
    arrivals: Sequence[Arrival],
    options: LoadOptions = LoadOptions(),
    *,
    span_us: int | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, LoadResult]:
    """`run_load` for arrivals of several models at once; a result for each of them.

    Connections, `lateness` and `error_samples` are of the whole run.
    """
    return _uncollected(
        drive_load_of_models(url, arrivals, options, span_us=span_us, on_progress=on_progress)
    )


def _uncollected(driving: Coroutine[Any, Any, _Result]) -> _Result:
    """Run it on a loop of its own, without garbage collection.

    A full collection walks every result so far, milliseconds in which nothing is sent; the run
    makes no cycles that would need one.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        result: _Result = uvloop.run(driving)
        return result
    finally:
        if collected:
            gc.enable()


async def drive_load(
    url: str,
    model: str,
    arrivals: Sequence[Arrival],
    options: LoadOptions,
    *,
    span_us: int | None = None,
    on_progress: OnProgress | None = None,
) -> LoadResult:
    """`run_load` inside a running event loop."""
    if strangers := {arrival.model for arrival in arrivals} - {model}:
        raise DocumentError(f"load: arrivals of {', '.join(sorted(strangers))}, not of {model}")
    results = await drive_load_of_models(
        url, arrivals, options, span_us=span_us, on_progress=on_progress
    )
    return results[model]


async def drive_load_of_models(
    url: str,
    arrivals: Sequence[Arrival],
    options: LoadOptions,
    *,
    span_us: int | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, LoadResult]:
    """`run_load_of_models` inside a running event loop."""
    models = tuple(dict.fromkeys(arrival.model for arrival in arrivals))
    if not models:
        raise DocumentError("load: nothing to send; raise the rate or the duration")
    for model in models:
        if not is_name(model):
            raise DocumentError(f"load: {model!r} is not a legal model name")
    endpoint, authorization = parse_url(url), _authorization(options)
    pool = ConnectionPool(endpoint, options.connections)
    try:
        encoders, slos_us = {}, {}
        for model in models:
            info = await _model_info(pool, endpoint, model, authorization, options)
            slo_us = options.slo_us
            if slo_us is None:
                slo_us = await _server_slo_us(pool, endpoint, model, authorization, options)
            encoders[model] = _encoders(endpoint, info, options, authorization)
            slos_us[model] = slo_us
        run = _ScheduledLoad(pool, encoders, arrivals, slos_us, options, on_progress)
        await run.finished()
        return {model: run.result(model, span_us) for model in models}
    finally:
        await pool.close()


def _authorization(options: LoadOptions) -> bytes:
    if options.token is None:
        return b""
    return b"Authorization: Bearer %b\r\n" % options.token.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRates:
    """What the server's plan says of one model, where it says so."""

    planned_rps: float | None
    """That it can take."""
    asked_rps: float | None
    """That its problem asks for."""


def served_rates(
    url: str, models: Sequence[str] = (), options: LoadOptions = LoadOptions()
) -> dict[str, ServedRates]:
    """What the server's models are planned for.

    Args:
        models: which; none: all that the server lists, in its order.

    Raises:
        LoadError: the server is not there, does not list its models or lacks one.
    """
    return _uncollected(_read_served_rates(url, models, options))


async def _read_served_rates(
    url: str, models: Sequence[str], options: LoadOptions
) -> dict[str, ServedRates]:
    endpoint, authorization = parse_url(url), _authorization(options)
    pool = ConnectionPool(endpoint, 1)
    try:
        if not models:
            index = await _document(pool, endpoint, "/v2/repository/index", authorization, options)
            models = decode_index(index)
        found = {}
        for name in models:
            if not is_name(name):
                raise LoadError(f"http://{endpoint.authority}: {name!r} is not a legal model name")
            path = f"/v2/models/{name}/config"
            config = await _document(pool, endpoint, path, authorization, options)
            found[name] = ServedRates(
                planned_rps=decode_rate_rps(config, "planned_rps"),
                asked_rps=decode_rate_rps(config, "rate_rps"),
            )
        return found
    finally:
        await pool.close()


async def _model_info(
    pool: ConnectionPool, endpoint: Endpoint, model: str, authorization: bytes, options: LoadOptions
) -> ModelInfo:
    path = f"/v2/models/{model}"
    return decode_model_info(await _document(pool, endpoint, path, authorization, options))


async def _document(
    pool: ConnectionPool, endpoint: Endpoint, path: str, authorization: bytes, options: LoadOptions
) -> bytes:
    reply = await fetch(pool, endpoint, path, authorization, options.timeout_s)
    if reply.status == 0:
        raise LoadError(
            f"http://{endpoint.authority}: no answer ({reply.error}); is `headrace serve` running?"
        )
    if reply.status != 200:
        _, message = _refusal(reply)
        raise LoadError(f"http://{endpoint.authority}{path}: {reply.status}: {message}")
    return reply.body


async def _server_slo_us(
    pool: ConnectionPool, endpoint: Endpoint, model: str, authorization: bytes, options: LoadOptions
) -> int:
    path = f"/v2/models/{model}/config"
    reply = await fetch(pool, endpoint, path, authorization, options.timeout_s)
    slo_us = decode_slo_us(reply.body) if reply.status == 200 else None
    if slo_us is None:
        raise LoadError(
            f"http://{endpoint.authority}{path}: the server states no objective; give --slo-ms"
        )
    return slo_us


def _encoders(
    endpoint: Endpoint, info: ModelInfo, options: LoadOptions, authorization: bytes
) -> tuple[RequestEncoder, ...]:
    """One per example."""
    paths = example_files(options.model_inputs.get(info.name, options.input_paths))
    examples = [file_input(path, info, options.items) for path in paths]
    if not examples:
        examples = [random_inputs(info, options.items, np.random.default_rng(options.seed))]
    return tuple(
        RequestEncoder(endpoint, info, tensors, binary=options.binary, authorization=authorization)
        for tensors in examples
    )


class _ServerError(msgspec.Struct, frozen=True):
    error: str = ""
    reason: str = ""


def _refusal(exchange: SentRequest) -> tuple[str, str]:
    """(reason, message) of a response that is no result."""
    try:
        said = msgspec.json.decode(exchange.body, type=_ServerError)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = _ServerError(error=exchange.body[:200].decode("latin-1"))
    return said.reason[:64] or f"http-{exchange.status}", said.error[:500]


@dataclass(slots=True)
class _ScheduledLoad:
    """One schedule being sent, of one model or several."""

    pool: ConnectionPool
    encoders: Mapping[str, tuple[RequestEncoder, ...]]
    arrivals: Sequence[Arrival]
    slos_us: Mapping[str, int]
    options: LoadOptions
    on_progress: OnProgress | None
    started_at_us: int = 0
    _next: int = 0
    _ended: int = 0
    _results: list[RequestResult | None] = field(default_factory=list)
    _lateness_us: list[int] = field(default_factory=list)
    _open: deque[tuple[int, SentRequest]] = field(default_factory=deque)
    _samples: dict[str, str] = field(default_factory=dict)
    _most_connections: int = 0

    async def finished(self) -> None:
        """Send everything and wait until every request has ended."""
        loop = asyncio.get_running_loop()
        self._results = [None] * len(self.arrivals)
        self.started_at_us = monotonic_us() + _LEAD_US
        timer = make_timer(loop, lambda: self._send_due(timer))
        self._set(timer)
        try:
            while self._ended < len(self.arrivals):
                await asyncio.sleep(_HOUSEKEEPING_S)
                self._keep_house()
        finally:
            timer.close()

    def _set(self, timer: Timer) -> None:
        if self._next < len(self.arrivals):
            timer.set(self.started_at_us + self.arrivals[self._next].at_us)

    def _send_due(self, timer: Timer) -> None:
        for _ in range(_BURST):
            if self._next >= len(self.arrivals):
                return
            now_us = monotonic_us()
            scheduled_us = self.started_at_us + self.arrivals[self._next].at_us
            if scheduled_us > now_us:
                break
            self._lateness_us.append(now_us - scheduled_us)
            self._send(self._next, scheduled_us)
            self._next += 1
        self._set(timer)

    def _send(self, index: int, scheduled_us: int) -> None:
        arrival = self.arrivals[index]
        # The server's own objective needs no sending; everything else travels with the request.
        timeout_us = arrival.timeout_us or self.options.slo_us
        encoders = self.encoders[arrival.model]
        parts = encoders[index % len(encoders)].parts(timeout_us, arrival.priority)
        wanted = self.options.on_answer is not None
        exchange = SentRequest(parts, self._on_done, index=index, keep_body=wanted)
        self._open.append((scheduled_us + round(self.options.timeout_s * 1e6), exchange))
        self.pool.submit(exchange)

    def _on_done(self, exchange: SentRequest) -> None:
        arrival = self.arrivals[exchange.index]
        scheduled_us = self.started_at_us + arrival.at_us
        reason = exchange.error
        if not reason and exchange.status != 200:
            reason, message = _refusal(exchange)
            if message:
                self._samples.setdefault(reason, message)
        elif not reason and self.options.on_answer is not None:
            self.options.on_answer(exchange.index, exchange.body)
        self._results[exchange.index] = RequestResult(
            scheduled_at_us=scheduled_us,
            deadline_at_us=scheduled_us + (arrival.timeout_us or self.slos_us[arrival.model]),
            sent_at_us=exchange.sent_at_us,
            ended_at_us=exchange.ended_at_us,
            status=exchange.status,
            reason=reason,
            body_bytes=exchange.body_bytes,
        )
        self._ended += 1

    def _keep_house(self) -> None:
        """Expire what has waited too long, forget what has ended, tell how far we are."""
        now_us = monotonic_us()
        while self._open and (self._open[0][1].done or self._open[0][0] <= now_us):
            self.pool.expire(self._open.popleft()[1])
        self._most_connections = max(self._most_connections, self.pool.opened)
        if self.on_progress is not None:
            self.on_progress(self._next, self._ended)

    def result(self, model: str, span_us: int | None) -> LoadResult:
        return LoadResult(
            model=model,
            started_at_us=self.started_at_us,
            span_us=span_us,
            requests=tuple(
                result
                for result, arrival in zip(self._results, self.arrivals, strict=True)
                if result is not None and arrival.model == model
            ),
            lateness=distribution(self._lateness_us),
            connections=self._most_connections,
            error_samples=dict(sorted(self._samples.items())),
        )
