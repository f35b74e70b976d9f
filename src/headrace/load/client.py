"""A lean HTTP/1.1 client for load: keep-alive connections, one request at a time on each.

Off-the-shelf clients spend more time per small request than a fast server does, and would then
measure themselves. This one does no more than a load run needs.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, cast
from urllib.parse import urlsplit

import httptools

from headrace.domain.base import Record, host_port
from headrace.domain.errors import DocumentError
from headrace.serving.engine.timer import monotonic_us

MAX_KEPT_BYTES: Final = 16 << 20
"""Of a response body that is kept; larger ones are counted only."""


_PORTS: Final = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}


class Endpoint(Record, frozen=True, kw_only=True):
    """Where the server is."""

    host: str
    port: int
    scheme: Literal["http", "https", "grpc", "grpcs"] = "http"

    @property
    def tls(self) -> bool:
        return self.scheme in ("https", "grpcs")

    @property
    def grpc(self) -> bool:
        return self.scheme in ("grpc", "grpcs")

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        return host_port(self.host, self.port)


def parse_url(url: str) -> Endpoint:
    """Read `http://HOST[:PORT]`, or https, grpc or grpcs.

    Raises:
        DocumentError: anything else.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 80)
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise DocumentError(f"{url!r}: not a URL: {error}") from error
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in _PORTS or not parts.hostname or extra:
        raise DocumentError(
            f"{url!r}: expected http://HOST:PORT, such as http://127.0.0.1:8000"
            " (or https, grpc, grpcs)"
        )
    return Endpoint(host=parts.hostname, port=port, scheme=cast(Any, parts.scheme))


@dataclass(slots=True, eq=False)
class SentRequest:
    """One request on its way and what became of it."""

    parts: Sequence[bytes]
    """The whole request as it goes over the wire."""
    on_done: Callable[["SentRequest"], None]
    index: int = 0
    keep_body: bool = False
    """Keep the body of a success too; that of an error is always kept."""
    sent_at_us: int | None = None
    ended_at_us: int = 0
    status: int = 0
    """0: no complete response came."""
    error: str = ""
    """Why not: connect, tls, closed, protocol or timeout."""
    body_bytes: int = 0
    body: bytes = b""
    connection: "PooledConnection | None" = None
    done: bool = False

    def finish(self, error: str = "") -> None:
        """Exactly once; later calls are ignored."""
        if not self.done:
            self.done = True
            self.error = error
            self.ended_at_us = monotonic_us()
            self.connection = None
            self.on_done(self)


class PooledConnection(Protocol):
    """One request at a time; tells its pool when it is free and when it is closed."""

    @property
    def is_open(self) -> bool: ...

    def start(self, exchange: SentRequest) -> None: ...

    def abort(self) -> None: ...


class Connection(asyncio.Protocol):
    """One keep-alive connection. The pool hands it an exchange whenever it is free."""

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool
        self._exchange: SentRequest | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._kept: list[bytes] = []

    def start(self, exchange: SentRequest) -> None:
        assert self._transport is not None
        self._exchange = exchange
        exchange.connection = self
        exchange.sent_at_us = monotonic_us()
        if len(exchange.parts) == 1:
            self._transport.write(exchange.parts[0])
        else:
            self._transport.writelines(exchange.parts)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            self.abort()  # bytes that nobody asked for: the next answer would be misread
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("protocol")
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._pool.on_closed(self)
        self._end("closed")

    # -- httptools callbacks -------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        exchange.body_bytes += len(data)
        wanted = exchange.keep_body or self._parser.get_status_code() != 200
        if wanted and exchange.body_bytes <= MAX_KEPT_BYTES:
            self._kept.append(data)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        exchange.status = self._parser.get_status_code()
        if self._kept:
            exchange.body = b"".join(self._kept)
        reusable = self._parser.should_keep_alive()
        self._end("")
        if not reusable:
            self._pool.on_closed(self)
            assert self._transport is not None
            self._transport.close()
        else:
            self._pool.on_free(self)

    def _end(self, error: str) -> None:
        exchange, self._exchange = self._exchange, None
        self._kept.clear()
        if exchange is not None:
            exchange.finish(error)


class ConnectionPool:
    """Up to `limit` connections to one server; opened when needed, the newest idle one first.

    What finds none free waits in order; the wait is the caller's latency, as it would be a
    user's.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limit: int,
        make: Callable[["ConnectionPool"], Any] = Connection,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`make`: a `PooledConnection` that is asyncio's protocol too."""
        self._endpoint = endpoint
        self._limit = limit
        self._make = make
        self._tls = tls
        self._idle: list[PooledConnection] = []
        self._open: set[PooledConnection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[SentRequest] = deque()

    @property
    def opened(self) -> int:
        """Connections that are open or being opened."""
        return len(self._open) + len(self._opening)

    def submit(self, exchange: SentRequest) -> None:
        """Send now if a connection is free, otherwise as soon as one is."""
        if self._idle:
            self._idle.pop().start(exchange)
            return
        self._waiting.append(exchange)
        self._open_more()

    def expire(self, exchange: SentRequest) -> None:
        """Give an exchange up; its connection cannot be used again."""
        connection = exchange.connection
        exchange.finish("timeout")
        if connection is not None:
            connection.abort()

    def on_free(self, connection: PooledConnection) -> None:
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.done:
                connection.start(exchange)
                return
        self._idle.append(connection)

    def on_closed(self, connection: PooledConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting:
            self._open_more()

    async def close(self) -> None:
        """Drop all connections."""
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._open):
            connection.abort()

    def _open_more(self) -> None:
        # One connection per waiting request, no more: an opened one may also serve two.
        if self.opened < self._limit and len(self._opening) < len(self._waiting):
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._on_opened)

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if self._waiting and not task.cancelled():
            self._open_more()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: self._make(self),
                self._endpoint.host,
                self._endpoint.port,
                ssl=self._tls,
            )
        except ssl.SSLError:
            self._fail_one("tls")
            return
        except OSError:
            self._fail_one("connect")
            return
        if not connection.is_open:  # accepted and dropped at once
            self._fail_one("closed")
            return
        self._open.add(connection)
        self.on_free(connection)

    def _fail_one(self, error: str) -> None:
        """A lost attempt costs one request, so that a dead server ends the run quickly."""
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.done:
                exchange.finish(error)
                return
