"""The exact search of `pooled` against its second engine, HiGHS over allotments."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.models import model_of
from headrace.planning.pooled.exactly import always_pack, search_exactly_pooled
from headrace.planning.pooled.search import PooledResult, search
from headrace.verify import verify
from helpers.lengthy import with_lengthy
from helpers.problems import HANG_S, QUARTERS, WHOLE, make_cluster, make_problem, make_profile

# One worker keeps what it has solved.
pytestmark = pytest.mark.xdist_group("pooled-engines")

HALVES = (Fraction(1), Fraction(1, 2))

SEEDS = with_lengthy(range(20), lengthy=[2, 4, 5, 8, *range(12, 20)])
"""Of some problems HiGHS takes seconds."""


def random_problem(seed: int, *, models: int) -> Problem:
    """Up to three models on up to nine devices of two types."""
    rng = np.random.default_rng(seed)
    shares = [WHOLE, HALVES, QUARTERS][int(rng.integers(3))]
    profiles = [
        make_profile(
            f"m{i}",
            blocks=4,
            max_batch=3,
            shares=shares,
            cut_bytes=int(rng.choice([10_000, 300_000])),
            seed=10 * seed + i,
        )
        for i in range(models)
    ]
    cluster = make_cluster(
        {"n0": {"a": int(rng.integers(1, 3)), "b": 2}, "n1": {"b": int(rng.integers(1, 4))}},
        shares=shares,
        gbps=float(rng.choice([0.5, 10.0])),
    )
    return make_problem(
        profiles,
        cluster=cluster,
        weights={p.model: float(rng.choice([0.3, 1.0])) for p in profiles},
        rates={"m0": 20.0} if rng.integers(2) else None,
        options=PlanOptions(objective="max-min", max_stages=2),
    )


def random_cost_problem(seed: int, *, models: int) -> Problem:
    """The same with prices, and rates of up to two thirds of what all devices give together."""
    rng = np.random.default_rng(1_000 + seed)
    problem = random_problem(seed, models=models)
    most = by_both_on_random(seed, models)[0].objective or 0.0
    part = float(rng.choice([0.1, 0.3, 0.6]))
    prices = {"a": float(rng.choice([1.0, 2.0, 0.7])), "b": float(rng.choice([0.0, 0.4, 1.0]))}
    return replace(
        problem,
        cluster=replace(
            problem.cluster,
            device_types=tuple(
                replace(kind, price_per_hour=prices[kind.name])
                for kind in problem.cluster.device_types
            ),
        ),
        demands=tuple(
            replace(demand, rate_rps=max(1.0, part * most * demand.weight))
            for demand in problem.demands
        ),
        options=replace(problem.options, objective="least-cost"),
    )


def by_both(problem: Problem) -> tuple[PooledResult, PooledResult]:
    hardware = Hardware.of(problem.cluster)
    models = [model_of(problem, hardware, demand) for demand in problem.demands]
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    columns = [model.pipelines for model in models]
    asked = Counting(hardware, wanted, columns, problem.options.objective)
    exact = search_exactly_pooled(asked, Deadline(HANG_S))
    assert exact is not None
    return exact, search(asked, Deadline(HANG_S))


@cache
def by_both_on_random(seed: int, models: int) -> tuple[PooledResult, PooledResult]:
    return by_both(random_problem(seed, models=models))


@pytest.mark.parametrize("seed", SEEDS)
def test_both_engines_prove_the_same_objective(seed: int) -> None:
    exact, highs = by_both_on_random(seed, 1 + seed % 3)

    assert exact.stopped == highs.stopped
    if highs.objective is not None:
        assert exact.objective == pytest.approx(highs.objective, rel=1e-6)
        assert exact.bound is not None
        assert exact.bound >= highs.objective * (1 - 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_engines_prove_the_same_cost_of_the_same_rates(seed: int) -> None:
    exact, highs = by_both(random_cost_problem(seed, models=1 + seed % 3))

    assert exact.stopped == highs.stopped
    if highs.objective is not None:
        assert exact.objective == pytest.approx(highs.objective, rel=1e-6, abs=1e-6)


def test_rates_beyond_all_devices_are_refused_by_both_engines() -> None:
    problem = random_cost_problem(3, models=2)
    greedy = tuple(replace(demand, rate_rps=1e6) for demand in problem.demands)

    exact, highs = by_both(replace(problem, demands=greedy))

    assert exact.stopped == highs.stopped == "infeasible"


@pytest.mark.parametrize("part", [0.05, 0.5, 0.95])
def test_the_least_cost_of_three_models_on_a_hundred_devices_is_proven(part: float) -> None:
    profiles = [
        make_profile(f"m{i}", blocks=6, max_batch=4, shares=QUARTERS, seed=20 + i) for i in range(3)
    ]
    problem = make_problem(
        profiles,
        cluster=make_cluster(
            {f"n{i}": {"a": 1, "b": 3} for i in range(25)},
            shares=QUARTERS,
            gbps=10.0,
            prices={"a": 1.0, "b": 0.35},
        ),
        options=PlanOptions(objective="max-min", max_stages=2, time_limit_s=HANG_S),
    )
    most = solve(problem).plan
    assert most is not None
    rated = tuple(replace(d, rate_rps=part * most.objective) for d in problem.demands)

    result = solve(
        replace(problem, demands=rated, options=replace(problem.options, objective="least-cost"))
    )

    assert result.plan is not None
    assert result.stopped == "optimal"
    assert verify(result.plan, problem.profiles) == []
    assert most.cost_per_hour is not None
    assert result.plan.objective <= most.cost_per_hour


@pytest.mark.parametrize("seed", SEEDS)
def test_neither_engine_uses_more_devices_than_the_other(seed: int) -> None:
    models = 1 + seed % 3
    problem = random_problem(seed, models=models)
    shares = [float(kind.share) for kind in Hardware.of(problem.cluster).kinds]
    owners = Hardware.of(problem.cluster).kind_device
    exact, highs = by_both_on_random(seed, models)

    def devices(outcome: PooledResult) -> int:
        if outcome.chosen is None:
            return 0
        use = sum(a.use.sum(axis=0) for a in outcome.chosen.allotments)
        amounts = np.bincount(owners, weights=use * shares)
        return int(np.ceil(amounts - 1e-9).sum())

    assert devices(exact) == devices(highs)


@pytest.mark.parametrize("seed", range(4))
def test_three_models_on_a_hundred_devices_are_proven_and_verify(seed: int) -> None:
    profiles = [
        make_profile(f"m{i}", blocks=8, max_batch=4, shares=QUARTERS, seed=7 * seed + i)
        for i in range(3)
    ]
    problem = make_problem(
        profiles,
        nodes={f"n{i}": {"a": 1, "b": 3} for i in range(25)},
        gbps=10.0,
        shares=QUARTERS,
        options=PlanOptions(objective="max-min", max_stages=2, time_limit_s=HANG_S),
    )

    result = solve(problem)

    assert result.stopped == "optimal"
    assert result.plan is not None
    assert result.bound == pytest.approx(result.plan.objective, rel=1e-6)
    assert verify(result.plan, problem.profiles) == []


def test_a_thousand_devices_are_planned_next_to_the_bound() -> None:
    profiles = [make_profile(f"m{i}", blocks=6, shares=HALVES, seed=i) for i in range(2)]
    problem = make_problem(
        profiles,
        nodes={f"n{i}": {"a": 2, "b": 6} for i in range(150)},
        gbps=10.0,
        shares=HALVES,
        options=PlanOptions(objective="max-min", time_limit_s=HANG_S),
    )

    plan = solve(problem).plan

    assert plan is not None
    assert plan.bound is not None
    assert plan.objective <= plan.bound <= plan.objective * 1.01
    assert verify(plan, problem.profiles) == []


@pytest.mark.parametrize(
    ("shares", "packs"),
    [
        (QUARTERS, True),
        (HALVES, True),
        ((Fraction(2, 3), Fraction(1, 3)), False),
        ((Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(1, 5)), False),
    ],
)
def test_shares_pack_whenever_they_add_up_only_where_that_was_tried(
    shares: tuple[Fraction, ...], packs: bool
) -> None:
    assert always_pack(shares) is packs


@pytest.mark.parametrize("seed", range(6))
def test_three_device_types_begin_from_whole_devices_per_model_and_end_at_the_best(
    seed: int,
) -> None:
    devices = {"a": 1.0, "b": 0.5, "c": 0.3}
    profiles = [
        make_profile(
            f"m{i}", blocks=3, devices=devices, max_batch=2, shares=HALVES, seed=50 + 2 * seed + i
        )
        for i in range(2)
    ]
    problem = make_problem(
        profiles,
        cluster=make_cluster({"n0": {"a": 1, "b": 2}, "n1": {"c": 2}}, shares=HALVES, gbps=10.0),
        options=PlanOptions(objective="max-min", max_stages=2),
    )

    started, alone = by_both(problem)

    assert started.stopped == alone.stopped == "optimal"
    assert started.objective == pytest.approx(alone.objective, rel=1e-6)
