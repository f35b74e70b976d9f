"""A lean HTTP/1.1 client for load: keep-alive connections, one request at a time on each.

Off-the-shelf clients spend more time per small request than a fast server does, and would then
measure themselves. This one does no more than a load run needs.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools

from headrace.domain.base import Record
from headrace.domain.errors import DocumentError
from headrace.serving.engine.timer import monotonic_us

MAX_KEPT_BYTES: Final = 16 << 20
"""Of a response body that is kept; larger ones are counted only."""


class Endpoint(Record, frozen=True, kw_only=True):
    """Where the server is."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> Endpoint:
    """Read `http://HOST[:PORT]`.

    Raises:
        DocumentError: anything else.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 80
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise DocumentError(f"{url!r}: not a URL: {error}") from error
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme != "http" or not parts.hostname or extra:
        raise DocumentError(f"{url!r}: expected http://HOST:PORT, such as http://127.0.0.1:8000")
    return Endpoint(host=parts.hostname, port=port)


class SentRequest:
    """One request on its way and what became of it."""

    __slots__ = (
        "body",
        "body_bytes",
        "connection",
        "done",
        "ended_at_us",
        "error",
        "index",
        "keep_body",
        "on_done",
        "parts",
        "sent_at_us",
        "status",
    )

    def __init__(
        self,
        parts: Sequence[bytes],
        on_done: Callable[["SentRequest"], None],
        *,
        index: int = 0,
        keep_body: bool = False,
    ) -> None:
        self.parts = parts
        """The whole request as it goes over the wire."""
        self.on_done = on_done
        self.index = index
        self.keep_body = keep_body
        """Keep the body of a success too; that of an error is always kept."""
        self.sent_at_us: int | None = None
        self.ended_at_us = 0
        self.status = 0
        """0: no complete response came."""
        self.error = ""
        """Why not: connect, closed, protocol or timeout."""
        self.body_bytes = 0
        self.body = b""
        self.connection: Connection | None = None
        self.done = False

    def finish(self, error: str = "") -> None:
        """Exactly once; later calls are ignored."""
        if not self.done:
            self.done = True
            self.error = error
            self.ended_at_us = monotonic_us()
            self.connection = None
            self.on_done(self)


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

    def __init__(self, endpoint: Endpoint, limit: int) -> None:
        self._endpoint = endpoint
        self._limit = limit
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
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

    def on_free(self, connection: Connection) -> None:
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.done:
                connection.start(exchange)
                return
        self._idle.append(connection)

    def on_closed(self, connection: Connection) -> None:
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
                lambda: Connection(self), self._endpoint.host, self._endpoint.port
            )
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


async def fetch(
    pool: ConnectionPool, endpoint: Endpoint, path: str, authorization: bytes, timeout_s: float
) -> SentRequest:
    """GET one small document."""
    done: asyncio.Future[SentRequest] = asyncio.get_running_loop().create_future()
    request = b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (
        path.encode(),
        endpoint.authority.encode(),
        authorization,
    )

    def on_done(exchange: SentRequest) -> None:
        if not done.done():
            done.set_result(exchange)

    exchange = SentRequest([request], on_done, keep_body=True)
    pool.submit(exchange)
    asyncio.get_running_loop().call_later(timeout_s, pool.expire, exchange)
    return await done
