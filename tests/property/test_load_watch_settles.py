"""A server that plans anew for the shares that it counts comes to rest, however rare a model is."""

import numpy as np
import pytest

from headrace.serving.changes.load_watch import PERIODS, LoadWatch, shares_of
from helpers.lengthy import with_lengthy

DAY = 1_728
"""Periods of 50 s, as in `--replan-after-s 300`."""
PERIOD_S = 50.0
SEEDS = range(3)
RARE_RPS = [0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0]
FRACTIONS = [0.1, 0.25, 0.5]
Loads = dict[str, float]


def watch_of(planned: Loads, chosen: Loads, fraction: float) -> LoadWatch:
    floors = {name: share / 10 for name, share in shares_of(chosen).items()}
    return LoadWatch(planned, fraction, floors)


def replans(rates_rps: Loads, chosen: Loads, fraction: float, seed: int) -> list[tuple[int, Loads]]:
    """In a day of Poisson arrivals: after how many periods, and for which shares."""
    rng = np.random.default_rng(seed)
    watch, found = watch_of(chosen, chosen, fraction), []
    for period in range(1, DAY + 1):
        counts = {name: int(rng.poisson(rps * PERIOD_S)) for name, rps in rates_rps.items()}
        shares = watch.add(counts)
        if shares is not None:
            found.append((period, shares))
            watch = watch_of(shares, chosen, fraction)
    return found


@pytest.mark.parametrize("seed", with_lengthy(SEEDS, lengthy=SEEDS[1:]))
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_the_load_that_a_plan_was_made_for_asks_for_no_other(fraction: float, seed: int) -> None:
    for rare_rps in RARE_RPS[1:]:
        rates_rps = {"a": 20.0, "b": 5.0, "rare": rare_rps}
        assert replans(rates_rps, rates_rps, fraction, seed) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rare_rps", RARE_RPS)
def test_the_load_that_the_server_planned_for_asks_for_no_other(rare_rps: float, seed: int) -> None:
    """It was planned for after six periods, as documented, and once."""
    rates_rps = {"a": 20.0, "b": 5.0, "rare": rare_rps}
    [(period, shares)] = replans(rates_rps, {"a": 5.0, "b": 20.0, "rare": 5.0}, 0.25, seed)
    assert period == PERIODS
    assert shares["a"] / shares["b"] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rare_model_that_is_planned_as_such_leaves_the_shares_of_others_followed(
    seed: int,
) -> None:
    chosen = {"a": 5.0, "b": 20.0, "rare": 0.05}
    [(period, shares)] = replans({"a": 20.0, "b": 5.0, "rare": 0.05}, chosen, 0.25, seed)
    assert period == PERIODS
    assert shares["rare"] == pytest.approx(0.05 / 25, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rare_model_that_is_asked_more_often_is_planned_for(seed: int) -> None:
    chosen = {"a": 20.0, "rare": 0.1}
    [(period, shares)] = replans({"a": 20.0, "rare": 2.0}, chosen, 0.25, seed)
    assert period == PERIODS
    assert shares["rare"] == pytest.approx(2 / 22, rel=0.2)
