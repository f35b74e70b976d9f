"""A load that no plan fits is planned for ever more rarely, and told of once."""

from itertools import pairwise

import pytest

from headrace.serving.changes.replan_backoff import LONGEST_S, Backoff

AFTER_S = 300.0
TOO_MUCH = {"a": 30.0, "b": 5.0}
DAY_S = 86_400


def attempts(loads: dict[str, float], until_s: float) -> tuple[list[float], list[float]]:
    """When a load that lasts is planned for, and when somebody is told; every attempt fails."""
    backoff = Backoff(AFTER_S, fraction=0.25)
    tried, told = [], []
    now_s = AFTER_S
    while now_s < until_s:
        if backoff.lets(loads, now_s):
            tried.append(now_s)
            if backoff.failed(loads, now_s):
                told.append(now_s)
        now_s += AFTER_S
    return tried, told


def test_a_load_that_lasts_is_tried_ever_more_rarely_and_told_of_once() -> None:
    tried, told = attempts(TOO_MUCH, DAY_S)
    waits = [after - before for before, after in pairwise(tried)]
    assert waits[:4] == [2 * AFTER_S, 4 * AFTER_S, 8 * AFTER_S, LONGEST_S]
    assert set(waits[4:]) == {LONGEST_S}
    assert told == [AFTER_S]


@pytest.mark.parametrize(
    ("loads", "tried"),
    [
        ({"a": 22.0, "b": 5.0}, True),
        ({"a": 30.0, "b": 3.0}, True),
        ({"a": 25.0, "b": 4.5}, False),
        ({"a": 60.0, "b": 5.0}, False),
    ],
    ids=["one app eased", "another eased", "hardly eased", "got worse"],
)
def test_a_load_that_has_eased_is_tried_at_once(loads: dict[str, float], tried: bool) -> None:
    backoff = Backoff(AFTER_S, fraction=0.25)
    assert backoff.lets(TOO_MUCH, 0.0)
    assert backoff.failed(TOO_MUCH, 1.0)
    assert backoff.lets(loads, AFTER_S) == tried


def test_a_load_that_comes_back_after_a_rest_is_news() -> None:
    backoff = Backoff(AFTER_S, fraction=0.25)
    assert backoff.lets(TOO_MUCH, 0.0)
    assert backoff.failed(TOO_MUCH, 1.0)
    assert not backoff.lets(TOO_MUCH, AFTER_S)
    assert backoff.lets(TOO_MUCH, 10 * AFTER_S)
    assert backoff.failed(TOO_MUCH, 10 * AFTER_S)
