"""What the log says of callers that are not let in: enough to see why, however often they call."""

import logging
import math
import time
from collections.abc import Callable

AGAIN_S = 60.0
"""What the log has said, it says again after that."""
MOST_SENTENCES = 32
"""In that time, however many addresses there are."""


class Complaints:
    """Of callers that are not let in; each once in AGAIN_S for an address."""

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._since_s = -math.inf
        self._said: set[tuple[str, str]] = set()
        self._unsaid = 0

    def warn(self, address: str, sentence: str) -> None:
        """Log it, or count it."""
        now_s = self._now_s()
        if now_s - self._since_s >= AGAIN_S:
            if self._unsaid:
                self._logger.warning(
                    "%d more complaints of callers within the last %.0f s",
                    *(self._unsaid, now_s - self._since_s),
                )
            self._since_s, self._unsaid = now_s, 0
            self._said.clear()
        if (address, sentence) in self._said or len(self._said) >= MOST_SENTENCES:
            self._unsaid += 1
            return
        self._said.add((address, sentence))
        self._logger.warning("%s: %s", address, sentence)
