"""Work behind the batches of a worker: on its core, and only while that has nothing else to do.

One thread for the process, of the lowest weight that the system knows: beside a batch it gets a
65th of the core. Jobs are done one after the other. A process that ends waits for the one under
way: a thread that is in a library then must not be cut off there.
"""

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable

NICENESS = 19

Job = Callable[[], None]


class Behind:
    """The thread and what it is to do; it is started with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ending = False

    def do(self, job: Job) -> None:
        """Do it some time, after what was asked for before. It must raise nothing."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="behind", daemon=True)
            self._thread.start()
            atexit.register(self.end)

    def end(self) -> None:
        """Leave out what has not begun, and wait for what has. Nothing is done after that."""
        self._ending = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (job := self._jobs.get()) is not None and not self._ending:
            job()


do_behind = Behind().do
"""Of this process."""
