"""When to plan again for a load that no plan was found for."""

from collections.abc import Mapping

LONGEST_S = 3600.0
"""Planning once an hour costs nothing worth saving, and what was in the way may be gone."""
EPISODE = 4
"""A load that lasts asks again within `EPISODE` x `after_s` (`rate_watch.DOWN_PERIODS` at most);
one that comes back later is news."""


class Backoff:
    """Of one plan in service: waits twice as long after each failure, not where load has eased."""

    def __init__(self, after_s: float, fraction: float) -> None:
        """
        Args:
            after_s: how often a load that lasts asks for a plan, at most.
            fraction: by how much of itself a load must have fallen to have eased.
        """
        self._after_s = after_s
        self._fraction = fraction
        self._refused: dict[str, float] = {}
        self._asked_at_s = 0.0
        self._wait_s = 0.0
        self._again_at_s = 0.0

    def lets(self, loads: Mapping[str, float], now_s: float) -> bool:
        """Whether to plan for these loads now."""
        if now_s - self._asked_at_s > EPISODE * self._after_s:
            self._refused = {}
        self._asked_at_s = now_s
        if not self._refused or now_s >= self._again_at_s:
            return True
        return any(
            loads[name] < (1 - self._fraction) * load for name, load in self._refused.items()
        )

    def failed(self, loads: Mapping[str, float], now_s: float) -> bool:
        """There is no plan for them; True where that is news, not the same trouble once more."""
        is_news = not self._refused
        longest_s = max(LONGEST_S, 2 * self._after_s)
        self._wait_s = 2 * self._after_s if is_news else min(2 * self._wait_s, longest_s)
        self._again_at_s = now_s + self._wait_s
        self._asked_at_s = now_s
        self._refused = dict(loads)
        return is_news
