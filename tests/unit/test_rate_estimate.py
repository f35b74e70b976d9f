"""When the rates of models have left what a plan of fewest devices is for, and what is planned."""

from collections.abc import Mapping

import pytest

from headrace.serving.changes.rate_estimate import DOWN_PERIODS, EstimateWatch, RateEstimate

PERIOD_S = 20.0
PLANNED = {"a": 140.0, "b": 70.0}
AS_PLANNED = {"a": 2_000, "b": 1_000}
"""With a head-room of 0.4."""


def watch(
    estimate: RateEstimate | None = None, planned: dict[str, float] = PLANNED
) -> EstimateWatch:
    floors = {name: rate / 10 for name, rate in planned.items()}
    return EstimateWatch(planned, 0.25, 0.4, floors, estimate or RateEstimate())


def said(
    watch: EstimateWatch, arrivals: Mapping[str, float], periods: int
) -> list[dict[str, float] | None]:
    return [watch.add(arrivals, PERIOD_S) for _ in range(periods)]


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
def test_rates_near_the_planned_ones_change_nothing(factor: float) -> None:
    near = {name: factor * count for name, count in AS_PLANNED.items()}
    assert said(watch(), near, 20) == [None] * 20


def test_more_is_planned_for_after_one_period_and_all_models_as_they_are_asked() -> None:
    [loads] = said(watch(), {"a": 4_000, "b": 900}, 1)
    assert loads == pytest.approx({"a": 1.4 * 200, "b": 1.4 * 45})


def test_less_is_planned_for_after_three_periods() -> None:
    given = said(watch(), {"a": 1_000, "b": 1_000}, DOWN_PERIODS)
    assert given[:-1] == [None] * (DOWN_PERIODS - 1)
    assert given[-1] == pytest.approx({"a": 1.4 * 50, "b": 1.4 * 50})


def test_one_period_as_planned_begins_the_wait_for_less_anew() -> None:
    seen = watch()
    said(seen, {"a": 1_300, "b": 1_000}, DOWN_PERIODS - 1)
    assert said(seen, AS_PLANNED, 1) == [None]
    assert said(seen, {"a": 1_300, "b": 1_000}, DOWN_PERIODS - 1) == [None] * (DOWN_PERIODS - 1)


def test_a_steady_rise_is_planned_for_ahead_of_what_was_measured_and_a_fall_is_not() -> None:
    rising, falling = RateEstimate(), RateEstimate()
    for period in range(10):
        rising.add({"a": 1_000 + 200 * period}, PERIOD_S)
        falling.add({"a": 2_800 - 200 * period}, PERIOD_S)
    up_rps, down_rps = rising.rate_rps("a"), falling.rate_rps("a")
    assert up_rps is not None
    assert down_rps is not None
    assert 2_800 / PERIOD_S < up_rps < 1.2 * (2_800 + 2 * 200) / PERIOD_S
    assert 0.8 * 1_000 / PERIOD_S < down_rps <= 1_200 / PERIOD_S


def test_nothing_is_planned_below_the_floor_and_a_model_never_asked_keeps_its_rate() -> None:
    given = said(watch(), {"a": 2, "b": 0}, DOWN_PERIODS)
    assert given[-1] == {"a": 14.0, "b": 70.0}
    ended = RateEstimate()
    ended.add({"a": 2_000, "b": 1_000}, PERIOD_S)
    given = said(watch(ended), {"a": 2_000, "b": 0}, 20)
    [loads] = [loads for loads in given if loads is not None][-1:]
    assert loads["b"] == pytest.approx(7.0)


def test_few_requests_have_to_be_off_until_it_cannot_be_chance() -> None:
    """28 requests a minute are expected, and 42 come: three periods of 20 s may be chance."""
    seen = watch(planned={"a": 0.7})
    given = said(seen, {"a": 14}, 30)
    first = next(number for number, loads in enumerate(given) if loads is not None)
    assert 3 <= first < 20


def test_an_estimate_goes_on_from_plan_to_plan() -> None:
    estimate = RateEstimate()
    said(watch(estimate), AS_PLANNED, 5)
    [loads] = said(watch(estimate, {"a": 50.0, "b": 50.0}), {"a": 2_600, "b": 1_000}, 1)
    assert loads is not None
    # A new average would begin with the newest period alone.
    assert 1.4 * 100 < loads["a"] < 1.4 * 150
    assert loads["b"] == pytest.approx(70.0)
