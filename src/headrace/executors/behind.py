"""Work behind the batches of a worker: on its core, and only while that has nothing else to do.

One thread for the process, of the lowest weight that the system knows: beside a batch it gets a
65th of the core. Jobs are done one after the other; what is no longer wanted when its turn comes is
left out.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable

NICENESS = 19

Job = Callable[[], None]
_jobs: "queue.SimpleQueue[Job]" = queue.SimpleQueue()
_started = threading.Lock()


def do_behind(job: Job) -> None:
    """Do it some time, after what was asked for before. It must raise nothing."""
    _jobs.put(job)
    if _started.acquire(blocking=False):
        threading.Thread(target=_work, name="behind", daemon=True).start()


def _work() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    while True:
        _jobs.get()()
