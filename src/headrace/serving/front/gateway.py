"""The HTTP front door: who may come in, and what there is to ask for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.serving.engine.inference import Inference, ServedModel
from headrace.serving.front import v2_documents
from headrace.serving.front.access import Access, Denial
from headrace.serving.front.admin import PATH, AdminHandler, Migrate
from headrace.serving.front.http_messages import Exchange, Limits, Response, json_response, problem
from headrace.serving.front.inferences import Aside, Backend, InferenceHandler
from headrace.serving.front.prometheus import Exposition, GatewayCollector, ModelCounters
from headrace.serving.front.v2 import VERSION
from headrace.serving.front.v2_tensors import JSON_ERRORS

_SMALL_BODY_BYTES = 1 << 16
_UNSERVED = {
    b"systemsharedmemory": "shared memory regions are not served here",
    b"cudasharedmemory": "shared memory regions are not served here",
    b"repository": "models come from the plan; serve another plan to change them",
    b"trace": "trace settings are not served here; see `headrace serve --events`",
    b"logging": "log settings cannot be changed over HTTP",
}
"""What Triton's clients can ask for besides, by the path's second part."""


@dataclass(frozen=True, slots=True)
class Route:
    """One thing to ask for."""

    methods: tuple[bytes, ...]
    handle: Callable[[Exchange], None]
    open: bool = False
    """Needs no token."""


class Gateway:
    """Handles exchanges; see `http_messages.Handler`.

    One table holds every path that is served; what is not in it is refused. It changes only when
    the plan does.
    """

    def __init__(
        self,
        backend: Backend,
        access: Access,
        aside: Aside,
        limits: Limits | None = None,
        counters: Mapping[str, ModelCounters] | None = None,
        admin: Migrate | None = None,
    ) -> None:
        """`counters`: by model, to share them with whoever counts batches; models that come later
        must be in it by then. `admin`: changes the plan; None: it cannot be changed over HTTP."""
        self.counters = counters or {name: ModelCounters() for name in backend.models}
        self._backend = backend
        self._access = access
        self._aside = aside
        self._limits = limits or Limits()
        self._exposition = Exposition(GatewayCollector(self.counters, backend.status))
        self._admin = None if admin is None else AdminHandler(access, admin)
        self._inferences: dict[str, InferenceHandler] = {}
        self._served: dict[str, ServedModel] = {}
        self._routes: dict[bytes, Route] = {}
        self.refresh()

    def refresh(self) -> None:
        """The backend's models are others now: serve those, and no others."""
        backend = self._backend
        for name, model in backend.models.items():
            if self._served.get(name) != model:
                # Handlers of models that left stay: clients may still leave their requests.
                self._inferences[name] = InferenceHandler(
                    backend, model, self.counters[name], self._limits, self._aside
                )
                self._served[name] = model
        routes = self._general_routes()
        for name in backend.models:
            routes |= self._model_routes(name)
        self._routes = routes

    # -- the Handler's side -------------------------------------------------------------------

    def admit(self, exchange: Exchange) -> Response | None:
        route = self._route(exchange.target)
        denial = self._deny(exchange, needs_token=route is None or not route.open)
        if denial is not None:
            header = b"WWW-Authenticate: Bearer\r\n" if denial.status == 401 else b""
            return problem(denial.status, denial.sentence, header)
        if route is None and _announces_much(exchange.headers):
            return self._nothing_here(exchange.target)
        return None

    def handle(self, exchange: Exchange) -> None:
        route = self._route(exchange.target)
        if route is None:
            exchange.respond(self._nothing_here(exchange.target))
        elif exchange.method not in route.methods:
            allow = b", ".join(route.methods)
            sentence = f"use {allow.decode()} here, not {exchange.method.decode('latin-1')}"
            exchange.respond(problem(405, sentence, b"Allow: %b\r\n" % allow))
        else:
            route.handle(exchange)

    def abandon(self, exchange: Exchange) -> None:
        if isinstance(exchange.work, Inference):
            self._inferences[exchange.work.model].abandon(exchange.work)

    # -- access -------------------------------------------------------------------------------

    def _deny(self, exchange: Exchange, needs_token: bool) -> Denial | None:
        headers, peer = exchange.headers, exchange.peer
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is None or host != peer.known_host or origin is not None:
            denial = self._access.check_origin(host, origin, peer.ends()[1][0])
            if denial is not None:
                return denial
            peer.known_host = host
        if peer.trusted or not needs_token:
            return None
        denial = self._access.check_token(headers.get(b"authorization"))
        if denial is None:
            return None
        if peer.trusted is None:
            peer.trusted = self._access.trusts(*peer.ends())
        return None if peer.trusted else denial

    # -- routes -------------------------------------------------------------------------------

    def _route(self, target: bytes) -> Route | None:
        route = self._routes.get(target)
        return route if route is not None else self._routes.get(target.partition(b"?")[0])

    def _general_routes(self) -> dict[bytes, Route]:
        get = (b"GET",)
        admin = {} if self._admin is None else {PATH: Route((b"POST",), self._admin.handle)}
        return admin | {
            b"/v2": Route(get, _always(json_response(v2_documents.server_document()))),
            b"/v2/health/live": Route(get, _always(json_response({"live": True})), open=True),
            b"/v2/health/ready": Route(get, self._ready, open=True),
            b"/v2/repository/index": Route((b"GET", b"POST"), self._index),
            b"/v2/models/stats": Route(get, self._all_statistics),
            b"/metrics": Route(get, self._metrics),
        }

    def _model_routes(self, name: str) -> dict[bytes, Route]:
        get = (b"GET",)
        model = self._backend.models[name]
        relative = {
            b"": Route(get, _always(json_response(v2_documents.model_document(model)))),
            b"/config": Route(get, _always(json_response(v2_documents.config_document(model)))),
            b"/ready": Route(get, self._ready),
            b"/stats": Route(get, partial(self._statistics, name)),
            b"/infer": Route((b"POST",), self._inferences[name].handle),
        }
        base = b"/v2/models/" + name.encode()
        bases = (base, base + b"/versions/" + VERSION.encode())
        return {prefix + path: route for prefix in bases for path, route in relative.items()}

    def _nothing_here(self, target: bytes) -> Response:
        parts = target.partition(b"?")[0].split(b"/")
        if len(parts) < 3 or parts[1] != b"v2":
            return problem(404, "nothing is served under this path; see /v2 and /metrics")
        if parts[2] in _UNSERVED:
            return problem(501, _UNSERVED[parts[2]])
        if parts[2] != b"models" or len(parts) < 4:
            return problem(404, "nothing is served under this path; see /v2")
        name = parts[3].decode("latin-1")
        if name not in self._backend.models:
            served = ", ".join(self._backend.models)
            return problem(404, f"no model is named {name[:64]!a}; served here: {served}")
        if parts[4:5] == [b"trace"]:
            return problem(501, _UNSERVED[b"trace"])
        if parts[4:5] == [b"versions"] and parts[5:6] != [VERSION.encode()]:
            return problem(404, f"model {name!r} has version {VERSION} only")
        return problem(404, f"model {name!r} has /infer, /ready, /config and /stats only")

    # -- everything but inference ---------------------------------------------------------------

    def _ready(self, exchange: Exchange) -> None:
        out = sum(self._backend.status().outages.values())
        if self._backend.ready:
            exchange.respond(json_response({"ready": True, "slots_out": out}))
        else:
            sentence = "not ready: starting, shutting down, or a stage has lost all its slots"
            exchange.respond(
                problem(503, sentence, b"Retry-After: 1\r\n", ready=False, slots_out=out)
            )

    def _index(self, exchange: Exchange) -> None:
        ready = self._backend.ready
        try:
            asked = msgspec.json.decode(exchange.body or b"{}", type=_IndexRequest)
        except JSON_ERRORS as error:
            exchange.respond(problem(400, f"the index request is not as it should be: {error}"))
            return
        models = self._backend.models.values() if ready or not asked.ready else ()
        exchange.respond(json_response([v2_documents.index_entry(m, ready) for m in models]))

    def _statistics(self, name: str, exchange: Exchange) -> None:
        document = v2_documents.statistics_document(name, self.counters[name])
        exchange.respond(json_response({"model_stats": [document]}))

    def _all_statistics(self, exchange: Exchange) -> None:
        documents = [v2_documents.statistics_document(*item) for item in self.counters.items()]
        exchange.respond(json_response({"model_stats": documents}))

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(self._exposition.response(exchange.headers.get(b"accept", b"")))


class _IndexRequest(msgspec.Struct):
    ready: bool = False


def _always(response: Response) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.respond(response)


def _announces_much(headers: dict[bytes, bytes]) -> bool:
    """Whether a body is under way that is better not read at all."""
    if b"transfer-encoding" in headers:
        return True
    return int(headers.get(b"content-length", b"0")) > _SMALL_BODY_BYTES
