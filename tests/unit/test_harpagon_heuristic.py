"""What Harpagon's text leaves open, as our heuristic reads it (decision 0015)."""

import random

import pytest

from headrace.planning.apps.candidates import ModuleCase
from headrace.planning.apps.heuristics import schemes
from headrace.planning.apps.heuristics.scheduling import schedule_module
from headrace.planning.apps.heuristics.schemes import HARPAGON, plan_scheme
from headrace.planning.apps.heuristics.splitting import Splitter
from headrace.planning.apps.machines import Schedule
from helpers.apps import Rows, make_case, make_module, random_module

ROWS = [(8, 200, 1.0), (12, 320, 1.0), (3, 90, 1.0), (1, 50, 1.0)]
"""Batches of 12 are both slower and less efficient than batches of 8."""


def machines(schedule: Schedule | None) -> list[tuple[float, int]]:
    assert schedule is not None
    return [(round(e.machines, 9), e.candidate.batch) for e in schedule.entries]


def _on_two_devices(rows: list[tuple[int, float]], price: float) -> Rows:
    """Also three times as fast at a higher price, batches of two left out."""
    fast = [(batch, round(ms / 3), price) for batch, ms in rows if batch != 2]
    return [*((batch, ms, 1.0) for batch, ms in rows), *fast]


def cost_at(module: ModuleCase, budget_us: int) -> float | None:
    schedule = schedule_module(module, budget_us)
    return schedule.cost if schedule else None


def test_cost_direct_takes_the_latency_of_a_configuration_that_no_stand_in_would_be() -> None:
    """90/s: two machines of eight, and 10/s that batches of three carry within 390 ms."""
    case = make_case([("m", 90.0, ROWS)], budget_ms=460)
    splitter = Splitter(case, "remaining", merge=False, cost_at=cost_at)
    start = splitter.start()
    assert start is not None

    by_efficiency = splitter.budgets_us(splitter.run(start, "efficiency")[-1])
    by_cost = splitter.budgets_us(splitter.run(start, "cost")[-1])

    assert by_efficiency == (288_889,)
    assert by_cost == (453_334,)
    assert machines(schedule_module(case.modules[0], by_efficiency[0])) == [(2, 8), (0.5, 1)]
    assert machines(schedule_module(case.modules[0], by_cost[0])) == [(2, 8), (0.3, 3)]


def test_cost_direct_prices_merged_modules_within_the_budget_that_they_share() -> None:
    asked: dict[str, set[int]] = {}

    def noted(module: ModuleCase, budget_us: int) -> float | None:
        asked.setdefault(module.name, set()).add(budget_us)
        return cost_at(module, budget_us)

    case = make_case(
        [("first", 10.0, [(1, 5, 1.0)]), ("left", 90.0, ROWS), ("right", 40.0, [(2, 30, 1.0)])],
        budget_ms=500,
        before=[(), (0,), (0,)],
    )
    splitter = Splitter(case, "remaining", merge=True, cost_at=noted)
    start = splitter.start()
    assert start is not None

    end = splitter.budgets_us(splitter.run(start, "cost")[-1])

    assert end[1:] == (453_334, 453_334)
    assert asked["left"] == asked["right"]


def test_dummy_load_may_fill_the_first_machine_of_a_configuration_that_had_none() -> None:
    """30/s cannot collect 8 within 420 ms, 40/s can: one machine, where the rest takes 1.5."""
    module = make_module("m", 30.0, [(8, 200, 1.0), (1, 50, 1.0)])

    filled = schedule_module(module, 420_000)

    assert machines(filled) == [(1, 8)]
    assert filled is not None
    assert filled.dummy_rps == pytest.approx(10.0)
    assert machines(schedule_module(module, 420_000, dummy=False)) == [(1, 1), (0.5, 1)]
    assert machines(schedule_module(module, 399_000)) == [(1, 1), (0.5, 1)]


@pytest.mark.parametrize("seed", range(80))
def test_dummy_load_keeps_to_the_number_of_configurations_and_never_costs(seed: int) -> None:
    rng = random.Random(seed)
    module, budget_us = random_module(rng), rng.randint(20, 600) * 1000
    for configurations in (1, 2, None):
        plain, filled = (
            schedule_module(module, budget_us, configurations=configurations, dummy=dummy)
            for dummy in (False, True)
        )
        assert (plain is None) == (filled is None)
        if plain is None or filled is None:
            continue
        assert filled.cost <= plain.cost
        assert filled.worst_case_us <= budget_us
        kinds = {entry.candidate for entry in filled.entries}
        assert configurations is None or len(kinds) <= configurations


def test_more_than_four_moves_are_worth_taking_back(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(
        [
            ("a", 195.0, _on_two_devices([(1, 65), (2, 83), (4, 121), (8, 195), (16, 345)], 2.0)),
            ("b", 194.0, _on_two_devices([(1, 65), (2, 78), (4, 106), (8, 161), (16, 271)], 2.0)),
            ("c", 154.0, _on_two_devices([(1, 37), (2, 43), (4, 53), (8, 74), (16, 116)], 4.0)),
        ],
        budget_ms=415,
    )
    chosen = plan_scheme(case, HARPAGON)
    monkeypatch.setattr(schemes, "CHOSEN_UNDO_MAX", 4)
    fewer = plan_scheme(case, HARPAGON)

    assert chosen is not None
    assert fewer is not None
    assert chosen.cost < fewer.cost
