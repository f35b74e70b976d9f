"""Least cost within a cluster's stock against brute force over every plan that fits."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

import pytest

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase
from headrace.planning.apps.exact import fronts
from headrace.planning.apps.exact.walk import Effort
from headrace.planning.apps.exhaustive import stacks
from headrace.planning.apps.machines import Entry, schedule_of
from headrace.planning.apps.order import path_us
from headrace.planning.apps.stock.devices import DeviceStock, flat
from headrace.planning.apps.stock.search import cheapest_within
from headrace.planning.common.deadline import Deadline
from helpers.apps import CROSSED, DIAMOND
from helpers.lengthy import with_lengthy
from helpers.problems import HANG_S

COMBINATIONS_MAX = 150_000

ONE = ((),)
CHAIN = ((), (0,))
FORK = ((), (0,), (0,))

Slots = tuple[tuple[str, Fraction, int], ...]
"""(device, share, weights) of every slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """Apps that are small enough to try everything, and a cluster that is smaller still."""

    cases: tuple[AppCase, ...]
    cluster: Cluster
    weights_bytes: tuple[int, ...]


def make_small(rng: random.Random, graphs: Sequence[Sequence[Sequence[int]]]) -> Small:
    types = (
        DeviceType(
            name="a",
            price_per_hour=1.0,
            shares=(Fraction(1), Fraction(1, 2)),
            memory_bytes=rng.choice([None, 10]),
        ),
        DeviceType(name="b", price_per_hour=rng.choice([0.4, 1.7])),
        DeviceType(name="c", price_per_hour=1.1),
    )
    counts = {kind.name: rng.randint(0, 3) for kind in types}
    counts["a"] = max(1, counts["a"])
    cases = tuple(
        AppCase(
            name=f"app{i}",
            budget_us=rng.randint(100, 700) * 1000,
            modules=tuple(_module(rng, f"m{m}", types) for m in range(len(graph))),
            before=tuple(tuple(waits) for waits in graph),
        )
        for i, graph in enumerate(graphs)
    )
    return Small(
        cases=cases,
        cluster=Cluster(
            device_types=types,
            nodes=(Node(name="n", devices={name: n for name, n in counts.items() if n}),),
        ),
        weights_bytes=tuple(rng.randint(1, 9) for _ in flat(cases)),
    )


def _module(rng: random.Random, name: str, types: Sequence[DeviceType]) -> ModuleCase:
    candidates = []
    for _ in range(rng.randint(2, 4)):
        kind = rng.choice(types)
        share = rng.choice(kind.shares)
        batch, duration_us = rng.choice([1, 2, 4, 8]), rng.randint(5, 120) * 1000
        candidates.append(
            Candidate(
                batch=batch,
                duration_us=duration_us,
                rate_rps=1e6 * batch / duration_us,
                device=kind.name,
                share=share,
                price=float(kind.price_per_hour or 0.0) * float(share),
            )
        )
    slowest = min(candidate.rate_rps for candidate in candidates)
    return ModuleCase.of(name, rng.uniform(0.3, 3.0) * slowest, candidates)


Choice = tuple[int, float, Slots]
"""Worst case, cost, slots of one module."""


def choices(
    module: ModuleCase, budget_us: int, weights: int, memory: dict[str, int | None]
) -> list[Choice]:
    """Every stack of a module that no other one beats in time, cost and slots."""
    found: list[Choice] = []
    for stack in stacks(module.candidates, module.rate_rps):
        schedule = schedule_of(stack, module.rate_rps, "remaining")
        if schedule.worst_case_us <= budget_us:
            found.append(
                (schedule.worst_case_us, schedule.cost, tuple(_slots(stack, weights, memory)))
            )
    found.sort(key=lambda choice: (choice[0], choice[1]))
    kept: list[Choice] = []
    for one in found:
        if not any(other[1] <= one[1] and _within(other[2], one[2]) for other in kept):
            kept.append(one)
    return kept


def _slots(
    stack: Sequence[Entry], weights: int, memory: dict[str, int | None]
) -> Iterator[tuple[str, Fraction, int]]:
    for entry in stack:
        held = 0 if memory[entry.candidate.device] is None else weights
        for _ in range(max(1, round(entry.machines + 0.499_999))):
            yield entry.candidate.device, entry.candidate.share, held


def _within(some: Slots, others: Slots) -> bool:
    return all(some.count(slot) <= others.count(slot) for slot in set(some))


def fits(slots: Slots, cluster: Cluster) -> bool:
    """Whether every slot finds a device, by trying all of them."""
    for kind in cluster.device_types:
        mine = sorted((slot[1:] for slot in slots if slot[0] == kind.name), reverse=True)
        room = kind.memory_bytes if kind.memory_bytes is not None else 0
        if not _placed(mine, [(Fraction(1), room)] * cluster.count(kind.name)):
            return False
    return True


def _placed(slots: Sequence[tuple[Fraction, int]], free: list[tuple[Fraction, int]]) -> bool:
    if not slots:
        return True
    share, weights = slots[0]
    for room in set(free):
        if share <= room[0] and weights <= room[1]:
            rest = list(free)
            rest[rest.index(room)] = (room[0] - share, room[1] - weights)
            if _placed(slots[1:], rest):
                return True
    return False


def cheapest_by_trying(small: Small) -> float | None:
    """The least cost of all plans that fit; None: none does.

    Skips what would take too long.
    """
    memory = {kind.name: kind.memory_bytes for kind in small.cluster.device_types}
    weights = iter(small.weights_bytes)
    tried = [
        [choices(module, case.budget_us, next(weights), memory) for module in case.modules]
        for case in small.cases
    ]
    if prod(len(own) for modules in tried for own in modules) > COMBINATIONS_MAX:
        pytest.skip("too many combinations to try")
    apps = [
        [
            (sum(choice[1] for choice in chosen), tuple(s for choice in chosen for s in choice[2]))
            for chosen in product(*modules)
            if path_us(case.before, [choice[0] for choice in chosen]) <= case.budget_us
        ]
        for case, modules in zip(small.cases, tried, strict=True)
    ]
    plans = sorted(
        (
            (sum(cost for cost, _ in chosen), tuple(s for _, slots in chosen for s in slots))
            for chosen in product(*apps)
        ),
        key=lambda plan: plan[0],
    )
    return next((cost for cost, slots in plans if fits(slots, small.cluster)), None)


@pytest.mark.parametrize("seed", with_lengthy(range(80), lengthy=range(25, 80)))
@pytest.mark.parametrize(
    "graphs",
    [(ONE,), (CHAIN,), (FORK,), (ONE, ONE), (CHAIN, ONE), (ONE, ONE, ONE), (DIAMOND,), (CROSSED,)],
    ids=str,
)
def test_the_cheapest_plan_within_stock_is_what_brute_force_finds(
    seed: int, graphs: Sequence[Sequence[Sequence[int]]]
) -> None:
    small = make_small(random.Random(f"{seed} {graphs}"), graphs)
    tried = cheapest_by_trying(small)
    stock = DeviceStock.of(small.cluster, flat(small.cases), small.weights_bytes)

    found = cheapest_within(small.cases, stock, limit=Deadline(HANG_S))

    assert found.proven
    assert (found.machines is None) == (tried is None)
    if found.machines is not None:
        assert found.cost == pytest.approx(tried)
        assert found.bound <= found.cost
        schedules = [
            schedule
            for case, machines in zip(small.cases, found.machines, strict=True)
            for schedule in machines.schedules(case)
        ]
        assert sum(schedule.cost for schedule in schedules) == pytest.approx(found.cost)


@pytest.mark.parametrize("seed", range(100))
def test_a_search_that_ends_early_claims_no_more_than_is_true(seed: int) -> None:
    graphs = (CHAIN, ONE)
    small = make_small(random.Random(f"early {seed}"), graphs)
    tried = cheapest_by_trying(small)
    stock = DeviceStock.of(small.cluster, flat(small.cases), small.weights_bytes)

    at_once = cheapest_within(small.cases, stock, limit=Deadline(0.0))
    first = cheapest_within(small.cases, stock, limit=Deadline(HANG_S), first_will_do=True)

    least = float("inf") if tried is None else tried
    for found in (at_once, first):
        assert found.bound <= least * (1 + 1e-9)
        assert found.cost >= least * (1 - 1e-9)
        assert not found.proven or found.cost == pytest.approx(least)
    assert (first.machines is None) == (tried is None)


@pytest.mark.parametrize("nodes_max", [2, 5, 15])
@pytest.mark.parametrize("seed", with_lengthy(range(60), lengthy=range(20, 60)))
def test_walks_that_are_cut_short_claim_no_more_than_is_true(
    seed: int, nodes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fronts, "NODES_LIMITED", Effort(nodes_max, 1 << 60))
    small = make_small(random.Random(f"short {seed}"), (CHAIN, ONE))
    tried = cheapest_by_trying(small)
    stock = DeviceStock.of(small.cluster, flat(small.cases), small.weights_bytes)

    found = cheapest_within(small.cases, stock, limit=Deadline(HANG_S))

    least = float("inf") if tried is None else tried
    assert found.bound <= least * (1 + 1e-9)
    assert found.cost >= least * (1 - 1e-9)
    assert not found.proven or found.cost == pytest.approx(least)
