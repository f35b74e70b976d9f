"""Stage files that stay readable whatever becomes of the folder they lie in.

A worker that is lost must be able to load its stages again, though somebody has emptied the cache
meanwhile. So the server holds each file open, workers inherit the descriptors, and open what these
stand for (`/dev/fd/N`): the file lives until the last descriptor is closed.

Weights that several stages share (`catalog.shared_stages`) are mapped by a library that takes a
folder and a name. The server holds that file open too, and puts it back before a worker is started
again; with it the stages, so that the cache's entry is whole again.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as with_fields

from headrace.catalog.shared_weights import HASHES, WEIGHTS, is_shared
from headrace.catalog.weights_files import ExternalWeights, weights_in
from headrace.domain.errors import ModelError
from headrace.serving.workers.worker_process import WorkerSpec

_COMPARED_BYTES = 1 << 20


class KeptFiles:
    """The files of one plan's stages. `close` it when its last worker has ended."""

    def __init__(self) -> None:
        self._descriptor_of: dict[str, int] = {}
        self._now: dict[str, ExternalWeights] = {}
        """Of shared weights, by folder: how they are known now."""
        self._renewing = threading.Lock()

    @property
    def hold_weights(self) -> bool:
        """Whether there is anything to renew."""
        return bool(self._now)

    def keep(self, spec: WorkerSpec) -> WorkerSpec:
        """Let a worker read its stages by descriptor.

        Raises:
            ModelError: a file is gone already, or there are too many open.
        """
        loads = tuple(
            with_fields(load, path=f"/dev/fd/{self._open(load.path)}") if load.path else load
            for load in spec.loads
        )
        held = {self._open(load.path) for load in spec.loads if load.path}
        for load in spec.loads:
            if load.weights is not None and is_shared(load.weights):
                for name in (WEIGHTS, HASHES):
                    self._open(str(Path(load.weights.folder) / name))
                self._now[load.weights.folder] = load.weights
        return replace(spec, loads=loads, files=tuple(sorted(held)))

    def renewed(self, spec: WorkerSpec) -> WorkerSpec:
        """For a worker that is started again: shared weights are where it looks for them, and it is
        told how they are known now. May take as long as writing them; of any thread.

        Raises:
            ModelError: they are gone and cannot be written.
        """
        with self._renewing:
            loads = tuple(
                with_fields(load, weights=self._in_place(load.weights.folder))
                if load.weights is not None and load.weights.folder in self._now
                else load
                for load in spec.loads
            )
        return replace(spec, loads=loads)

    def _in_place(self, folder: str) -> ExternalWeights:
        try:
            self._now[folder].require_unchanged()
        except ModelError:
            self._now[folder] = self._put_back(Path(folder))
        return self._now[folder]

    def _put_back(self, folder: Path) -> ExternalWeights:
        mine = {Path(path): held for path, held in self._descriptor_of.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path, held in mine.items():
                if path.parent == folder and not _holds(path, held):
                    _write(path, held)
        except OSError as error:
            raise ModelError(
                f"{folder}: is gone and cannot be written again: {error.strerror}; free space"
                " there, or let this user write to it"
            ) from error
        found = weights_in(folder / WEIGHTS, [WEIGHTS])
        assert found is not None, "one name was asked for"
        return found

    def _open(self, path: str) -> int:
        if path not in self._descriptor_of:
            try:
                self._descriptor_of[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise ModelError(f"cannot open a stage's file: {error}") from error
        return self._descriptor_of[path]

    def close(self) -> None:
        """Idempotent."""
        while self._descriptor_of:
            os.close(self._descriptor_of.popitem()[1])


def kept(specs: Sequence[WorkerSpec], files: KeptFiles) -> tuple[WorkerSpec, ...]:
    """As `KeptFiles.keep`, for all; closes what it has opened if one cannot be opened."""
    try:
        return tuple(files.keep(spec) for spec in specs)
    except ModelError:
        files.close()
        raise


def _holds(path: Path, descriptor: int) -> bool:
    """Whether the file there has the content of the open one: somebody else has put it back."""
    try:
        with path.open("rb") as there, open(f"/dev/fd/{descriptor}", "rb") as ours:
            while block := ours.read(_COMPARED_BYTES):
                if there.read(len(block)) != block:
                    return False
            return not there.read(1)
    except FileNotFoundError:
        return False


def _write(path: Path, descriptor: int) -> None:
    """The open file's content, whole or not at all."""
    number, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
    try:
        with open(f"/dev/fd/{descriptor}", "rb") as ours, os.fdopen(number, "wb") as file:
            shutil.copyfileobj(ours, file, _COMPARED_BYTES)
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
