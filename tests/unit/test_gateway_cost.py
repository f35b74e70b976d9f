"""Finding the rate at which a gateway is to be measured."""

from math import exp

import pytest

from headrace.load.gateway_cost import (
    AROUND,
    BUSY,
    MOST_RPS,
    NEAR,
    OBJECTIVE_US,
    STEPS,
    cost_around,
    cost_at_full_load,
    full_load,
)


@pytest.mark.parametrize("asleep_us", [0.0, 100.0, 500.0])
@pytest.mark.parametrize("always_us", [30.0, 300.0])
@pytest.mark.parametrize("beside_us", [0.0, 10.0, 7_000.0, 200_000.0])
def test_the_cost_is_that_at_which_processor_time_is_used_up(
    asleep_us: float, always_us: float, beside_us: float
) -> None:
    asked: list[float] = []

    def taken_us(rate_rps: float) -> float:
        """Less by how much the gateway sleeps between requests."""
        asked.append(rate_rps)
        return always_us + asleep_us / (1 + rate_rps / 1_000)

    first_rps = min(100.0, BUSY * 1e6 / max(1.0, beside_us))
    rate_rps, cost_us = cost_at_full_load(taken_us, first_rps, beside_us)

    busy = rate_rps * (cost_us + beside_us) / 1e6
    full = full_load(cost_us + beside_us)
    assert busy == pytest.approx(full, rel=NEAR) or (rate_rps == MOST_RPS and busy < full)
    assert cost_us == pytest.approx(always_us + asleep_us / (1 + rate_rps / 1_000))
    assert len(asked) <= STEPS


def test_a_core_may_be_the_busier_the_more_requests_fit_into_the_objective() -> None:
    """As M/D/1 has it, 1 % then wait longer than the objective."""
    taken_us = 50.0
    assert exp(-2 * (1 - full_load(taken_us)) * OBJECTIVE_US / taken_us) == pytest.approx(0.01, 0.1)
    assert full_load(40) > full_load(80) > full_load(300) == full_load(20_000) == BUSY


def test_a_rate_beyond_what_it_can_do_is_left_again() -> None:
    rate_rps, _ = cost_at_full_load(lambda rate_rps: 300 + 50_000 / rate_rps, 9_000, 0)

    assert rate_rps * (300 + 50_000 / rate_rps) / 1e6 == pytest.approx(BUSY, rel=NEAR)


@pytest.mark.parametrize("searched", [0.93, 1.0, 1.07])
@pytest.mark.parametrize("beside_us", [0.0, 9.0, 80.0])
def test_measurements_around_a_rate_say_the_same_wherever_the_search_ended(
    searched: float, beside_us: float
) -> None:
    def taken_us(rate_rps: float) -> float:
        return 50 + 20_000 / (100 + rate_rps / 50)

    sought_rps, cost_us = 0.0, 0.0
    while sought_rps * (cost_us + beside_us) / 1e6 < full_load(cost_us + beside_us):
        sought_rps += 1
        cost_us = taken_us(sought_rps)

    assert cost_around(taken_us, sought_rps * searched, beside_us) == pytest.approx(
        cost_us, rel=0.005
    )


@pytest.mark.parametrize("disturbed", range(len(AROUND)))
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_one_disturbed_measurement_moves_the_cost_by_little(disturbed: int, factor: float) -> None:
    asked = 0

    def taken_us(rate_rps: float) -> float:
        nonlocal asked
        asked += 1
        return (50 + 300_000 / rate_rps) * (factor if asked == disturbed + 1 else 1)

    assert cost_around(taken_us, 13_000, 0.0) == pytest.approx(71.7, rel=0.05)


def test_a_cost_that_falls_quicker_than_the_rate_grows_is_that_in_the_middle() -> None:
    assert cost_around(lambda rate_rps: 1e12 / rate_rps**2, 13_000, 0.0) == pytest.approx(
        1e12 / 13_000**2
    )
