"""Weights that lie in files beside a model's own, as exporters write them for large models.

A tensor of such a model has no data but a reference: the name of a file, where in it the data
begin, and how many bytes they are. A model comes from anywhere, so that its references are claims.
All of them are checked when the model is read, wherever in it they stand:

    the file      in the model's folder or beneath it, an ordinary one, reached over no link
    the range     within the file, and as long as the tensor's shape and type need

Only then are the weights used, and never by us: stages repeat the references, and ONNX Runtime maps
the files, tensor by tensor, so that a weight is in memory once, in the form in which it computes
with it. What it is given is the folder, which it does not leave either.

Invariant: what was hashed is what is loaded. A file is known by its inode, size and time of last
change (`WeightsFile`); these are compared with what was hashed before and after each loading. Cost:
a hash of all files once in a process, then some system calls for each session.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from io import BufferedReader
from pathlib import Path, PurePosixPath

from headrace.catalog.regular_file import open_regular
from headrace.domain.base import Record
from headrace.domain.errors import ModelError

MAX_FILE_BYTES = 1 << 42


class WeightsFile(Record, frozen=True, kw_only=True):
    """One file, and what tells it from another that takes its place."""

    name: str
    """As the model refers to it: relative to the model's folder."""
    size_bytes: int
    device: int
    inode: int
    modified_ns: int


class ExternalWeights(Record, frozen=True, kw_only=True):
    """All files that a model refers to."""

    folder: str
    """The model's; absolute."""
    files: tuple[WeightsFile, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def require_unchanged(self) -> None:
        """
        Raises:
            ModelError: a file is gone, or is not the one that was looked at.
        """
        for file in self.files:
            with open_weights(Path(self.folder), file.name) as opened:
                if identity(file.name, opened) != file:
                    raise ModelError(_changed(Path(self.folder) / file.name))

    def sha256(self, model_sha256: str) -> str:
        """One hash of the model's own file, whose hash is given, and of these, with their names.

        Raises:
            ModelError: as `require_unchanged`.
        """
        rows = [f"{file.name} {file_sha256(self.folder, file)}" for file in self.files]
        return hashlib.sha256("\n".join([model_sha256, *rows]).encode()).hexdigest()


def require_same(path: Path, known: WeightsFile) -> None:
    """
    Raises:
        ModelError: the file is gone, or is not the one that was looked at.
    """
    with open_weights(path.parent, path.name) as opened:
        if identity(path.name, opened) != known:
            raise ModelError(_changed(path))


def weights_in(model_path: Path, names: Sequence[str]) -> ExternalWeights | None:
    """The files of these names beside a model, as they are now; None: there are none.

    Raises:
        ModelError: a name leads out of the model's folder, or to no ordinary file.
    """
    folder = Path(os.path.abspath(model_path)).parent
    files = []
    for name in sorted(names):
        with open_weights(folder, name) as opened:
            files.append(identity(name, opened))
    return ExternalWeights(folder=str(folder), files=tuple(files)) if files else None


def open_weights(folder: Path, name: str) -> BufferedReader:
    """Open a file of a model's folder, following no link on the way; close it.

    Raises:
        ModelError: the name leads out of the folder, or to no ordinary file.
    """
    parts = PurePosixPath(name).parts
    # ONNX Runtime gives names with a star meanings of its own.
    if not parts or name[0] == "/" or ".." in parts or "*" in name or not name.isprintable():
        raise ModelError(
            f"{folder}: a model refers to weights in {name[:200]!r}, which is not the name of a"
            " file in the model's folder; export the model again, with its weights beside it"
        )
    try:
        with ExitStack() as stack:
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, at)
            for part in parts[:-1]:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                at = os.open(part, flags, dir_fd=at)
                stack.callback(os.close, at)
            return open_regular(Path(parts[-1]), MAX_FILE_BYTES, folder=at)
    except OSError as error:
        path = folder / name
        if path.is_symlink() or any(parent.is_symlink() for parent in _between(folder, path)):
            raise ModelError(
                f"{path}: is reached over a link, which may lead out of the model's folder; copy"
                " the model and its weights into one folder (cp -L)"
            ) from error
        raise ModelError(
            f"{path}: holds weights of a model beside it, and cannot be read: {error.strerror};"
            " keep the files of an export together"
        ) from error


def _between(folder: Path, path: Path) -> list[Path]:
    return [parent for parent in path.parents if parent != folder and folder in parent.parents]


def identity(name: str, file: BufferedReader) -> WeightsFile:
    """What tells an open file from another one of its name."""
    about = os.fstat(file.fileno())
    return WeightsFile(
        name=name,
        size_bytes=about.st_size,
        device=about.st_dev,
        inode=about.st_ino,
        modified_ns=about.st_mtime_ns,
    )


@lru_cache(maxsize=4096)
def file_sha256(folder: str, file: WeightsFile) -> str:
    """Read once in a process: `file` is known by more than its name.

    Raises:
        ModelError: it is gone, or is not the one that was looked at.
    """
    with open_weights(Path(folder), file.name) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if identity(file.name, opened) != file:
            raise ModelError(_changed(Path(folder) / file.name))
    return digest


def _changed(path: Path) -> str:
    return (
        f"{path}: has changed since the model was read; profile again, and give a new export a"
        " folder of its own while the old one is served"
    )
