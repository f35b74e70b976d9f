"""Boxes of latency budgets: what paths leave, and how a box is split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.apps.boxes import Boxes, Graph

DIAMOND = Graph(before=[(), (0,), (0,), (1, 2)], budget_us=100)


def us(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_the_largest_box_is_what_the_longest_paths_leave() -> None:
    box = Boxes([DIAMOND, Graph(before=[()], budget_us=7)]).largest(us(10, 20, 30, 5, 1))

    assert box is not None
    assert box[1].tolist() == [65, 85, 85, 60, 7]


def test_a_path_without_time_has_no_box() -> None:
    assert Boxes([DIAMOND]).largest(us(10, 20, 90, 5)) is None


def test_each_module_in_turn_is_given_what_is_left_over() -> None:
    budgets = us(10, 20, 30, 5)

    Boxes([DIAMOND]).filled(budgets)

    assert budgets.tolist() == [65, 30, 30, 5]


def test_a_box_is_split_at_the_wait_of_who_takes_most_more_than_its_least() -> None:
    boxes = Boxes([Graph(before=[(), (0,)], budget_us=100)])
    halves = boxes.halves(us(10, 20), us(80, 90), us(60, 50))

    assert [[low.tolist(), high.tolist()] for low, high in halves] == [
        [[10, 20], [59, 90]],
        [[60, 20], [80, 40]],
    ]


def test_a_plan_that_fits_has_no_module_to_split_at() -> None:
    boxes = Boxes([DIAMOND])
    with pytest.raises(AssertionError, match="above its least"):
        boxes.halves(us(1, 1, 1, 1), us(90, 90, 90, 90), us(10, 20, 30, 5))


@given(st.data())
def test_every_budget_that_fits_lies_in_one_half_and_both_are_smaller(data: st.DataObject) -> None:
    boxes = Boxes([DIAMOND])
    low = np.array([data.draw(st.integers(1, 20)) for _ in range(4)], np.int64)
    whole = boxes.largest(low)
    assert whole is not None
    waits = np.array([data.draw(st.integers(int(a), int(b))) for a, b in zip(*whole, strict=True)])
    if boxes.fits(waits):
        return
    halves = boxes.halves(*whole, waits)

    def inside(budgets: np.ndarray) -> int:
        return sum(bool((a <= budgets).all() and (budgets <= b).all()) for a, b in halves)

    assert all((a > whole[0]).any() or (b < whole[1]).any() for a, b in halves)
    budgets = np.array(
        [data.draw(st.integers(int(a), int(b))) for a, b in zip(*whole, strict=True)]
    )
    assert inside(budgets) == 1 or not boxes.fits(budgets)
