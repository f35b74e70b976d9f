"""Opening what users name: ordinary files only, at once, and none that is larger than expected.

A path may lead to a pipe that nobody writes to, a terminal or a device; to open one of these can
wait for ever, and to read one may never end. Whoever reads a file of ours opens it here: without
blocking, and what is opened is looked at before anything is read. What the file's name led to a
moment earlier says nothing.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path, limit_bytes: int, *, folder: int | None = None) -> BufferedReader:
    """The file at `path`, open for reading; close it.

    The stated size is checked; a file that grows meanwhile is for the reader to bound.

    Args:
        folder: descriptor of the folder that `path` is a name in; it must then be no link.

    Raises:
        OSError: it cannot be opened, is no ordinary file (EINVAL, EISDIR), or is larger than
            `limit_bytes` (EFBIG); `strerror` says so in words.
    """
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        if folder is not None:
            flags |= os.O_NOFOLLOW
        descriptor = os.open(path, flags, dir_fd=folder)
    except ValueError as error:
        raise OSError(errno.EINVAL, "is not the name of a file", repr(str(path))) from error
    try:
        about = os.fstat(descriptor)
        kind = stat.S_IFMT(about.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if kind != stat.S_IFREG:
            what = _KINDS.get(kind, "something else")
            raise OSError(errno.EINVAL, f"is {what}, not an ordinary file", str(path))
        if about.st_size > limit_bytes:
            sizes = f"{about.st_size:,} bytes, at most {limit_bytes:,} are read"
            raise OSError(errno.EFBIG, f"is too large: {sizes}", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
