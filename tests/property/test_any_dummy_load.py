"""Dummy load of any amount: every point equals trying every stack, and the bound is one."""

import random
from collections.abc import Iterator, Sequence
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.planning.apps.candidates import Candidate, ModuleCase
from headrace.planning.apps.exact import any_dummy
from headrace.planning.apps.exact.any_dummy import PointSearch, point_schedule
from headrace.planning.apps.exact.bracket import OPTIMAL_GAP, least_cost_with_dummy
from headrace.planning.apps.machines import WHOLE, Entry, schedule_of
from headrace.planning.apps.order import path_us
from headrace.planning.apps.solve import plan_least_cost
from helpers.apps import CROSSED, DIAMOND, make_case, make_module, random_case, random_module

GRAPHS = [((),), ((), (0,)), ((), ()), DIAMOND, CROSSED]
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def cheapest_by_trying(module: ModuleCase, budget_us: int) -> float:
    """Least cost of all stacks, the last machine's load found by halving; infinite: none fits."""
    return min(
        (
            sum(entry.cost for entry in above) + last
            for above, first, left in _whole(module.candidates, 0, [], module.rate_rps)
            for last in _last(module, above, first, left, budget_us)
        ),
        default=float("inf"),
    )


def _whole(
    candidates: Sequence[Candidate], first: int, above: list[Entry], left: float
) -> Iterator[tuple[list[Entry], int, float]]:
    """Whole machines that are given load alone: (they, who may follow, what is left)."""
    yield above, max(0, first - 1), left
    for k in range(first, len(candidates)):
        for machines in range(1, int(left / candidates[k].rate_rps + WHOLE) + 1):
            rest = max(0.0, left - machines * candidates[k].rate_rps)
            rest = rest if rest > WHOLE * max(1.0, left) else 0.0
            entry = Entry(candidate=candidates[k], machines=float(machines))
            yield from _whole(candidates, k + 1, [*above, entry], rest)


def _last(
    module: ModuleCase, above: list[Entry], first: int, left: float, budget_us: int
) -> Iterator[float]:
    """What ways to carry the rest cost, dummy load included."""

    def in_time(*last: Entry) -> bool:
        entries = [*above, *last]
        schedule = schedule_of(entries, module.rate_rps, "remaining")
        return schedule.worst_case_us <= budget_us

    if above and left == 0 and in_time():
        yield 0.0
    for candidate in module.candidates[first:]:
        is_new = not above or above[-1].candidate is not candidate
        full = ceil(left / candidate.rate_rps - WHOLE)
        if is_new and full and in_time(Entry(candidate=candidate, machines=float(full))):
            yield full * candidate.price
        low, high = left / candidate.rate_rps, 1.0
        if low > 1 or not in_time(Entry(candidate=candidate, machines=high)):
            continue
        if low > 0 and in_time(Entry(candidate=candidate, machines=low)):
            yield low * candidate.price
            continue
        for _ in range(60):
            middle = (low + high) / 2
            if in_time(Entry(candidate=candidate, machines=middle)):
                high = middle
            else:
                low = middle
        yield high * candidate.price


@given(seed=SEEDS)
def test_a_point_costs_what_trying_every_stack_finds(seed: int) -> None:
    rng = random.Random(seed)
    module = random_module(rng)
    budget_us = rng.randint(20, 700) * 1_000
    point = PointSearch(module).cheapest(budget_us, 0.0)
    least = cheapest_by_trying(module, budget_us)
    if point is None:
        assert least == float("inf")
        return
    schedule = point_schedule(module, point)

    # A rate that collects within the budget to half a nanosecond.
    assert point.cost == pytest.approx(least, rel=1e-6)
    assert point.bound == point.cost
    assert schedule.cost == pytest.approx(point.cost, rel=1e-12)
    assert schedule.worst_case_us == point.latency_us <= budget_us
    assert sum(entry.rate_rps for entry in schedule.entries) >= module.rate_rps * (1 - 1e-9)


@pytest.mark.parametrize("before", GRAPHS)
@settings(max_examples=25)
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
        PointSearch(module).cheapest(case.budget_us * part // longest, 0.0)
        for module, part in zip(case.modules, parts, strict=True)
    ]
    if any(point is None for point in points):
        return
    some = sum(point.cost for point in points if point is not None)

    assert found is not None
    assert found.bound <= some * (1 + 1e-9)
    assert sum(module.cost for module in found.modules) <= some * (1 + 1e-3)


@pytest.mark.parametrize("before", GRAPHS)
@settings(max_examples=25)
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
    assert plain is None or cost <= plain.cost * (1 + 1e-9)


def test_a_front_cut_short_still_bounds_what_it_did_not_look_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = make_module("m", 10.0, [(8, 400, 1.0), (1, 100, 4.0)])
    fastest = PointSearch(module).points(1_000_000)[-1]
    monkeypatch.setattr(any_dummy, "POINTS_MAX", 1)

    (point,) = PointSearch(module).points(1_000_000)

    assert point.latency_us > fastest.latency_us >= point.least_us
    assert point.bound <= fastest.cost


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
