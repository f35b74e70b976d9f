"""Files that are there whole or not at all: readers never see half of one."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from headrace.catalog.scratch import scratch_folder
from headrace.domain.errors import DocumentError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """What is written replaces the file at the end, unless an exception comes first.

    A link is followed. What is no ordinary file, /dev/stdout or a pipe say, is written into: there
    is nothing to replace.

    Raises:
        DocumentError: it cannot be written there.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Its own name may have all of 255 bytes.
        temporary = target.parent / f".{target.name[:50]}.{token_hex(8)}"
        # As readable as any other new file; the system takes the umask off, which cannot be asked
        # for without setting it, for all threads.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def folder_beside(path: Path, purpose: str, advice: str) -> Iterator[Path]:
    """A folder of the caller alone, for what nobody is to find before it is whole; gone afterwards.

    Args:
        purpose: a word for its name, as whoever lists hidden files sees it.
        advice: what is needed and what to try; lines that end the error.

    Raises:
        DocumentError: nothing can be written there.
    """
    scratch = scratch_folder(f".{path.stem}.{purpose}-", path.parent)
    with ExitStack() as made:
        try:
            folder = made.enter_context(scratch)
        except OSError as error:
            raise DocumentError(
                f"{path.parent}: cannot be written: {error.strerror}\n{advice}"
            ) from error
        yield folder


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EBADF)
"""EBADF: network file systems lock what is open for writing, which no folder is."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Whoever else wants to be alone in the folder waits until the block is left: for files that
    only mean something together. Where folders cannot be locked, nobody waits.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def check_writable(path: Path, *read: Path) -> None:
    """Before long work: refuse now what `whole_file` would refuse at its end. Leaves nothing.

    Args:
        read: what the work is done from, which its result must not replace.

    Raises:
        DocumentError: it cannot be written there, or is one of those files.
    """
    check_apart(path, *read)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            return  # A pipe or a device, where to open it is to write.
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = next(parent for parent in target.parents if parent.exists())
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror}") from error


def check_apart(path: Path, *read: Path) -> None:
    """Refuse to write over what the work is done from.

    Raises:
        DocumentError: the path is one of those files.
    """
    for source in read:
        # By what they are, not by name: links too. What cannot be looked at, since its name is too
        # long or its folder closed, is none of them (os.path: False); who opens it says why.
        there = os.path.isfile(path) and os.path.isfile(source)
        if there and path.samefile(source):
            raise DocumentError(
                f"{path}: would be replaced by what is made of it; name another file to write"
            )


def check_distinct(*written: Path) -> None:
    """Refuse results of which one would replace another. What is no ordinary file takes several.

    Raises:
        DocumentError: two of them have one name, over links too.
    """
    for path, other in combinations(written, 2):
        takes_both = os.path.exists(path) and not os.path.isfile(path)
        if os.path.realpath(path) == os.path.realpath(other) and not takes_both:
            raise DocumentError(f"{path}: is to hold two results; name another file for one")
