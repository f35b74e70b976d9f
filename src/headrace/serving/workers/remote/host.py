"""`Host` and `WorkerHandle` over a link: supervision as on this machine, of workers on another."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace as with_fields

from headrace.domain.errors import HeadraceError, ModelError
from headrace.serving.workers.activity import Activity
from headrace.serving.workers.frames import AnyFrame, Load, Run, Unload
from headrace.serving.workers.host import HostGoneError
from headrace.serving.workers.pulse import NO_CORE
from headrace.serving.workers.remote.files import file_ref
from headrace.serving.workers.remote.frames import (
    CHUNK_BYTES,
    Chunk,
    End,
    FileRef,
    Kill,
    Missing,
    Nice,
    Ready,
    RemoteLoad,
    RemoteSpec,
    Report,
    Start,
)
from headrace.serving.workers.remote.link import AgentLink
from headrace.serving.workers.stage_io import Home
from headrace.serving.workers.worker_process import STOP_GRACE_S, WorkerSpec, process_title

logger = logging.getLogger(__name__)

BACK_S = 10.0
"""A machine too busy to be heard, or an agent that is started again, is there again by then."""

ENDED_S = STOP_GRACE_S + 10.0
"""An agent has ended a worker by then, or there is no ending it: whoever stops waits no longer."""

AnswerBytes = Callable[[Home, Run], int]
"""Of what a run at that home writes, how much is wanted HERE at once."""


class _AgentLostError(ModelError):
    """While a worker of its loaded; it may be heard again in a moment."""


@dataclass(frozen=True, slots=True)
class _SentFile:
    ref: FileRef
    path: str


class FileHashes:
    """Of the files that a plan's stages are read from; each is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], asyncio.Future[FileRef]] = {}

    async def of(self, path: str, name: str = "") -> _SentFile:
        """
        Raises:
            ModelError: it cannot be read.
        """
        key = (path, name)
        if key not in self._known:
            self._known[key] = asyncio.ensure_future(asyncio.to_thread(file_ref, path, name))
        try:
            return _SentFile(await asyncio.shield(self._known[key]), path)
        except ModelError:
            self._known.pop(key, None)
            raise


class RemoteHost:
    """The machine at the other end of a link."""

    def __init__(self, link: AgentLink, hashes: FileHashes, answer_bytes: AnswerBytes) -> None:
        self._link = link
        self._hashes = hashes
        self._answer_bytes = answer_bytes
        self._number_of: dict[int, int] = {}
        """Process -> worker."""

    @property
    def home(self) -> Home:
        return self._link.home

    @property
    def clock_offset_us(self) -> int:
        return self._link.clock.us

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    @property
    def incarnation(self) -> int:
        return self._link.incarnation

    def start_worker(
        self,
        specs: Sequence[WorkerSpec],
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
    ) -> "RemoteWorker":
        return RemoteWorker(self._link, specs, on_frame, on_lost, self)

    def cores(self) -> Sequence[int]:
        return self._link.hello.cores if self._link.hello else ()

    @property
    def _undivided(self) -> bool:
        """Whether slots take turns on whole devices there, as was asked for."""
        return self._link.hello is not None and bool(self._link.hello.undivided)

    def available_memory_bytes(self) -> int | None:
        return self._link.available_bytes

    def set_niceness(self, process_id: int, niceness: int) -> None:
        number = self._number_of.get(process_id)
        if number is not None:
            self._link.send(Nice(number, niceness))

    def activity(self, process_id: int) -> Activity | None:
        return self._link.activity(self._number_of.get(process_id, -1))

    def excuse(self) -> str:
        if self._link.is_late:
            return (
                "its whole machine is not heard in time; the network to it may be slow, busy or cut"
            )
        return NO_CORE

    async def until_up(self) -> None:
        """
        Raises:
            HostGoneError: its agent has refused this gateway, or the link is closed.
        """
        try:
            await self._link.until_up()
        except HeadraceError as error:
            raise HostGoneError(str(error)) from error

    def close(self) -> None:
        """The link is closed by whoever has opened it."""

    # -- for its workers ---------------------------------------------------------------------------

    def know(self, process_id: int, number: int) -> None:
        self._number_of[process_id] = number

    def forget(self, process_id: int) -> None:
        self._number_of.pop(process_id, None)

    def wanted_bytes(self, run: Run) -> int:
        return self._answer_bytes(self._link.home, run)

    async def described(
        self, specs: Sequence[WorkerSpec]
    ) -> tuple[tuple[RemoteSpec, ...], dict[str, _SentFile]]:
        """These slots as the agent needs to know them, and the files that it may ask for.

        Raises:
            ModelError: a file cannot be read.
        """
        files: dict[str, _SentFile] = {}

        async def sent(path: str, name: str = "") -> FileRef:
            found = await self._hashes.of(path, name)
            files[found.ref.sha256] = found
            return found.ref

        described = []
        for spec in specs:
            loads = []
            for load in spec.loads:
                weights = []
                if load.weights is not None:
                    load.weights.require_unchanged()
                    for each in load.weights.files:
                        weights.append(await sent(f"{load.weights.folder}/{each.name}", each.name))
                file = await sent(load.path) if load.path else None
                bare = with_fields(load, path="", weights=None)
                loads.append(RemoteLoad(bare, file, tuple(weights)))
            described.append(
                RemoteSpec(
                    slot=spec.slot,
                    executor=spec.executor,
                    loads=tuple(loads),
                    cores=spec.cores,
                    quota="" if spec.quota is None else str(spec.quota),
                    device=spec.device,
                    percent=None if self._undivided else spec.percent,
                )
            )
        return tuple(described), files


class RemoteWorker:
    """One process there; see `WorkerHandle`. It is started by `load`, when the agent is there."""

    def __init__(
        self,
        link: AgentLink,
        specs: Sequence[WorkerSpec],
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
        host: RemoteHost,
    ) -> None:
        self._link = link
        self._specs = specs
        self._what = process_title(specs)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._host = host
        self._number: int | None = None
        """None: the agent does not know it, or not any more."""
        self._reply: asyncio.Future[Ready] | None = None
        self._end: asyncio.Future[int] | None = None
        self._files: dict[str, _SentFile] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self.process_id = 0
        """On its machine; 0: not known yet."""

    @property
    def descriptor(self) -> int | None:
        return self._link.descriptor

    def send(self, frame: Run | Load | Unload) -> None:
        assert isinstance(frame, Run), "plans whose models come and go are not served by agents"
        if self._number is not None:
            self._link.order(self._number, frame, self._host.wanted_bytes(frame))

    def busy_us(self, slot: int) -> int | None:
        return None if self._number is None else self._link.busy_us(self._number, slot)

    async def load(self, timeout_s: float) -> None:
        """Wait for the agent, then have it load all stages, or find the worker that has.

        An agent that is lost meanwhile is waited for, BACK_S and `timeout_s` in all at most, and
        loads them again.

        Raises:
            ModelError: a stage cannot be loaded, or the worker or its agent was lost meanwhile.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while True:
            try:
                reply = await self._loaded(timeout_s)
                break
            except _AgentLostError:
                if not await self._is_back(min(BACK_S, until_s - loop.time())):
                    raise
        if reply.error:
            raise ModelError(f"{self._link.where}: {reply.error}")
        assert self._number is not None, "the agent has answered for it"
        self.process_id = reply.process_id
        self._host.know(self.process_id, self._number)

    async def _loaded(self, timeout_s: float) -> Ready:
        """The agent's answer, of this session."""
        await self._host.until_up()
        try:
            specs, self._files = await self._host.described(self._specs)
        except HeadraceError as error:
            raise ModelError(f"{self._what}: {error}") from error
        await self._host.until_up()
        self._reply = asyncio.get_running_loop().create_future()
        self._number = self._link.add(self)
        self._link.send(Start(self._number, specs, timeout_s))
        try:
            # The agent counts the time; when it cannot, the link ends.
            return await self._reply
        finally:
            self._reply = None

    async def _is_back(self, within_s: float) -> bool:
        try:
            await asyncio.wait_for(self._host.until_up(), within_s)
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        if self._number is not None:
            self._link.send(Kill(self._number))

    async def stop(self) -> None:
        await self._ended(at_once=False)

    async def reap(self) -> int:
        return await self._ended(at_once=True)

    async def _ended(self, *, at_once: bool) -> int:
        for task in self._sending:
            task.cancel()
        self._host.forget(self.process_id)
        number = self._number
        if number is None:
            return 0
        self._end = asyncio.get_running_loop().create_future()
        self._link.send(End(number, at_once))
        try:
            status = await asyncio.wait_for(asyncio.shield(self._end), ENDED_S)
        except TimeoutError:
            status = -1
            logger.error("%s: %s does not say that it has ended it", self._what, self._link.where)
        self._number = None
        self._link.remove(number)
        return status

    # -- what the link tells -----------------------------------------------------------------------

    def ready(self, frame: Ready) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(frame)

    def missing(self, frame: Missing) -> None:
        for sha256 in frame.files:
            task = asyncio.get_running_loop().create_task(self._send_file(sha256))
            self._sending.add(task)
            task.add_done_callback(partial(self._sent, sha256))

    def reported(self, frame: Report) -> None:
        self._on_frame(frame.frame)

    def lost(self, reason: str) -> None:
        agent_lost, loading = not self._link.is_up, self._reply is not None
        if agent_lost:
            self._number = None
        if self._reply is not None and not self._reply.done():
            # Only who is not to end may begin again.
            again = agent_lost and self._end is None
            said = f"{self._what}: its worker died while loading: {reason}"
            self._reply.set_exception(_AgentLostError(said) if again else ModelError(said))
        if self._end is not None:
            self.ended(0)
        elif not loading:  # or `load` says it: nothing was up
            self._on_lost(reason)

    def ended(self, status: int) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(status)

    def _sent(self, sha256: str, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if task.cancelled():
            # Else whoever needs this file next would wait for the rest of it.
            self._link.send(Chunk(sha256, 0, "the gateway ended the worker that needed this file"))

    async def _send_file(self, sha256: str) -> None:
        """In parts, between which others have their turn."""
        file = self._files.get(sha256)
        if file is None:
            self._link.send(Chunk(sha256, 0, "the gateway does not have this file"))
            return
        size_bytes = file.ref.size_bytes
        logger.info("%s: sending a model file of %d bytes", self._link.where, size_bytes)
        try:
            with open(file.path, "rb", buffering=0) as opened:
                opened.seek(0)
                sent_bytes = 0
                while sent_bytes < size_bytes or not size_bytes:
                    part = await asyncio.to_thread(opened.read, CHUNK_BYTES)
                    if not part and size_bytes:
                        raise OSError("it is shorter than it was")
                    chunk = Chunk(sha256, size_bytes)
                    if not part:
                        self._link.send(chunk)
                        return
                    self._link.send_part(chunk, memoryview(part))
                    sent_bytes += len(part)
                    await self._link.drained()
        except OSError as error:
            self._link.send(Chunk(sha256, 0, f"the gateway cannot read a model file: {error}"))
