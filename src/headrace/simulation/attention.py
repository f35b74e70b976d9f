"""How long a process puts off what comes for it, as a log tells.

A process on a core that it shares gets round to a message when it has the core, and when it is done
with those that came before. Both show in the log. What comes at some moment is put off as one of
the NEAR messages was that the log has around it, half of them before: as the one behind whose
LATEST predecessors it came at the most alike intervals; of equals, the nearest.

The intervals are there because messages queue behind each other. Were the nearest one taken, those
of a burst, which are close together and wait for each other, would be the nearest to few instants
and those behind a pause to many: waits would be a fifth too short, and no longer in a burst of
simulated messages than elsewhere.
"""

from collections.abc import Sequence

import numpy as np

from headrace.dispatch.kernel.layout import Ints

QUICKEST_PERCENT = 10

NEAR = 16
"""Few enough that a slow moment stays one, and enough for some like intervals (decision 0091)."""

LATEST = 2

LONG_AGO_US = 3_000
"""Who came longer ago is not waited for: a slice of the scheduler."""

MESSAGES_AT_ONCE = 4_096
"""Bounds the memory that looking for them takes."""


class Attention:
    """One process, and messages of one kind."""

    def __init__(self, messages: Sequence[tuple[int, int]]) -> None:
        """
        Args:
            messages: when each came, and when it was taken; at least one.
        """
        came = sorted(messages)
        self._came_us: Ints = np.array([came_us for came_us, _ in came], dtype=np.int64)
        self._took_us: Ints = np.array([taken - came_us for came_us, taken in came], dtype=np.int64)
        self._ages_us = _ages_us(self._came_us)
        self.quick_us = max(0, int(np.percentile(self._took_us, QUICKEST_PERCENT)))
        """What a message takes that is not put off."""

    def took_us(self, like_us: Ints, came_us: Ints) -> Ints:
        """How long messages take that come at these instants; same shape.

        Args:
            like_us: shape (N,), instants of the log that theirs are like.
            came_us: shape (N,), their own, for the intervals between them.
        """
        order = np.argsort(came_us, kind="stable")
        ages_us = np.empty((len(order), LATEST), dtype=np.int64)
        ages_us[order] = _ages_us(came_us[order])
        found = np.empty_like(like_us)
        for begin in range(0, len(order), MESSAGES_AT_ONCE):
            some = slice(begin, begin + MESSAGES_AT_ONCE)
            found[some] = self._took_us[self._most_alike(like_us[some], ages_us[some])]
        return found

    def _most_alike(self, like_us: Ints, ages_us: Ints) -> Ints:
        """Which message of the log each takes its time from; shape (N,)."""
        after = np.searchsorted(self._came_us, like_us)
        near = after[:, None] + np.arange(-NEAR // 2, NEAR // 2)
        near = np.clip(near, 0, len(self._came_us) - 1)
        unlike_us = np.abs(self._ages_us[near] - ages_us[:, None, :]).sum(axis=2)
        apart_us = np.abs(self._came_us[near] - like_us[:, None])
        rows = np.arange(len(near))
        nearest_first = np.argsort(apart_us, axis=1, kind="stable")
        best = unlike_us[rows[:, None], nearest_first].argmin(axis=1)
        found: Ints = near[rows, nearest_first[rows, best]]
        return found


def _ages_us(came_us: Ints) -> Ints:
    """How long before each message the LATEST others had come, LONG_AGO_US at most.

    Args:
        came_us: shape (N,), in order.

    Returns:
        Shape (N, LATEST).

    >>> _ages_us(np.array([0, 100, 150, 9_000])).tolist()
    [[3000, 3000], [100, 3000], [50, 150], [3000, 3000]]
    """
    found: Ints = np.full((len(came_us), LATEST), LONG_AGO_US, dtype=np.int64)
    for back in range(1, LATEST + 1):
        found[back:, back - 1] = came_us[back:] - came_us[:-back]
    return np.minimum(LONG_AGO_US, found)
