"""Walks over sets of pipelines: thinned patterns, remainders and slot bounds lose no plan."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from benchmarks.ppipe.artifact.columns import (
    artifact_columns,
    artifact_pipelines,
    artifact_stock,
)
from benchmarks.ppipe.artifact.planner import plan_by_artifact_rule
from benchmarks.ppipe.artifact.repair import cheapest_columns

from headrace.catalog.ppipe.rule import evaluate
from headrace.planning.common.candidates import Ints
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.master import Wanted
from headrace.planning.common.solver import LinearModel
from headrace.planning.exact import columns as exact_columns
from headrace.planning.exact import remainders as exact_remainders
from headrace.planning.exact import search as exact_search
from headrace.planning.exact import sets as exact_sets
from headrace.planning.exact.columns import Columns, PoolStock
from headrace.planning.exact.patterns import needed_patterns, patterns_within
from headrace.planning.exact.prices import price, request_costs
from headrace.planning.exact.remainders import Remainders, largest
from headrace.planning.exact.sets import PIPELINES_MAX, PipelineSet, StepBudget
from helpers.artifact_tasks import by_highs, make_task, most_rps_by_needs
from helpers.lengthy import with_lengthy
from helpers.problems import HANG_S

HALVES = (Fraction(1), Fraction(1, 2))
QUARTERS = tuple(Fraction(1, k) for k in (1, 2, 3, 4))
PROVEN_BY_HIGHS = (0, 4)
"""Of the tasks with walks cut short; three models take it minutes."""


def demand(seed: int, **task: object) -> tuple[PoolStock, Columns]:
    made, profiles = make_task(seed, models=1, **task)  # type: ignore[arg-type]
    deployment = made.deployments[0]
    pipelines = artifact_pipelines(made, deployment, profiles[deployment.model])
    return artifact_stock(made), artifact_columns(made, pipelines)


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 6, 8, 9, 10])
def test_what_remainders_carry_is_what_any_set_of_templates_carries(seed: int) -> None:
    devices = {"a": 2, "b": 3}
    task, profiles = make_task(
        seed, models=1, devices=devices, shares=HALVES, max_batch=1, max_stages=2 + seed % 2
    )
    most_rps = most_rps_by_needs(task, profiles)
    deployment = task.deployments[0]
    columns = artifact_columns(
        task, artifact_pipelines(task, deployment, profiles[deployment.model])
    )
    asked = Remainders(artifact_stock(task), columns, StepBudget(Deadline(HANG_S)))
    boxes = np.array([(a, b) for a in range(3) for b in range(4)])
    rng = np.random.default_rng(seed)
    for box in rng.permutation(boxes):
        most = max((r for n, r in most_rps.items() if (np.array(n) <= box).all()), default=0.0)
        # In any order, so that what was learnt before is used.
        for target in rng.permutation([most * 0.7, most, most * (1 + 1e-6), most + 1.0]):
            found = asked.first(box[None], float(target), PIPELINES_MAX)
            assert (found is not None) == (most > 0 and target <= most * (1 + 1e-9))
            if found is not None:
                assert (found[1].need <= box).all()
                assert found[1].throughput_rps(columns) >= target * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_any_remainder_that_carries_the_target_will_do(seed: int) -> None:
    stock, columns = demand(seed, devices={"a": 4, "b": 5}, shares=QUARTERS, blocks=4, max_stages=2)
    asked = Remainders(stock, columns, StepBudget(Deadline(HANG_S)))
    boxes = np.array([(4, 0), (3, 2), (2, 3), (0, 5)])
    alone = [rps_within(stock, columns, box) for box in boxes]
    best = max(alone)

    assert asked.first(boxes, best * (1 + 1e-6), PIPELINES_MAX) is None
    found = asked.first(boxes, best, PIPELINES_MAX)

    assert found is not None
    assert alone[found[0]] == pytest.approx(best, rel=1e-6)
    assert (found[1].need <= boxes[found[0]]).all()


@pytest.mark.parametrize("seed", with_lengthy([0, 3, 4, 6, 7, 10], lengthy=[0, 4]))
def test_walks_cut_short_at_once_lose_no_plan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against uncut walks, and against HiGHS where it proves the best plan in a second or two."""
    devices = {"a": 5, "b": 9} if seed % 2 else {"a": 2, "b": 3, "c": 4}
    task, profiles = make_task(
        seed, models=2 + seed % 2, devices=devices, shares=QUARTERS, blocks=4, max_batch=2
    )
    uncut = plan_by_artifact_rule(task, profiles, time_limit_s=HANG_S)
    for module, name in (
        (exact_sets, "STEPS"),
        (exact_search, "LEAST_STEPS"),
        (exact_search, "ALL_STEPS"),
        (exact_remainders, "FIRST_STEPS"),
    ):
        monkeypatch.setattr(module, name, 1)
    asked = []
    first = Remainders.first

    def counted(
        mine: Remainders, remainders: Ints, target_rps: float, deepest: int
    ) -> tuple[int, PipelineSet] | None:
        asked.append(len(remainders))
        return first(mine, remainders, target_rps, deepest)

    monkeypatch.setattr(Remainders, "first", counted)

    answer = plan_by_artifact_rule(task, profiles, time_limit_s=HANG_S)

    assert asked
    assert uncut.proven
    assert answer.proven
    assert answer.objective == pytest.approx(uncut.objective, rel=1e-6)
    if seed in PROVEN_BY_HIGHS:
        best, proven = by_highs(task, profiles, time_limit_s=HANG_S)
        assert proven
        assert answer.objective == pytest.approx(best, rel=1e-6)
    if answer.plan is not None:
        assert evaluate(answer.plan, profiles).faults == ()


@pytest.mark.parametrize("seed", range(4))
def test_only_a_plan_better_than_the_floor_is_looked_for(seed: int) -> None:
    task, profiles = make_task(
        seed, models=2, devices={"a": 3, "b": 4, "c": 5}, shares=QUARTERS, blocks=4, max_batch=2
    )
    wanted = [Wanted(weight=d.weight, least_rps=0.0) for d in task.deployments]
    columns = [
        artifact_columns(task, artifact_pipelines(task, d, profiles[d.model]))
        for d in task.deployments
    ]
    stock = artifact_stock(task)
    best = exact_search.search_exactly(stock, wanted, columns, Deadline(HANG_S))
    assert best.chosen is not None

    below, at = (
        exact_search.search_exactly(stock, wanted, columns, Deadline(HANG_S), part * best.objective)
        for part in (0.995, 1.0)
    )

    assert below.objective == pytest.approx(best.objective, rel=1e-6)
    assert below.chosen is not None
    assert at.chosen is None


@pytest.mark.parametrize("seed", range(8))
def test_needed_patterns_cover_those_left_out(seed: int) -> None:
    stock, columns = demand(
        seed, devices={"a": 6, "b": 8, "c": 9}, shares=QUARTERS, blocks=4, max_stages=3
    )
    prices = price(stock, [Wanted(weight=1.0, least_rps=0.0)], [columns], Deadline(HANG_S))
    assert prices is not None
    stage_prices = prices.unit[stock.pool_type[columns.pools]] * columns.units
    request_price = float(request_costs(stock, columns, prices.unit).min())
    most_rps = prices.stock / request_price
    every = patterns_within(columns, stage_prices, request_price, most_rps, 0.1 * prices.stock)

    needed = needed_patterns(columns, every)

    all_pools, all_units, all_rps = rows_of(columns, every)
    their_pools, their_units, their_rps = rows_of(columns, needed)
    assert 0 < len(their_pools) < len(all_pools)
    for pools in np.unique(all_pools, axis=0):
        elsewhere = (their_pools >= 0) & (their_pools != pools)
        first_pools = ~elsewhere.any(axis=1)
        theirs, most_rps_of = their_units[first_pools], their_rps[first_pools]
        same = (all_pools == pools).all(axis=1)
        for units, carried_rps in zip(all_units[same], all_rps[same], strict=True):
            fits = (theirs <= np.where(pools >= 0, units, 0)).all(axis=1)
            assert (fits & (most_rps_of >= carried_rps)).any()


@pytest.mark.parametrize("seed", range(6))
def test_cheapest_columns_carry_as_much_in_divisible_slots(seed: int) -> None:
    stock, columns = demand(seed, devices={"a": 3, "b": 4}, shares=QUARTERS, blocks=4, max_stages=2)
    few = columns.take(cheapest_columns(columns))
    rng = np.random.default_rng(seed)

    assert len(few) <= len(columns)
    for _ in range(10):
        pools = rng.integers(0, 4, len(stock.pool_type))
        assert divisible_rps(stock, few, pools) == pytest.approx(
            divisible_rps(stock, columns, pools), rel=1e-9
        )


def test_largest_leaves_out_what_another_covers() -> None:
    vectors = np.array([(1, 2), (2, 1), (1, 1), (2, 1), (0, 3)])

    assert sorted(largest(vectors).tolist()) == [[0, 3], [1, 2], [2, 1]]


def rps_within(stock: PoolStock, columns: Columns, box: Ints) -> float:
    """By asking for ever nearer targets."""
    asked = Remainders(replace(stock, increments=box), columns, StepBudget(Deadline(HANG_S)))
    low, high = 0.0, 1e6
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        found = asked.first(box[None], middle, PIPELINES_MAX)
        if found is None:
            high = middle
        else:
            low = max(middle, found[1].throughput_rps(columns))
    return low


def rows_of(columns: Columns, patterns: object) -> tuple[Ints, Ints, np.ndarray]:
    column = np.repeat(np.arange(len(columns)), np.diff(patterns.first))  # type: ignore[attr-defined]
    units = patterns.slots * columns.units[column]  # type: ignore[attr-defined]
    return columns.pools[column], units, patterns.carried_rps  # type: ignore[attr-defined]


def divisible_rps(stock: PoolStock, columns: Columns, pools: Ints) -> float:
    """The most that divisible slots carry in given devices of each pool."""
    model = LinearModel(maximise=True)
    carried = model.add_columns(len(columns), gain=1.0)
    there = model.add_rows(len(pools), upper=(pools * stock.increment).astype(float))
    row, stage = np.nonzero(columns.pools >= 0)
    model.add_entries(
        there[columns.pools[row, stage]], carried[row], columns.units_per_rps[row, stage]
    )
    return model.solve(time_limit_s=60.0, relaxed=True).objective or 0.0


def random_columns(seed: int, count: int) -> Columns:
    """Of up to three stages on two pools, in units of twelfths."""
    rng = np.random.default_rng(seed)
    used = np.arange(3) < rng.integers(1, 4, count)[:, None]
    units = np.where(used, rng.choice([3, 4, 6, 12], (count, 3)), 0)
    return Columns(
        pools=np.where(used, rng.integers(0, 2, (count, 3)), -1),
        units=units,
        rates_rps=np.where(used, units * rng.uniform(0.5, 1.5, (count, 3)), np.inf),
        groups=np.zeros((count, 0), np.int64),
        source=np.arange(count),
    )


def test_columns_are_the_same_whether_plain_python_compares_some_of_them_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = random_columns(1, 300)
    kept = exact_columns.undominated_columns(some, some.units)
    monkeypatch.setattr(exact_columns, "PLAIN_PAIRS", 5)

    assert 0 < len(kept) < 150
    assert (exact_columns.undominated_columns(some, some.units) == kept).all()


@pytest.mark.parametrize("compared_max", [0, 20, 100])
def test_where_columns_are_too_many_to_compare_none_is_lost(compared_max: int) -> None:
    some = random_columns(2, 300)
    kept = exact_columns.undominated_columns(some, some.units)

    found = exact_columns.undominated_columns(some, some.units, compared_max)

    assert set(kept) < set(found)
    assert (len(found) == 300) == (compared_max == 0)
