"""The exact planner of shared devices against trying everything, on small random problems."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, product
from math import inf

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.interference import Interference
from headrace.domain.plan import Plan
from headrace.domain.problem import Objective, PlanOptions, Problem
from headrace.interference import slowdown_of, slowed_us, uses_of
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.shares.alone import CELLS, alone, least_rents
from headrace.planning.shares.arranging import needed
from headrace.planning.shares.combining import combined, shareable
from headrace.planning.shares.devices import devices_of
from headrace.planning.shares.master import Goal, Prices
from headrace.planning.shares.planner import pricing_of, workload
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.raising import raised
from headrace.planning.shares.rounding import Trial
from headrace.verify import verify
from helpers.lengthy import with_lengthy
from helpers.problems import make_problem, make_profile, whole_model_us, with_uneven_times
from helpers.shared import loudest_alone, make_interference, with_utilisation

HALF, FIFTH = Fraction(1, 2), Fraction(1, 5)
SHARES = (Fraction(1), 4 * FIFTH, HALF, FIFTH)
SPLITS = ((Fraction(1),), (HALF, HALF), (4 * FIFTH, FIFTH))

Tenants = tuple[tuple[int, int], ...]
"""(model, batch size) of each."""


def small_problem(
    seed: int, *, interference: bool, objective: Objective = "least-devices", types: int = 1
) -> Problem:
    rng = np.random.default_rng(seed)
    names = ["a", "b"][:types]
    profiles = []
    for m in range(int(rng.integers(2, 4))):
        profile = make_profile(
            f"m{m}",
            blocks=1,
            devices={name: 1.0 + 0.7 * i for i, name in enumerate(names)},
            max_batch=int(rng.integers(1, 4)),
            shares=SHARES,
            block_us=int(rng.integers(2_000, 9_000)),
            fixed_fraction=float(rng.uniform(0.2, 0.8)),
            seed=int(rng.integers(1 << 30)),
        )
        used = with_utilisation(profile, float(rng.uniform(0, 0.9)), float(rng.uniform(0, 0.9)))
        profiles.append(loudest_alone(used) if m % 2 else used)
    counts = {names[0]: 2 if types == 1 else 1, **dict.fromkeys(names[1:], 1)}
    prices = rng.choice([1.0, 1.5, 2.0, 3.5], size=types)
    load = float(rng.uniform(0.3, 1.3))
    problem = make_problem(
        profiles,
        cluster=Cluster(
            device_types=tuple(
                DeviceType(name=name, shares=SHARES, splits=SPLITS, price_per_hour=float(price))
                for name, price in zip(names, prices, strict=True)
            ),
            nodes=(Node(name="n", devices=counts),),
        ),
        slo_us={p.model: int(whole_model_us(p) * rng.uniform(2.2, 8)) for p in profiles},
        rates={
            p.model: float(2e6 * load / len(profiles) / whole_model_us(p) * rng.uniform(0.3, 1.7))
            for p in profiles
        },
        options=PlanOptions(planner="shares", objective=objective, margin=0.0, max_stages=1),
    )
    if objective == "max-min":
        demands = [replace(d, weight=d.rate_rps, rate_rps=None) for d in problem.demands]
        problem = replace(problem, demands=tuple(demands))
    documents = tuple(make_interference(name) for name in names) if interference else ()
    return replace(problem, interference=documents)


def part_tenants(problem: Problem) -> list[Tenants]:
    """Every set of up to three tenants with batch sizes, and an empty part."""
    found: list[Tenants] = [()]
    depths = [len(problem.profiles[d.model].block_times[0].p99_us[0]) for d in problem.demands]
    for size in (1, 2, 3):
        for models in combinations(range(len(depths)), size):
            for batches in product(*(range(1, depths[m] + 1) for m in models)):
                found.append(tuple(zip(models, batches, strict=True)))
    return found


def short_of_memory(problem: Problem, seed: int) -> Problem:
    """The same with rates that are easier to carry, and models of very different weights, of which
    a device holds some, but not each on its share of the memory."""
    rng = np.random.default_rng(seed)
    profiles = {}
    for name, profile in problem.profiles.items():
        (block,) = profile.blocks
        heavy = replace(block, weights_bytes=int(rng.choice([10, 20, 50, 100])))
        profiles[name] = replace(profile, blocks=(heavy,))
    demands = tuple(replace(d, rate_rps=d.rate_rps and d.rate_rps / 3) for d in problem.demands)
    problem = replace(problem, profiles=profiles, demands=demands)
    weights = weights_of(problem)
    few = [sum(weights), sum(weights) - min(weights), max(weights), 2 * max(weights)]
    kinds = tuple(
        replace(kind, memory_bytes=int(rng.choice(few)) + int(rng.integers(-1, 2)))
        for kind in problem.cluster.device_types
    )
    return replace(problem, cluster=replace(problem.cluster, device_types=kinds))


def weights_of(problem: Problem) -> list[int]:
    profiles = [problem.profiles[d.model] for d in problem.demands]
    return [sum(block.weights_bytes for block in profile.blocks) for profile in profiles]


def rates_on_device(problem: Problem, kind: DeviceType) -> list[np.ndarray]:
    """What every way to cut and fill one device carries of each model; dominated ones left out."""
    weights = weights_of(problem)
    memory = kind.memory_bytes if kind.memory_bytes is not None else sum(weights) * len(SHARES)
    document = next((each for each in problem.interference if each.device == kind.name), None)
    found = [np.zeros(len(problem.demands))]
    # What breaks a promise alone breaks it beside others, who make nobody faster.
    alone = {
        share: [
            tenants
            for tenants in part_tenants(problem)
            if carried(problem, kind, (share,), (tenants,), None) is not None
        ]
        for share in SHARES
    }
    for split in SPLITS:
        for parts in product(*(alone[share] for share in split)):
            if sum(weights[m] for tenants in parts for m, _ in tenants) > memory:
                continue
            rates = carried(problem, kind, split, parts, document)
            if rates is not None:
                found.append(rates)
    return undominated(found)


def carried(
    problem: Problem,
    kind: DeviceType,
    split: Sequence[Fraction],
    parts: Sequence[Tenants],
    document: Interference | None,
) -> np.ndarray | None:
    """Rates of each model, None where a promise is broken."""
    total = np.zeros(len(problem.demands))
    profiles = [problem.profiles[d.model] for d in problem.demands]
    uses = [
        [uses_of(profiles[m], kind.name, share, b) for m, b in tenants]
        for share, tenants in zip(split, parts, strict=True)
    ]
    for i, (share, tenants) in enumerate(zip(split, parts, strict=True)):
        others = [use for j, row in enumerate(uses) if j != i for use in row]
        latency = []
        for at, (m, batch) in enumerate(tenants):
            times = profiles[m].times(kind.name, share)
            assert times is not None
            # A slot runs what waits, and fewer may take longer.
            alone = max(sum(row[b] for row in times.p99_us) for b in range(batch))
            slowdown = slowdown_of(document, uses[i][at], others) if document else 1.0
            latency.append(slowed_us(alone, slowdown))
        duty = sum(latency)
        for (m, batch), own in zip(tenants, latency, strict=True):
            if duty + own > problem.demands[m].slo_us:
                return None
            total[m] += batch / duty * 1e6
    return total


def undominated(rows: list[np.ndarray]) -> list[np.ndarray]:
    kept: list[np.ndarray] = []
    for row in sorted(rows, key=lambda r: -r.sum()):
        if not any((row <= other).all() for other in kept):
            kept.append(row)
    return kept


def every_choice(problem: Problem) -> Iterator[tuple[float, float, np.ndarray]]:
    """(devices, price, rates) of every choice of devices."""
    per_type = []
    for kind in problem.cluster.device_types:
        ways = rates_on_device(problem, kind)
        options = [
            (n, n * (kind.price_per_hour or 0.0), sum(some, np.zeros(len(problem.demands))))
            for n in range(problem.cluster.count(kind.name) + 1)
            for some in combinations_with_replacement(ways, n)
        ]
        per_type.append(options)
    for choice in product(*per_type):
        yield (
            float(sum(n for n, _, _ in choice)),
            sum(price for _, price, _ in choice),
            sum((rates for _, _, rates in choice), np.zeros(len(problem.demands))),
        )


def best_by_trying(problem: Problem) -> float | None:
    """The objective of the best plan; None: there is none."""
    objective = problem.options.objective
    best: float | None = None
    weights = np.array([d.weight for d in problem.demands])
    asked = np.array([d.rate_rps or 0.0 for d in problem.demands])
    for devices, price, rates in every_choice(problem):
        if objective == "max-min":
            value = float((rates / weights).min())
            if value > 0:
                best = value if best is None else max(best, value)
        elif (rates >= asked * (1 - 1e-9)).all():
            value = devices if objective == "least-devices" else price
            best = value if best is None else min(best, value)
    return best


def checked(problem: Problem) -> Plan | None:
    """A plan that holds, proven but for a thousandth at most."""
    result = solve(problem)
    if result.plan is not None:
        assert verify(result.plan, problem.profiles) == []
        assert result.plan.gap is not None
        assert result.plan.gap <= 1e-3
    else:
        assert result.stopped == "infeasible"
    return result.plan


@pytest.mark.parametrize(
    ("types", "interference", "objective"),
    [
        pytest.param(
            *case,
            # Those that are alone tell as much, in a fifth of the time.
            marks=pytest.mark.lengthy if case[1:] == (True, "max-min") else (),
            id="-".join((str(case[0]), "beside" if case[1] else "alone", case[2])),
        )
        for case in product((1, 2), (False, True), ("least-devices", "least-cost", "max-min"))
    ],
)
def test_the_planner_of_shares_finds_what_trying_everything_finds(
    objective: Objective, interference: bool, types: int
) -> None:
    verdicts = []
    for seed in range(6):
        problem = small_problem(seed, interference=interference, objective=objective, types=types)

        plan, best = checked(problem), best_by_trying(problem)

        if best is None:
            assert plan is None, seed
        else:
            assert plan is not None, seed
            assert plan.objective == pytest.approx(best, rel=1e-6), seed
            assert plan.bound is not None
            assert (plan.bound - best) * (1 if objective == "max-min" else -1) >= -1e-6, seed
        verdicts.append(best)
    assert any(verdicts)


@pytest.mark.parametrize("interference", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("objective", ["least-devices", "least-cost"])
def test_devices_short_of_memory_are_divided_as_trying_everything_divides_them(
    objective: Objective, interference: bool
) -> None:
    verdicts = []
    for seed in range(10, 16):
        problem = small_problem(seed, interference=interference, objective=objective, types=2)
        problem = short_of_memory(problem, seed)

        plan, best = checked(problem), best_by_trying(problem)

        found = None if plan is None else plan.objective
        assert found == (None if best is None else pytest.approx(best, rel=1e-6)), seed
        verdicts.append(best)
    assert any(verdicts)
    assert not all(verdicts)


def test_times_that_fall_with_the_batch_size_are_planned_as_trying_everything_plans_them() -> None:
    verdicts = []
    for seed in range(20, 26):
        problem = small_problem(seed, interference=False, objective="max-min")
        uneven = {name: with_uneven_times(p, seed) for name, p in problem.profiles.items()}
        problem = replace(problem, profiles=uneven)

        plan, best = checked(problem), best_by_trying(problem)

        found = None if plan is None else plan.objective
        assert found == (None if best is None else pytest.approx(best, rel=1e-6)), seed
        verdicts.append(best)
    assert any(verdicts)


def priced(problem: Problem) -> tuple[Pricing, Goal, Prices | None]:
    """What the search for many devices starts with."""
    times = [SharedTimes.of(problem, kind.name) for kind in problem.cluster.device_types]
    most = problem.options.objective == "max-min"
    costs = [1.0 if most else float(t.device.price_per_hour or 0.0) for t in times]
    load = workload(problem, times)
    pricing = pricing_of(load, devices_of(problem, times, costs), Deadline(60.0))
    goal = Goal(most=most, cap=1e6 if most else 1.0)
    prices = pricing.of(goal)
    if most and prices is not None:
        goal = Goal(most=True, cap=prices.bound)
        prices = pricing.of(goal)
    return pricing, goal, None if prices is None or prices.missing else prices


@pytest.mark.parametrize("objective", ["least-cost", "max-min"])
@pytest.mark.parametrize("types", with_lengthy([1, 2], lengthy=[2]))
def test_a_raised_bound_excludes_no_plan_that_trying_everything_finds(
    objective: Objective, types: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = -1 if objective == "max-min" else 1
    raised_by, by_few = [], []
    for seed in range(8):
        problem = small_problem(seed, interference=False, objective=objective, types=types)
        best = best_by_trying(problem)
        pricing, goal, prices = priced(problem)
        if best is None or prices is None:
            continue
        beyond = best * (1 + sign * 0.2)

        bound = raised(pricing, goal, prices, beyond, time_limit_s=60.0)

        assert sign * (best - bound) >= -1e-6 * best, seed
        raised_by.append(sign * (bound - prices.bound) / best)
        with monkeypatch.context() as patch:
            # More parts within reach than are kept: the bound is of those that waste less.
            patch.setattr("headrace.planning.shares.pricing.KEPT_MAX", 40)
            nearer = raised(pricing, goal, prices, beyond, time_limit_s=60.0)
        assert sign * (best - nearer) >= -1e-6 * best, seed
        by_few.append(sign * (nearer - prices.bound) / best)
    assert min(raised_by + by_few) >= -1e-9
    assert max(raised_by) > 0.05
    assert max(by_few) > 0


def enlarged(problem: Problem, times: int) -> Problem:
    """So many times the devices and the rates."""
    nodes = tuple(
        replace(node, devices={kind: times * n for kind, n in node.devices.items()})
        for node in problem.cluster.nodes
    )
    demands = tuple(
        replace(d, rate_rps=None if d.rate_rps is None else d.rate_rps * times)
        for d in problem.demands
    )
    return replace(problem, cluster=replace(problem.cluster, nodes=nodes), demands=demands)


@pytest.mark.parametrize("objective", with_lengthy(["least-cost", "max-min"], lengthy=["max-min"]))
def test_plans_for_many_devices_are_whole_and_close_to_the_bound(objective: Objective) -> None:
    wasted = []
    for seed in range(4):
        problem = small_problem(seed, interference=False, objective=objective, types=2)
        pricing, goal, prices = priced(enlarged(problem, 20))
        if prices is None:
            continue
        asked = 0.8 * prices.bound if goal.most else 1.0
        trial = Trial.of(pricing, goal, prices, pricing.load.wanted(asked))
        assert trial is not None, seed

        chosen = trial.once(0, inf, Deadline(60.0), reach=4.0)

        assert chosen is not None, seed
        assert pricing.master.suffices(chosen, asked)
        assert needed(pricing.load, chosen, asked).count.sum() <= chosen.count.sum()
        if not goal.most:
            price = pricing.master.price(chosen)
            assert price >= raised(pricing, goal, prices, price, time_limit_s=60.0) - 1e-6
            wasted.append(price / prices.bound - 1)
    assert goal.most or np.mean(wasted) < 0.08


def test_the_few_shared_parts_with_which_a_plan_loses_least_do_as_well_as_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = small_problem(7, interference=False, objective="least-cost", types=2)
    pricing, goal, prices = priced(enlarged(problem, 20))
    assert prices is not None
    wanted = pricing.load.wanted(1.0)
    own = alone(pricing, prices, wanted)
    assert own is not None
    rents, device = least_rents(own, CELLS), prices.bound / prices.layouts.sum()

    def rent(most: int) -> tuple[int, float]:
        """Number of shared parts to choose from; the least rent found, with own parts."""
        monkeypatch.setattr("headrace.planning.shares.combining.PARTS", most)
        shared = shareable(pricing, goal, prices, wanted, own, device)
        rows = combined(shared, rents, device=device, moves=30_000, seed=0)
        missing = np.maximum(1 - shared.rate[rows].sum(axis=0), 0.0)
        cells = np.ceil(missing * CELLS).astype(np.int64)
        left = rents[np.arange(len(cells)), cells].sum()
        return len(shared.rent), float(shared.rent[rows].sum() + left)

    everything, least = rent(300)
    few, as_little = rent(4)

    assert (everything > 20, few) == (True, 4)
    assert as_little == pytest.approx(least)
    assert least < rents[:, -1].sum() - 0.01
