"""The contract of all executors, and the memory that they work on."""

from collections.abc import Sequence
from mmap import mmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.domain.errors import ModelError
from headrace.domain.profile import TensorSpec


class TensorMemory:
    """Bounds-checked tensor views of the arena."""

    def __init__(self, memory: mmap) -> None:
        self._bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)

    def tensor(self, spec: TensorSpec, size: int, offset: int) -> NDArray[Any]:
        """Return the tensor [size, *item_shape] that starts at `offset`; shares the memory.

        Raises:
            ModelError: it would reach beyond the arena.
        """
        dtype = np.dtype(spec.dtype)
        count_bytes = size * spec.item_count * dtype.itemsize
        if size < 1 or offset < 0 or offset + count_bytes > self._bytes.size:
            raise ModelError(
                f"tensor {spec.name!r}: {size} items at {offset} leave the arena of"
                f" {self._bytes.size} bytes"
            )
        raw = self._bytes[offset : offset + count_bytes]
        return raw.view(dtype).reshape(size, *spec.item_shape)


class Executor(Protocol):
    """One loaded stage. Its constructor loads; it runs one batch at a time."""

    def run(self, size: int, input_offsets: Sequence[int], output_offsets: Sequence[int]) -> None:
        """Compute outputs from inputs, both in the arena, in the order of the stage's `Load`.

        Raises:
            Exception: whatever the backend raises; the worker reports it and lives on.
        """
        ...

    def unload(self) -> None:
        """Give back what the stage holds."""
        ...


_MAX_MESSAGE_CHARS = 2000


def describe(error: Exception) -> str:
    """What a `Failed` frame says of it; bounded, because backends may quote whole graphs."""
    return f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARS]
