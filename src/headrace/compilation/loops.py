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
    return cast(Function, _kept(numba.njit(cache=True)(function)))


def compiled_into_callers(function: Function) -> Function:
    """As `compiled`, and part of every caller: small functions otherwise pay more for their
    arguments than for their work, since every array handed over is counted."""
    return cast(Function, _kept(numba.njit(cache=True, inline="always")(function)))


def inlined(function: Function) -> Function:
    """A small function, or one with a single caller: compiled as part of whoever calls it by name.

    Not for the functions of a policy, which are called through `s.policy`: those are `hot`.
    """
    return cast(Function, _uncounted(inline="always")(function))


def kernel(function: Function) -> Function:
    """A function compiled with the entry that needs it, and kept with that."""
    return cast(Function, _without_literals(_uncounted()(function)))


def hot(function: Function) -> Function:
    """A kernel that belongs into the loops that call it."""
    return cast(Function, _without_literals(_uncounted(forceinline=True)(function)))


def entry(function: Function) -> Function:
    """What Python calls: compiled once, then loaded from disk in a fraction of a second.

    Numba renews a cached function when its own file changes, not when a file it calls into does
    (decision 0009); but it also tells apart functions that enclose different constants. So
    `function` has to enclose the key of its tables, which is made of all sources (`source_key`).
    """
    return cast(Function, _without_literals(_kept(_uncounted(cache=True)(function))))


def _uncounted(**options: Any) -> Any:
    if UNCOMPILED:
        return lambda function: function
    from headrace.compilation.internals import UNCOUNTED

    return numba.njit(**options, **UNCOUNTED)


def _kept(function: Any) -> Any:
    """On disk; what another version has left there is no error."""
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import forgive_stale

    return forgive_stale(function)


def _without_literals(function: Any) -> Any:
    """Compiled once, not once for every constant among the arguments of its callers."""
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import forget_literals

    return forget_literals(function)


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
