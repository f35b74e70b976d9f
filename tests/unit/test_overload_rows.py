"""What the overload rows are made of, without a server."""

from benchmarks.live.overload_client import GOOD, LATE, REFUSED, _kind
from benchmarks.live.overload_rows import ROWS, _faster, _in_time, _kinds, _share

from headrace.load.result import RequestResult
from helpers.served import profile_by_hand


def ended(reason: str, ended_at_us: int) -> RequestResult:
    return RequestResult(
        scheduled_at_us=0,
        deadline_at_us=100,
        sent_at_us=0,
        ended_at_us=ended_at_us,
        status=200,
        reason=reason,
        body_bytes=0,
    )


def test_an_answer_counts_only_before_its_deadline() -> None:
    kinds = [_kind(ended("", 100)), _kind(ended("", 101)), _kind(ended("late", 50))]
    assert kinds == [GOOD, LATE, LATE]
    assert _kind(ended("deadline", 1)) == REFUSED


def test_goodput_is_of_answers_and_attainment_of_arrivals_in_the_span() -> None:
    seen = [(0.5, 1.5, GOOD), (1.5, 2.5, GOOD), (1.6, 1.7, REFUSED), (1.9, 2.2, LATE)]
    assert _in_time(seen, 1.0, 2.0) == 1
    assert _share(_kinds(seen, 1.0, 2.0)) == 1 / 3


def test_a_profile_that_is_too_fast_is_so_in_every_number_and_still_valid() -> None:
    profile = profile_by_hand(["a", "y"], 2, 1_300, "cpu")
    (times,) = _faster(profile, 1.3).block_times
    assert set(sum(times.p50_us, ())) == {1_000}
    assert set(sum(times.p99_us, ())) == {1_000}


def test_every_promise_has_a_row_with_its_target() -> None:
    assert {name: row.target for name, row in ROWS.items()} == {
        "1.2x": 0.97,
        "2x": 0.93,
        "slower-1.1": 0.90,
        "slower-1.3": 0.90,
        "one-core": 0.60,
        "retrying": 0.80,
        "after-3x": 0.99,
    }
