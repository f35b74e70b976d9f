"""The methods that gRPC serves, who may call them, and all answers that are no inference's.

One table holds every method; what is not in it is refused. The documents are HTTP's, written as
messages.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from headrace.domain.errors import HeadraceError
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.core.repository import NO_UNLOADING, NOT_THE_OWNER
from headrace.serving.engine.inference import ServedModel
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front import v2_documents
from headrace.serving.front.access import Access
from headrace.serving.front.grpc.call import Call
from headrace.serving.front.grpc.http2 import Http2Connection
from headrace.serving.front.grpc.inferences import (
    Body,
    Inferences,
    InferenceStream,
    UnaryInference,
)
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.grpc.request_heads import MalformedError, timeout_us
from headrace.serving.front.grpc.status import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Status,
    denied,
    internal_error,
)
from headrace.serving.front.guard import deny, meet
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.inferences import Aside
from headrace.serving.front.seats import OWNER, STRANGER

_SERVICE = b"/inference.GRPCInferenceService/"
_INFER, _STREAM = _SERVICE + b"ModelInfer", _SERVICE + b"ModelStreamInfer"
_UNSERVED = {
    b"SystemSharedMemory": v2_documents.NO_SHARED_MEMORY,
    b"CudaSharedMemory": v2_documents.NO_SHARED_MEMORY,
    b"TraceSetting": v2_documents.NO_TRACE_SETTINGS,
    b"LogSettings": v2_documents.NO_LOG_SETTINGS,
}
"""What Triton's clients can call besides, by how the method begins."""
_GRPC = b"application/grpc"
_NEVER = float("inf")


class _StatusError(Exception):
    """What was asked about is not here, or cannot be done."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = Status(code, sentence)


@dataclass(frozen=True, slots=True)
class Method:
    """One that answers with a document."""

    request: Any
    response: Any
    document: Callable[[Any], dict[str, Any]]
    open: bool = False
    """Needs no token."""
    work: Callable[[Any], Coroutine[Any, Any, None]] | None = None
    """To be done behind `document`, which then only says whether it may be: the owner's alone,
    where models come and go."""


class GrpcService:
    """A `handler.Handler`."""

    def __init__(
        self, core: ProtocolCore, access: Access, aside: Aside, limits: Limits | None = None
    ) -> None:
        self._core = core
        self._access = access
        self._aside = aside
        self._inferences = Inferences(core, limits or Limits(), aside)
        self._methods = {
            _SERVICE + name.encode(): Method(
                message(f"{name}Request"), message(f"{name}Response"), document, opened
            )
            for name, document, opened in (
                ("ServerLive", lambda _: {"live": True}, True),
                ("ServerReady", lambda _: {"ready": core.ready}, True),
                ("ServerMetadata", lambda _: _listed(v2_documents.server_document()), False),
                ("ModelReady", self._model_ready, False),
                ("ModelMetadata", self._model_metadata, False),
                ("ModelConfig", self._model_config, False),
                ("ModelStatistics", self._statistics, False),
                ("RepositoryIndex", self._index, False),
            )
        }
        for name, document, work in (
            ("RepositoryModelLoad", self._load, self._load_model),
            ("RepositoryModelUnload", self._unload, self._unload_model),
        ):
            self._methods[_SERVICE + name.encode()] = Method(
                message(f"{name}Request"), message(f"{name}Response"), document, work=work
            )
        self._tasks: set[asyncio.Task[None]] = set()
        """Loads under way."""
        self._methods[b"/grpc.health.v1.Health/Check"] = Method(
            message("HealthCheckRequest"), message("HealthCheckResponse"), self._health, True
        )

    # -- the Handler's side -------------------------------------------------------------------

    def meet(self, connection: Http2Connection) -> None:
        meet(self._access, connection, self._aside)

    def admit(self, call: Call) -> Status | None:
        headers, connection = call.headers, call.connection
        path = headers.get(b":path", b"")
        method = self._methods.get(path)
        opened = method is not None and method.open
        host = headers.get(b":authority", headers.get(b"host"))
        denial = deny(self._access, connection, host, headers, needs_token=not opened)
        if denial is not None:
            return denied(denial)
        if opened:
            call.message_bytes = connection.limits.open_body_bytes
        if connection.in_reserve and not opened and connection.standing == STRANGER:
            return Status(UNAVAILABLE, "all connections are in use")
        if not _is_grpc(headers.get(b"content-type", b"")):
            return Status(INVALID_ARGUMENT, "the content type is not application/grpc")
        if headers.get(b":method") != b"POST":
            return Status(INVALID_ARGUMENT, "gRPC calls by POST, and by no other method")
        if path == _STREAM:
            call.work = InferenceStream(self._inferences, call)
            call.deadline_s = _NEVER
        elif path != _INFER and method is None:
            return _unserved(path)
        timeout = headers.get(b"grpc-timeout")
        if timeout is not None:
            try:
                now_us = connection.arrived_at_us or monotonic_us()
                call.deadline_at_us = now_us + timeout_us(timeout)
            except MalformedError as error:
                return Status(INVALID_ARGUMENT, str(error))
        return None

    def message(self, call: Call, body: Body, compressed: bool) -> None:
        work = call.work
        if isinstance(work, InferenceStream):
            work.push(body, compressed)
        elif work is None:
            call.work = (body, compressed)
        else:
            call.finish(Status(INVALID_ARGUMENT, "this method takes one message"))

    def whole(self, call: Call) -> None:
        work = call.work
        if isinstance(work, InferenceStream):
            work.advance()
        elif work is None:
            call.finish(Status(INVALID_ARGUMENT, "this method takes one message; none came"))
        elif call.headers[b":path"] == _INFER:
            call.work = None
            call.work = UnaryInference(self._inferences, call, *work)
        else:
            self._answer(call, *work)

    def over(self, call: Call) -> None:
        work, call.work = call.work, None
        if isinstance(work, UnaryInference | InferenceStream):
            work.cancel()

    def awaited(self, call: Call) -> bool:
        work = call.work
        return work.awaited if isinstance(work, InferenceStream) else call.whole

    def drain(self, call: Call) -> None:
        if isinstance(call.work, InferenceStream):
            call.work.draining = True
            call.work.advance()

    def writable(self, call: Call) -> None:
        if isinstance(call.work, InferenceStream):
            call.work.advance()

    # -- everything but inference ---------------------------------------------------------------

    def _answer(self, call: Call, body: Body, compressed: bool) -> None:
        if compressed:
            self._inferences.inflate(
                call,
                body,
                lambda plain: (
                    call.finish(plain) if isinstance(plain, Status) else self._tell(call, plain)
                ),
            )
        else:
            self._tell(call, body)

    def _tell(self, call: Call, body: Body) -> None:
        method = self._methods[call.headers[b":path"]]
        try:
            request = method.request.FromString(bytes(body))
            document = method.document(request)
            if method.work is not None and self._core.repository.comes_and_goes:
                if call.connection.standing != OWNER:
                    raise _StatusError(PERMISSION_DENIED, NOT_THE_OWNER)
                self._work(call, method.work(request), method.response())
                return
            told = ParseDict(document, method.response()).SerializeToString()
        except _StatusError as error:
            call.finish(error.status)
        except DecodeError:
            name = method.request.DESCRIPTOR.name
            call.finish(Status(INVALID_ARGUMENT, f"the message is no {name}"))
        except Exception:
            call.finish(internal_error())
        else:
            call.respond([told])

    def _work(self, call: Call, work: Coroutine[Any, Any, None], response: Any) -> None:
        """Do it behind this call, and answer then; it goes on when the caller leaves."""

        async def run() -> None:
            try:
                await work
            except HeadraceError as error:
                ending = Status(FAILED_PRECONDITION, str(error))
            except Exception:
                ending = internal_error()
            else:
                if not call.over:
                    call.respond([response.SerializeToString()])
                return
            if not call.over:
                call.finish(ending)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _model(self, request: Any) -> ServedModel:
        model = self._core.models.get(request.name)
        if model is None:
            raise _StatusError(NOT_FOUND, self._core.unknown(request.name).message)
        if request.version not in ("", model.version):
            sentence = f"model {model.name!r} has version {model.version} only"
            raise _StatusError(NOT_FOUND, sentence)
        return model

    def _model_ready(self, request: Any) -> dict[str, Any]:
        try:
            name = self._model(request).name
        except _StatusError:
            return {"ready": False}
        return {"ready": self._core.ready and self._core.repository.standing(name).served}

    def _model_metadata(self, request: Any) -> dict[str, Any]:
        return v2_documents.model_document(self._model(request))

    def _model_config(self, request: Any) -> dict[str, Any]:
        return {"config": v2_documents.config_document(self._model(request))}

    def _statistics(self, request: Any) -> dict[str, Any]:
        names = [self._model(request).name] if request.name else list(self._core.counters)
        documents = [v2_documents.statistics_of(self._core, name) for name in names]
        return {"model_stats": documents}

    def _index(self, request: Any) -> dict[str, Any]:
        return {"models": v2_documents.index(self._core, request.ready)}

    def _load(self, request: Any) -> dict[str, Any]:
        """Of a model that is always loaded, that is all."""
        self._stored(request)
        if request.parameters:
            raise _StatusError(UNIMPLEMENTED, v2_documents.NO_OVERRIDING)
        if not self._core.ready:
            raise _StatusError(UNAVAILABLE, self._core.why_not_ready)
        return {}

    async def _load_model(self, request: Any) -> None:
        await self._core.repository.load(request.model_name)

    def _unload(self, request: Any) -> dict[str, Any]:
        self._stored(request)
        if not self._core.repository.comes_and_goes:
            sentence = f"model {request.model_name!r} is {NO_UNLOADING}"
            raise _StatusError(UNIMPLEMENTED, sentence)
        return {}

    async def _unload_model(self, request: Any) -> None:
        self._core.repository.unload(request.model_name)

    def _stored(self, request: Any) -> None:
        name = request.model_name
        if name not in self._core.models:
            sentence = f"{self._core.unknown(name).message}; {v2_documents.NO_LOADING}"
            raise _StatusError(NOT_FOUND, sentence)

    def _health(self, request: Any) -> dict[str, Any]:
        if request.service not in ("", "inference.GRPCInferenceService"):
            raise _StatusError(NOT_FOUND, "no such service is served here")
        return {"status": 1 if self._core.ready else 2}


def _is_grpc(content_type: bytes) -> bool:
    """Not gRPC-Web, which frames messages alike and expects another end."""
    return content_type.startswith(_GRPC) and content_type[len(_GRPC) :][:1] in (b"", b"+", b";")


def _listed(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "extensions": list(document["extensions"])}


def _unserved(path: bytes) -> Status:
    name = path.removeprefix(_SERVICE)
    for beginning, sentence in _UNSERVED.items():
        if name.startswith(beginning):
            return Status(UNIMPLEMENTED, sentence)
    return Status(UNIMPLEMENTED, f"method {path[:80].decode('latin-1')!a} is not served here")
