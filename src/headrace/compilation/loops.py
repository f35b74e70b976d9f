"""Compilation of hot loops (decision 0009), typed: numba's decorator hides what it wraps."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba
from numba import types

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first call and keep the machine code on disk for the next process.

    A cached function is renewed when its own file changes, not when another file does: it calls
    only compiled functions of its own file.
    """
    return cast(Function, numba.njit(cache=True)(function))


def hot(function: Function) -> Function:
    """A part of the compiled functions that call it. It allocates nothing: it counts no references,
    which takes longer than its work."""
    if numba.config.DISABLE_JIT:
        return function
    dispatcher = numba.njit(forceinline=True, _nrt=False)(function)
    find = dispatcher.get_call_template

    def find_without_literals(arguments: Sequence[Any], names: dict[str, Any]) -> Any:
        # Compiled once, not once for every constant among the arguments of its callers.
        return find([types.unliteral(argument) for argument in arguments], names)

    dispatcher.get_call_template = find_without_literals
    return cast(Function, dispatcher)
