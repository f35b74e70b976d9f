"""What code a result came from, so that results of other code are neither mixed in nor made."""

import hashlib
import importlib
import os
from functools import cache
from pathlib import Path

from headrace import __version__


@cache
def sources_of(*packages: str) -> str:
    """Headrace's version, and a digest of every Python file of these packages and of Headrace.

    >>> sources_of().startswith("0.")
    True
    """
    digest = hashlib.sha256()
    for package in sorted({"headrace", *packages}):
        # A package without __init__ may be found by two paths that are one folder.
        paths = importlib.import_module(package).__path__
        for folder in dict.fromkeys(map(os.path.realpath, paths)):
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"
