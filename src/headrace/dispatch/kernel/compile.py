"""How the kernel is compiled: small functions into their callers, entries kept on disk."""

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types

Function = TypeVar("Function", bound=Callable[..., object])


UNCOUNTED = {"_nrt": False}
"""No references are counted: nothing is allocated, and Python holds all arrays during a call. Each
array that was looked up used to be counted twice, by calls that took two thirds of a session."""


def inlined(function: Function) -> Function:
    """A small function, or one with a single caller: compiled as part of whoever calls it."""
    return cast(Function, numba.njit(inline="always", **UNCOUNTED)(function))


def kernel(function: Function) -> Function:
    """A function compiled with the entry that needs it, and kept with that."""
    return cast(Function, _without_literals(numba.njit(**UNCOUNTED)(function)))


def hot(function: Function) -> Function:
    """A kernel that belongs into the loops that call it."""
    return cast(Function, _without_literals(numba.njit(forceinline=True, **UNCOUNTED)(function)))


def entry(function: Function) -> Function:
    """What Python calls: compiled once, then loaded from disk in a fraction of a second.

    Numba renews a cached function when its own file changes, not when a file it calls into does
    (decision 0009); but it also tells apart functions that enclose different constants. So
    `function` has to enclose a stamp of the sources.
    """
    return cast(Function, _without_literals(numba.njit(cache=True, **UNCOUNTED)(function)))


def _without_literals(dispatcher: Any) -> Any:
    """Numba compiles a function anew for every constant that it is called with.

    Ours are not worth that: it would take three times as long.
    """
    find = dispatcher.get_call_template

    def find_without_literals(arguments: Sequence[Any], names: dict[str, Any]) -> Any:
        return find([types.unliteral(argument) for argument in arguments], names)

    dispatcher.get_call_template = find_without_literals
    return dispatcher


@cache
def source_stamp() -> str:
    """Changes with every change to the kernel's source."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
