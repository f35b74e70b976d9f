"""Compilation to machine code, typed: numba's own decorator hides the signature it wraps."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile on first call and keep the machine code on disk for the next process.

    A cached kernel is renewed when its own file changes, not when another file does: a kernel
    calls only compiled functions of its own file.
    """
    return cast(Kernel, numba.njit(cache=True)(function))


def inlined(function: Kernel) -> Kernel:
    """Compile into every caller: small kernels otherwise pay more for their arguments than for
    their work, since every array handed over is counted."""
    return cast(Kernel, numba.njit(cache=True, inline="always")(function))
