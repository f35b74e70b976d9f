"""Folders that are there for as long as a block runs."""

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

MOST_PLACE_BYTES = 60
"""Sockets lie beneath it, and their paths may have 107."""


@contextmanager
def scratch_folder(prefix: str, place: Path | None = None) -> Iterator[Path]:
    """A folder that only this user can enter; gone after the block, and at exit at the latest.

    An exception that a signal raises may come before `mkdir` has returned, or while the folder is
    removed: `tempfile.TemporaryDirectory` then leaves it.

    Args:
        prefix: of its name.
        place: the folder that it lies in; None: where temporary files are.

    Raises:
        OSError: it cannot be made there.
    """
    path = (place or Path(tempfile.gettempdir())) / f"{prefix}{secrets.token_hex(8)}"
    remove = partial(shutil.rmtree, path, ignore_errors=True)
    atexit.register(remove)
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        remove()
        atexit.unregister(remove)


def place_for_sockets() -> Path:
    """Where a folder with sockets may lie: where temporary files are, unless its path is long."""
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= MOST_PLACE_BYTES else "/tmp")
