"""File descriptors: as many as the system allows, some of them kept for workers.

A connection takes one, and so does much else; the usual soft limit of 1,024 is for programs that
use `select`, and is raised by those that do not. A worker that is started again needs a few for a
moment, two of which it keeps as long as it lives. Were all of them taken by clients, the slot would
stay lost for as long as these hold on, so some are held open for it.
"""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from functools import cache

RESERVED = 8
"""A socket pair, a pipe, /dev/null, and room for what the start of a process opens beside."""
_SERVER = 48
"""What a server opens besides plans and clients: the reserve, its loop and listeners, the admin's
connections, the apps' process, and what it reads for a moment."""
_PLAN = 8
"""An arena, an event log, a clock."""
_WORKER = 2


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one. Workers inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """How many this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def open_descriptors() -> int:
    """How many this process has open; all that it may, where none is left to count them by."""
    try:
        return len(os.listdir("/dev/fd")) - 1
    except OSError:
        return descriptor_limit()


def left_for_clients(workers: int, files: int) -> int:
    """How many descriptors are left when a server has what it needs besides those that are open
    now; negative where it lacks some.

    Args:
        workers: of a plan.
        files: that its stages are read from. Both are needed twice: the next plan is loaded beside
            the one in service.
    """
    needed = _SERVER + 2 * (_PLAN + _WORKER * workers + files)
    return descriptor_limit() - open_descriptors() - needed


class DescriptorReserve:
    """Some descriptors, held as long as anybody has workers, and free for each that starts."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._users = 0

    def join(self) -> None:
        """One more that has workers, until it calls `leave`."""
        self._users += 1
        self._hold()

    def leave(self) -> None:
        """Once for each `join`; the last to leave gives them back."""
        self._users -= 1
        if not self._users:
            self._free()

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """They are free inside the block, which must not wait for anything."""
        self._free()
        try:
            yield
        finally:
            self._hold()

    def _free(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def _hold(self) -> None:
        # As many as there are: where others took them meanwhile, better next time.
        with contextlib.suppress(OSError):
            while self._users and len(self._held) < RESERVED:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


@cache
def process_reserve() -> DescriptorReserve:
    """The one of this process, whose descriptors they are."""
    return DescriptorReserve()
