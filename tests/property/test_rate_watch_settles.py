"""A server that plans anew for the rates that it measures comes to rest: it does not swing."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.changes.load_watch import PERIODS
from headrace.serving.changes.rate_watch import DOWN_PERIODS, RateWatch

PERIOD_S = 10.0
LONGEST_CYCLE = 2 * PERIODS + 1
"""Periods: every stretch of such a cycle lies within the time that planning for less takes."""

levels = st.integers(50, 5_000)
"""Requests in a period, about."""
factors = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0])
phases = st.lists(st.tuples(factors, st.integers(1, 8)), min_size=1, max_size=8)
"""A load that changes by leaps: factor of the level, for so many periods."""
planned = st.sampled_from([0.2, 0.5, 1.0, 1.5, 3.0, 10.0])
fractions = st.sampled_from([0.05, 0.1, 0.25, 0.5])


def counted(level: int, parts: list[tuple[float, int]]) -> list[int]:
    return [round(level * factor) for factor, periods in parts for _ in range(periods)]


def plans(counts: list[int], planned_rps: float, fraction: float) -> list[float]:
    """The rates in service, one after the other, where each new plan is made for what was asked."""
    floor_rps = planned_rps / 10
    in_service = [planned_rps]
    watch = RateWatch({"a": planned_rps}, fraction, {"a": floor_rps})
    for count in counts:
        new = watch.add({"a": count}, PERIOD_S)
        if new is not None:
            in_service.append(new["a"])
            watch = RateWatch(new, fraction, {"a": floor_rps})
    return in_service


@given(level=levels, parts=phases, of_level=planned, f=fractions)
def test_a_load_that_repeats_is_planned_down_at_most_once_and_never_up_again(
    level: int, parts: list[tuple[float, int]], of_level: float, f: float
) -> None:
    cycle = counted(level, parts)[:LONGEST_CYCLE]
    in_service = plans(cycle * 100, of_level * level / PERIOD_S, f)
    steps = [after - before for before, after in pairwise(in_service)]
    downs = [index for index, step in enumerate(steps) if step < 0]
    assert downs in ([], [len(steps) - 1])


@given(level=levels, parts=phases, of_level=planned, f=fractions)
def test_every_new_plan_is_off_the_old_one_by_more_than_the_fraction_and_above_the_floor(
    level: int, parts: list[tuple[float, int]], of_level: float, f: float
) -> None:
    in_service = plans(counted(level, parts) * 3, of_level * level / PERIOD_S, f)
    for before, after in pairwise(in_service):
        assert after > (1 + f) * before or after < (1 - f) * before
        assert after >= in_service[0] / 10


@given(level=levels, parts=phases, of_level=planned, f=fractions)
def test_what_led_to_a_plan_does_not_lead_to_another(
    level: int, parts: list[tuple[float, int]], of_level: float, f: float
) -> None:
    planned_rps = of_level * level / PERIOD_S
    floors = {"a": planned_rps / 10}
    watch = RateWatch({"a": planned_rps}, f, floors)
    counts = counted(level, parts) * 3
    for end, count in enumerate(counts, start=1):
        new = watch.add({"a": count}, PERIOD_S)
        if new is not None:
            again = RateWatch(new, f, floors)
            seen = counts[max(0, end - DOWN_PERIODS) : end]
            assert [again.add({"a": n}, PERIOD_S) for n in seen] == [None] * len(seen)
            return
