"""Find the highest rate that a server answers in time: double until it fails, then bisect."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.domain.base import Record
from headrace.domain.errors import DocumentError

MIN_REQUESTS: Final = 300
"""Per step: three misses of three hundred are then still 99 %."""
MAX_STEP_S: Final = 60.0


class TriedRate(Record, frozen=True, kw_only=True):
    """One rate that was tried."""

    rate_rps: float
    arrived: int
    in_time: int
    attainment: float
    """In time / arrived."""
    passed: bool
    low: float
    high: float
    """The 95 % Wilson interval of the attainment: what the server's true one may well be."""
    trusted: bool = True
    """False: the generator itself was late enough to distort the step."""


class SearchResult(Record, frozen=True, kw_only=True):
    """The answer and how it was found."""

    target: float
    highest_rps: float | None
    """The highest rate that passed; None: none did."""
    lowest_failed_rps: float | None
    """The lowest rate that failed above it; None: the limit was reached without failing."""
    steps: tuple[TriedRate, ...]


@dataclass(slots=True)
class RateSearch:
    """Chooses the rates to try. No I/O: ask `next_rps`, try, `record`, until it says None.

    Attainment is taken to fall as the rate rises. Near the limit a single step is noisy: with N
    requests, 99 % is known to about +-sqrt(0.01 / N), so neighbouring rates may swap places.
    """

    start_rps: float
    target: float = 0.99
    tolerance: float = 0.03
    """Stop when the lowest failed rate is at most this much above the highest passed one."""
    min_rps: float = 0.1
    max_rps: float = 100_000.0
    _passed_rps: float | None = field(default=None, init=False)
    _failed_rps: float | None = field(default=None, init=False)
    _steps: list[TriedRate] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not self.min_rps <= self.start_rps <= self.max_rps:
            raise DocumentError(
                f"find-max: a start of {self.start_rps} rps; expected {self.min_rps} to"
                f" {self.max_rps}"
            )
        if not (0 < self.target <= 1 and 0 < self.tolerance < 1):
            raise DocumentError("find-max: target and tolerance must lie between 0 and 1")

    def next_rps(self) -> float | None:
        """The next rate to try; None: done."""
        passed, failed = self._passed_rps, self._failed_rps
        if passed is None and failed is None:
            return self.start_rps
        if failed is None:
            assert passed is not None
            return min(2 * passed, self.max_rps) if passed < self.max_rps else None
        if passed is None:
            return max(failed / 2, self.min_rps) if failed > self.min_rps else None
        if failed / passed <= 1 + self.tolerance:
            return None
        # The geometric middle: the answer matters to a percentage, not to a request.
        return math.sqrt(passed * failed)

    def record(
        self, rate_rps: float, arrived: int, in_time: int, *, trusted: bool = True
    ) -> TriedRate:
        """Tell what became of a step's requests, `arrived` of them, at least one."""
        passed = in_time >= self.target * arrived - 1e-9
        low, high = wilson_interval(in_time, arrived)
        step = TriedRate(
            rate_rps=rate_rps,
            arrived=arrived,
            in_time=in_time,
            attainment=in_time / arrived,
            passed=passed,
            low=low,
            high=high,
            trusted=trusted,
        )
        self._steps.append(step)
        if passed:
            self._passed_rps = max(rate_rps, self._passed_rps or 0.0)
        else:
            self._failed_rps = min(rate_rps, self._failed_rps or math.inf)
        return step

    def result(self) -> SearchResult:
        return SearchResult(
            target=self.target,
            highest_rps=self._passed_rps,
            lowest_failed_rps=self._failed_rps,
            steps=tuple(self._steps),
        )


def find_max_rate(
    search: RateSearch,
    try_rate: Callable[[float], tuple[int, int, bool]],
    on_step: Callable[[TriedRate], None] = lambda step: None,
) -> SearchResult:
    """Run a search to its end.

    Args:
        try_rate: rate -> (requests, answered in time, whether the generator kept its schedule).
    """
    while (rate_rps := search.next_rps()) is not None:
        arrived, in_time, trusted = try_rate(rate_rps)
        on_step(search.record(rate_rps, arrived, in_time, trusted=trusted))
    return search.result()


def step_duration_s(rate_rps: float, least_s: float) -> float:
    """How long to try a rate: enough requests to tell 99 % from 98 %, within reason.

    >>> step_duration_s(1000.0, 5.0), step_duration_s(15.0, 5.0), step_duration_s(1.0, 5.0)
    (5.0, 20.0, 60.0)
    """
    return max(least_s, min(MIN_REQUESTS / rate_rps, MAX_STEP_S))


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % confidence interval of a proportion; sound even when all trials succeed.

    Source:
        Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    >>> [round(bound, 3) for bound in wilson_interval(300, 300)]
    [0.987, 1.0]
    """
    z = 1.959964
    share = successes / trials
    scale = 1 + z * z / trials
    middle = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
