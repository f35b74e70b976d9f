"""When an app's request rate is off for long enough the server plans anew, and for what rate."""

import pytest

from headrace.serving.changes.load_watch import PERIODS
from headrace.serving.changes.rate_watch import DOWN_PERIODS, RateWatch

PERIOD_S = 10.0
PLANNED = {"a": 10.0, "b": 5.0}
AS_PLANNED = {"a": 100, "b": 50}


def watch(fraction: float = 0.25) -> RateWatch:
    return RateWatch(PLANNED, fraction, {name: rate / 10 for name, rate in PLANNED.items()})


def said(
    watch: RateWatch, arrivals: dict[str, float], periods: int
) -> list[dict[str, float] | None]:
    return [watch.add(arrivals, PERIOD_S) for _ in range(periods)]


def test_a_rate_above_the_planned_one_for_long_enough_is_planned_for_once() -> None:
    given = said(watch(), {"a": 300, "b": 55}, PERIODS + 1)
    assert given == [None] * (PERIODS - 1) + [{"a": 30.0, "b": 5.0}, None]


def test_planning_for_less_takes_three_times_as_long() -> None:
    given = said(watch(), {"a": 60, "b": 50}, DOWN_PERIODS + 1)
    assert given == [None] * (DOWN_PERIODS - 1) + [{"a": 6.0, "b": 5.0}, None]


@pytest.mark.parametrize(
    "arrivals",
    [AS_PLANNED, {"a": 125, "b": 62}, {"a": 75, "b": 38}],
    ids=["as planned", "less than the fraction above", "less than the fraction below"],
)
def test_rates_near_the_planned_ones_change_nothing(arrivals: dict[str, float]) -> None:
    assert said(watch(), arrivals, 4 * DOWN_PERIODS) == [None] * 4 * DOWN_PERIODS


@pytest.mark.parametrize("other", [{"a": 100}, {"a": 20}, {}], ids=["planned", "low", "unknown"])
def test_one_other_period_begins_the_count_anew(other: dict[str, float]) -> None:
    """However high the average is: it must be off to the same side in every period."""
    seen = watch()
    for _ in range(3):
        assert said(seen, {"a": 2_000}, PERIODS - 1) == [None] * (PERIODS - 1)
        assert said(seen, other, 1) == [None]


def test_apps_are_judged_one_by_one_and_planned_together() -> None:
    seen = watch()
    assert said(seen, {"a": 200, "b": 50}, PERIODS - 1) == [None] * (PERIODS - 1)
    # b has just begun to be asked more often; that may be a burst.
    assert said(seen, {"a": 200, "b": 100}, 1) == [{"a": 20.0, "b": 5.0}]
    assert said(seen, {"a": 100, "b": 100}, PERIODS - 1)[-1] == {"a": 10.0, "b": 10.0}


@pytest.mark.parametrize(
    ("counts", "planned"),
    [([150] + [300] * (PERIODS - 1), 30.0), ([70] + [20] * (DOWN_PERIODS - 1), 2.0)],
    ids=["rises", "falls"],
)
def test_a_load_that_changes_within_a_period_is_planned_for_as_it_is_after_that(
    counts: list[int], planned: float
) -> None:
    seen = watch()
    given = [seen.add({"a": count}, PERIOD_S) for count in counts]
    assert given[-1] == {"a": planned, "b": 5.0}


def test_less_is_planned_for_the_busiest_stretch_that_was_seen() -> None:
    seen = watch()
    counts = [10] * 5 + [60, 72] * (PERIODS // 2) + [10] * DOWN_PERIODS
    given = [seen.add({"a": count}, PERIOD_S) for count in counts][:DOWN_PERIODS]
    assert given == [None] * (DOWN_PERIODS - 1) + [{"a": 6.72, "b": 5.0}]


def test_an_app_that_nobody_asks_for_is_planned_for_its_floor_and_stays_there() -> None:
    assert said(watch(), {"a": 0}, DOWN_PERIODS)[-1] == {"a": 1.0, "b": 5.0}
    at_floor = RateWatch({"a": 1.0}, 0.25, {"a": 1.0})
    assert said(at_floor, {"a": 0}, 4 * DOWN_PERIODS) == [None] * 4 * DOWN_PERIODS
    assert said(at_floor, {"a": 100}, PERIODS)[-1] == {"a": 10.0}


def test_an_app_that_is_not_given_is_not_judged() -> None:
    assert said(watch(), {"b": 50}, 2 * DOWN_PERIODS) == [None] * 2 * DOWN_PERIODS


def test_periods_of_other_lengths_count_by_their_length() -> None:
    seen = RateWatch({"a": 10.0}, 0.25, {"a": 1.0})
    lengths_s = [5.0, 10.0, 30.0, 5.0, 10.0, 20.0]
    assert [seen.add({"a": 20 * s}, s) for s in lengths_s][-1] == {"a": 20.0}


def test_few_requests_must_be_off_for_longer_until_it_cannot_be_chance() -> None:
    """One request a minute: two in a minute happen, and so do six such minutes."""
    rare = RateWatch({"a": 1 / 60}, 0.25, {"a": 1 / 600})
    given = [rare.add({"a": 2}, 60.0) for _ in range(17)]
    assert given[:16] == [None] * 16
    last = given[16]
    assert last is not None
    assert last["a"] == pytest.approx(2 / 60)
