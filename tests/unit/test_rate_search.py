"""find-max without a network: the server is a function of the rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.errors import DocumentError
from headrace.load.search import RateSearch, TriedRate, find_max_rate, wilson_interval


def server_of(capacity_rps: float) -> "tuple[list[float], object]":
    """A server that answers `capacity_rps` in time and drops what is beyond."""
    tried: list[float] = []

    def try_rate(rate_rps: float) -> tuple[int, int, bool]:
        tried.append(rate_rps)
        return 10_000, int(10_000 * min(1.0, capacity_rps / rate_rps)), True

    return tried, try_rate


@given(st.floats(0.2, 50_000.0), st.floats(0.2, 50_000.0))
def test_the_highest_rate_is_found_to_the_tolerance(capacity: float, start: float) -> None:
    tried, try_rate = server_of(capacity)

    result = find_max_rate(RateSearch(start_rps=start), try_rate)  # type: ignore[arg-type]

    limit = capacity / 0.99
    assert result.highest_rps is not None
    assert result.highest_rps <= limit * 1.001
    assert result.highest_rps >= limit / 1.031
    # Doubling or halving to the neighbourhood, then six halvings of a factor of two.
    assert len(tried) <= 18 + 2 + 6


def test_each_step_is_shown_with_its_confidence() -> None:
    steps: list[TriedRate] = []
    _, try_rate = server_of(35.0)

    result = find_max_rate(RateSearch(start_rps=10.0), try_rate, steps.append)  # type: ignore[arg-type]

    assert result.steps == tuple(steps)
    assert [(step.rate_rps, step.passed) for step in steps[:3]] == [
        (10.0, True),
        (20.0, True),
        (40.0, False),
    ]
    assert all(step.low <= step.attainment <= step.high for step in steps)
    assert result.lowest_failed_rps is not None
    assert result.highest_rps is not None
    assert result.lowest_failed_rps / result.highest_rps <= 1.03


def test_a_server_that_never_keeps_the_target_has_no_highest_rate() -> None:
    result = find_max_rate(RateSearch(start_rps=1.0), lambda rate: (100, 50, True))

    assert result.highest_rps is None
    assert result.lowest_failed_rps == 0.1


def test_a_server_that_never_fails_stops_at_the_limit_of_the_search() -> None:
    result = find_max_rate(
        RateSearch(start_rps=10.0, max_rps=100.0), lambda rate: (100, 100, False)
    )

    assert result.highest_rps == 100.0
    assert result.lowest_failed_rps is None
    assert not any(step.trusted for step in result.steps)


def test_exactly_the_target_counts_as_kept() -> None:
    search = RateSearch(start_rps=1.0, target=0.99)

    assert search.record(1.0, 300, 297).passed
    assert not search.record(2.0, 300, 296).passed


def test_the_wilson_interval_is_the_published_one() -> None:
    # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I.
    for successes, trials, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = wilson_interval(successes, trials)
        assert found == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("options", [{"start_rps": 0.0}, {"start_rps": 1e9}, {"target": 1.5}])
def test_a_search_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(DocumentError, match="find-max"):
        RateSearch(**{"start_rps": 10.0, **options})
