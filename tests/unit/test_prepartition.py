"""Blocks of about equal run time."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.tensors import TensorSpec
from headrace.profiling.observe import Observed, UsableCut
from headrace.profiling.prepartition import equal_blocks
from headrace.profiling.segments import cuts_for_equal_blocks


def totals(times: list[float], ends: tuple[int, ...]) -> list[float]:
    return [sum(times[start:end]) for start, end in pairwise((0, *ends))]


def squares(times: list[float], ends: tuple[int, ...]) -> float:
    return sum(total**2 for total in totals(times, ends))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 6))
def test_no_other_grouping_is_more_equal(times: list[int], count: int) -> None:
    ends = equal_blocks(times, count)

    blocks = min(count, len(times))
    inner = combinations(range(1, len(times)), blocks - 1)
    best = min(squares(list(times), (*some, len(times))) for some in inner)
    assert len(ends) == blocks
    assert list(ends) == sorted(set(ends))
    assert ends[-1] == len(times)
    assert squares(list(times), ends) == pytest.approx(best)


@pytest.mark.lengthy
@given(st.lists(st.floats(0.5, 1.5), min_size=100, max_size=300), st.integers(2, 12))
def test_the_longest_of_many_segments_bounds_how_unequal_blocks_are(
    times: list[float], count: int
) -> None:
    # A boundary is off by at most half a segment, and a block has two.
    ends = equal_blocks(times, count)

    longest = max(times)
    mean = sum(times) / count
    assert max(totals(times, ends)) / mean <= 1 + longest / mean


def test_one_long_segment_is_left_alone() -> None:
    assert equal_blocks([1, 1, 9, 1, 1], 3) == (2, 3, 5)


def test_more_blocks_than_segments_gives_every_segment_a_block() -> None:
    assert equal_blocks([3, 1], 10) == (1, 2)


def test_of_two_nearly_equal_cuts_the_one_with_fewer_bytes_wins() -> None:
    times = [10, 1, 10]

    assert equal_blocks(times, 2, [1_000, 100, 0]) == (2, 3)
    assert equal_blocks(times, 2, [100, 1_000, 0]) == (1, 3)


def test_fewer_bytes_do_not_justify_unequal_blocks() -> None:
    assert equal_blocks([10, 10, 10, 10], 2, [1, 1_000, 1, 0]) == (2, 4)


def test_one_block_needs_no_times() -> None:
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(4,))
    observed = Observed(
        inputs=(tensor,),
        outputs=(tensor,),
        cuts=(UsableCut(position=1, tensors=(tensor,)),),
    )

    def timed(crossings: object) -> list[float]:
        raise AssertionError("segments were timed in order to choose no cut")

    assert cuts_for_equal_blocks(observed, 1, timed) == ()
