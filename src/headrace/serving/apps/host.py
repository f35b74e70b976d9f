"""The gateway's side of the apps' process: started, watched, started again.

    open ──▶ start ──▶ up ──(it ended; its loop or threads held, or silent, for KILL_S)──▶ gone
                        ▲                                                                    │
                        └───────────── loaded the same apps ◀── after the delay ─────────────┘

`open` starts the first process before there is a loop, since what apps take and give is known to
nobody else. Delays are those of workers, by the number of processes in a row that died young.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headrace.domain.errors import DocumentError, HeadraceError, ProcessLimitError
from headrace.serving.apps.frames import (
    AnyFrame,
    Beat,
    DescribedApp,
    DescribedFile,
    FromApps,
    FromGateway,
    Link,
    NotReady,
    Ready,
    Stop,
    Tensors,
    decode_beat,
)
from headrace.serving.apps.held import HeldLog
from headrace.serving.workers.affinity import allowed_cores
from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.process_ends import ended_within, until_ended
from headrace.serving.workers.restart_delays import RestartDelays
from headrace.serving.workers.status import AppsStatus
from headrace.serving.workers.worker_process import STOP_GRACE_S

logger = logging.getLogger("headrace.apps")

LOAD_TIMEOUT_S = 120.0
KILL_S = 10.0
"""A loop that is held up for so long, or all threads by work that nobody waits for, or a process
that gives no sign, is not waited for."""
LOOK_S = 0.5
_ENDING_S = 0.05
"""From the end of its channel to the end of a process."""
MAX_UNSENT_BYTES = 256 << 20
"""More than that waits for the apps' process only while it does not read."""


class AppEvents(Protocol):
    """Whom the host tells; the runtime."""

    def on_frame(self, frame: FromApps, tensors: Tensors) -> None: ...

    def on_up(self) -> None:
        """A process has come up, and knows nothing of requests and modules."""
        ...

    def on_lost(self, why: str) -> None:
        """Whatever was in the process is lost."""
        ...


class FunctionHost(Protocol):
    """Where app functions run."""

    events: AppEvents

    @property
    def apps(self) -> tuple[DescribedApp, ...]: ...

    @property
    def up(self) -> bool: ...

    @property
    def congested(self) -> bool:
        """It does not read what it is sent."""
        ...

    @property
    def retry_after_us(self) -> int:
        """Until the next attempt to bring it up."""
        ...

    def status(self) -> AppsStatus: ...

    def send(self, frame: FromGateway, tensors: Tensors = ()) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class _Process:
    """One incarnation. At birth it begins to load the files."""

    def __init__(self, paths: Sequence[Path], threads: int, cores: Sequence[int]) -> None:
        """
        Raises:
            ProcessLimitError: the system starts no more processes.
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        watch, beats = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "headrace.serving.apps.process"]
        command += ["--channel", str(theirs.fileno()), "--watch", str(beats.fileno())]
        command += ["--parent", str(os.getpid()), "--threads", str(threads)]
        command += ["--cores", ",".join(map(str, cores)), *(str(path.resolve()) for path in paths)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), beats.fileno()),
                # As for workers: Ctrl-C reaches the gateway only, which drains before it stops us,
                # and niceness holds.
                process_group=0,
            )
        except OSError as error:
            ours.close()
            watch.close()
            if error.errno == errno.EAGAIN:
                raise ProcessLimitError("the apps' process") from error
            raise
        finally:
            # Only the process may hold its ends, or its death would go unnoticed.
            theirs.close()
            beats.close()
        self.channel, self.watch = ours, watch
        ours.setblocking(False)
        watch.setblocking(False)

    async def ready(self) -> tuple[DescribedFile, ...]:
        """Wait until the files are loaded.

        Raises:
            DocumentError: they cannot be.
        """
        got: list[AnyFrame] = []
        failed: list[str] = []
        link = Link(lambda frame, tensors: got.append(frame), failed.append)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                while not got and not failed:
                    count = await loop.sock_recv_into(self.channel, link.get_buffer(-1))
                    if not count:
                        raise DocumentError(
                            f"apps: their process {self.ended()} while it loaded them"
                        )
                    link.buffer_updated(count)
        except TimeoutError:
            raise DocumentError(f"apps: not loaded after {LOAD_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise DocumentError(f"apps: not loaded: {error}") from error
        if got and isinstance(got[0], Ready):
            return got[0].files
        why = got[0].message if got and isinstance(got[0], NotReady) else "; ".join(failed)
        raise DocumentError(why or "apps: their process said something else than what they are")

    def ended(self) -> str:
        """How, for messages; it is about to, or has something wrong with it."""
        try:
            status = self.process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def kill(self) -> None:
        """Also what it has started, which may outlive it; all but what has left its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Leave no process and no descriptor. Idempotent; may block for a moment."""
        self.kill()
        self.process.wait()
        self.channel.close()
        self.watch.close()

    async def end(self) -> None:
        """As `reap`; the loop goes on meanwhile."""
        self.kill()
        try:
            await until_ended(self.process)
        finally:
            self.reap()


class AppHost:
    """A `FunctionHost`: one process for all app files."""

    def __init__(self, paths: Sequence[Path], threads: int | None = None) -> None:
        """`threads`: for the functions' work aside; None: one per core, at most four."""
        self.events: AppEvents
        self.up = False
        self._paths = paths
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._cores = allowed_cores()
        self._process: _Process | None = None
        self._link: Link | None = None
        self._lost_now = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._look: asyncio.TimerHandle | None = None
        self.files: tuple[DescribedFile, ...] = ()
        self._restarts = 0
        self._delays = RestartDelays()
        self._next_attempt_at_s = 0.0
        self._beat = Beat(0, 0, False, "", "")
        self._beat_at_s = 0.0
        self._cpu_before_us = 0
        """Of processes that have ended."""
        self._held = HeldLog()

    def open(self) -> tuple[DescribedFile, ...]:
        """Start the process and wait until it has loaded; before there is a loop.

        Raises:
            DocumentError: a file cannot be loaded; nothing is left running.
            ProcessLimitError: the system starts no more processes.
        """
        self._process = _Process(self._paths, self._threads, self._cores)
        try:
            self.files = asyncio.run(self._process.ready())
        except HeadraceError:
            self.close()
            raise
        return self.files

    def close(self) -> None:
        """End it at once; without a loop. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.reap()

    # -- a FunctionHost ----------------------------------------------------------------------------

    @property
    def apps(self) -> tuple[DescribedApp, ...]:
        return tuple(app for file in self.files for app in file.apps)

    @property
    def congested(self) -> bool:
        return self._link is not None and self._link.unsent_bytes > MAX_UNSENT_BYTES

    @property
    def retry_after_us(self) -> int:
        return max(0, round((self._next_attempt_at_s - asyncio.get_running_loop().time()) * 1e6))

    def status(self) -> AppsStatus:
        return AppsStatus(
            up=self.up,
            restarts=self._restarts,
            process_id=None if self._process is None else self._process.process.pid,
            cpu_us=self._cpu_before_us + self._beat.cpu_us,
            lag_us=self._beat.lag_us,
            held_us=self._held.held_us,
            left_threads=self._held.left_threads,
        )

    def send(self, frame: FromGateway, tensors: Tensors = ()) -> None:
        if self._link is not None and self.up:
            self._link.send(frame, tensors)

    async def start(self) -> None:
        await self._attach()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        process = self._process
        if process is not None and self.up:
            self.send(Stop())
            self.up = False
            if not await ended_within(process.process, STOP_GRACE_S):
                logger.warning("the apps' process does not stop; killing it")
        await self._detach()

    # -- one process after the other -----------------------------------------------------------

    async def _attach(self) -> None:
        process = self._process
        assert process is not None, "opened before it is attached"
        loop = asyncio.get_running_loop()
        self._lost_now.clear()
        link = self._link = Link(self._receive, self._lose)
        await loop.create_unix_connection(lambda: link, sock=process.channel)
        self._beat, self._beat_at_s = Beat(0, 0, False, "", ""), loop.time()
        self._held.begin()
        loop.add_reader(process.watch, self._on_beat)
        self._look = loop.call_later(LOOK_S, self._check)
        self.up = True
        self.events.on_up()

    async def _detach(self) -> None:
        self.up = False
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._link is not None:
            self._link.close()
            self._link = None
        process, self._process = self._process, None
        if process is not None:
            asyncio.get_running_loop().remove_reader(process.watch)
            self._cpu_before_us += self._beat.cpu_us
            self._beat = Beat(0, 0, False, "", "")
            await process.end()

    async def _keep(self) -> None:
        """Bring it up again whenever it is gone."""
        loop = asyncio.get_running_loop()
        while True:
            came_up_at_s = loop.time()
            await self._lost_now.wait()
            await self._detach()
            self._delays.lived(loop.time() - came_up_at_s)
            while not self.up:
                delay_s = self._delays.after_setback_s()
                self._next_attempt_at_s = loop.time() + delay_s
                await asyncio.sleep(delay_s)
                await self._try_again()

    async def _try_again(self) -> None:
        self._restarts += 1
        try:
            # Born on this thread: the kernel kills it when that, its parent, is gone.
            self._process = _Process(self._paths, self._threads, self._cores)
            files = await self._process.ready()
            if files != self.files:
                raise DocumentError("apps: the files have changed; restart the server for that")
            await self._attach()
        except (HeadraceError, OSError) as error:
            logger.error("the apps' process cannot be started again: %s", error)
            process, self._process = self._process, None
            if process is not None:
                await process.end()
            return
        logger.info("the apps' process is back")

    def _receive(self, frame: AnyFrame, tensors: Tensors) -> None:
        if isinstance(frame, FromApps):
            self.events.on_frame(frame, tensors)

    def _lose(self, reason: str) -> None:
        process = self._process
        if process is not None and self.up:
            self.up = False
            logger.error(
                "the apps' process is lost: it %s (%s); restarting it", process.ended(), reason
            )
            # Whatever happened to the channel: it is of no use any more.
            process.kill()
            self.events.on_lost("the process of the apps' code has died")
        self._lost_now.set()

    # -- how it does -------------------------------------------------------------------------------

    def _on_beat(self) -> None:
        process = self._process
        if process is None:
            return
        try:
            packet = process.watch.recv(1 << 16)
            beat = decode_beat(packet) if packet else None
        except (BlockingIOError, FrameError):
            return
        except OSError:
            beat = None
        if beat is None:
            asyncio.get_running_loop().remove_reader(process.watch)
            return
        self._beat, self._beat_at_s = beat, asyncio.get_running_loop().time()
        self._held.note(beat)
        why = why_not_wait(beat)
        if why is not None:
            self._kill(why)

    def _check(self) -> None:
        assert self._look is not None, "whoever stops looking does not look"
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - self._look.when() > LOOK_S:
            # We were away ourselves: what it sent meanwhile is unread.
            self._beat_at_s = now_s
        if now_s - self._beat_at_s > KILL_S:
            self._kill(f"it gave no sign for {KILL_S:g} s")
        if self._process is not None and self._process.process.poll() is not None:
            self._lose("its channel is still open")
        # Not `call_at`: for an instant that is past by now, uvloop gives no timer.
        self._look = loop.call_later(LOOK_S, self._check)

    def _kill(self, why: str) -> None:
        if self._process is not None and self._process.process.poll() is None:
            logger.error("killing the apps' process: %s", why)
            self._process.kill()


def why_not_wait(beat: Beat) -> str | None:
    """Why a process is to be ended that gives this sign; None: it is not."""
    if beat.held and beat.lag_us > KILL_S * 1e6:
        return f"its loop was held up for {beat.lag_us / 1e6:.1f} s"
    if beat.left.all_us > KILL_S * 1e6:
        held_s = beat.left.all_us / 1e6
        return f"work whose requests have ended has held all its threads for {held_s:.1f} s"
    return None
