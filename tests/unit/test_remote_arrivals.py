"""Model files on their way to an agent: asked for once, and nobody waits for what never comes."""

import asyncio
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.domain.errors import ModelError
from headrace.serving.workers.remote.arrivals import Arrivals
from headrace.serving.workers.remote.connection import Connection
from headrace.serving.workers.remote.files import FileStore
from headrace.serving.workers.remote.frames import Chunk, FileRef
from helpers.read_only import read_only

PATIENCE_S = 60.0
GATEWAY = cast(Connection, SimpleNamespace(open=True))


def ref_of(content: bytes) -> FileRef:
    return FileRef(hashlib.sha256(content).hexdigest(), len(content), "")


def test_files_before_one_that_finds_no_room_are_asked_for_by_the_next_who_needs_them(
    tmp_path: Path,
) -> None:
    arrivals = Arrivals(FileStore(tmp_path, limit_bytes=100))
    content = b"a" * 60
    small, large = ref_of(content), ref_of(b"b" * 101)
    asked: list[tuple[str, ...]] = []

    def ask(missing: tuple[str, ...]) -> None:
        asked.append(missing)
        chunk = Chunk(small.sha256, small.size_bytes)
        part = arrivals.place(chunk, len(content))
        assert part is not None
        part[:] = content
        arrivals.take(chunk)

    async def main() -> None:
        with pytest.raises(ModelError, match="does not fit"):
            await arrivals.fetch((small, large), GATEWAY, ask)
        assert asked == []
        assert list((tmp_path / "files").iterdir()) == []
        await arrivals.fetch((small,), GATEWAY, ask)
        assert asked == [(small.sha256,)]

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert arrivals.store.path(small.sha256).read_bytes() == content


def test_whoever_waits_for_a_file_is_told_where_what_came_of_it_cannot_be_removed(
    tmp_path: Path,
) -> None:
    arrivals = Arrivals(FileStore(tmp_path))
    ref = ref_of(b"weights")

    def ask(missing: tuple[str, ...]) -> None:
        with read_only():
            arrivals.take(Chunk(ref.sha256, ref.size_bytes, "the gateway cannot read it"))

    async def main() -> None:
        with pytest.raises(ModelError, match="the gateway cannot read it"):
            await arrivals.fetch((ref,), GATEWAY, ask)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
