"""The state of a dispatcher, for tests that call functions of its kernel one by one."""

from typing import Any

import numba
import numpy as np

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


class CalledFromPython:
    """A module of the kernel with functions that Python can call, not only compiled code."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if not UNCOMPILED:
            whole = numba.njit(pipeline_class=WholeCompiler, **UNCOUNTED)
            function = whole(function.py_func)
        setattr(self, name, function)
        return function
