"""Messages are put off as those of a log, and those of one wait end together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.simulation.attention import Attention

SENDS, ANSWERS = 0, 1
QUICK_US = 100
STALL_US = range(10_000, 13_000, 1_000)
"""Came one after the other while the process had no core."""
RESUMED_US = 13_000
PROMPT = [
    (at_us, at_us + QUICK_US) for at_us in (*range(0, 10_000, 200), *range(15_000, 25_000, 200))
]


def stalled() -> Attention:
    return Attention([[*PROMPT, *((came, RESUMED_US + QUICK_US) for came in STALL_US)]])


@pytest.mark.parametrize(
    ("came_us", "taken_us"),
    [
        (5_050, 5_150),  # prompt, as its neighbours
        (10_400, RESUMED_US + QUICK_US),  # behind the first that waited
        (11_700, RESUMED_US + QUICK_US),  # before the last that did
        (9_950, RESUMED_US + QUICK_US),  # nearest to one that was put off for longer than between
        (16_000, 16_100),
        (90_000, 90_100),  # after the log
    ],
)
def test_messages_of_one_wait_are_taken_together(came_us: int, taken_us: int) -> None:
    assert stalled().taken_at_us(np.array([came_us]), 0).tolist() == [taken_us]
    assert stalled().wait_us(came_us, 0) == taken_us - came_us


def test_each_kind_has_its_own_quickest_way_and_all_share_the_waits() -> None:
    """Answers come while sends are put off: they wait for the same core."""
    sends = [*PROMPT, *((came, RESUMED_US + QUICK_US) for came in STALL_US)]
    client = Attention(
        [sends, [(at_us, at_us + 3 * QUICK_US) for at_us in range(20_000, 21_000, 90)]]
    )

    assert client.quick_us(ANSWERS) == 3 * QUICK_US
    assert client.wait_us(5_000, ANSWERS) == 3 * QUICK_US
    assert client.taken_at_us(np.array([11_400]), ANSWERS).tolist() == [RESUMED_US + 3 * QUICK_US]
    assert client.wait_us(20_500, SENDS) == QUICK_US


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3_000)), min_size=1, max_size=40),
    st.lists(st.integers(-100, 12_000), min_size=1, max_size=40),
)
def test_nothing_is_taken_sooner_than_quickest_nor_after_twice_the_worst(
    messages: list[tuple[int, int]], asked_us: list[int]
) -> None:
    process = Attention([[(came, came + took) for came, took in messages]])
    waits = process.taken_at_us(np.array(asked_us), 0) - np.array(asked_us)

    assert waits.min() >= process.quick_us(0)
    # One that came just before a message of the worst wait was put off by that wait as well.
    assert waits.max() <= 2 * max(took for _, took in messages) + process.quick_us(0)
