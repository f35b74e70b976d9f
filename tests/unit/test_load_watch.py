"""When the load ratio is off for long enough the server plans anew, and for what."""

import pytest

from headrace.serving.changes.load_watch import PERIODS, LoadWatch

EVEN = {"a": 1.0, "b": 1.0}
SHIFTED = {"a": 300, "b": 100}


def test_a_shift_that_lasts_gives_the_new_shares_once() -> None:
    watch = LoadWatch(EVEN, fraction=0.25)
    said = [watch.add(SHIFTED) for _ in range(PERIODS + 1)]
    assert said == [None] * (PERIODS - 1) + [{"a": 0.75, "b": 0.25}, None]


def test_one_period_as_planned_begins_the_count_anew() -> None:
    watch = LoadWatch(EVEN, fraction=0.25)
    for _ in range(PERIODS - 1):
        assert watch.add(SHIFTED) is None
    assert watch.add({"a": 200, "b": 200}) is None
    assert [watch.add(SHIFTED) for _ in range(PERIODS - 1)] == [None] * (PERIODS - 1)


@pytest.mark.parametrize(
    "arrivals", [{"a": 4_000, "b": 4_000}, {"a": 110, "b": 90}, {"a": 30, "b": 10}, {}]
)
def test_more_load_small_shifts_and_few_requests_change_nothing(arrivals: dict[str, int]) -> None:
    watch = LoadWatch(EVEN, fraction=0.25)
    assert [watch.add(arrivals) for _ in range(3 * PERIODS)] == [None] * (3 * PERIODS)


def test_a_model_that_nobody_asks_for_keeps_a_share() -> None:
    watch = LoadWatch(EVEN, fraction=0.25)
    shares = [watch.add({"a": 100}) for _ in range(PERIODS)][-1]
    assert shares is not None
    assert 0 < shares["b"] < 0.01
