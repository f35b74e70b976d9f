"""How long a process that is gone waits before it is started again: by its setbacks in a row.

A setback is a process that could not start, or that died within STEADY_S. Nobody is given up: what
was in the way may be mended at any time, and an attempt in 30 s costs next to nothing.
"""

RESTART_DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""After so many setbacks in a row, the first one first; the last one again and again."""
STEADY_S = 10.0
"""A process that has lived so long is healthy: the row begins anew."""


class RestartDelays:
    """Of one process and those that follow it."""

    def __init__(self) -> None:
        self._setbacks = 0

    def lived(self, seconds: float) -> None:
        """One that was up is gone."""
        if seconds > STEADY_S:
            self._setbacks = 0

    def after_setback_s(self) -> float:
        """There was one more: from it to the next attempt."""
        self._setbacks += 1
        return RESTART_DELAYS_S[min(self._setbacks, len(RESTART_DELAYS_S)) - 1]
