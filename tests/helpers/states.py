"""The state of a dispatcher, for tests that call functions of its kernel one by one."""

from functools import cache
from typing import Any

import numba
import numpy as np
import pytest

from headrace.compilation.internals import UNCOUNTED, WholeCompiler
from headrace.compilation.loops import UNCOMPILED
from headrace.dispatch.kernel.layout import State


def callable_state(state: Any) -> State:
    """As functions of the kernel read it: in plain Python, a row's fields are attributes."""
    if not UNCOMPILED:
        compiled_for: State = state
        return compiled_for
    rows = (table.view(np.recarray) if table.dtype.names else table for table in state)
    plain: State = state._make(rows)
    return plain


ONE_WORKER = pytest.mark.xdist_group("kernel-functions")
"""Of tests that call functions of the kernel: compiling these takes longer than all the rest."""


class CalledFromPython:
    """A module of the kernel with functions that Python can call, not only compiled code."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        return function if UNCOMPILED else _whole(function.py_func)


@cache
def _whole(function: Any) -> Any:
    """Not kept on disk, where nothing would say that what it calls has changed."""
    return numba.njit(pipeline_class=WholeCompiler, **UNCOUNTED)(function)
