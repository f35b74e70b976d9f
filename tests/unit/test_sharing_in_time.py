"""Planning of shared devices ends in time, and keeps together what belongs together."""

from dataclasses import replace as with_fields

import numpy as np
import pytest

from headrace.domain.problem import PlanOptions, Problem
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.shares import pricing as pricing_module
from headrace.planning.shares.choosing import ask
from headrace.planning.shares.devices import devices_of
from headrace.planning.shares.diving import dived
from headrace.planning.shares.listing import undominated
from headrace.planning.shares.master import Goal, Prices
from headrace.planning.shares.planner import pricing_of, workload
from headrace.planning.shares.pricing import Pricing
from helpers.problems import make_problem, make_profile, whole_model_us
from helpers.together import SHARES, cluster_of

MODELS = 4
GOAL = Goal(most=False, cap=1.0)
PASSED = Deadline(-1.0)


def problem() -> Problem:
    profiles = [
        make_profile(
            f"m{i}",
            blocks=1,
            devices={"a": 1.0},
            max_batch=4,
            shares=SHARES,
            block_us=3_000,
            seed=i,
        )
        for i in range(MODELS)
    ]
    return make_problem(
        profiles,
        cluster=cluster_of({"a": 4}, {"a": 1.0}),
        slo_us={p.model: 9 * whole_model_us(p) for p in profiles},
        rates={p.model: 0.4 * 1e6 / whole_model_us(p) for p in profiles},
        options=PlanOptions(planner="shares", objective="least-devices"),
    )


@pytest.fixture
def pricing() -> Pricing:
    asked = problem()
    times = [SharedTimes.of(asked, "a")]
    return pricing_of(workload(asked, times), devices_of(asked, times, [1.0]), Deadline(60.0))


def of(pricing: Pricing) -> Prices:
    prices = pricing.of(GOAL)
    assert prices is not None
    return prices


def test_parts_that_no_time_is_left_to_compare_are_left_out() -> None:
    place, rates = np.zeros(3, np.int64), np.array([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0]])

    rows, all_of_them = undominated(place, place, rates, Deadline(60.0))
    assert sorted(rows.tolist()) == [0, 2]
    assert all_of_them

    rows, all_of_them = undominated(place, place, rates, PASSED)
    assert len(rows) == 0
    assert not all_of_them


def test_parts_of_which_each_is_as_good_are_not_narrowed_for_ever(
    pricing: Pricing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is worth anything, so no part wastes anything: all are in, whatever the gap."""
    prices = of(pricing)
    nothing = with_fields(
        prices, price=np.zeros_like(prices.price), rent=np.zeros_like(prices.rent)
    )
    monkeypatch.setattr(pricing_module, "PARTS_MAX", 10)

    parts, _, complete = pricing.within(GOAL, nothing, 1.0, most=5)

    assert 0 < len(parts.place) <= 5
    assert not complete


def test_ways_to_lay_out_devices_are_not_counted_beyond_the_time(pricing: Pricing) -> None:
    prices = of(pricing)
    parts, _, _ = pricing.within(GOAL, prices, 4.0)

    def asked() -> object:
        return ask(
            pricing, prices, parts,
            wanted=1.0, gap=4.0, spend=4.0, more_than=-1.0, steps_max=1_000_000,
        )  # fmt: skip

    assert asked() is not None
    pricing.deadline = PASSED
    assert asked() is None


def test_prices_know_the_parts_that_they_were_found_with(pricing: Pricing) -> None:
    """Another goal's prices need more parts; those of the first still say how many of theirs."""
    prices = of(pricing)
    before = len(prices.pool.place)
    for cap in (3.0, 30.0, 300.0):
        pricing.of(Goal(most=True, cap=cap))
    after = pricing.of(Goal(most=True, cap=1e6))

    assert after is not None
    assert len(after.pool.place) > before == len(prices.parts)
    assert dived(pricing, GOAL, prices, time_limit_s=60.0) is not None
