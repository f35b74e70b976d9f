"""When a process got round to what came for it, as a log tells.

A process on a core that it shares reads, each time that it has the core, all that came meanwhile:
the delays of messages that come at about the same moment are one wait, which ends for all at once.
Of a message of some kind that came at c and was taken at d, with q the quickest of its kind (the
10th percentile of d - c), the process got round to it at d - q, and had put it off for
e = d - q - c. With n the message of the log that came nearest to x, one that comes at x is taken at

    q + max(x, d_n - q)      n came before x, or was put off for longer than it came after x
    q + x + e_n              else
"""

from collections.abc import Sequence

import numpy as np

from headrace.dispatch.kernel.layout import Ints

QUICKEST_PERCENT = 10

Messages = Sequence[tuple[int, int]]
"""Of one kind: when each came, and when it was taken."""


class Attention:
    """One process. The kinds of its messages are numbered."""

    def __init__(self, kinds: Sequence[Messages]) -> None:
        """
        Args:
            kinds: not all are empty.
        """
        self._quick_us = [_quick_us(kind) for kind in kinds]
        messages = sorted(
            (came_us, max(came_us, taken_us - quick_us))
            for kind, quick_us in zip(kinds, self._quick_us, strict=True)
            for came_us, taken_us in kind
        )
        self._came_us: Ints = np.array([came_us for came_us, _ in messages], dtype=np.int64)
        self._reached_us: Ints = np.array([reached for _, reached in messages], dtype=np.int64)

    def quick_us(self, kind: int) -> int:
        """What a message takes that is not put off."""
        return self._quick_us[kind]

    def taken_at_us(self, at_us: Ints, kind: int) -> Ints:
        """When messages of `kind` that come at these instants of the log are taken; same shape."""
        after = np.minimum(np.searchsorted(self._came_us, at_us), len(self._came_us) - 1)
        before = np.maximum(after - 1, 0)
        is_before = at_us - self._came_us[before] <= np.abs(self._came_us[after] - at_us)
        near = np.where(is_before, before, after)
        came_us, reached_us = self._came_us[near], self._reached_us[near]
        put_off_us = reached_us - came_us
        same_wait = put_off_us > came_us - at_us
        taken: Ints = np.where(same_wait, np.maximum(at_us, reached_us), at_us + put_off_us)
        return taken + self._quick_us[kind]

    def wait_us(self, at_us: int, kind: int) -> int:
        """How long one message waits that comes then."""
        return int(self.taken_at_us(np.array([at_us]), kind)[0]) - at_us


def _quick_us(kind: Messages) -> int:
    if not kind:
        return 0
    took_us = [taken_us - came_us for came_us, taken_us in kind]
    return max(0, int(np.percentile(took_us, QUICKEST_PERCENT)))
