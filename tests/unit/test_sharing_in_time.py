"""Planning of shared devices ends in time, and keeps together what belongs together."""

from collections.abc import Mapping
from dataclasses import replace as with_fields
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.shares import listing as listing_module
from headrace.planning.shares import pricing as pricing_module
from headrace.planning.shares import search
from headrace.planning.shares import tenants as tenants_module
from headrace.planning.shares.choosing import _counted, ask
from headrace.planning.shares.devices import devices_of
from headrace.planning.shares.diving import dived
from headrace.planning.shares.listing import Parts, undominated
from headrace.planning.shares.master import Goal, Prices
from headrace.planning.shares.planner import pricing_of, workload
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.workload import Ints
from headrace.verify import verify
from helpers.problems import make_problem, make_profile, whole_model_us
from helpers.together import SHARES, cluster_of

MODELS = 4
ONE_TYPE = {"a": 4}
GOAL = Goal(most=False, cap=1.0)
PASSED = Deadline(-1.0)


def problem(
    counts: Mapping[str, int] = ONE_TYPE, *, models: int = MODELS, load: float = 0.4
) -> Problem:
    """`load`: devices that each model needs."""
    profiles = [
        make_profile(
            f"m{i}",
            blocks=1,
            devices=dict.fromkeys(counts, 1.0),
            max_batch=4,
            shares=SHARES,
            block_us=3_000,
            seed=i,
        )
        for i in range(models)
    ]
    return make_problem(
        profiles,
        cluster=cluster_of(counts, dict.fromkeys(counts, 1.0)),
        slo_us={p.model: 9 * whole_model_us(p) for p in profiles},
        rates={p.model: load * 1e6 / whole_model_us(p) for p in profiles},
        options=PlanOptions(planner="shares", objective="least-devices"),
    )


@pytest.fixture
def pricing() -> Pricing:
    return priced(ONE_TYPE)


def priced(counts: Mapping[str, int]) -> Pricing:
    asked = problem(counts)
    times = [SharedTimes.of(asked, kind) for kind in counts]
    costs = [1.0 + 0.5 * number for number in range(len(counts))]
    return pricing_of(workload(asked, times), devices_of(asked, times, costs), Deadline(60.0))


def of(pricing: Pricing) -> Prices:
    prices = pricing.of(GOAL)
    assert prices is not None
    return prices


def some_parts(place: list[int], loudness: list[int], rates: np.ndarray) -> Parts:
    """Parts whose tenants are the models that they carry anything of."""
    carried = [np.flatnonzero(row).tolist() for row in rates]
    widest = max(map(len, carried))
    models = np.array([row + [-1] * (widest - len(row)) for row in carried])
    return Parts(
        np.array(place), models, (models >= 0).astype(np.int64), np.ones(len(rates), np.int64),
        np.array(loudness),
    )  # fmt: skip


def test_parts_that_there_is_no_room_for_are_those_that_waste_most() -> None:
    rates = np.array([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.5]])
    parts, waste = some_parts([0, 0, 0, 1], [1] * 4, rates), 5 - rates.sum(axis=1)

    def kept(most: int) -> tuple[list[int], float]:
        rows, up_to = undominated(parts, rates, waste, most=most)
        return rows.tolist(), up_to

    assert kept(9) == ([0, 3, 2], inf)
    assert kept(2) == ([0, 3], 4.0), "of what wastes 4 some may be missing"


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 120))
def test_no_part_is_left_out_that_no_other_replaces(seed: int, models: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    rates = rng.integers(0, 5, (count, models)).astype(float)
    rates[:, 0] += rates.sum(axis=1) == 0
    place, loudness = rng.integers(0, 2, count), rng.integers(1, 4, count)
    price, rent = rng.integers(0, 3, models).astype(float), np.array([5.0, 7.0])
    waste = rent[place] + 0.5 * loudness - rates @ price

    parts = some_parts(place.tolist(), loudness.tolist(), rates)
    rows, up_to = undominated(parts, rates, waste, most=count)

    def replaces(one: int, other: int) -> bool:
        quiet = place[one] == place[other] and loudness[one] <= loudness[other]
        return bool(quiet and (rates[one] >= rates[other]).all())

    assert up_to == inf
    kept = set(rows.tolist())
    for row in range(count):
        assert sum(replaces(other, row) for other in kept) == 1 or (
            row not in kept and any(replaces(other, row) for other in kept)
        )


@pytest.mark.parametrize("compared_max", [0, 50])
def test_parts_that_take_long_to_tell_apart_are_all_kept(
    compared_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = np.random.default_rng(3).random((60, 4)) + 0.1
    parts, waste = some_parts([0] * 60, [1] * 60, rates), 4 - rates.sum(axis=1)
    exact, _ = undominated(parts, rates, waste, most=60)
    monkeypatch.setattr(listing_module, "COMPARED_MAX", compared_max)

    rows, up_to = undominated(parts, rates, waste, most=60)

    assert set(exact.tolist()) < set(rows.tolist())
    assert up_to == inf


def test_parts_of_which_each_is_as_good_are_not_narrowed_for_ever(
    pricing: Pricing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is worth anything, so no part wastes anything: all are in, whatever the gap."""
    prices = of(pricing)
    nothing = with_fields(
        prices, price=np.zeros_like(prices.price), rent=np.zeros_like(prices.rent)
    )
    monkeypatch.setattr(pricing_module, "PARTS_MAX", 10)

    parts, _, up_to = pricing.within(GOAL, nothing, 1.0, most=5)

    assert 0 < len(parts.place) <= 5
    assert up_to == 0.0


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


def test_fewer_batch_sizes_are_some_of_them(pricing: Pricing) -> None:
    every, some = pricing.candidates, pricing.candidates.thinned(2.0)

    assert [table.tolist() for table in every.thinned(1.0)] == [table.tolist() for table in every]
    for first, ends in ((every.first, (1, 2, 3, 4)), (some.first, (1, 2, 4))):
        batch = every.batch if first is every.first else some.batch
        rows = {tuple(batch[a:b].tolist()) for row in first for a, b in pairwise(row.tolist())}
        assert rows <= {ends[:n] for n in range(5)}, "some large ones may keep no promise"
        assert ends in rows
    kept = set(zip(every.batch, every.latency_us, every.taken_us, strict=True))
    assert set(zip(some.batch, some.latency_us, some.taken_us, strict=True)) < kept


@pytest.mark.parametrize("most", [True, False])
@pytest.mark.parametrize("few", [100_000, 30])
def test_where_every_question_is_too_hard_there_is_a_plan(
    most: bool, few: int, pricing: Pricing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything else that takes long: of fewer batch sizes, if these are too many."""
    monkeypatch.setattr(pricing_module, "COARSE_PARTS", few)
    assert (pricing.coarser(Deadline(60.0)) is None) == (few == 100_000)

    def the_same(*given: object, **_: object) -> object:
        assert given[3] is not None, "a plan"
        return given[3]

    monkeypatch.setattr(search, "FEW_STEPS", 0)
    monkeypatch.setattr(search, "MANY_STEPS", 0)
    monkeypatch.setattr(search, "rounded", the_same)

    found = search.most(pricing, precision=1e-6) if most else search.least(pricing)

    assert found.chosen is not None
    assert found.value is not None
    assert found.bound is not None
    assert found.value <= found.bound if most else found.value >= found.bound


@pytest.mark.parametrize("more_than", [-1.0, 2.5])
def test_ways_to_lay_out_devices_are_those_with_no_room_for_one_more(more_than: float) -> None:
    pricing, spend, gap = priced({"a": 2, "b": 2}), 4.0, 0.55
    waste = np.array([0.3, 0.0, 0.2, 0.1])
    prices = with_fields(of(pricing), layout_waste=waste)
    device = np.array([0, 0, 1, 1])
    assert [layout.device for layout in pricing.layouts] == device.tolist()

    def within(way: Ints) -> bool:
        used = [int(way[device == d].sum()) for d in (0, 1)]
        affordable = used[0] + 1.5 * used[1] <= spend
        return max(used) <= 2 and affordable and float(way @ waste) <= gap

    expected: set[tuple[int, ...]] = set()
    for numbers in product(range(3), repeat=len(waste)):
        way = np.array(numbers)
        more = way + np.eye(len(waste), dtype=int)
        cost = way[device == 0].sum() + 1.5 * way[device == 1].sum()
        if within(way) and not any(map(within, more)) and cost > more_than:
            expected.add(numbers)
    found = [tuple(way.tolist()) for _, way in _counted(pricing, prices, gap, spend, more_than)]

    assert len(found) == len(set(found))
    assert set(found) == expected
    assert expected


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


def test_more_parts_than_calls_may_be_nested_are_put_onto_devices() -> None:
    asked = problem({"a": 2_000}, models=1, load=2_000)

    plan = solve(asked).plan

    assert plan is not None
    assert len(plan.slots) > 1_000
    assert verify(plan, asked.profiles) == []


def test_the_best_part_of_each_first_model_alone_gives_the_same_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many models, whose pairs need gigabytes."""
    bound = of(priced(ONE_TYPE)).bound
    monkeypatch.setattr(listing_module, "BEST_MAX", 0)

    few = priced(ONE_TYPE)
    assert of(few).bound == pytest.approx(bound)

    target, places = few.load.target_rps, len(few.candidates.first)
    listed, _, _ = listing_module.list_parts(
        few.candidates, few.load, np.full(MODELS, inf), price=1 / target,
        rent=np.zeros((places, few.levels + 1)), slack=inf, most=1, best_only=True,
    )  # fmt: skip
    assert len(listed.place) <= places * MODELS


def test_no_larger_parts_are_looked_for_when_there_is_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants_module, "FEW_PARTS", 0)
    asked = problem()
    times = [SharedTimes.of(asked, "a")]
    load, devices = workload(asked, times), devices_of(asked, times, [1.0])

    def looked_at(deadline: Deadline) -> list[int]:
        return tenants_module.numbers(load, devices, MODELS, deadline, asked=False)

    assert looked_at(Deadline(60.0)) == [3, 4]
    assert looked_at(PASSED) == [3]
