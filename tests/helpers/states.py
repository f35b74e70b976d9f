"""The state of a dispatcher, for tests that call functions of its kernel one by one."""

from typing import Any

import numpy as np

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
