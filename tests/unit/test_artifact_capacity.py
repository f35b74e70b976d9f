"""The search for the largest load, slot orders and slots' busy time of artifact mode."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from benchmarks.ppipe.artifact import Mode, run_session
from benchmarks.ppipe.artifact.capacity import search_load_factor
from benchmarks.ppipe.artifact.hardware import Ints
from benchmarks.ppipe.artifact.session import fair_slots, shuffled_slots

from helpers.artifact_plans import make_hardware


@dataclass(frozen=True)
class Knee:
    """Attains everything up to a number of requests, nothing beyond."""

    requests: int
    served: int
    late_from: int

    def attainment(self, *, lateness_counted: bool) -> float:
        most = self.late_from if lateness_counted else self.served
        return 1.0 if self.requests <= most else 0.5


def searched(served: int, late_from: int, steps: Sequence[int] = range(100, 0, -5)) -> list[float]:
    tried: list[int] = []

    def draw(load_rps: int) -> Ints:
        tried.append(load_rps)
        return np.zeros(load_rps, np.int64)

    found = search_load_factor(
        lambda arrivals_us: Knee(len(arrivals_us), served, late_from), draw, 200, steps
    )

    assert found.sessions == len(tried)
    assert found.requests == sum(tried)
    return [found.artifact.load_factor, found.lateness_counted.load_factor]


def test_the_search_returns_the_largest_step_that_attains_by_either_count() -> None:
    assert searched(served=180, late_from=121) == [0.9, 0.6]


def test_the_search_ends_at_the_first_step_when_that_attains() -> None:
    assert searched(served=10_000, late_from=10_000, steps=[130, 125]) == [1.3, 1.3]


def test_the_search_returns_the_smallest_step_where_none_attains() -> None:
    assert searched(served=0, late_from=0) == [0.05, 0.05]


@pytest.mark.parametrize("mode", ["reservation", "reactive"])
def test_busy_time_is_what_the_batches_take(mode: Mode) -> None:
    hardware = make_hardware([[(2, 100), (1, 30)]], slo_us=1_000, transfer_us=10)

    outcome = run_session(hardware, np.array([0, 0, 500]), mode)

    assert outcome.busy_us.sum() == 3 * 130
    assert outcome.busy_us[2] == 3 * 30


def test_fair_order_goes_round_the_links() -> None:
    hardware = make_hardware([[(5, 100), (2, 10)]], slo_us=500, links=[0, 0, 1, 1, 2, 3, 4])

    assert fair_slots(hardware).tolist() == [0, 2, 4, 5, 6, 1, 3]


def test_fair_order_spreads_two_batches_over_two_links() -> None:
    hardware = make_hardware(
        [[(4, 100), (2, 10)]], slo_us=5_000, transfer_us=50, links=[0, 0, 1, 1, 2, 3]
    )
    arrivals_us = np.array([0, 0])

    shipped = run_session(hardware, arrivals_us, "reactive")
    fair = run_session(hardware, arrivals_us, "reactive", slot_order=fair_slots(hardware))

    assert shipped.done_us.tolist() == [160, 210]
    assert fair.done_us.tolist() == [160, 160]


def test_a_shuffle_is_fixed_by_its_seed_and_lists_every_slot() -> None:
    hardware = make_hardware([[(9, 100)]], slo_us=500)

    once, again = (shuffled_slots(hardware, np.random.default_rng(4)) for _ in range(2))

    assert once.tolist() == again.tolist()
    assert sorted(once.tolist()) == list(range(9))
