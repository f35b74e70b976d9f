"""Whether the models' shares of the load are still those that the plan was made for.

PPipe (section 5.1) plans anew when the load ratio of the models shifts. Load as a whole may rise
and fall: a plan that maximises throughput per weight stays right as long as the ratio does.
"""

from collections import Counter
from collections.abc import Mapping

from headrace.serving.changes.chance import may_be_chance

PERIODS = 6
"""The ratio must be off in each of so many periods in a row, not only on average: a burst is no
shift."""
PERIOD_SIGMAS = 2.0
"""A model's period lasts until `fraction` of the requests that came for it, or were to be expected,
is so many standard deviations of a Poisson count. Of a model that is asked rarely every short
period is off by chance; and shares that are counted in `PERIODS` such periods are right to a fifth
of `fraction`, so that a plan which is made for them stays."""


class LoadWatch:
    """Give it each period's arrivals; it says when to plan anew, and for which shares."""

    def __init__(
        self, planned: Mapping[str, float], fraction: float, floors: Mapping[str, float]
    ) -> None:
        """
        Args:
            planned: model -> relative load that the plan was made for.
            fraction: by how much of its planned share a model's share must be off.
            floors: model -> share below which nothing is planned for it, unless it had less.
        """
        self._planned = shares_of(planned)
        self._known = shares_of(
            {name: max(floors[name], share) for name, share in self._planned.items()}
        )
        """What shares are compared with: as they are counted, with their floors."""
        self._fraction = fraction
        self._floors = floors
        self._enough = enough_of(fraction)
        self._runs = {name: _Run() for name in planned}

    def add(self, arrivals: Mapping[str, int]) -> dict[str, float] | None:
        """Take a period's arrivals per model; the shares to plan for, or None: all is well.

        Models whose counts may be chance keep their planned share.

        >>> watch = LoadWatch({"a": 1.0, "b": 1.0}, fraction=0.4, floors={"a": 0.05, "b": 0.05})
        >>> [watch.add({"a": 300, "b": 100}) for _ in range(PERIODS)][-1]
        {'a': 0.75, 'b': 0.25}
        """
        counts = Counter({name: arrivals.get(name, 0) for name in self._planned})
        for name, run in self._runs.items():
            run.period += counts
            if max(run.period[name], self._expected(name, run.period)) >= self._enough:
                run.end_period(self._side_of(name, run.period))
        due = [run for run in self._runs.values() if run.length >= PERIODS]
        if not due:
            return None
        self._begin()
        return self._wanted(max((run.counts for run in due), key=Counter.total))

    def _begin(self) -> None:
        self._runs = {name: _Run() for name in self._planned}

    def _expected(self, name: str, counts: Counter[str]) -> float:
        return self._planned[name] * counts.total()

    def _side_of(self, name: str, counts: Counter[str]) -> int:
        """1: the model's share is above its planned one, -1: below, 0: as planned."""
        share, planned = self._floored(counts)[name], self._known[name]
        above = share > (1 + self._fraction) * planned
        return above - (share < (1 - self._fraction) * planned)

    def _floored(self, counts: Counter[str]) -> dict[str, float]:
        total = counts.total()
        return shares_of(
            {name: max(floor, counts[name] / total) for name, floor in self._floors.items()}
        )

    def _wanted(self, counts: Counter[str]) -> dict[str, float]:
        """The shares to plan for after these arrivals."""
        floored = self._floored(counts)
        return shares_of(
            {
                name: planned
                if may_be_chance(counts[name], self._expected(name, counts))
                else floored[name]
                for name, planned in self._planned.items()
            }
        )


class _Run:
    """Of one model: its periods in a row in which its share was off to the same side, and the
    period that has begun. Counts are of all models."""

    def __init__(self) -> None:
        self.period: Counter[str] = Counter()
        self._begin(0)

    def _begin(self, side: int) -> None:
        self._side = side
        self.length = 0
        self.counts: Counter[str] = Counter()

    def end_period(self, side: int) -> None:
        if side != self._side:
            self._begin(side)
        if side:
            self.length += 1
            self.counts += self.period
        self.period = Counter()


def enough_of(fraction: float) -> float:
    """Requests, come or to be expected, for which a model's period is to last.

    >>> enough_of(0.25)
    64.0
    """
    return (PERIOD_SIGMAS / fraction) ** 2


def shares_of(loads: Mapping[str, float]) -> dict[str, float]:
    """Each model's part of the whole."""
    total = sum(loads.values())
    return {name: load / total for name, load in loads.items()}
