"""Apps, models and stages of models on shared devices against trying everything."""

from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, product
from math import inf
from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.cluster import DeviceType
from headrace.domain.problem import Objective, Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.verify import verify
from helpers.lengthy import with_lengthy
from helpers.problems import make_profile, whole_model_us
from helpers.together import SHARES, SPLITS, cluster_of, together_problem


class Tried(NamedTuple):
    """What is a tenant of parts, as this test counts."""

    profile: Profile
    first: int
    end: int
    rate_rps: float
    batches: tuple[int, ...]
    device: str | None = None
    """Of a stage, which runs on one slot."""


class Chained(NamedTuple):
    """Tried by index, each after the one before, and what they may take together."""

    members: tuple[int, ...]
    budget_us: int


def latency_us(one: Tried, kind: DeviceType, share: object, batch: int) -> int:
    times = next(t for t in one.profile.block_times if (t.device, t.share) == (kind.name, share))
    return sum(times.p99_us[block][batch - 1] for block in range(one.first, one.end))


def ways(kind: DeviceType, tried: Sequence[Tried]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What every way to cut and fill one device carries, and how long it lets wait; useful ones."""
    choices: list[tuple[tuple[int, int], ...]] = [()]
    for size in range(1, len(tried) + 1):
        for some in combinations(range(len(tried)), size):
            choices += [
                tuple(zip(some, sizes, strict=True))
                for sizes in product(*(tried[m].batches for m in some))
            ]
    found = []
    for split in SPLITS:
        parts = [
            [part for choice in choices for part in [filled(kind, share, choice, tried)] if part]
            for share in split
        ]
        for chosen in product(*parts):
            weights = sum(part[2] for part in chosen)
            if kind.memory_bytes is None or weights <= kind.memory_bytes:
                rates = sum((part[0] for part in chosen), np.zeros(len(tried)))
                waits = np.maximum.reduce([part[1] for part in chosen])
                found.append((np.minimum(rates, [one.rate_rps for one in tried]), waits))
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for rates, waits in sorted(found, key=lambda way: (-way[0].sum(), way[1].sum())):
        if not any((rates <= r + 1e-12).all() and (waits >= w).all() for r, w in kept):
            kept.append((rates, waits))
    return kept


def filled(
    kind: DeviceType, share: object, choice: tuple[tuple[int, int], ...], tried: Sequence[Tried]
) -> tuple[np.ndarray, np.ndarray, int] | None:
    rates, waits = np.zeros(len(tried)), np.zeros(len(tried))
    held: dict[tuple[str, int], int] = {}
    own = [latency_us(tried[m], kind, share, batch) for m, batch in choice]
    duty = sum(own)
    for (m, batch), us in zip(choice, own, strict=True):
        one = tried[m]
        rates[m], waits[m] = batch * 1e6 / duty, duty + us
        for block in range(one.first, one.end):
            held[one.profile.model, block] = one.profile.blocks[block].weights_bytes
        if one.device is not None and (one.device != kind.name or rates[m] < one.rate_rps):
            return None
    return rates, waits, sum(held.values())


def least(problem: Problem, tried: Sequence[Tried], chains: Sequence[Chained]) -> float:
    """Price of the cheapest devices that carry everything in time; infinite: none do."""
    per_type = []
    for kind in problem.cluster.device_types:
        price = 1.0 if problem.options.objective == "least-devices" else kind.price_per_hour or 0.0
        some = ways(kind, tried)
        per_type.append(
            [
                (n * price, rows)
                for n in range(problem.cluster.count(kind.name) + 1)
                for rows in combinations_with_replacement(some, n)
            ]
        )
    best = inf
    asked = np.array([one.rate_rps for one in tried])
    for chosen in product(*per_type):
        price = sum(each[0] for each in chosen)
        if price >= best - 1e-9:
            continue
        rows = [row for each in chosen for row in each[1]]
        if not rows or (sum(row[0] for row in rows) < asked * (1 - 1e-9)).any():
            continue
        waits = np.maximum.reduce([row[1] for row in rows])
        if all(waits[list(chain.members)].sum() <= chain.budget_us for chain in chains):
            best = price
    return best


def agrees(problem: Problem, best: float) -> bool:
    """Whether the planner says the same; a plan must be proven and pass verification."""
    result = solve(problem)
    if result.plan is None:
        assert result.stopped == "infeasible", result.refusal
        return best == inf
    assert verify(result.plan, problem.profiles) == []
    assert result.stopped == "optimal"
    assert result.plan.objective == pytest.approx(best)
    return True


def small_profile(name: str, rng: np.random.Generator, blocks: int = 1) -> Profile:
    return make_profile(
        name,
        blocks=blocks,
        devices={"a": 1.0, "b": 0.6},
        max_batch=2,
        shares=SHARES,
        block_us=int(rng.integers(2_000, 9_000)) // blocks,
        fixed_fraction=float(rng.uniform(0.2, 0.8)),
        seed=int(rng.integers(1 << 30)),
    )


def app_beside_model(
    seed: int, objective: Objective = "least-cost"
) -> tuple[Problem, list[Tried], list[Chained]]:
    """A model, and an app of two modules in a chain."""
    rng = np.random.default_rng(seed)
    profiles = [small_profile(name, rng) for name in ("m", "one", "two")]
    slow = [whole_model_us(profile) for profile in profiles]
    fan_out = float(rng.choice([0.5, 1.0, 2.0]))
    rates = [float(rng.uniform(0.1, 0.6) * 1e6 / us) for us in slow]
    app_rps = min(rates[1], rates[2] / fan_out)
    model_slo = int(slow[0] * rng.uniform(2.2, 8))
    app_slo = int((slow[1] + slow[2]) * rng.uniform(2.2, 6))
    problem = together_problem(
        profiles,
        cluster_of({"a": 2, "b": 1}, {"a": 2.0, "b": float(rng.choice([0.7, 1.1, 1.6]))}),
        models={"m": (model_slo, rates[0])},
        app=(app_slo, app_rps),
        fan_out=fan_out,
        objective=objective,
    )
    asked = (rates[0], app_rps, app_rps * fan_out)
    tried = [
        Tried(profile, 0, 1, rate, (1, 2)) for profile, rate in zip(profiles, asked, strict=True)
    ]
    return problem, tried, [Chained((0,), model_slo), Chained((1, 2), app_slo)]


@pytest.mark.parametrize(
    ("objective", "seed"),
    with_lengthy(
        product(("least-cost", "least-devices"), range(8)),
        lengthy=[("least-cost", 0), ("least-devices", 0)],
    ),
)
def test_an_app_beside_a_model_costs_the_least_that_any_plan_does(
    seed: int, objective: Objective
) -> None:
    problem, tried, chains = app_beside_model(seed, objective)
    assert agrees(problem, least(problem, tried, chains))


@pytest.mark.parametrize("seed", [201, 207, 208, 210, 214, 226])
def test_where_memory_is_short_a_model_of_several_tenants_is_held_once(seed: int) -> None:
    """`m` serves by itself and in the app, as its second module."""
    problem, tried, chains = app_beside_model(seed)
    rng = np.random.default_rng(seed)
    [app] = problem.apps
    first, second = app.modules
    twice = replace(app, modules=(first, replace(second, model="m")))
    alone, one, two = tried
    weights = [sum(b.weights_bytes for b in t.profile.blocks) for t in (alone, one)]
    few = (max(weights), sum(weights), weights[0] + max(weights))
    kinds = tuple(
        replace(kind, memory_bytes=int(rng.choice(few))) for kind in problem.cluster.device_types
    )
    profiles = {name: profile for name, profile in problem.profiles.items() if name != "two"}
    problem = replace(
        problem,
        apps=(twice,),
        cluster=replace(problem.cluster, device_types=kinds),
        profiles=profiles,
        profile_refs=tuple(ref for ref in problem.profile_refs if ref.model != "two"),
    )
    tried = [alone, one, two._replace(profile=alone.profile)]
    assert agrees(problem, least(problem, tried, chains))


@pytest.mark.parametrize("seed", range(4))
def test_at_equal_gaps_everything_planned_is_in_time_without_a_margin(seed: int) -> None:
    problem, _, _ = app_beside_model(seed)
    plan = solve(problem).plan
    assert plan is not None
    rates = {demand.model: demand.rate_rps or 0.0 for demand in problem.demands}
    rates |= {app.name: app.rate_rps for app in problem.apps}
    arrivals = arrivals_for("uniform", rates, 100 / min(rates.values()), 1)
    report = simulate_apps(plan, problem.profiles, arrivals, jitter=False).report()
    assert report.total.arrived >= 200
    assert report.total.slo_attainment == 1.0


def forms(big: Profile, rate: float, slo_us: int) -> Iterator[tuple[list[Tried], list[Chained]]]:
    """Every way to cut it into two, once or twice."""
    for cut, batch, copies in product(range(1, len(big.blocks)), (1, 2), (1, 2)):
        for types in product(("a", "b"), repeat=2):
            stages = [
                Tried(big, first, end, rate / copies, (batch,), device)
                for _ in range(copies)
                for (first, end), device in zip(
                    ((0, cut), (cut, len(big.blocks))), types, strict=True
                )
            ]
            yield stages, [Chained((2 * i, 2 * i + 1), slo_us) for i in range(copies)]


@pytest.mark.parametrize("seed", range(6))
def test_a_model_that_no_device_holds_is_cut_the_cheapest_way(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    big, small = small_profile("big", rng, blocks=3), small_profile("small", rng)
    memory = int(0.8 * sum(block.weights_bytes for block in big.blocks))
    if any(block.weights_bytes > memory for block in (*big.blocks, *small.blocks)):
        pytest.skip("one block alone is too large")
    rate, other = (
        float(rng.uniform(0.2, 0.8) * 1e6 / whole_model_us(profile)) for profile in (big, small)
    )
    slo_us = int(whole_model_us(big) * rng.uniform(2.4, 7))
    small_slo = int(whole_model_us(small) * rng.uniform(2.5, 8))
    problem = together_problem(
        [big, small],
        cluster_of({"a": 2, "b": 1}, {"a": 2.0, "b": 1.2}, memory_bytes=memory),
        models={"big": (slo_us, rate), "small": (small_slo, other)},
    )
    options = problem.options
    assert options.max_stages == 3
    best = inf
    for stages, chains in forms(big, rate, slo_us):
        tried = [*stages, Tried(small, 0, 1, other, (1, 2))]
        best = min(best, least(problem, tried, [*chains, Chained((len(stages),), small_slo)]))
    result = solve(problem)
    if result.plan is not None:
        assert verify(result.plan, problem.profiles) == []
        assert result.stopped == "optimal"
        # Three stages, or more copies, may be cheaper than what was tried here.
        assert result.plan.objective <= best + 1e-9
        deepest = max(len(p.stages) for d in result.plan.deployments for p in d.pipelines)
        if deepest == 2:
            assert result.plan.objective == pytest.approx(best)
    else:
        assert best == inf
