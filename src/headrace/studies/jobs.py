"""What runs calls, and how a study asks for many of them.

Results come in the order of the tasks, whoever finished first: a study that adds them up adds them
in the same order with one process, with many, and when it was stopped and goes on.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import Protocol, TypeVar

from headrace.studies.calls import Call, Outcome, call_of, outcome_of, result_of
from headrace.studies.kept import Kept

T = TypeVar("T")
R = TypeVar("R")


class Jobs(Protocol):
    """Runs calls; may be used from one thread."""

    @property
    def count(self) -> int:
        """How many calls run at once."""
        ...

    def submit(self, call: Call) -> "Future[Outcome]":
        """Run it when there is room, in the order of submission; a future that is cancelled before
        it runs never does."""
        ...


class Here:
    """One call after another, in this process, when its turn has come."""

    count = 1

    def submit(self, call: Call) -> "Future[Outcome]":
        future: Future[Outcome] = Future()
        future.set_result(outcome_of(call))
        return future


def results_of(
    function: Callable[[T], R],
    tasks: Iterable[T],
    jobs: Jobs,
    *,
    ahead: int | None = None,
    kept: Kept | None = None,
    on_done: Callable[[int], None] = lambda done: None,
) -> Generator[R]:
    """The function's result for each task, in the order of the tasks.

    Args:
        function: at the top of a module, of one argument, with its types stated; equal arguments
            give equal results.
        ahead: at most so many tasks are begun before their turn has come; None: all of them.
            Whoever may stop before the last result begins few.
        kept: results of an earlier run, and where those of this one are kept.
        on_done: told how many tasks are done; from any thread.

    Raises:
        HeadraceError: what the function raised, when its turn has come.
        RuntimeError: it failed otherwise.
        StudyError: a process that ran it has ended.
    """
    counted = _Counted(on_done)
    waiting: deque[Future[Outcome]] = deque()
    # Nothing is begun ahead in this process: the first result would wait for all of them.
    room = 1 if isinstance(jobs, Here) else ahead
    coming = iter(tasks)
    try:
        while True:
            free = None if room is None else room - len(waiting)
            waiting.extend(
                _begun(call_of(function, task), jobs, kept, counted)
                for task in islice(coming, free)
            )
            if not waiting:
                return
            yield result_of(function, waiting.popleft().result())
    finally:
        for future in waiting:
            future.cancel()


def _begun(
    call: Call, jobs: Jobs, kept: Kept | None, counted: Callable[[], None]
) -> "Future[Outcome]":
    known = kept.get(call) if kept is not None else None
    if known is not None:
        future: Future[Outcome] = Future()
        future.set_result(known)
    else:
        future = jobs.submit(call)

    def done(ended: "Future[Outcome]") -> None:
        if ended.cancelled() or ended.exception() is not None:
            return
        if kept is not None and known is None and not ended.result().failed:
            kept.add(call, ended.result())
        counted()

    future.add_done_callback(done)
    return future


class _Counted:
    """Says how many, one at a time."""

    def __init__(self, on_done: Callable[[int], None]) -> None:
        self._on_done, self._lock, self._done = on_done, threading.Lock(), 0

    def __call__(self) -> None:
        with self._lock:
            self._done += 1
            self._on_done(self._done)
