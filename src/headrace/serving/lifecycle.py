"""A server's life: listen, start the engine, serve, and leave nothing behind.

    fronts listen ──▶ engine starts ──▶ ready ──▶ (SIGTERM) ──▶ retire ──▶ drain ──▶ stop
                           │                 ├────── (SIGINT) ──────────▶ drain ──▶ stop
                           │                 └── (it will never answer again) ──────▶ stop
                           └── (signal, or it cannot start) ──────────────────────▶ stop

The fronts listen first: an address in use is found before anything is started (and before a
rehearsal: `headrace serve` tries them). SIGTERM comes from whoever starts another server in this
one's place, and clients learn of that a little later than we do: while retired (lame duck) the
server says that it is not ready, asks each client to connect anew, and goes on listening and
answering. While draining, the fronts let nobody in and the engine refuses what is new; what was
accepted is answered for as long as the longest objective and a margin. What is open then, since its
client allowed more time, is refused as well: systemd and its like wait for that long and no longer,
and a refusal sends a client elsewhere where the end of its connection would tell it nothing.
"""

import asyncio
import ctypes
import gc
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from headrace.serving.changes.changeover import Changeover
from headrace.serving.core.protocol import Backend
from headrace.serving.front.base import Front
from headrace.serving.terminal import Terminal

log = logging.getLogger("headrace.serve")

_GRACE_MARGIN_S = 5.0
_FLUSH_S = 2.0
"""For the last answers to leave the sockets once the engine has given them."""


class ServingEngine(Backend, Protocol):
    """What a server starts and stops: an `Engine`, or an `AppRuntime` before one."""

    async def start(self) -> None: ...

    async def until_gone(self) -> None:
        """Does not return, but raises HeadraceError when nothing can be answered ever again."""
        ...

    async def drain(self, grace_s: float) -> bool: ...

    async def stop(self) -> None: ...


class Server:
    """One engine behind its fronts."""

    def __init__(
        self,
        engine: ServingEngine,
        fronts: Sequence[Front],
        changeover: Changeover | None = None,
        lame_duck_s: float = 0.0,
        terminal: Terminal | None = None,
    ) -> None:
        """`fronts`: one or more. `changeover`: lets the plan be changed; None: the server keeps the
        one it began with. `lame_duck_s`: how long it goes on answering after SIGTERM. `terminal`:
        None: this process's."""
        self.remind: Callable[[], None] = lambda: None
        """Says in the log what the operator should see to, at the start and at SIGHUP."""
        self._engine = engine
        self._fronts = fronts
        self._changeover = changeover
        self._lame_duck_s = lame_duck_s
        self._retiring = False
        self._serving = False
        self._reload_asked = False
        """While it started: by then the plan file may be another than the one it read."""
        self._terminal = terminal or Terminal()
        self._before_hangup = signal.getsignal(signal.SIGHUP)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT; a second one does not wait for open requests.

        `on_ready` gets the first front's address once every model can be answered.

        Raises:
            AddressError: an address cannot be listened on; nothing was started.
            HeadraceError: the engine cannot start, or can answer nothing ever again.
        """
        loop = asyncio.get_running_loop()
        try:
            for front in self._fronts:
                await front.listen()
        except BaseException:
            await self._stop_fronts()
            raise
        self.remind()
        loop.add_signal_handler(signal.SIGTERM, self.retire)
        loop.add_signal_handler(signal.SIGINT, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        watch = loop.create_task(self._terminal.watch())
        try:
            if await self._unless_stopped(self._engine.start()):
                # What lives now lives until the end: the collector need not look at it again.
                gc.collect()
                gc.freeze()
                _keep_freed_memory()
                self._serving = True
                on_ready(self._fronts[0].address)
                if self._reload_asked:
                    self.reload()
                await self._until_stopped()
                if self._retiring:
                    await self._lame_duck()
            for front in self._fronts:
                front.close()
            for reload in self._tasks:
                reload.cancel()  # No other plan begins any more; one that takes over goes on.
            await self._drain()
        finally:
            await self._stop_fronts()
            await self._engine.stop()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
            signal.signal(signal.SIGHUP, self._before_hangup)
            watch.cancel()

    async def _stop_fronts(self) -> None:
        for front in self._fronts:
            await front.stop()

    async def _lame_duck(self) -> None:
        for front in self._fronts:
            front.retire()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._force.wait(), self._lame_duck_s)

    def retire(self) -> None:
        """What SIGTERM does: as `stop`, but clients have the lame-duck time to go elsewhere."""
        if not self._stop.is_set() and self._serving and self._lame_duck_s > 0:
            log.info("not ready any more; draining in %g s", self._lame_duck_s)
            self._retiring = True
            self._stop.set()
        else:
            self.stop()

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
        terminal goes, the server stops, unless it was started to outlive it (`nohup`)."""
        if self._terminal.hangs_up:
            if self._before_hangup is not signal.SIG_IGN:
                self.stop()
            return
        self.remind()
        if self._changeover is None or self._stop.is_set():
            log.warning("SIGHUP: the plan cannot be changed now")
            return
        if not self._serving:
            log.info("SIGHUP: the plan file is read again once this one is served")
            self._reload_asked = True
            return
        task = asyncio.get_running_loop().create_task(self._changeover.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_stopped(self) -> None:
        """
        Raises:
            HeadraceError: it was not told to stop, but can answer nothing ever again.
        """
        watch = asyncio.ensure_future(self._engine.until_gone())
        watch.add_done_callback(lambda _: self._stop.set())
        try:
            await self._stop.wait()
            if watch.done():
                watch.result()
        finally:
            watch.cancel()

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
        """Answer what was accepted, or refuse it when the time for that is over, then close the
        connections."""
        longest_us = max(model.slo_us for model in self._engine.models.values())
        for front in self._fronts:
            front.drain()
        grace_s = longest_us / 1e6 + _GRACE_MARGIN_S
        if not await self._unless_forced(self._engine.drain(grace_s)):
            left = self._engine.status().open_inferences
            log.warning("%d inferences are still open, and are refused", left)
            await self._engine.stop()
        await self._unless_forced(self._flush())

    async def _unless_forced(self, ending: Coroutine[Any, Any, bool]) -> bool:
        """Await it; False: a second signal came first."""
        end = asyncio.ensure_future(ending)
        force = asyncio.ensure_future(self._force.wait())
        try:
            await asyncio.wait((end, force), return_when=asyncio.FIRST_COMPLETED)
            return end.done() and end.result()
        finally:
            for task in (end, force):
                task.cancel()
            await asyncio.gather(end, force, return_exceptions=True)

    async def _flush(self) -> bool:
        """Whether all answers have left the sockets, and clients with them."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _FLUSH_S
        while waiting := any(front.connections for front in self._fronts):
            if loop.time() > until_s:
                break
            await asyncio.sleep(0.01)
        return not waiting


_KEPT_BYTES, _MAPPED_FROM_BYTES = 64 << 20, 32 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _keep_freed_memory() -> None:
    """Bodies and answers of hundreds of kilobytes come and go: give their memory to the next ones,
    not back to the system each time, which would have to clear it again (glibc: mallopt(3))."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
