"""`shares` where neighbours slow each other by many degrees: a plan is found, and bounded."""

import random
from itertools import product
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.gpulets.loud_neighbours import random_problem
from msgspec.structs import replace

from headrace.domain.cluster import DeviceType
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.shares import planner
from headrace.planning.shares.choosing import _ways
from headrace.planning.shares.devices import Devices, devices_of
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.master import Chosen, Goal
from headrace.planning.shares.search import NOTHING, _carries
from headrace.planning.shares.workload import DeviceOffer, Layout
from headrace.verify import verify

TIME_LIMIT_S = 20.0


def drawn(seed: int, objective: str, *, largest_batch: int) -> Problem:
    """The first of a seed's problems with three models, of at most that batch, and devices that may
    be cut in any way."""
    rng = random.Random(seed)
    while True:
        problem = random_problem(rng, TIME_LIMIT_S)
        [kind] = problem.cluster.device_types
        largest = max(each.block_times[0].max_batch for each in problem.profiles.values())
        asked = problem.options.objective, len(problem.demands), not kind.splits
        if asked == (objective, 3, True) and largest <= largest_batch:
            return problem


def read(problem: Problem, degrees: int | None = None) -> Devices:
    return devices_of(problem, times_of(problem), [1.0], degrees=degrees)


def times_of(problem: Problem) -> list[SharedTimes]:
    return [SharedTimes.of(problem, kind.name) for kind in problem.cluster.device_types]


def test_which_shares_fit_beside_each_other_is_asked_of_shares_and_not_of_batch_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, asked = drawn(1, "least-devices", largest_batch=128), list[Any]()
    allows = DeviceType.allows

    def counting(kind: DeviceType, shares: Any) -> bool:
        asked.append(shares)
        return allows(kind, shares)

    times = times_of(problem)
    monkeypatch.setattr(DeviceType, "allows", counting)
    devices_of(problem, times, [1.0])
    assert len(asked) <= len(problem.cluster.device_types[0].shares) ** 2


def ways(counts: tuple[int, ...], of_device: list[int], waste: list[float], gap: float) -> Any:
    """Ways to lay out devices of price 1, at most all of them."""
    offers = [DeviceOffer(name=f"d{i}", count=n, price=1.0) for i, n in enumerate(counts)]
    layouts = [Layout(device=d, places=(0,), loudness=(1,)) for d in of_device]
    pricing: Any = SimpleNamespace(offers=offers, layouts=layouts, deadline=Deadline(TIME_LIMIT_S))
    prices: Any = SimpleNamespace(layout_waste=np.array(waste))
    return _ways(pricing, prices, gap, inf, -inf)


def test_more_ways_to_cut_a_device_than_pythons_stack_is_deep_are_counted() -> None:
    found = ways((1,), [0] * 2_500, [0.0] * 2_500, 1.0)
    assert len(found) == 2_500
    assert all(way.sum() == 1 for way in found)


@pytest.mark.parametrize("seed", range(20))
def test_ways_are_those_that_no_other_contains_the_least_waste_first(seed: int) -> None:
    rng = random.Random(seed)
    counts = tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 2)))
    of_device = [rng.randrange(len(counts)) for _ in range(rng.randint(1, 5))]
    waste, gap = [rng.uniform(0, 1) for _ in of_device], rng.uniform(0, 3)

    def is_one(way: tuple[int, ...]) -> bool:
        used = [sum(n for n, d in zip(way, of_device, strict=True) if d == i) for i in range(9)]
        return all(n <= most for n, most in zip(used, counts, strict=False)) and (
            sum(n * w for n, w in zip(way, waste, strict=True)) <= gap
        )

    every = list(filter(is_one, product(range(4), repeat=len(of_device))))
    expected = {
        way
        for way in every
        if any(way)
        and not any(is_one(tuple(n + (i == k) for i, n in enumerate(way))) for k in range(len(way)))
    }
    found = [tuple(way.tolist()) for way in ways(counts, of_device, waste, gap)]
    wasted = [sum(n * w for n, w in zip(way, waste, strict=True)) for way in found]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert wasted == sorted(wasted)


def test_as_if_all_were_as_loud_as_the_loudest_there_are_few_layouts() -> None:
    problem = drawn(2, "max-min", largest_batch=16)
    loud, alike = read(problem), read(problem, degrees=1)
    assert (alike.levels, loud.levels) == (1, 10)
    assert len(alike.layouts) < len(loud.layouts) / 20
    assert alike.candidates.taken_us.max() >= loud.candidates.taken_us.max()


@pytest.mark.parametrize("objective", ["max-min", "least-devices"])
def test_where_no_search_over_loudness_ends_there_is_a_plan_with_a_bound(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = drawn(3, objective, largest_batch=16)
    monkeypatch.setattr(planner, "_searched", lambda *given: (NOTHING, None, 3))
    plan = solve(problem).plan
    assert plan is not None
    assert not verify(plan, problem.profiles)
    assert plan.bound is not None
    reached, at_most = (plan.objective, plan.bound)[:: 1 if objective == "max-min" else -1]
    assert reached <= at_most


def test_rates_that_not_even_silent_neighbours_allow_are_excluded_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = drawn(4, "least-devices", largest_batch=16)
    many = tuple(replace(d, rate_rps=1e4 * (d.rate_rps or 1.0)) for d in problem.demands)
    asked: list[Devices] = []
    monkeypatch.setattr(planner, "_searched", lambda *given: asked.append(given[2]))
    result = solve(replace(problem, demands=many))
    assert (result.plan, result.stopped, asked) == (None, "infeasible", [])


def test_what_carries_nothing_of_a_model_is_no_plan_of_the_most() -> None:
    problem = drawn(5, "max-min", largest_batch=4)
    devices, load = read(problem), planner.workload(problem, times_of(problem))
    pricing = planner.pricing_of(load, devices, Deadline(TIME_LIMIT_S))
    none = Chosen(
        Parts.none(load.tenants_max), np.zeros(0, int), np.zeros(len(devices.layouts), int)
    )
    assert not _carries(pricing, Goal(most=True, cap=1.0), none)
