"""Shared memory in which tensors pass between the gateway and its workers.

One anonymous file per plan in service, mapped by all of its processes and inherited by descriptor:
it has no name in any file system, so nothing is left behind whoever gets killed. The gateway alone
hands out regions of it; a worker reads and writes where a frame tells it to, and nowhere else. So a
tensor is written once, by whoever makes it, and read where it lies.

Allocation is best fit over free extents (offset, length), kept in three indexes: by size, by where
an extent begins, by where one ends. Invariants: extents are disjoint, cover all that is not
allocated, and no two of them touch, since `free` merges both neighbours. Everything is a multiple
of a cache line. Cost: O(log n) to find, O(n) to move a list of n free extents, which is tens long.
"""

import errno
import mmap
import os
import resource
import tempfile
from bisect import bisect_left, insort

from headrace.domain.errors import OverloadError, SystemLimitError

ALIGNMENT_BYTES = 64
"""A cache line, and what vector instructions like."""


class Allocator:
    """Best fit over a range of bytes; neighbours merge when freed.

    Plain sorted list of free extents: an engine has a few tensor sizes and tens of live regions,
    so that the list stays short, and searching it is O(log n). On a tie the lowest offset wins,
    which keeps using pages that are already in memory and in cache.
    """

    __slots__ = ("_by_size", "_length_at", "_offset_ending_at", "_used", "size_bytes", "used_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self.used_bytes = 0
        self._by_size: list[tuple[int, int]] = []
        self._length_at: dict[int, int] = {}
        self._offset_ending_at: dict[int, int] = {}
        self._used: dict[int, int] = {}
        if self.size_bytes:
            self._insert(0, self.size_bytes)

    def allocate(self, count_bytes: int) -> int:
        """Return the offset of `count_bytes` fresh bytes, aligned; freed with `free`.

        Raises:
            OverloadError: no free extent is long enough.
        """
        length = max(1, -(-count_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
        i = bisect_left(self._by_size, (length, 0))
        if i == len(self._by_size):
            raise OverloadError(
                f"tensor memory is full: needs {length} bytes in one piece, has"
                f" {self._by_size[-1][0] if self._by_size else 0} of {self.size_bytes};"
                " send fewer requests at a time or give the server a larger arena"
            )
        found, offset = self._by_size[i]
        self._remove(offset, found)
        if found > length:
            self._insert(offset + length, found - length)
        self._used[offset] = length
        self.used_bytes += length
        return offset

    def length_of(self, offset: int) -> int:
        """Of what `allocate` returned: all bytes that it has."""
        return self._used[offset]

    def free(self, offset: int) -> None:
        """Give back what `allocate` returned; anything else is our own bug (KeyError)."""
        length = self._used.pop(offset)
        self.used_bytes -= length
        before = self._offset_ending_at.get(offset)
        after = self._length_at.get(offset + length)
        if after is not None:
            self._remove(offset + length, after)
            length += after
        if before is not None:
            self._remove(before, offset - before)
            length += offset - before
            offset = before
        self._insert(offset, length)

    def _insert(self, offset: int, length: int) -> None:
        insort(self._by_size, (length, offset))
        self._length_at[offset] = length
        self._offset_ending_at[offset + length] = offset

    def _remove(self, offset: int, length: int) -> None:
        del self._by_size[bisect_left(self._by_size, (length, offset))]
        del self._length_at[offset]
        del self._offset_ending_at[offset + length]


class Arena:
    """The gateway's end: owns the memory, hands out regions of it."""

    def __init__(self, size_bytes: int) -> None:
        """Reserve `size_bytes`; pages take real memory only once they are written.

        Raises:
            SystemLimitError: the system grants no file, or no addresses, for so many.
        """
        self._allocator = Allocator(-(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.descriptor, self._memory = _reserved(self._allocator.size_bytes)
        """The descriptor is inherited by workers, which open it with `map_arena`."""
        self.view = memoryview(self._memory)

    @property
    def size_bytes(self) -> int:
        return self._allocator.size_bytes

    @property
    def used_bytes(self) -> int:
        return self._allocator.used_bytes

    def allocate(self, count_bytes: int) -> int:
        """Return an offset into `view`. Raises OverloadError when full."""
        return self._allocator.allocate(count_bytes)

    def length_of(self, offset: int) -> int:
        return self._allocator.length_of(offset)

    def free(self, offset: int) -> None:
        self._allocator.free(offset)

    def close(self) -> None:
        """Unmap and close; the memory is gone when the last worker is. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.view.release()
            self._memory.close()


def map_arena(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Map an arena's descriptor for reading and writing.

    Raises:
        ValueError: the file behind the descriptor is shorter than `size_bytes`.
    """
    return mmap.mmap(descriptor, size_bytes)


def _reserved(size_bytes: int) -> tuple[int, mmap.mmap]:
    """
    Raises:
        SystemLimitError: the system does not grant them.
    """
    descriptor = _empty_file()
    try:
        os.ftruncate(descriptor, size_bytes)
        return descriptor, map_arena(descriptor, size_bytes)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _LIMITS:
            raise _refused(size_bytes, error, *_LIMITS[error.errno]) from error
        raise


def _empty_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-arena", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="headrace-arena-")
    os.unlink(path)
    return descriptor


_LIMITS = {
    errno.EFBIG: (resource.RLIMIT_FSIZE, "of a file's size (ulimit -f)"),
    errno.ENOMEM: (resource.RLIMIT_AS, "of a process's addresses (ulimit -v)"),
}


def _refused(size_bytes: int, error: OSError, limit: int, name: str) -> SystemLimitError:
    granted_bytes = resource.getrlimit(limit)[0]
    granted, more = "", "a machine or container with more memory"
    if granted_bytes != resource.RLIM_INFINITY:
        granted = f"  limit     {granted_bytes / 1e6:.1f} MB {name}\n"
        more = "a higher limit for whoever starts this"
    return SystemLimitError(
        f"there is no shared memory for the tensors of this plan: {error.strerror}\n"
        f"  needs     {size_bytes / 1e6:.1f} MB in one piece\n"
        f"{granted}"
        f"  try       {more}, or a plan with smaller batches"
    )
