"""What machine code holds of other places: constants by value, and whole functions.

Numba writes a global constant into the machine code as the value that it has then, and looks on
disk at nothing but the file of the function. A constant that is imported, or made of one that is,
can be another one in the next process, and so can a function of another file: machine code made of
the old ones would be loaded, and nothing would say so. So `frozen_in` is part of what is kept.
"""

from collections.abc import Iterator
from enum import Enum
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

CONSTANTS = (bool, int, float, complex, str, bytes, tuple, Enum, np.generic, np.dtype, type(None))
"""Kinds whose `repr` tells all values apart."""


def frozen_in(function: FunctionType) -> str:
    """A hash that changes with every constant that the function, or one that it calls, finds among
    its globals or in a module there, and with the files of what it calls elsewhere."""
    digest = sha256()
    files: set[str] = set()
    for name, value in _found_by(function, files):
        digest.update(f"{name}={value}\n".encode())
    for file in sorted(files - {function.__code__.co_filename}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def _found_by(function: FunctionType, files: set[str]) -> Iterator[tuple[str, str]]:
    """Name and value of every constant; `files` becomes those of all functions."""
    seen, ahead = {function}, [function]
    while ahead:
        caller = ahead.pop()
        files.add(caller.__code__.co_filename)
        for name, value in _globals_of(caller):
            inner = getattr(value, "py_func", None)
            if isinstance(inner, FunctionType) and inner not in seen:
                seen.add(inner)
                ahead.append(inner)
            elif isinstance(value, np.ndarray):
                yield name, f"{value.dtype} {value.shape} {value.tobytes().hex()}"
            elif isinstance(value, CONSTANTS):
                yield name, repr(value)


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names = tuple(dict.fromkeys(_names_in(function.__code__)))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            inside = vars(value)
            yield from ((f"{name}.{field}", inside[field]) for field in names if field in inside)
        elif name in function.__globals__:
            yield name, value


def _names_in(code: CodeType) -> Iterator[str]:
    """Those of functions inside the function too, as a comprehension is one."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)
