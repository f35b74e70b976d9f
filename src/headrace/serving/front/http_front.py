"""The Open Inference Protocol over HTTP, as a front: its socket, its limits, its life."""

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.arrivals import stamp_arrivals
from headrace.serving.front.base import AddressError, FrontOptions
from headrace.serving.front.gateway import Gateway
from headrace.serving.front.http_server import HttpServer

_SWEEP_S = 0.5


class HttpFront:
    """A `Front`."""

    def __init__(self, core: ProtocolCore, options: FrontOptions) -> None:
        self._host = options.host
        self._port = options.port
        # One thread: compressed bodies are rare, and must not hold up the loop.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-zlib")
        limits = options.limits
        self._http = HttpServer(Gateway(core, options.access, self._aside, limits), limits)
        self._core = core
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._stopped = False
        self.address = ""
        """The URL."""

    @property
    def connections(self) -> int:
        return len(self._http.connections)

    async def listen(self) -> None:
        """
        Raises:
            AddressError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                self._http.connect, self._host, self._port, backlog=1024
            )
        except (OSError, UnicodeError) as error:  # Unicode: no name that a host can have.
            address = f"{self._host}:{self._port}"
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                sentence = f"serve: {address} is in use by another program\n  try    --port 0"
            else:
                sentence = f"serve: cannot listen on {address}: {error}"
            raise AddressError(sentence) from error
        self._listener = listener
        for own in listener.sockets:
            stamp_arrivals(own)
        port = listener.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"http://{host}:{port}"
        self._sweeper = loop.create_task(self._sweep())

    def retire(self) -> None:
        self._core.retire()
        self._http.closing = True

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def drain(self) -> None:
        self._http.drain()

    async def stop(self) -> None:
        self.close()
        self._http.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._stopped = True
        self._pool.shutdown(cancel_futures=True)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._http.sweep(loop.time())
            await asyncio.sleep(_SWEEP_S)

    def _aside(self, work: Callable[[], Any], then: Callable[["Future[Any]"], None]) -> None:
        if self._stopped:
            return  # every connection is gone: nobody waits for the result
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(then, done))
