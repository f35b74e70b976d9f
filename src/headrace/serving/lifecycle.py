"""A server's life: listen, start the engine, serve, and leave nothing behind."""

import asyncio
import errno
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from headrace.domain.errors import HeadraceError
from headrace.serving.changes.changeover import Changeover
from headrace.serving.front.access import Access
from headrace.serving.front.gateway import Gateway
from headrace.serving.front.http import HttpServer
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.inferences import Backend
from headrace.serving.front.prometheus import ModelCounters

log = logging.getLogger("headrace.serve")

_SWEEP_S = 0.5
_GRACE_MARGIN_S = 5.0
_FLUSH_S = 2.0
"""For the last answers to leave the sockets once the engine has given them."""


class AddressError(HeadraceError):
    """The server cannot listen where it was told to."""


class ServingEngine(Backend, Protocol):
    """The part of `Engine` that its server uses."""

    async def start(self) -> None: ...

    async def drain(self, grace_s: float) -> bool: ...

    async def stop(self) -> None: ...


class Server:
    """One engine behind one HTTP address."""

    def __init__(
        self,
        engine: ServingEngine,
        access: Access,
        *,
        host: str,
        port: int,
        limits: Limits,
        counters: Mapping[str, ModelCounters],
        changeover: Changeover | None = None,
    ) -> None:
        """`port` 0: any free one. `counters`: by model, filled here. `changeover`: lets the plan
        be changed; None: the server keeps the one it began with."""
        self._engine = engine
        self._host = host
        self._port = port
        # One thread: compressed bodies are rare, and must not hold up the loop.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-zlib")
        self._changeover = changeover
        admin = None if changeover is None else changeover.migrate
        self.gateway = Gateway(engine, access, self._aside, limits, counters, admin)
        if changeover is not None:
            changeover.on_switch = self.gateway.refresh
        self.http = HttpServer(self.gateway, limits)
        self.url = ""
        """Where it listens, once it does."""
        self._serving = False
        self._had_terminal = _has_terminal()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; a second one does not wait for open requests.

        `on_ready` gets the URL once every model can be answered.

        Raises:
            AddressError: the address cannot be listened on; nothing was started.
            HeadraceError: the engine cannot start.
        """
        loop = asyncio.get_running_loop()
        listener = await self._listen()
        sweeper = loop.create_task(self._sweep())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            if await self._unless_stopped(self._engine.start()):
                # What lives now lives until the end: the collector need not look at it again.
                gc.collect()
                gc.freeze()
                self._serving = True
                on_ready(self.url)
                await self._stop.wait()
            listener.close()
            await self._drain()
        finally:
            listener.close()
            self.http.abort()
            await self._engine.stop()
            sweeper.cancel()
            self._pool.shutdown(cancel_futures=True)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """What a signal does: the first drains, the second ends."""
        if self._stop.is_set():
            log.warning("stopping at once")
            self._force.set()
        else:
            log.info("draining")
        self._stop.set()

    def reload(self) -> None:
        """What SIGHUP does: the plan file is read again; or, where the signal says that the
        terminal is gone, the server stops as it always did."""
        if self._had_terminal and not _has_terminal():
            self.stop()
            return
        if self._changeover is None or not self._serving or self._stop.is_set():
            log.warning("SIGHUP: the plan cannot be changed now")
            return
        task = asyncio.get_running_loop().create_task(self._changeover.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                self.http.connect, self._host, self._port, backlog=1024
            )
        except (OSError, UnicodeError) as error:  # Unicode: no name that a host can have.
            address = f"{self._host}:{self._port}"
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                sentence = f"serve: {address} is in use by another program\n  try    --port 0"
            else:
                sentence = f"serve: cannot listen on {address}: {error}"
            raise AddressError(sentence) from error
        port = listener.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{port}"
        return listener

    async def _unless_stopped(self, starting: Any) -> bool:
        """Await it; False: a signal came first."""
        start = asyncio.ensure_future(starting)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
            return not self._stop.is_set()
        finally:
            for task in (start, stop):
                task.cancel()
            await asyncio.gather(start, stop, return_exceptions=True)

    async def _drain(self) -> None:
        """Answer what was accepted, then close the connections."""
        longest_us = max(model.slo_us for model in self._engine.models.values())
        self.http.drain()
        drain = asyncio.ensure_future(self._finish(longest_us / 1e6 + _GRACE_MARGIN_S))
        force = asyncio.ensure_future(self._force.wait())
        await asyncio.wait((drain, force), return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, force):
            task.cancel()
        await asyncio.gather(drain, force, return_exceptions=True)

    async def _finish(self, grace_s: float) -> None:
        if not await self._engine.drain(grace_s):
            log.warning("some requests were still open after %.1f s", grace_s)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _FLUSH_S
        while self.http.connections and loop.time() < until_s:
            await asyncio.sleep(0.01)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.http.sweep(loop.time())
            await asyncio.sleep(_SWEEP_S)

    def _aside(self, work: Callable[[], Any], then: Callable[["Future[Any]"], None]) -> None:
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(then, done))


def _has_terminal() -> bool:
    """Whether a terminal controls this process, and is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
