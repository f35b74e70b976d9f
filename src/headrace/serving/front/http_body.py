"""A large body, read from the socket straight to where it stays until it is answered.

The parser hands a body on in copies of what was read, which then are put together: for tensors of
hundreds of kilobytes that is more than half of what a request takes. A body whose length is
announced needs no parser: so the rest of it is received into its own memory, in as few and as large
reads as there are bytes waiting, and the parser goes on behind it.

Memory that nobody has written costs nothing, so an announced length alone takes none; what has come
is counted as it comes (`Limits.buffered_bytes`).
"""

import numpy as np

LEAST_BYTES = 1 << 14
"""Missing of a body for which it is worth it; what is smaller mostly comes in one read."""


class BodyInPlace:
    """One body, partly read."""

    __slots__ = ("_at", "_memory")

    def __init__(self, length: int, begun: bytes | bytearray | memoryview) -> None:
        """`begun`: what came with the head; less than `length`."""
        # Not a bytearray, which would be cleared first.
        self._memory = np.empty(length, dtype=np.uint8).data
        self._at = len(begun)
        self._memory[: self._at] = begun

    @property
    def missing(self) -> memoryview:
        """Where to read the rest, not empty until it is complete."""
        return self._memory[self._at :]

    @property
    def read(self) -> memoryview:
        """What has come so far."""
        return self._memory[: self._at]

    def grow(self, count_bytes: int) -> bool:
        """So many bytes of `missing` were written; returns whether the body is complete."""
        self._at += count_bytes
        return self._at == len(self._memory)
