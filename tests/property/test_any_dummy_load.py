"""Dummy load of any amount: no machines are cheaper than a point, and the bound is one."""

import random
from collections.abc import Sequence
from itertools import combinations_with_replacement

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.domain.plan import OPTIMAL_GAP
from headrace.planning.apps.exact import any_dummy
from headrace.planning.apps.exact.any_dummy import PointSearch, point_schedule
from headrace.planning.apps.exact.bracket import least_cost_with_dummy
from headrace.planning.apps.machines import Entry, schedule_of
from headrace.planning.apps.order import path_us
from headrace.planning.apps.solve import plan_least_cost
from helpers.apps import CROSSED, make_case, make_module, random_case, random_module

GRAPHS = [((),), ((), (0,)), ((), ()), CROSSED]
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


@given(seed=SEEDS)
def test_no_machines_of_two_configurations_are_cheaper_than_a_point(seed: int) -> None:
    """Whatever part of the load each has, whatever dummy load, however many machines share it."""
    rng = random.Random(seed)
    module = random_module(rng)
    budget_us = rng.randint(20, 700) * 1_000
    point = PointSearch(module).cheapest(budget_us)
    least = float("inf") if point is None else point.cost
    for first, second in combinations_with_replacement(module.candidates, 2):
        most = max(c.rate_rps for c in module.candidates)
        load = module.rate_rps + most * rng.choice([0.0, 0.0, rng.random()])
        part = rng.choice([1.0, rng.random()])
        entries = [
            Entry(candidate=candidate, machines=rps / candidate.rate_rps)
            for candidate, rps in ((first, load * part), (second, load * (1 - part)))
            if rps > 0
        ]
        tried = schedule_of(entries, module.rate_rps, "remaining")
        assert tried.worst_case_us > budget_us or tried.cost >= least * (1 - 1e-8)


@given(seed=SEEDS)
def test_a_point_is_a_plan_within_its_budget(seed: int) -> None:
    rng = random.Random(seed)
    module = random_module(rng)
    budget_us = rng.randint(20, 700) * 1_000
    point = PointSearch(module).cheapest(budget_us)
    assume(point is not None)
    assert point is not None
    schedule = point_schedule(module, point)

    assert schedule.cost == pytest.approx(point.cost, rel=1e-12)
    assert schedule.worst_case_us == point.latency_us <= budget_us
    assert point.least_us <= point.latency_us
    assert sum(entry.rate_rps for entry in schedule.entries) >= module.rate_rps * (1 - 1e-9)


@pytest.mark.parametrize("before", GRAPHS)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_no_way_to_split_the_budget_is_cheaper_than_the_bound(
    before: Sequence[Sequence[int]], seed: int
) -> None:
    rng = random.Random(seed)
    case = random_case(rng, before)
    found = least_cost_with_dummy(case)
    # Any budgets whose longest path fits, a thousandth of the SLO apart.
    parts = [rng.randint(1, 999) for _ in case.modules]
    longest = path_us(case.before, parts)
    points = [
        PointSearch(module).cheapest(case.budget_us * part // longest)
        for module, part in zip(case.modules, parts, strict=True)
    ]
    if any(point is None for point in points):
        return
    some = sum(point.cost for point in points if point is not None)

    assert found is not None
    assert found.bound <= some * (1 + 1e-8)
    assert sum(module.cost for module in found.modules) <= some * (1 + 1e-3)


@pytest.mark.parametrize("before", GRAPHS)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_the_plan_fits_its_budget_and_costs_no_more_than_without_such_dummy_load(
    before: Sequence[Sequence[int]], seed: int
) -> None:
    case = random_case(random.Random(seed), before)
    found, plain = least_cost_with_dummy(case), plan_least_cost(case)
    if found is None:
        assert plain is None
        return
    cost = sum(module.cost for module in found.modules)

    assert path_us(case.before, [m.worst_case_us for m in found.modules]) <= case.budget_us
    assert found.bound <= cost
    assert plain is None or cost <= plain.cost * (1 + 1e-6)


def test_a_front_cut_short_still_bounds_what_it_did_not_look_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = make_module("m", 10.0, [(8, 400, 1.0), (1, 100, 4.0)])
    fastest = PointSearch(module).points(1_000_000)[-1]
    monkeypatch.setattr(any_dummy, "POINTS_MAX", 1)

    (point,) = PointSearch(module).points(1_000_000)

    assert point.latency_us > fastest.latency_us >= point.least_us
    assert point.cost <= fastest.cost


def test_dummy_load_lets_a_cheaper_machine_collect_in_time() -> None:
    """8 requests at 10 per second take 0.8 s to come: 0.5 s too long, unless 6/s are dummies."""
    case = make_case([("m", 10.0, [(8, 500, 1.0), (1, 100, 4.0)])], budget_ms=1000)
    found, plain = least_cost_with_dummy(case), plan_least_cost(case)

    assert found is not None
    assert plain is not None
    # 16 requests per second are exactly what one machine of the first kind carries.
    assert plain.cost == 1.0
    assert sum(module.cost for module in found.modules) == pytest.approx(1.0)
    slower = make_case([("m", 10.0, [(8, 400, 1.0), (1, 100, 4.0)])], budget_ms=1000)
    found, plain = least_cost_with_dummy(slower), plan_least_cost(slower)
    assert found is not None
    assert plain is not None
    # 8 within 0.6 s is 13.3 per second of the 20 that one machine carries.
    assert plain.cost == 1.0
    assert sum(module.cost for module in found.modules) == pytest.approx(2 / 3, rel=1e-5)
    assert found.modules[0].dummy_rps == pytest.approx(10 / 3, rel=1e-5)
    assert found.bound == pytest.approx(2 / 3, rel=1e-5)
    assert found.bound >= sum(m.cost for m in found.modules) * (1 - OPTIMAL_GAP)
