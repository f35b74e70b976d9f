"""Whether the models' shares of the load are still those that the plan was made for.

PPipe (section 5.1) plans anew when the load ratio of the models shifts. Load as a whole may rise
and fall: a plan that maximises throughput per weight stays right as long as the ratio does.
"""

from collections import deque
from collections.abc import Mapping

PERIODS = 6
"""The ratio must be off in each of so many periods in a row, not only on average: a burst is no
shift."""
LEAST_REQUESTS = 50
"""In a period; fewer say little of a ratio."""


class LoadWatch:
    """Give it each period's arrivals; it says when to plan anew, and for which shares."""

    def __init__(self, planned: Mapping[str, float], fraction: float) -> None:
        """
        Args:
            planned: model -> relative load that the plan was made for.
            fraction: by how much of its planned share a model's share must be off.
        """
        self._fraction = fraction
        self._periods: deque[dict[str, int]] = deque(maxlen=PERIODS)
        self._planned = shares_of(planned)

    def add(self, arrivals: Mapping[str, int]) -> dict[str, float] | None:
        """Take a period's arrivals per model; the shares to plan for, or None: all is well.

        >>> watch = LoadWatch({"a": 1.0, "b": 1.0}, fraction=0.4)
        >>> [watch.add({"a": 300, "b": 100}) for _ in range(PERIODS)][-1]
        {'a': 0.75, 'b': 0.25}
        """
        counts = {name: arrivals.get(name, 0) for name in self._planned}
        if sum(counts.values()) < LEAST_REQUESTS or not self._is_off(counts):
            self._periods.clear()
            return None
        self._periods.append(counts)
        if len(self._periods) < PERIODS:
            return None
        totals = {
            # One request at least: a model that is not asked for now may be asked for again.
            name: float(max(1, sum(period[name] for period in self._periods)))
            for name in self._planned
        }
        self._periods.clear()
        return shares_of(totals)

    def _is_off(self, counts: Mapping[str, int]) -> bool:
        total = sum(counts.values())
        return any(
            abs(counts[name] / total - share) > self._fraction * share
            for name, share in self._planned.items()
        )


def shares_of(loads: Mapping[str, float]) -> dict[str, float]:
    """Each model's part of the whole."""
    total = sum(loads.values())
    return {name: load / total for name, load in loads.items()}
