"""A server that plans anew for the sizes that it counts comes to rest, however rare a size is."""

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.plan import Plan
from headrace.planning import solve
from headrace.serving.changes.load_watch import PERIODS
from headrace.serving.changes.plan_watch import Loads, ReplanRule, planned_loads, watch_of
from headrace.serving.changes.rate_estimate import RateEstimate
from headrace.serving.changes.size_loads import Sizes, planned_sizes, whole_loads
from helpers.lengthy import with_lengthy
from helpers.problems import make_problem, make_profile
from helpers.sized import sized_profile

DAY = 1_728
PERIOD_S = 50.0
SEEDS = range(3)
FRACTIONS = [0.1, 0.25, 0.5]
Rates = dict[str, float]

PROBLEM = make_problem(
    [sized_profile(), make_profile("other", seed=1, devices={"a": 1.0})], nodes={"n0": {"a": 4}}
)


def planned_for(rates_rps: Rates) -> tuple[Plan, Sizes]:
    text_rps = sum(rate for name, rate in rates_rps.items() if name != "other")
    shapes = {size: rates_rps[f"text.{size}"] for size in ("16", "64", "256")}
    text, other = PROBLEM.demands
    demands = (
        replace(text, shapes=shapes, weight=text_rps),
        replace(other, weight=rates_rps["other"]),
    )
    plan = solve(replace(PROBLEM, demands=demands)).plan
    assert plan is not None
    return plan, planned_sizes(plan, PROBLEM.profiles)


def replans(rates_rps: Rates, chosen: Rates, fraction: float, seed: int) -> list[tuple[int, Loads]]:
    """In a day of Poisson arrivals: after how many periods, and for which loads."""
    rng = np.random.default_rng(seed)
    plan, sizes = planned_for(chosen)
    begun = planned_loads(plan, sizes)
    rule, found = ReplanRule(after_s=PERIODS * PERIOD_S, fraction=fraction), []
    watch = watch_of(plan, begun, {}, rule, RateEstimate(), sizes)
    for period in range(1, DAY + 1):
        counts = {name: int(rng.poisson(rps * PERIOD_S)) for name, rps in rates_rps.items()}
        texts = sum(count for name, count in counts.items() if name != "other")
        loads = watch({**counts, "text": texts}, PERIOD_S)
        if loads is not None:
            found.append((period, loads))
            whole, shapes = whole_loads(loads, sizes)
            demands = tuple(
                replace(each, weight=whole[each.model], shapes=shapes.get(each.model, {}))
                for each in plan.demands
            )
            plan = replace(plan, demands=demands)
            sizes = planned_sizes(plan, PROBLEM.profiles)
            watch = watch_of(plan, begun, {}, rule, RateEstimate(), sizes)
    return found


@pytest.mark.parametrize("seed", with_lengthy(SEEDS, lengthy=SEEDS[1:]))
@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("rare_rps", [0.0, 0.001, 0.05, 1.0])
def test_the_sizes_that_a_plan_was_made_for_ask_for_no_other(
    rare_rps: float, fraction: float, seed: int
) -> None:
    """Nor do a few requests of a size that it counts on none of."""
    rates_rps = {"text.16": 15.0, "text.64": 5.0, "text.256": rare_rps, "other": 5.0}
    assert replans(rates_rps, rates_rps, fraction, seed) == []
    none_planned = {**rates_rps, "text.256": 0.0}
    assert replans({**rates_rps, "text.256": 0.05}, none_planned, fraction, seed) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("planned_rps", [0.0, 0.05, 5.0])
def test_a_size_that_comes_more_often_is_planned_for_after_six_periods_and_once(
    planned_rps: float, seed: int
) -> None:
    chosen = {"text.16": 15.0, "text.64": 5.0, "text.256": planned_rps, "other": 5.0}
    [(period, loads)] = replans({**chosen, "text.256": 20.0}, chosen, 0.25, seed)
    assert period == PERIODS
    assert loads["text.256"] == pytest.approx(20 / 45, rel=0.1)
