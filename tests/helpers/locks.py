"""Whether a folder is somebody's alone."""

import fcntl
import os
from pathlib import Path


def others_wait(folder: Path) -> bool:
    """Whether whoever wants to be alone in the folder now would wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
