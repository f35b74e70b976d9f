"""One incarnation of a worker: the process, its channel, and what it has loaded."""

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from headrace.domain.errors import ModelError, ProcessLimitError
from headrace.executors.table import executor
from headrace.serving.workers.activity import CountedTime, activity_of
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.channel import Channel, channel_pair
from headrace.serving.workers.frames import AnyFrame, Expect, Failed, Load, Loaded, Stop
from headrace.serving.workers.process_ends import ended_within, until_ended

logger = logging.getLogger(__name__)

STOP_GRACE_S = 2.0
"""From Stop to SIGTERM, and from there to SIGKILL."""
_LOOK_S = 1.0
"""Whether a worker that loads has a core."""
_Reply: TypeAlias = Loaded | Failed


class _DiedError(ModelError):
    """While it loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What is to serve one slot."""

    slot: str
    executor: str
    """Its kind."""
    loads: tuple[Load, ...]
    """What its worker has before it counts as up."""
    later: tuple[Load, ...] = ()
    """What it may be given while it serves (`provisioned`)."""
    cores: tuple[int, ...] = ()
    """The CPU cores it stays on; none: wherever the system puts it."""
    quota: Fraction | None = None
    """The part of its core's time that it gets, where the system keeps it to that; None: any."""
    device: int | None = None
    """The number of its device on its host; None: its kind needs no device."""
    percent: int | None = None
    """Of that device's threads, where slots have parts of it; None: its slots are whole."""
    process: int | None = None
    """Slots with the same number share a process; None: its own."""
    files: tuple[int, ...] = ()
    """Descriptors of the files that its stages are read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What every worker of a host may use."""

    cores: tuple[int, ...] = ()
    """Where those run that stay on no core of their own; none: wherever the system puts them."""
    memory_bytes: int | None = None
    """Of data: heap, stacks and private mappings, not the tensors that it shares; None: any."""


class WorkerProcess:
    """Starts a process at birth. Afterwards `load`, then frames, then `stop` or its death."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        arena: Arena,
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
        limits: WorkerLimits,
        environment: Mapping[str, str] | None = None,
        news: Callable[[], str] = str,
    ) -> None:
        """`specs` has one entry per slot; only kinds that `hold` can be several. `environment` is
        what it has besides ours and its kind's. `news`: of why it may have ended, asked when it
        has.

        `on_frame` gets reports of runs; `on_lost` is called once, with the reason, when the
        process ends or must be given up without `stop` having been asked for.

        Raises:
            ProcessLimitError: the system starts no more processes.
            OSError: it cannot be started.
        """
        self._specs = specs
        self._what = process_title(specs)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._news = news
        self._reply: asyncio.Future[_Reply] | None = None
        ours, theirs = channel_pair()
        try:
            self._process = _spawn(specs, arena, theirs.fileno(), limits, environment or {})
        except OSError as error:
            ours.close()
            if error.errno == errno.EAGAIN:
                raise ProcessLimitError(f"{self._what}: its worker") from error
            raise
        finally:
            # Only the worker may hold its end, or its death would go unnoticed.
            theirs.close()
        self._channel = Channel(asyncio.get_running_loop(), ours, self._receive, self._lost)
        self.send = self._channel.send

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def descriptor(self) -> int | None:
        return self._channel.descriptor

    def busy_us(self, slot: int) -> None:
        """What is sent is there at once: see `WorkerHandle`."""

    async def load(self, timeout_s: float) -> None:
        """Load all stages of all slots, one after the other.

        Raises:
            ModelError: a stage cannot be loaded, or the process died or hung meanwhile.
            ProcessLimitError: the process ended since it cannot start its threads.
        """
        for load in self._first_frames():
            name = load.name if isinstance(load, Load) else load.executor
            self._reply = asyncio.get_running_loop().create_future()
            self.send(load)
            try:
                reply = await self._within(timeout_s, self._reply)
            except _DiedError:
                if await self.reap() == ProcessLimitError.exit_code:
                    raise ProcessLimitError(f"{self._what}: a thread of its worker") from None
                raise
            except TimeoutError:
                raise ModelError(
                    f"{self._what}: {name!r} is not loaded after {timeout_s:.0f} s"
                ) from None
            finally:
                self._reply = None
            if isinstance(reply, Failed):
                raise ModelError(f"{self._what}: cannot load: {reply.message}")
            logger.debug("%s: loaded %s in %d us", self._what, name, reply.took_us)

    def _first_frames(self) -> Iterator[Load | Expect]:
        for spec in self._specs:
            if spec.later:
                yield Expect(spec.later[0].executor, spec.later[0].slot)
            yield from spec.loads

    async def _within(self, limit_s: float, reply: asyncio.Future[_Reply]) -> _Reply:
        """
        Raises:
            TimeoutError: it does not come in the time that the process has to make it, not counting
                that in which it has no core.
        """
        loop = asyncio.get_running_loop()
        had = CountedTime(lambda: activity_of(self.process_id), loop.time())
        had.look(loop.time())
        while not (await asyncio.wait([reply], timeout=_LOOK_S))[0]:
            # Where the server itself was away, what it was sent meanwhile may still be unread.
            had.look(loop.time(), most_s=2 * _LOOK_S)
            if had.counted_s > limit_s:
                raise TimeoutError
        return reply.result()

    def kill(self) -> None:
        """End it at once; `on_lost` follows when the system has closed its end."""
        self._process.kill()

    async def stop(self) -> None:
        """End it after its current batch, with more force when it does not; reap it."""
        self.send(Stop())
        for act in (self._process.terminate, self._process.kill):
            if await ended_within(self._process, STOP_GRACE_S):
                break
            logger.warning("%s: the worker does not stop; %s", self._what, act.__name__)
            act()
        await self.reap()

    async def reap(self) -> int:
        """Make sure that no process and no descriptor is left; return the exit status."""
        self._channel.close()
        if self._process.poll() is None:
            self._process.kill()
        return await until_ended(self._process)

    def _receive(self, frame: AnyFrame) -> None:
        if self._reply is not None and isinstance(frame, Loaded | Failed):
            if not self._reply.done():
                self._reply.set_result(frame)
        else:
            self._on_frame(frame)

    def _lost(self, reason: str) -> None:
        status = self._process.poll()
        # Whatever happened to the channel: nobody may write to the arena unheard.
        self._process.kill()
        if status is not None and status < 0:
            reason = f"ended by {signal.Signals(-status).name}"
        reason += self._news()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(
                _DiedError(f"{self._what}: its worker died while loading: {reason}")
            )
        self._on_lost(reason)


def process_title(specs: Sequence[WorkerSpec]) -> str:
    """For messages.

    >>> process_title([WorkerSpec(slot="l4-0", executor="emulated", loads=())])
    "slot 'l4-0'"
    """
    first = f"slot {specs[0].slot!r}"
    return first if len(specs) == 1 else f"{first} and {len(specs) - 1} more in its process"


def _spawn(
    specs: Sequence[WorkerSpec],
    arena: Arena,
    channel: int,
    limits: WorkerLimits,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    spec = specs[0]
    command = [sys.executable, "-P", "-m", "headrace.serving.workers.worker"]
    command += ["--channel", str(channel), "--arena", str(arena.descriptor)]
    command += ["--arena-bytes", str(arena.size_bytes), "--parent", str(os.getpid())]
    kind = executor(spec.executor)
    if kind.hold is not None:
        command += ["--holds"]
    # Said always: what the gateway is kept on is not for its workers.
    cores = spec.cores or limits.cores
    if cores:
        command += ["--cores", ",".join(map(str, cores))]
    if limits.memory_bytes is not None:
        command += ["--memory-bytes", str(limits.memory_bytes)]
    files = {descriptor for each in specs for descriptor in each.files}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(channel, arena.descriptor, *sorted(files)),
        # A group of its own: Ctrl-C reaches the gateway only, which drains before it stops us. Not
        # a session: where Linux shares the processor out by session (sched_autogroup_enabled),
        # niceness behind the gateway would mean nothing.
        process_group=0,
        env={
            **os.environ,
            **{name: value.format(device=spec.device) for name, value in kind.environment.items()},
            **environment,
        },
    )
