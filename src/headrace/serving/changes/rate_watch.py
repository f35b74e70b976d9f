"""Whether apps are asked as often as their plan was made for, or models beside them, or models that
come and go.

A plan of apps is the cheapest for absolute rates (Harpagon): asked more often it refuses requests,
asked less often it costs more than it must. So each app's rate is watched, not its share of the
load (`load_watch`).
"""

from collections import deque
from collections.abc import Mapping

from headrace.serving.changes.chance import may_be_chance
from headrace.serving.changes.load_watch import PERIODS

DOWN_PERIODS = 3 * PERIODS
"""Periods in a row before an app is planned for less. Longer than for more: what an idle machine
costs for a while is little beside requests that are refused, and a load that swings is not to be
followed down and up again."""
STRETCH = PERIODS - 1
"""Periods in a row; the busiest are planned for. One less than are waited for, because in the first
of them the load was still changing: planned for with it, a rise would be planned for too little,
and a fall for too much."""


class RateWatch:
    """Give it each period's arrivals; it says when to plan anew, and for which rates."""

    def __init__(
        self,
        planned: Mapping[str, float],
        fraction: float,
        floors: Mapping[str, float],
        enough: float = 0.0,
    ) -> None:
        """
        Args:
            planned: app -> requests per second that the plan was made for.
            fraction: by how much of its planned rate an app's rate must be off.
            floors: app -> requests per second below which nothing is planned for it.
            enough: an app's period goes on until so many requests came for it, or were to be
                expected; see `load_watch.enough_of`.
        """
        self._planned = dict(planned)
        self._off = {
            name: _PeriodsOff(rate, fraction, floors[name], enough)
            for name, rate in planned.items()
        }

    def add(self, arrivals: Mapping[str, float], elapsed_s: float) -> dict[str, float] | None:
        """Take a period's arrivals per app; the rates to plan for, or None: all is well.

        Apps whose rates are as planned, or not off for long enough yet, keep their planned rate.

        Args:
            arrivals: answered, late and refused. An app that is missing is not judged.
            elapsed_s: length of the period, above 0.

        >>> watch = RateWatch({"a": 10.0, "b": 10.0}, fraction=0.4, floors={"a": 1.0, "b": 1.0})
        >>> [watch.add({"a": 300, "b": 100}, 10.0) for _ in range(PERIODS)][-1]
        {'a': 30.0, 'b': 10.0}
        """
        due = {}
        for name, off in self._off.items():
            rate_rps = off.add(arrivals.get(name), elapsed_s)
            if rate_rps is not None:
                due[name] = rate_rps
        return {**self._planned, **due} if due else None


class _PeriodsOff:
    """One app's periods in a row in which its rate was off to the same side."""

    def __init__(
        self, planned_rps: float, fraction: float, floor_rps: float, enough: float
    ) -> None:
        self._planned_rps = planned_rps
        self._fraction = fraction
        self._floor_rps = floor_rps
        self._enough = enough
        self._begin(0)
        self._begin_period()

    def _begin_period(self) -> None:
        self._period_arrived = 0.0
        self._period_s = 0.0

    def _begin(self, side: int) -> None:
        self._side = side
        """1: above, -1: below, 0: as planned."""
        self._length = 0
        self._arrived = 0.0
        self._elapsed_s = 0.0
        self._last: deque[tuple[float, float]] = deque(maxlen=DOWN_PERIODS - 1)
        """Without the run's first."""

    def add(self, arrived: float | None, elapsed_s: float) -> float | None:
        """Take one period; the rate to plan for where it is time to."""
        if arrived is None:
            self._begin(0)
            self._begin_period()
            return None
        self._period_arrived += arrived
        self._period_s += elapsed_s
        if max(self._period_arrived, self._planned_rps * self._period_s) < self._enough:
            return None
        arrived, elapsed_s = self._period_arrived, self._period_s
        self._begin_period()
        side = self._side_of(arrived / elapsed_s)
        if side != self._side:
            self._begin(side)
        if side == 0:
            return None
        if self._length:
            self._last.append((arrived, elapsed_s))
        self._length += 1
        self._arrived += arrived
        self._elapsed_s += elapsed_s
        needed = PERIODS if side > 0 else DOWN_PERIODS
        expected = self._planned_rps * self._elapsed_s
        if self._length < needed or may_be_chance(self._arrived, expected):
            return None
        rate_rps = max(self._floor_rps, _busiest_rps(self._last))
        self._begin(0)
        return rate_rps

    def _side_of(self, rate_rps: float) -> int:
        if rate_rps > (1 + self._fraction) * self._planned_rps:
            return 1
        # At the floor there is nothing to plan down to.
        return -(max(rate_rps, self._floor_rps) < (1 - self._fraction) * self._planned_rps)


def _busiest_rps(periods: "deque[tuple[float, float]]") -> float:
    """The rate of the busiest `STRETCH` in a row.

    Then what was seen cannot call for more again: no `PERIODS` in a row of it all lie above the
    mean of some of them, let alone above the mean of busier ones.
    """
    rows = list(periods)
    stretches = [rows[i : i + STRETCH] for i in range(len(rows) - STRETCH + 1)]
    return max(sum(n for n, _ in stretch) / sum(s for _, s in stretch) for stretch in stretches)
