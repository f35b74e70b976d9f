"""Request rates by exponentially weighted moving averages, and whether a plan is still for them.

Plans of shared devices use the fewest or cheapest devices for absolute rates, and are made anew as
often as rates change (gpu-lets, section 5: rates are watched, and scheduled for, in periods of 20
seconds). The same code decides in a server and in virtual time.
"""

from collections.abc import Mapping

from headrace.serving.changes.chance import may_be_chance

WEIGHT = 0.6
"""Of the newest period in the average: a rate that leaps is known to 84 % after two periods."""
TREND_WEIGHT = 0.4
"""Of the newest change in the average of changes."""
AHEAD = 2
"""Periods for which a rise is carried on: what was measured is half a period old, the plan for it
comes into service most of a period later and serves for one at least."""
DOWN_PERIODS = 3
"""Periods in a row in which less would do before less is planned for: what is saved in the
meantime is little beside a second change of plans."""


class RateEstimate:
    """Requests per second of each model, with how they change (exponential smoothing of level and
    trend: Holt, 1957). It outlives the plans that are made from it."""

    def __init__(self) -> None:
        self._levels_rps: dict[str, float] = {}
        self._trends_rps: dict[str, float] = {}
        """Per period."""

    def add(self, arrivals: Mapping[str, float], elapsed_s: float) -> None:
        """Take a period's arrivals per model. The first period of a model counts in full."""
        for name, arrived in arrivals.items():
            rate_rps = arrived / elapsed_s
            if name in self._levels_rps:
                before_rps, trend_rps = self._levels_rps[name], self._trends_rps[name]
                level_rps = WEIGHT * rate_rps + (1 - WEIGHT) * (before_rps + trend_rps)
                change_rps = level_rps - before_rps
                self._levels_rps[name] = max(0.0, level_rps)
                self._trends_rps[name] = trend_rps + TREND_WEIGHT * (change_rps - trend_rps)
            elif arrived:
                self._levels_rps[name], self._trends_rps[name] = rate_rps, 0.0

    def rate_rps(self, name: str) -> float | None:
        """What to be ready for: a rise goes on, a fall does not. None: never asked.

        >>> estimate = RateEstimate()
        >>> estimate.add({"a": 200}, 20.0)
        >>> estimate.rate_rps("a")
        10.0
        >>> estimate.add({"a": 400}, 20.0)  # 16, and 2.4 more in each period
        >>> round(estimate.rate_rps("a"), 6)
        20.8
        """
        level_rps = self._levels_rps.get(name)
        if level_rps is None:
            return None
        return level_rps + AHEAD * max(0.0, self._trends_rps[name])


class EstimateWatch:
    """Give it each period's arrivals; it says when to plan anew, and for which rates.

    What is wanted of a plan is the estimated rate and `headroom` on top. A plan serves until what
    is wanted of a model exceeds what was planned for it by more than `fraction`, or has fallen
    below it by more than `fraction` for `DOWN_PERIODS`; then all models are planned for as wanted.
    """

    def __init__(
        self,
        planned: Mapping[str, float],
        fraction: float,
        headroom: float,
        floors: Mapping[str, float],
        estimate: RateEstimate,
    ) -> None:
        """
        Args:
            planned: model -> requests per second that the plan was made for.
            fraction: by how much of its planned rate what is wanted of a model must be off.
            headroom: part of a rate that is planned for on top of it.
            floors: model -> requests per second below which nothing is planned for it.
            estimate: goes on from plan to plan; every period given here is added to it.
        """
        self._planned = dict(planned)
        self._fraction = fraction
        self._headroom = headroom
        self._floors = floors
        self._estimate = estimate
        self._runs = {name: _Run() for name in planned}

    def add(self, arrivals: Mapping[str, float], elapsed_s: float) -> dict[str, float] | None:
        """Take a period's arrivals per model; the rates to plan for, or None: all is well.

        Args:
            arrivals: answered, late and refused.
            elapsed_s: length of the period, above 0.

        >>> floors = {"a": 1.0}
        >>> watch = EstimateWatch({"a": 10.0}, 0.25, 0.5, floors, RateEstimate())
        >>> watch.add({"a": 600}, 20.0)
        {'a': 45.0}
        """
        counts = {name: arrivals.get(name, 0) for name in self._planned}
        self._estimate.add(counts, elapsed_s)
        due = [self._is_due(name, counts[name], elapsed_s) for name in self._planned]
        return self.wanted() if any(due) else None

    def wanted(self) -> dict[str, float]:
        """Model -> requests per second to plan for; of models never asked, what was planned."""
        return {
            name: max(self._floors[name], (1 + self._headroom) * rate_rps)
            if (rate_rps := self._estimate.rate_rps(name)) is not None
            else planned_rps
            for name, planned_rps in self._planned.items()
        }

    def _is_due(self, name: str, arrived: float, elapsed_s: float) -> bool:
        """Whether the plan has been off for the model, to one side and for long enough."""
        run, planned_rps = self._runs[name], self._planned[name]
        wanted_rps = self.wanted()[name]
        above = wanted_rps > (1 + self._fraction) * planned_rps
        below = wanted_rps < (1 - self._fraction) * planned_rps
        run.add(above - below, arrived, elapsed_s)
        if not run.side or run.length < (1 if above else DOWN_PERIODS):
            return False
        # A model that is asked rarely has to be off for longer, until it cannot be chance.
        expected = planned_rps / (1 + self._headroom) * run.elapsed_s
        return not may_be_chance(run.arrived, expected)


class _Run:
    """Periods in a row in which what is wanted of a model was off to the same side."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, side: int) -> None:
        self.side = side
        """1: more is wanted than planned, -1: less, 0: as planned."""
        self.length = 0
        self.arrived = 0.0
        self.elapsed_s = 0.0

    def add(self, side: int, arrived: float, elapsed_s: float) -> None:
        """Take one period."""
        if side != self.side:
            self._begin(side)
        self.length += 1
        self.arrived += arrived
        self.elapsed_s += elapsed_s
