"""Compilation of hot loops (decision 0009), typed: numba's decorator hides what it wraps."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile on first call and keep the machine code on disk for the next process.

    A cached kernel is renewed when its own file changes, not when another file does: a kernel
    calls only kernels of its own file.
    """
    return cast(Kernel, numba.njit(cache=True)(function))
