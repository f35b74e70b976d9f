"""Stage files that stay readable whatever becomes of the folder they lie in.

A worker that is lost must be able to load its stages again, though somebody has emptied the cache
meanwhile. So the server holds each file open, workers inherit the descriptors, and open what these
stand for (`/dev/fd/N`): the file lives until the last descriptor is closed.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

from msgspec.structs import replace as with_fields

from headrace.domain.errors import ModelError
from headrace.serving.workers.worker_process import WorkerSpec


class KeptFiles:
    """The files of one plan's stages. `close` it when its last worker has ended."""

    def __init__(self) -> None:
        self._descriptor_of: dict[str, int] = {}

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
        return replace(spec, loads=loads, files=tuple(sorted(held)))

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
