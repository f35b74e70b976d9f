"""Servers under load, by what they speak: what they say of their models, and what they are sent."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from headrace.domain.base import JSON_ERRORS
from headrace.load.client import Connection, ConnectionPool, SentRequest, parse_url
from headrace.load.grpc_client import SERVICE, GrpcConnection, document_of, header_block
from headrace.load.options import ClientTls, LoadError, LoadOptions
from headrace.load.payload import (
    Encoder,
    MessageEncoder,
    ModelInfo,
    RequestEncoder,
    ServedSizes,
    decode_sequences,
    decode_sizes,
    decode_slo_us,
    example_files,
    file_input,
    random_inputs,
)
from headrace.serving.front.grpc.messages import message


class Server:
    """The server under load: connections to it, and what it says of its models."""

    alpn = "http/1.1"
    connection: type[Connection] | type[GrpcConnection] = Connection

    def __init__(self, url: str, options: LoadOptions, connections: int) -> None:
        self.endpoint = endpoint = parse_url(url)
        self._options = options
        tls = None if endpoint.tls is False else (options.tls or ClientTls()).context(self.alpn)
        self._headers = b"Host: %b\r\n" % endpoint.authority.encode()
        if options.token is not None:
            self._headers += b"Authorization: Bearer %b\r\n" % options.token.encode()
        self.where = f"{endpoint.scheme}://{endpoint.authority}"
        self.pool = ConnectionPool(endpoint, connections, self.connection, tls)

    async def document(self, path: str) -> bytes:
        """A small document.

        Raises:
            LoadError: the server is not there or refuses.
        """
        reply = await self._fetch(path)
        if reply.error == "tls":
            raise LoadError(
                f"{self.where}: no connection by TLS; name the authority of the server's"
                " certificate with --tls-ca, and your own with --tls-cert and --tls-key if it asks"
                " for one"
            )
        if reply.status == 0:
            # What speaks TLS hangs up on whoever does not.
            scheme = "" if reply.error == "connect" else ", and by the scheme of this URL"
            raise LoadError(
                f"{self.where}: no answer ({reply.error}); is `headrace serve` running{scheme}?"
                f"{scheme and ' With TLS it is https or grpcs.'}"
            )
        if reply.status != 200:
            _, message = refusal_of(reply)
            raise LoadError(f"{self.where}{path}: {reply.status}: {message}")
        return reply.body

    async def slo_us(self, model: str) -> int:
        """
        Raises:
            LoadError: the server states no objective of this model.
        """
        path = f"/v2/models/{model}/config"
        reply = await self._fetch(path)
        slo_us = decode_slo_us(reply.body) if reply.status == 200 else None
        if slo_us is None:
            raise LoadError(f"{self.where}{path}: the server states no objective; give --slo-ms")
        return slo_us

    async def in_sequences(self, model: str) -> bool:
        """Whether the model keeps state: each request is a sequence of its own then."""
        reply = await self._fetch(f"/v2/models/{model}/config")
        return reply.status == 200 and decode_sequences(reply.body)

    async def sizes(self, info: ModelInfo) -> ServedSizes | None:
        """Of a model of several sizes, where the server states any."""
        reply = await self._fetch(f"/v2/models/{info.name}/config")
        return decode_sizes(reply.body, info) if reply.status == 200 else None

    def encoders(self, info: ModelInfo, in_sequences: bool, items: int = 0) -> tuple[Encoder, ...]:
        """One per example. `items`: 0: as the options say."""
        options = self._options
        items = items or options.items
        paths = example_files(options.model_inputs.get(info.name, options.input_paths))
        examples = [file_input(path, info, items) for path in paths]
        if not examples:
            examples = [random_inputs(info, items, np.random.default_rng(options.seed))]
        # Far from other generators', and from each other's.
        return tuple(
            self.encoder(info, tensors, secrets.randbits(62) if in_sequences else None)
            for tensors in examples
        )

    def encoder(
        self, info: ModelInfo, tensors: Sequence[npt.NDArray[Any]], first_sequence: int | None
    ) -> Encoder:
        return RequestEncoder(
            self._headers,
            info,
            tensors,
            binary=self._options.binary,
            first_sequence=first_sequence,
        )

    async def _fetch(self, path: str) -> SentRequest:
        return await self._ask([b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), self._headers)])

    async def _ask(self, parts: Sequence[bytes]) -> SentRequest:
        ended = asyncio.Event()
        exchange = SentRequest(parts, lambda _: ended.set(), keep_body=True)
        self.pool.submit(exchange)
        loop = asyncio.get_running_loop()
        loop.call_later(self._options.timeout_s, self.pool.expire, exchange)
        await ended.wait()
        return exchange


class GrpcServer(Server):
    """The same over gRPC."""

    alpn = "h2"
    connection = GrpcConnection

    def encoder(
        self, info: ModelInfo, tensors: Sequence[npt.NDArray[Any]], first_sequence: int | None
    ) -> Encoder:
        call = self._call("ModelInfer")
        return MessageEncoder(call, info, tensors, first_sequence=first_sequence)

    def _call(self, method: str) -> bytes:
        endpoint = self.endpoint
        path = SERVICE + method.encode()
        return header_block(endpoint.authority, path, self._options.token, endpoint.tls)

    async def _fetch(self, path: str) -> SentRequest:
        """HTTP's paths, as methods."""
        parts = path.split("/")[2:]
        method = "RepositoryIndex" if parts[0] == "repository" else "ModelMetadata"
        method = "ModelConfig" if parts[-1] == "config" else method
        request = message(f"{method}Request")()
        if method != "RepositoryIndex":
            request.name = parts[1]
        reply = await self._ask([self._call(method), request.SerializeToString()])
        if reply.status == 200:
            try:
                reply.body = msgspec.json.encode(document_of(method, reply.body))
            except DecodeError as error:
                raise LoadError(f"{self.where}: {method} is not answered as gRPC's is") from error
        return reply


def server_at(url: str, options: LoadOptions, connections: int) -> Server:
    """
    Raises:
        DocumentError: the URL or a file of TLS cannot be used.
    """
    kind = GrpcServer if parse_url(url).grpc else Server
    return kind(url, options, connections)


class _ServerError(msgspec.Struct, frozen=True):
    error: str = ""
    reason: str = ""


def refusal_of(exchange: SentRequest) -> tuple[str, str]:
    """(reason, message) of a response that is no result."""
    try:
        said = msgspec.json.decode(exchange.body, type=_ServerError)
    except JSON_ERRORS:
        said = _ServerError(error=exchange.body[:200].decode("latin-1"))
    return said.reason[:64] or f"http-{exchange.status}", said.error[:500]
