"""When the load ratio is off for long enough the server plans anew, and for what."""

import pytest

from headrace.serving.changes.load_watch import PERIODS, LoadWatch

EVEN = {"a": 1.0, "b": 1.0}
SHIFTED = {"a": 300, "b": 100}


def watch_of(planned: dict[str, float]) -> LoadWatch:
    """Of a plan that a person chose."""
    total = sum(planned.values())
    return LoadWatch(planned, 0.25, {name: load / total / 10 for name, load in planned.items()})


def test_a_shift_that_lasts_gives_the_new_shares_once() -> None:
    watch = watch_of(EVEN)
    said = [watch.add(SHIFTED) for _ in range(PERIODS + 1)]
    assert said == [None] * (PERIODS - 1) + [{"a": 0.75, "b": 0.25}, None]


@pytest.mark.parametrize(
    "other", [{"a": 200, "b": 200}, {"a": 100, "b": 300}], ids=["planned", "other side"]
)
def test_one_other_period_begins_the_count_anew(other: dict[str, int]) -> None:
    watch = watch_of(EVEN)
    for _ in range(PERIODS - 1):
        assert watch.add(SHIFTED) is None
    assert watch.add(other) is None
    assert [watch.add(SHIFTED) for _ in range(PERIODS - 1)] == [None] * (PERIODS - 1)


@pytest.mark.parametrize("arrivals", [{"a": 4_000, "b": 4_000}, {"a": 110, "b": 90}, {}])
def test_more_load_small_shifts_and_none_change_nothing(arrivals: dict[str, int]) -> None:
    watch = watch_of(EVEN)
    assert [watch.add(arrivals) for _ in range(3 * PERIODS)] == [None] * (3 * PERIODS)


def test_quiet_times_take_nothing_from_what_was_counted() -> None:
    """For a period of 64 requests, which the model that is asked for more fills."""
    watch = watch_of(EVEN)
    looks = [{"a": 24, "b": 8}, {}, {"a": 3, "b": 1}] * 3 * PERIODS
    said = [shares for shares in map(watch.add, looks) if shares is not None]
    assert said == [{"a": 0.75, "b": 0.25}]


def test_a_model_that_nobody_asks_for_is_planned_for_its_floor_and_stays_there() -> None:
    silent = {"a": 400}
    watch = watch_of(EVEN)
    shares = [watch.add(silent) for _ in range(PERIODS)][-1]
    assert shares is not None
    assert shares["b"] == pytest.approx(0.05 / 1.05)
    at_floor = LoadWatch(shares, 0.02, {"a": 0.05, "b": 0.05})
    assert [at_floor.add(silent) for _ in range(300)] == [None] * 300

    at_floor = LoadWatch(shares, 0.25, {"a": 0.05, "b": 0.05})
    assert [at_floor.add({"a": 400, "b": 400}) for _ in range(PERIODS)][-1] == {"a": 0.5, "b": 0.5}


def test_a_model_that_is_asked_rarely_is_counted_for_longer() -> None:
    """At a fraction of 0.25 for 64 requests: twice as many as planned come in four periods."""
    watch = watch_of({"a": 992.0, "b": 8.0})
    said = [watch.add({"a": 984, "b": 16}) for _ in range(4 * PERIODS)]
    assert said[:-1] == [None] * (4 * PERIODS - 1)
    shares = said[-1]
    assert shares is not None
    assert shares["b"] == pytest.approx(0.016, rel=0.01)


def test_a_model_whose_count_may_be_chance_keeps_its_share_in_a_plan_for_others() -> None:
    watch = watch_of({"a": 500.0, "b": 500.0, "rare": 4.0})
    shares = [watch.add({"a": 750, "b": 250, "rare": 6}) for _ in range(PERIODS)][-1]
    assert shares is not None
    assert shares["rare"] == pytest.approx(4 / 1_004, rel=0.01)
    assert shares["a"] == pytest.approx(3 * shares["b"])
