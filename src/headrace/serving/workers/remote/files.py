"""Model files by their hash: read here, kept there.

An agent keeps what it was sent under the hash of its content, so that a file crosses the network
once however many workers, plans and gateways ask for it. It is hashed while it arrives and takes
its name only when that is right; what lies there from an earlier agent, or was written since then,
is hashed before it is used. So a file that differs, for whatever reason, is not loaded.

    FOLDER/files/SHA256       read-only; a worker opens it by descriptor
    FOLDER/sets/KEY/NAME      weights beside a model under the names that it refers to: hard links
    FOLDER/.lock              held by the agent whose folder it is: another would drop its files

The folder holds at most so many bytes; those go first that were used longest ago. A worker that has
a file open keeps it. Where the folder cannot be written, what it holds is used all the same.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from headrace.catalog.cache_folder import content_key
from headrace.catalog.weights_files import ExternalWeights, weights_in
from headrace.domain.errors import ModelError
from headrace.serving.workers.remote.frames import FileRef
from headrace.user_cache import MODEL_FILES_MB, NO_ROOM

logger = logging.getLogger(__name__)

DEFAULT_LIMIT_BYTES = MODEL_FILES_MB * 1_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WRITABLE = "give `headrace agent` a folder that it may write to (--cache)"


def file_ref(path: str, name: str = "") -> FileRef:
    """Hash a file of ours. Slow: call it in a thread.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            # By whatever descriptor it is reached, from its beginning.
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return FileRef(digest, os.fstat(file.fileno()).st_size, name)
    except OSError as error:
        raise ModelError(f"{path}: a stage's file cannot be read: {error.strerror}") from error


class Arriving:
    """A file that is being sent to us."""

    def __init__(self, ref: FileRef, folder: Path) -> None:
        self.ref = ref
        self.received_bytes = 0
        self._digest = hashlib.sha256()
        descriptor, self.path = tempfile.mkstemp(dir=folder, prefix=".arriving-")
        self._file: BinaryIO = os.fdopen(descriptor, "wb", buffering=0)

    def write(self, data: memoryview) -> None:
        """
        Raises:
            ModelError: the disk does not take all of it.
        """
        self._digest.update(data)
        self.received_bytes += data.nbytes
        try:
            # A disk that is nearly full takes a part of it, and only then refuses.
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            written_bytes = os.fstat(self._file.fileno()).st_size
            raise _not_kept(Path(self.path).parent, self.ref, error, written_bytes) from error

    def finish(self) -> bool:
        """Whether what lies there is what it is called."""
        size_bytes = os.fstat(self._file.fileno()).st_size
        self._file.close()
        return (self._digest.hexdigest(), size_bytes) == (self.ref.sha256, self.ref.size_bytes)

    def drop(self) -> None:
        """Idempotent. What the disk keeps of it nevertheless, the next agent drops."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            Path(self.path).unlink(missing_ok=True)


def _not_kept(folder: Path, ref: FileRef, error: OSError, written_bytes: int = 0) -> ModelError:
    what = f"{folder}: a model file of {ref.size_bytes:,} bytes cannot be kept here"
    if error.errno not in NO_ROOM:
        return ModelError(f"{what}: {error.strerror}; {_WRITABLE}")
    available = shutil.disk_usage(folder).free + written_bytes
    return ModelError(
        f"{what}: {error.strerror}, there is room for {available:,} bytes; make room there, or have"
        " files kept where there is more (`headrace agent --cache`, or HEADRACE_CACHE), or fewer of"
        " them (--cache-mb)"
    )


ENDING_S = 2.0
"""So long an agent's folder may still be held by one that was told to end."""
_LOOK_S = 0.1


@contextlib.contextmanager
def held_alone(folders: Sequence[Path]) -> Iterator[Path]:
    """The first of these folders that no other agent has, and none gets it meanwhile. A folder that
    cannot be written is anybody's to read.

    Raises:
        ModelError: others have them all.
    """
    until_s = time.monotonic() + ENDING_S
    with contextlib.ExitStack() as held:
        for folder in folders:
            lock = _lock_of(folder)
            if lock is not None:
                held.callback(os.close, lock)
            if lock is None or _locked(lock, until_s):
                yield folder
                return
        raise ModelError(
            f"{folders[0]}: another agent keeps its model files here\n"
            "  try    a --cache of its own for each agent of this machine"
        )


def _lock_of(folder: Path) -> int | None:
    """None: it is read-only, or of a file system without locks."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _locked(lock: int, until_s: float) -> bool:
    """Tried at least once."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOOK_S)
        except OSError:  # a file system without locks
            return True
        else:
            return True


def _state(path: Path) -> tuple[int, int]:
    """Another one when the file was written, or is another."""
    about = path.stat()
    return about.st_ino, about.st_mtime_ns


class FileStore:
    """An agent's files."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """Makes the folder.

        Raises:
            ModelError: it cannot be written, and holds no file that could be used.
        """
        self._files, self._sets = folder / "files", folder / "sets"
        self._limit_bytes = limit_bytes
        self._verified: dict[str, tuple[int, int]] = {}
        """By hash, what the file was when it was right: see `_state`."""
        try:
            self._make_folders()
            with tempfile.TemporaryFile(dir=self._files):
                pass
        except OSError as error:
            what = f"{folder}: model files cannot be kept here: {error.strerror}; {_WRITABLE}"
            held = len(self._held())
            if not held:
                raise ModelError(what) from error
            logger.warning("%s; until then workers load from the %d that it holds", what, held)
        with contextlib.suppress(OSError):
            for left in self._files.glob(".arriving-*"):
                left.unlink(missing_ok=True)

    def path(self, sha256: str) -> Path:
        """Where the file is, or will be.

        Raises:
            ModelError: that is no hash.
        """
        if not _SHA256.fullmatch(sha256):
            raise ModelError(f"{sha256[:80]!r} is not a SHA-256 hash")
        return self._files / sha256

    def has(self, ref: FileRef) -> bool:
        """Whether it is here and is what it is called; hashes it where that is not known yet.

        Slow the first time: call it in a thread.
        """
        path = self.path(ref.sha256)
        try:
            state = _state(path)
            found = path.stat().st_size == ref.size_bytes and (
                self._verified.get(ref.sha256) == state or file_ref(str(path)).sha256 == ref.sha256
            )
            if found:
                self._verified[ref.sha256] = state
        except OSError:
            found = False
        # Neither decides what is used: a folder that cannot be written may hold good files.
        with contextlib.suppress(OSError):
            if found:
                # Read, not modified: weights beside a model would be taken for others.
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            else:
                path.unlink(missing_ok=True)
        return found

    def begin(self, ref: FileRef) -> Arriving:
        """Room for a file that is to come, in a folder that is made again where it was removed.
        Others may still fill the disk before it is here.

        Raises:
            ModelError: it is larger than the folder may be, or than what the disk has free; or the
                folder cannot be written.
        """
        self.path(ref.sha256)
        if ref.size_bytes > self._limit_bytes:
            raise ModelError(
                f"a model file of {ref.size_bytes} bytes does not fit into the agent's cache of"
                f" {self._limit_bytes}; start `headrace agent` with a larger --cache-mb"
            )
        try:
            self._make_folders()
            self._make_room(ref.size_bytes)
            if shutil.disk_usage(self._files).free < ref.size_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return Arriving(ref, self._files)
        except OSError as error:
            raise _not_kept(self._files, ref, error) from error

    def keep(self, arrived: Arriving) -> None:
        """It is complete.

        Raises:
            ModelError: it is not what it is called; or the disk does not keep it.
        """
        path = self.path(arrived.ref.sha256)
        try:
            if not arrived.finish():
                arrived.drop()
                raise ModelError(
                    "a model file arrived with other content than its hash"
                    f" {arrived.ref.sha256[:12]}... says; it is not used"
                )
            os.chmod(arrived.path, 0o400)
            os.replace(arrived.path, path)
            self._verified[arrived.ref.sha256] = _state(path)
        except OSError as error:
            raise _not_kept(self._files, arrived.ref, error) from error

    def weights(self, refs: Sequence[FileRef]) -> ExternalWeights | None:
        """These files in one folder, under the names by which a model refers to them.

        Raises:
            ModelError: a name leads out of the folder; or it cannot be written.
        """
        if not refs:
            return None
        folder = self._sets / content_key([(ref.name, ref.sha256) for ref in refs])
        for ref in refs:
            parts = PurePosixPath(ref.name).parts
            if not parts or ref.name[0] == "/" or ".." in parts:
                raise ModelError(f"weights in {ref.name[:200]!r}: not a name beside a model")
            target = folder / ref.name
            source = self.path(ref.sha256)
            try:
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not target.exists() or not os.path.samefile(source, target):
                    target.unlink(missing_ok=True)
                    os.link(source, target)
            except OSError as error:
                raise ModelError(f"{target}: cannot be made: {error.strerror}") from error
        return weights_in(folder / "model", [ref.name for ref in refs])

    def _make_folders(self) -> None:
        for each in (self._files, self._sets):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _held(self) -> list[Path]:
        names = glob("*", root_dir=self._files)  # None where it cannot be looked into.
        return [self._files / name for name in names if _SHA256.fullmatch(name)]

    def _make_room(self, wanted_bytes: int) -> None:
        """Drop what was used longest ago."""
        files = []
        for path in self._held():
            about = path.stat()
            files.append((about.st_atime_ns, about.st_size, path))
        held = sum(size for _, size, _ in files)
        if held + wanted_bytes <= self._limit_bytes:
            return
        # Sets hold their files by links of their own; they are made again when they are needed.
        shutil.rmtree(self._sets, ignore_errors=True)
        self._sets.mkdir(mode=0o700, exist_ok=True)
        for _, size, path in sorted(files):
            if held + wanted_bytes <= self._limit_bytes:
                return
            path.unlink(missing_ok=True)
            self._verified.pop(path.name, None)
            held -= size
