"""Where results that can be made again are kept, each under a hash of all that it depends on."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.domain.errors import ModelError
from headrace.user_cache import remedy


def content_key(parts: Sequence[object]) -> str:
    """A hash of everything that a cached result depends on; JSON keeps the parts apart.

    >>> content_key(["ab", "c"]) == content_key(["a", "bc"])
    False
    """
    return hashlib.sha256(msgspec.json.encode(list(parts))).hexdigest()


def store(path: Path, content: bytes) -> None:
    """Write a cache entry whole or not at all, so that two processes may store it at once.

    Raises:
        ModelError: the cache folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise not_written(path, error) from error


def check_store(path: Path) -> None:
    """See whether `store` could write there, before minutes are spent on what is to be stored.

    Raises:
        ModelError: the cache folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> ModelError:
    """What to say of a cache entry that the system does not take."""
    return ModelError(f"{path}: cannot be written: {error.strerror}; {remedy(error)}")
