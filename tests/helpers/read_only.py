"""A file system that takes nothing any more, as after an error of its disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest


@contextmanager
def read_only() -> Iterator[None]:
    """Every one, as this process sees it. Permissions would not do: root heeds none."""
    open_file = os.open

    def refuse(path: object, *others: object, **named: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def opened(path: Any, flags: int, *others: Any, **named: Any) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            refuse(path)
        return open_file(path, flags, *others, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("chmod", "link", "mkdir", "replace", "rmdir", "unlink", "utime"):
            patch.setattr(os, name, refuse)
        patch.setattr(os, "open", opened)
        yield
