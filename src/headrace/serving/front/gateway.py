"""The paths that HTTP serves, who may ask for them, and all answers that are no inference's."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.domain.base import JSON_ERRORS
from headrace.domain.errors import HeadraceError
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.core.repository import ALWAYS_LOADED, NO_UNLOADING, NOT_THE_OWNER
from headrace.serving.engine.inference import ServedModel
from headrace.serving.front import v2_documents
from headrace.serving.front.access import Access
from headrace.serving.front.answer_turns import AnswerTurns
from headrace.serving.front.guard import deny, meet
from headrace.serving.front.http import HttpConnection
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import (
    Limits,
    Response,
    body_too_large,
    internal_error,
    json_response,
    problem,
)
from headrace.serving.front.inferences import Aside, InferenceHandler, Later
from headrace.serving.front.prometheus import Exposition
from headrace.serving.front.seats import OWNER, STRANGER

_SMALL_BODY_BYTES = 1 << 16
_UNSERVED = {
    b"systemsharedmemory": v2_documents.NO_SHARED_MEMORY,
    b"cudasharedmemory": v2_documents.NO_SHARED_MEMORY,
    b"repository": v2_documents.NO_LOADING,
    b"trace": v2_documents.NO_TRACE_SETTINGS,
    b"logging": v2_documents.NO_LOG_SETTINGS,
}
"""What Triton's clients can ask for besides, by the path's second part."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What stands under one path."""

    methods: tuple[bytes, ...]
    handle: Callable[[HttpExchange], None]
    open: bool = False
    """Needs no token."""
    admit: Callable[[HttpExchange], Response | None] | None = None
    """Whether its head alone shows that a request cannot be served: the refusal."""

    def takes(self, method: bytes) -> bool:
        """HEAD is GET, and its answer leaves without its body (RFC 9110, section 9.3.2)."""
        return (b"GET" if method == b"HEAD" else method) in self.methods


def _later(delay_s: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, call)


class Gateway:
    """An `http.Handler`.

    One table holds every path that is served; what is not in it is refused. It changes only when
    the plan does.
    """

    def __init__(
        self,
        core: ProtocolCore,
        access: Access,
        aside: Aside,
        limits: Limits | None = None,
        later: Later = _later,
    ) -> None:
        self._core = core
        self._access = access
        self._aside = aside
        self._later = later
        self._limits = limits or Limits()
        self._turns = AnswerTurns(partial(later, 0.0), self._limits.untaken_bytes)
        self._exposition = Exposition(core)
        self._handlers: dict[str, InferenceHandler] = {}
        self._served: dict[str, ServedModel] = {}
        self._resources: dict[bytes, Resource] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Loads under way."""
        self._refresh()
        core.on_change(self._refresh)

    def _refresh(self) -> None:
        """The core's models are others now: serve those, and no others."""
        core = self._core
        for name, model in core.models.items():
            if self._served.get(name) != model:
                self._handlers[name] = InferenceHandler(
                    core, name, self._limits, self._aside, self._later, self._turns
                )
                self._served[name] = model
        resources = self._general_resources()
        for name in core.models:
            resources |= self._model_resources(name)
        self._resources = resources

    # -- the Handler's side -------------------------------------------------------------------

    def meet(self, connection: HttpConnection) -> None:
        meet(self._access, connection, self._aside)

    def admit(self, exchange: HttpExchange) -> Response | None:
        resource = self._resource(exchange.target)
        opened = resource is not None and resource.open
        denial = deny(
            self._access,
            exchange.connection,
            exchange.headers.get(b"host", None if exchange.must_name_host else b"localhost"),
            exchange.headers,
            needs_token=not opened,
        )
        if denial is not None:
            header = b"WWW-Authenticate: Bearer\r\n" if denial.status == 401 else b""
            return problem(denial.status, denial.sentence, header)
        connection = exchange.connection
        urgent = connection.standing != STRANGER or opened
        if connection.in_reserve and not urgent:
            sentence = f"all {self._limits.connections} connections are in use"
            return problem(503, sentence, b"Retry-After: 1\r\n")
        if opened:
            exchange.body_bytes = most_bytes = self._limits.open_body_bytes
            if _announced_bytes(exchange.headers) > most_bytes:
                return body_too_large(most_bytes)
        elif resource is None and _announces_much(exchange.headers):
            return self._nothing_here(exchange.target)
        return None if resource is None or resource.admit is None else resource.admit(exchange)

    def handle(self, exchange: HttpExchange) -> None:
        resource = self._resource(exchange.target)
        if resource is None:
            exchange.respond(self._nothing_here(exchange.target))
        elif not resource.takes(exchange.method):
            allow = b", ".join(resource.methods)
            sentence = f"use {allow.decode()} here, not {exchange.method.decode('latin-1')}"
            if resource.takes(b"HEAD"):
                allow += b", HEAD"
            exchange.respond(problem(405, sentence, b"Allow: %b\r\n" % allow))
        else:
            resource.handle(exchange)

    def abandon(self, exchange: HttpExchange) -> None:
        self._turns.give_up(exchange)
        if exchange.work is not None:
            exchange.work.cancel()

    # -- paths --------------------------------------------------------------------------------

    def _resource(self, target: bytes) -> Resource | None:
        resource = self._resources.get(target)
        return resource if resource is not None else self._resources.get(target.partition(b"?")[0])

    def _general_resources(self) -> dict[bytes, Resource]:
        get = (b"GET",)
        return {
            b"/v2": Resource(get, _always(json_response(v2_documents.server_document()))),
            b"/v2/health/live": Resource(get, _always(json_response({"live": True})), open=True),
            b"/v2/health/ready": Resource(get, self._ready, open=True),
            b"/v2/repository/index": Resource((b"GET", b"POST"), self._index),
            b"/v2/models/stats": Resource(get, self._all_statistics),
            b"/metrics": Resource(get, self._metrics),
        }

    def _model_resources(self, name: str) -> dict[bytes, Resource]:
        get = (b"GET",)
        model = self._core.models[name]
        relative = {
            b"": Resource(get, _always(json_response(v2_documents.model_document(model)))),
            b"/config": Resource(get, _always(json_response(v2_documents.config_document(model)))),
            b"/ready": Resource(get, partial(self._model_ready, name)),
            b"/stats": Resource(get, partial(self._statistics, name)),
            b"/infer": Resource(
                (b"POST",), self._handlers[name].handle, admit=self._handlers[name].admit
            ),
        }
        base = b"/v2/models/" + name.encode()
        bases = (base, base + b"/versions/" + model.version.encode())
        stored = b"/v2/repository/models/" + name.encode()
        return {
            stored + b"/load": Resource((b"POST",), partial(self._load, name)),
            stored + b"/unload": Resource((b"POST",), partial(self._unload, name)),
            **{prefix + path: resource for prefix in bases for path, resource in relative.items()},
        }

    def _nothing_here(self, target: bytes) -> Response:
        parts = target.partition(b"?")[0].split(b"/")
        if len(parts) < 3 or parts[1] != b"v2":
            return problem(404, "nothing is served under this path; see /v2 and /metrics")
        if parts[2:4] == [b"repository", b"models"] and len(parts) == 6:
            name = parts[4].decode("latin-1")
            if name not in self._core.models:
                sentence = f"{self._core.unknown(name).message}; {v2_documents.NO_LOADING}"
                return problem(404, sentence)
        if parts[2] in _UNSERVED:
            return problem(501, _UNSERVED[parts[2]])
        if parts[2] != b"models" or len(parts) < 4:
            return problem(404, "nothing is served under this path; see /v2")
        name = parts[3].decode("latin-1")
        model = self._core.models.get(name)
        if model is None:
            return problem(404, self._core.unknown(name).message)
        if parts[4:5] == [b"trace"]:
            return problem(501, _UNSERVED[b"trace"])
        if parts[-1] in (b"generate", b"generate_stream"):
            return problem(501, v2_documents.NO_GENERATING)
        if parts[4:5] == [b"versions"] and parts[5:6] != [model.version.encode()]:
            return problem(404, f"model {name!r} has version {model.version} only")
        return problem(404, f"model {name!r} has /infer, /ready, /config and /stats only")

    # -- everything but inference ---------------------------------------------------------------

    def _ready(self, exchange: HttpExchange) -> None:
        out = sum(self._core.status().outages.values())
        if self._core.ready:
            exchange.respond(json_response({"ready": True, "slots_out": out}))
        else:
            sentence, later = self._core.why_not_ready, b"Retry-After: 1\r\n"
            exchange.respond(problem(503, sentence, later, ready=False, slots_out=out))

    def _model_ready(self, name: str, exchange: HttpExchange) -> None:
        standing = self._core.repository.standing(name)
        if standing.served or not self._core.ready:
            self._ready(exchange)
        else:
            exchange.respond(problem(503, f"model {name!r}: {standing.reason}", ready=False))

    def _load(self, name: str, exchange: HttpExchange) -> None:
        try:
            asked = msgspec.json.decode(exchange.body or b"{}", type=_LoadRequest)
        except JSON_ERRORS as error:
            exchange.respond(problem(400, f"the load request is not as it should be: {error}"))
            return
        if asked.parameters:
            exchange.respond(problem(501, v2_documents.NO_OVERRIDING))
        elif not self._core.ready:
            self._ready(exchange)
        elif not self._core.repository.comes_and_goes:
            exchange.respond(json_response({"state": "READY", "note": ALWAYS_LOADED}))
        elif exchange.connection.standing != OWNER:
            exchange.respond(problem(403, NOT_THE_OWNER))
        else:
            task = asyncio.get_running_loop().create_task(self._load_model(name, exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _load_model(self, name: str, exchange: HttpExchange) -> None:
        """The load is the server's: it goes on when its caller leaves."""
        try:
            await self._core.repository.load(name)
        except HeadraceError as error:
            exchange.respond(problem(409, f"model {name!r} is not available: {error}"))
        except Exception:
            exchange.respond(internal_error())
        else:
            exchange.respond(json_response(self._standing(name)))

    def _unload(self, name: str, exchange: HttpExchange) -> None:
        if not self._core.repository.comes_and_goes:
            exchange.respond(problem(501, f"model {name!r} is {NO_UNLOADING}"))
        elif exchange.connection.standing != OWNER:
            exchange.respond(problem(403, NOT_THE_OWNER))
        else:
            self._core.repository.unload(name)
            exchange.respond(json_response(self._standing(name)))

    def _standing(self, name: str) -> dict[str, str]:
        standing = self._core.repository.standing(name)
        return {"state": standing.state, "note": standing.reason}

    def _index(self, exchange: HttpExchange) -> None:
        try:
            asked = msgspec.json.decode(exchange.body or b"{}", type=_IndexRequest)
        except JSON_ERRORS as error:
            exchange.respond(problem(400, f"the index request is not as it should be: {error}"))
            return
        exchange.respond(json_response(v2_documents.index(self._core, asked.ready)))

    def _statistics(self, name: str, exchange: HttpExchange) -> None:
        document = v2_documents.statistics_of(self._core, name)
        exchange.respond(json_response({"model_stats": [document]}))

    def _all_statistics(self, exchange: HttpExchange) -> None:
        documents = [v2_documents.statistics_of(self._core, name) for name in self._core.counters]
        exchange.respond(json_response({"model_stats": documents}))

    def _metrics(self, exchange: HttpExchange) -> None:
        exchange.respond(self._exposition.response(exchange.headers.get(b"accept", b"")))


class _IndexRequest(msgspec.Struct):
    ready: bool = False


class _LoadRequest(msgspec.Struct):
    parameters: dict[str, msgspec.Raw] = {}


def _always(response: Response) -> Callable[[HttpExchange], None]:
    return lambda exchange: exchange.respond(response)


def _announces_much(headers: dict[bytes, bytes]) -> bool:
    """Whether a body is under way that is better not read at all."""
    if b"transfer-encoding" in headers:
        return True
    return _announced_bytes(headers) > _SMALL_BODY_BYTES


def _announced_bytes(headers: dict[bytes, bytes]) -> int:
    return int(headers.get(b"content-length", b"0"))
