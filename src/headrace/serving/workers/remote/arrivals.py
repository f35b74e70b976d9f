"""Model files on their way to this node: asked for once, whoever needs them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.domain.errors import ModelError
from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote.connection import Connection
from headrace.serving.workers.remote.files import Arriving, FileStore
from headrace.serving.workers.remote.frames import CHUNK_BYTES, Chunk, FileRef


@dataclass(slots=True)
class _OnItsWay:
    file: Arriving
    by: Connection
    done: asyncio.Future[None]
    part: memoryview
    """The last one."""


class Arrivals:
    """Of all sessions of an agent."""

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self._open: dict[str, _OnItsWay] = {}

    async def fetch(
        self,
        refs: Sequence[FileRef],
        by: Connection,
        ask: Callable[[tuple[str, ...]], None],
    ) -> None:
        """Return when all these files are in the store.

        Args:
            by: over which those come that nobody has asked for yet.
            ask: asks for these, by their hashes.

        Raises:
            ModelError: one does not come, finds no room, or is not what it is called.
        """
        wanted, missing = [], []
        try:
            for ref in refs:
                if ref.sha256 not in self._open:
                    if await asyncio.to_thread(self.store.has, ref):
                        continue
                    # Another worker may have asked meanwhile.
                    if ref.sha256 not in self._open:
                        self._open[ref.sha256] = self._begin(ref, by)
                        missing.append(ref.sha256)
                wanted.append(self._open[ref.sha256].done)
        except BaseException as error:
            # Nobody has been asked for these: whoever waits for them would wait for ever.
            for sha256 in self._open.keys() & missing:
                self._fail(sha256, str(error) or "whoever needed this model file has gone")
            raise
        if not by.open:
            self.dropped_by(by)
        elif missing:
            ask(tuple(missing))
        for each in wanted:
            await asyncio.shield(each)

    def _begin(self, ref: FileRef, by: Connection) -> _OnItsWay:
        """
        Raises:
            ModelError: it finds no room.
        """
        done = asyncio.get_running_loop().create_future()
        # Nobody may be left who asks how it ended.
        done.add_done_callback(lambda each: each.cancelled() or each.exception())
        return _OnItsWay(self.store.begin(ref), by, done, memoryview(b""))

    def place(self, frame: Chunk, length: int) -> memoryview | None:
        """Where a part of a file goes for the moment; None: nobody wants it any more.

        Raises:
            FrameError: it is too long.
        """
        if length > CHUNK_BYTES:
            raise FrameError(f"{length} bytes of a file at a time, at most {CHUNK_BYTES} allowed")
        known = self._open.get(frame.sha256)
        if known is None:
            return None
        known.part = memoryview(bytearray(length))
        return known.part

    def take(self, frame: Chunk) -> None:
        """A part of a file is here; nothing happens where nobody wants it any more.

        Raises:
            FrameError: it is longer than announced.
        """
        known = self._open.get(frame.sha256)
        if known is None:
            return
        file, part, known.part = known.file, known.part, memoryview(b"")
        if frame.error:
            self._fail(frame.sha256, frame.error)
            return
        if file.received_bytes + part.nbytes > file.ref.size_bytes:
            raise FrameError(f"a file is longer than the {file.ref.size_bytes} bytes announced")
        try:
            file.write(part)
            if file.received_bytes == file.ref.size_bytes:
                self.store.keep(file)
                del self._open[frame.sha256]
                known.done.set_result(None)
        except ModelError as error:
            self._fail(frame.sha256, str(error))

    def dropped_by(self, connection: Connection) -> None:
        """It is closed: what came over it will not."""
        for sha256, known in list(self._open.items()):
            if known.by is connection:
                self._fail(sha256, "the gateway has left while it sent a model file")

    def _fail(self, sha256: str, reason: str) -> None:
        known = self._open.pop(sha256)
        known.file.drop()
        if not known.done.done():
            known.done.set_exception(ModelError(reason))
