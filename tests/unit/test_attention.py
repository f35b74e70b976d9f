"""Messages are put off as those of a log that others had come before at like intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.simulation.attention import LONG_AGO_US, NEAR, Attention

QUICK_US = 100


def taken_one_by_one(came_us: list[int], each_us: int = QUICK_US) -> list[tuple[int, int]]:
    """By a process that does nothing else."""
    messages, free_at_us = [], 0
    for at_us in came_us:
        free_at_us = max(at_us, free_at_us) + each_us
        messages.append((at_us, free_at_us))
    return messages


def poisson(rate_per_us: float, until_us: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return sorted(rng.integers(0, until_us, size=rng.poisson(rate_per_us * until_us)).tolist())


@pytest.mark.parametrize("busy", [0.2, 0.5])
def test_other_messages_wait_as_long_as_the_logs_in_the_mean(busy: float) -> None:
    """They queue behind each other; taken from the nearest of the log, waits are a fifth short."""
    log = taken_one_by_one(poisson(busy / QUICK_US, 2_000_000, seed=1))
    ours = taken_one_by_one(poisson(busy / QUICK_US, 2_000_000, seed=2))
    came_us = np.array([at_us for at_us, _ in ours])
    really_us = np.array([taken_us - at_us for at_us, taken_us in ours])

    took_us = Attention(log).took_us(came_us, came_us)

    assert took_us.mean() == pytest.approx(really_us.mean(), rel=0.05)
    assert np.percentile(took_us, 99) == pytest.approx(np.percentile(really_us, 99), rel=0.15)
    # Those that wait are those that come behind others.
    assert np.corrcoef(took_us, really_us)[0, 1] > 0.5


def test_a_message_is_put_off_as_the_one_that_came_behind_like_others() -> None:
    """Pairs 20 us apart, of which the second waits; a single one does not."""
    pairs = [at_us + behind for at_us in range(10_000, 90_000, 10_000) for behind in (0, 20)]
    process = Attention(taken_one_by_one(pairs))

    assert process.quick_us == QUICK_US
    came_us = np.array([35_000, 35_025, 52_000])
    assert process.took_us(came_us, came_us).tolist() == [QUICK_US, 2 * QUICK_US - 20, QUICK_US]
    # The same in another order, and at another moment of the log than their own.
    like_us = np.array([61_000, 34_000, 34_100])
    assert process.took_us(like_us, came_us[[2, 1, 0]]).tolist() == [
        QUICK_US,
        2 * QUICK_US - 20,
        QUICK_US,
    ]


def test_of_messages_as_alike_it_is_the_nearest() -> None:
    """Long after each other: a slow second is a slow second."""
    apart_us = 2 * LONG_AGO_US
    slow_from_us = 20 * apart_us
    log = [
        (at, at + (900 if at >= slow_from_us else 100)) for at in range(0, 40 * apart_us, apart_us)
    ]
    came_us = np.array([5 * apart_us + 1, slow_from_us - apart_us + 9, slow_from_us + 9, 10**9])

    assert Attention(log).took_us(came_us, came_us).tolist() == [100, 100, 900, 900]


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3_000)), min_size=1, max_size=40),
    st.lists(st.integers(-100, 12_000), min_size=1, max_size=40),
)
def test_what_a_message_takes_is_of_one_of_the_nearest_of_the_log(
    messages: list[tuple[int, int]], asked_us: list[int]
) -> None:
    log = [(came, came + took) for came, took in messages]
    took_us = Attention(log).took_us(np.array(asked_us), np.array(asked_us))
    for at_us, found in zip(asked_us, took_us.tolist(), strict=True):
        taken_from = [came for came, took in messages if took == found]
        between = min(
            sum(min(own, at_us) < came < max(own, at_us) for came, _ in messages)
            for own in taken_from
        )
        assert between < NEAR // 2
