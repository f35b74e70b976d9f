"""The folder of what can be made again, and what to do where it does not take something."""

import errno
import os
from pathlib import Path

FOLDER_VARIABLE = "HEADRACE_CACHE"

MODEL_FILES_MB = 64_000
"""Most that a node's folder of model files holds, where nothing else is said; in 10^6 bytes."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where nothing is wrong with what is to be written."""


def cache_folder() -> Path:
    """`$HEADRACE_CACHE`, or `~/.cache/headrace`; it need not exist yet."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    try:
        home = Path.home()
    except RuntimeError:  # a number that is no user's: containers set / for it
        home = Path("/")
    return home / ".cache" / "headrace"


def remedy(error: OSError, variable: str = FOLDER_VARIABLE) -> str:
    """The next step where something could not be written below the folder of this variable.

    >>> remedy(PermissionError(errno.EACCES, "Permission denied"))
    'set HEADRACE_CACHE to a folder that you may write to'
    """
    if error.errno in NO_ROOM:
        return f"make room there, or set {variable} to a folder that has room"
    return f"set {variable} to a folder that you may write to"
