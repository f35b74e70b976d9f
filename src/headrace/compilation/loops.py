"""The decorators of compiled functions (decision 0009), typed: numba's own hide what they wrap.

Functions that stand alone are `compiled`. The dispatcher and the simulator's loop, which are many
functions on one set of tables, are an `entry` that calls functions of the other three kinds; these
allocate nothing and count no references.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

UNCOMPILED = bool(numba.config.DISABLE_JIT)
"""Everything runs as plain Python: slowly, and with a debugger."""


def compiled(function: Function) -> Function:
    """Compile on first call and keep the machine code on disk for the next process.

    A cached function is renewed when its own file changes, not when another file does: it calls
    only compiled functions of its own file.
    """
    return cast(Function, _whole(function))


def compiled_into_callers(function: Function) -> Function:
    """As `compiled`, and part of every caller: small functions otherwise pay more for their
    arguments than for their work, since every array handed over is counted."""
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import kept_on_disk

    return cast(Function, kept_on_disk(numba.njit(cache=True, inline="always")(function)))


def inlined(function: Function) -> Function:
    """A small function, or one with a single caller: compiled as part of whoever calls it by name.

    Not for the functions of a policy, which are called through `s.policy`: those are `hot`.
    """
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import UNCOUNTED

    return cast(Function, numba.njit(inline="always", **UNCOUNTED)(function))


def kernel(function: Function) -> Function:
    """A function compiled with the entry that needs it, and kept with that."""
    return cast(Function, _part(function))


def hot(function: Function) -> Function:
    """A kernel that belongs into the loops that call it."""
    return cast(Function, _part(function, forceinline=True))


def entry(function: Function) -> Function:
    """What Python calls: compiled once, then loaded from disk in a fraction of a second.

    Numba renews a cached function when its own file changes, not when a file it calls into does
    (decision 0009); but it also tells apart functions that enclose different constants. So
    `function` has to enclose the key of its tables, which is made of all sources (`source_key`).
    """
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import UNCOUNTED, forget_literals

    return cast(Function, forget_literals(_whole(function, **UNCOUNTED)))


def _part(function: Any, **options: Any) -> Any:
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import as_part

    return as_part(function, **options)


def _whole(function: Any, **options: Any) -> Any:
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import as_whole

    return as_whole(function, **options)


def ready(function: Callable[..., Any], *, arguments: int) -> Callable[..., Any]:
    """An entry of so many whole numbers, compiled or loaded now, as Python calls it fastest."""
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import call_directly

    return call_directly(function, arguments)


def source_key(files: Iterable[Path], *also: object) -> int:
    """A number that changes with every change to the files, and to what else is given."""
    digest = sha256(repr(also).encode())
    for path in files:
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")
