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
from typing import Any, Final, TypeVar

import uvloop

from headrace.domain.base import LEGAL_NAME, is_name
from headrace.domain.errors import DocumentError
from headrace.load.client import ConnectionPool, SentRequest
from headrace.load.options import MAX_CONNECTIONS, LoadError, LoadOptions
from headrace.load.payload import Encoder, decode_index, decode_model_info, decode_rate_rps
from headrace.load.result import LoadResult, RequestResult
from headrace.load.server import refusal_of, server_at
from headrace.metrics import distribution
from headrace.serving.engine.timer import Timer, make_timer, monotonic_us
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.offered.sizes import with_sizes

_DEFAULTS = LoadOptions()
__all__ = [
    "MAX_CONNECTIONS",
    "LoadError",
    "LoadOptions",
    "ServedRates",
    "drive_load",
    "drive_load_of_models",
    "run_load",
    "run_load_of_models",
    "served_rates",
]
_LEAD_US: Final = 20_000
"""Between the decision to start and the first instant of the schedule."""
_BURST: Final = 64
"""Overdue requests sent in one go before answers are looked at."""
_HOUSEKEEPING_S: Final = 0.05


_Result = TypeVar("_Result")
_Kind = tuple[str, tuple[int, ...], int]
"""Model, sizes of its dynamic dimensions, if it has any, and items; 0: as the options say."""
OnProgress = Callable[[int], None]
"""Gets the number of requests that have ended, some twenty times per second."""


def run_load(
    url: str,
    model: str,
    arrivals: Sequence[Arrival],
    options: LoadOptions = _DEFAULTS,
    *,
    span_us: int | None = None,
) -> LoadResult:
    """Send `arrivals` to the server at `url` on schedule and wait for every answer.

    Args:
        arrivals: of this model, in order of time.
        span_us: how long the schedule lasts, for the rates; None: estimated from the arrivals.

    Raises:
        LoadError: the server is not there or does not serve this model.
        DocumentError: the arrivals or options do not fit.
    """
    return _uncollected(drive_load(url, model, arrivals, options, span_us=span_us))


def run_load_of_models(
    url: str,
    arrivals: Sequence[Arrival],
    options: LoadOptions = _DEFAULTS,
    *,
    order: Sequence[str] = (),
    span_us: int | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, LoadResult]:
    """`run_load` for arrivals of several models at once; a result for each of them.

    Connections, `lateness` and `error_samples` are of the whole run.

    Args:
        order: of the models in the answer; those that it does not name come behind, as they arrive.
    """
    return _uncollected(
        drive_load_of_models(
            url, arrivals, options, order=order, span_us=span_us, on_progress=on_progress
        )
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
) -> LoadResult:
    """`run_load` inside a running event loop."""
    if strangers := {arrival.model for arrival in arrivals} - {model}:
        raise DocumentError(f"load: arrivals of {', '.join(sorted(strangers))}, not of {model}")
    return (await drive_load_of_models(url, arrivals, options, span_us=span_us))[model]


async def drive_load_of_models(
    url: str,
    arrivals: Sequence[Arrival],
    options: LoadOptions,
    *,
    order: Sequence[str] = (),
    span_us: int | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, LoadResult]:
    """`run_load_of_models` inside a running event loop."""
    arriving = dict.fromkeys(arrival.model for arrival in arrivals)
    named = [model for model in order if model in arriving]
    models = tuple(dict.fromkeys((*named, *arriving)))
    if not models:
        raise DocumentError("load: nothing to send; raise the rate or the duration")
    for model in models:
        if not is_name(model):
            raise DocumentError(f"load: {model!r} is not a legal model name: {LEGAL_NAME}")
    server = server_at(url, options, options.connections)
    try:
        encoders: dict[_Kind, tuple[Encoder, ...]] = {}
        slos_us = {}
        for model in models:
            info = decode_model_info(await server.document(f"/v2/models/{model}"))
            slos_us[model] = options.slo_us or await server.slo_us(model)
            sequences = await server.in_sequences(model)
            sized = await server.sizes(info)
            if sized is None or options.model_inputs.get(model, options.input_paths):
                kinds = {_kind(arrival) for arrival in arrivals if arrival.model == model}
                if sized is None and any(kind[1] for kind in kinds):
                    raise DocumentError(
                        f"load: the arrivals state sizes of model {model!r}, and its server says"
                        " that it has one; leave them out, or give inputs with --input"
                    )
                for items in {kind[2] for kind in kinds}:
                    made = server.encoders(info, sequences, items)
                    encoders |= dict.fromkeys((kind for kind in kinds if kind[2] == items), made)
                continue
            arrivals = with_sizes(arrivals, {model: sized.mix}, options.seed)
            for kind in {_kind(arrival) for arrival in arrivals if arrival.model == model}:
                at = sized.at(info, kind[1])
                encoders[kind] = server.encoders(at, sequences, kind[2])
        run = _ScheduledLoad(server.pool, encoders, arrivals, slos_us, options, on_progress)
        await run.finished()
        return {model: run.result(model, span_us) for model in models}
    finally:
        await server.pool.close()


def _kind(arrival: Arrival) -> _Kind:
    return arrival.model, arrival.sizes, arrival.items


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRates:
    """What the server's plan says of one model, where it says so."""

    planned_rps: float | None
    """That it can take."""
    asked_rps: float | None
    """That its problem asks for."""


def served_rates(
    url: str, models: Sequence[str] = (), options: LoadOptions = _DEFAULTS
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
    server = server_at(url, options, 1)
    try:
        if not models:
            models = decode_index(await server.document("/v2/repository/index"))
        found = {}
        for name in models:
            if not is_name(name):
                raise LoadError(f"{server.where}: {name!r} is not a legal model name: {LEGAL_NAME}")
            config = await server.document(f"/v2/models/{name}/config")
            found[name] = ServedRates(
                planned_rps=decode_rate_rps(config, "planned_rps"),
                asked_rps=decode_rate_rps(config, "rate_rps"),
            )
        return found
    finally:
        await server.pool.close()


@dataclass(slots=True)
class _ScheduledLoad:
    """One schedule being sent, of one model or several."""

    pool: ConnectionPool
    encoders: Mapping[_Kind, tuple[Encoder, ...]]
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
        encoders = self.encoders[_kind(arrival)]
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
            reason, message = refusal_of(exchange)
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
            self.on_progress(self._ended)

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
