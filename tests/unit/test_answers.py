"""Answers are on their way as long as those of the batch of as many that the log has next."""

import pytest

from headrace.simulation.answers import LEAST_BATCHES, Answers

EVERY_US = 1_000
PAIRS_US = [(at, [at + 300, at + 200]) for at in range(0, LEAST_BATCHES * EVERY_US, EVERY_US)]
"""Of two answers each; clients were heard in any order."""
SINGLE_US = [(at + 10, [at + 10 + (100 if at < 5_000 else 900)]) for at, _ in PAIRS_US]
FULL_US = [(400, [1_400, 1_300, 1_200])]
"""One of its size."""


@pytest.mark.parametrize(
    ("at_us", "size", "waits_us"),
    [
        (0, 1, [100]),
        (4_011, 1, [900]),  # the next one, though the one before is nearer
        (10**9, 1, [900]),  # after the log
        (4_011, 2, [200, 300]),
        (300, 3, [1_000, 900, 800][::-1]),  # too few of three: the next of any size
        (900, 3, [200, 300, 300]),
    ],
)
def test_answers_take_what_those_of_as_many_took(
    at_us: int, size: int, waits_us: list[int]
) -> None:
    answers = Answers([*PAIRS_US, *SINGLE_US, *FULL_US])
    assert answers.waits_us(at_us, size) == waits_us
