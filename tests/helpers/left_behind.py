"""What this process owns, and whether a test leaves some of it behind."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def children() -> set[str]:
    """Ids of this process's children, those that ended and were not waited for included."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def descriptors() -> int:
    """Open file descriptors."""
    return len(os.listdir("/proc/self/fd"))


def mapped_arenas() -> int:
    """Pieces of shared memory for tensors that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:headrace")


@contextmanager
def nothing_left_of(*owned: Callable[[], set[str]] | Callable[[], int]) -> Iterator[None]:
    """Assert that none of `owned` has grown.

    It may shrink: what an earlier test of this process left to end by itself ends when it likes.
    """
    before = [measure() for measure in owned]
    yield
    for measure, then in zip(owned, before, strict=True):
        now = measure()
        assert now <= then, f"{measure.__name__}: {now} at the end, {then} at the start"  # type: ignore[operator]
