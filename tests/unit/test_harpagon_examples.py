"""Harpagon's worked examples, to the digit (Tables I and II, section III)."""

import pytest

from headrace.planning.apps.candidates import worst_case_us
from headrace.planning.apps.exact.fronts import front_schedule, module_front
from headrace.planning.apps.exact.walk import Effort
from headrace.planning.apps.heuristics.scheduling import schedule_module
from headrace.planning.apps.heuristics.splitting import Splitter, latency_cost, module_options
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.solve import solve_app
from helpers.apps import M1, M3, make_candidate, make_case, make_module


def machines(schedule: Schedule | None) -> list[tuple[float, int]]:
    assert schedule is not None
    return [(round(e.machines, 9), e.candidate.batch) for e in schedule.entries]


@pytest.mark.parametrize(
    ("reading", "configurations", "dummy", "cost", "expected"),
    [
        ("twice", 2, False, 6.3, [(6, 8), (0.3, 2)]),
        ("remaining", 2, False, 5.9, [(4, 32), (1, 2), (0.9, 2)]),
        ("remaining", None, False, 5.3, [(4, 32), (1, 8), (0.3, 2)]),
        ("remaining", None, True, 5.0, [(5, 32)]),
    ],
    ids=["S1", "S2", "S3", "S4"],
)
def test_table_two_comes_out_as_printed(reading, configurations, dummy, cost, expected) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    found = schedule_module(
        make_module("M3", 198.0, M3),
        1_000_000,
        reading=reading,
        configurations=configurations,
        dummy=dummy,
    )

    assert found is not None
    assert found.cost == pytest.approx(cost, abs=1e-9)
    assert machines(found) == expected


def test_the_last_schedule_of_table_two_has_two_dummy_requests_per_second() -> None:
    found = schedule_module(make_module("M3", 198.0, M3), 1_000_000)

    assert found is not None
    assert found.dummy_rps == pytest.approx(2.0)


def test_no_schedule_of_that_form_is_cheaper_than_the_last_of_table_two() -> None:
    front = module_front(make_module("M3", 198.0, M3), 1_000_000, form="part")

    assert front.proven
    assert front.cost[-1] == pytest.approx(5.0)


def test_five_machines_that_share_the_load_of_table_two_evenly_cost_less_than_full_ones() -> None:
    module = make_module("M3", 198.0, M3)
    front = module_front(module, 1_000_000)
    best = front_schedule(module, front, len(front) - 1)

    assert front.proven
    assert best.cost == pytest.approx(4.95)
    assert [entry.machines for entry in best.entries] == [pytest.approx(4.95)]
    # All of them collect at the module's whole rate.
    assert best.worst_case_us == 800_000 + 161_617
    assert best.dummy_rps == 0


def test_batch_aware_dispatch_of_figure_four_waits_2_75_s() -> None:
    a = make_candidate(6, 2000)

    assert worst_case_us("remaining", a, 8.0, 2) == 2_750_000


def test_latency_cost_efficiency_of_module_one_is_50_and_18_2() -> None:
    module = make_module("M1", 100.0, M1)
    options = {
        c.batch: o
        for c, o in zip(module.candidates, module_options(module, "remaining"), strict=True)
    }

    def per_second(new: int) -> float:
        return 1e6 * latency_cost([options[2]], [options[new]])

    assert per_second(4) == pytest.approx(50.0)
    assert per_second(8) == pytest.approx(18.2, abs=0.05)


def test_algorithm_two_takes_the_more_efficient_step_first() -> None:
    splitter = Splitter(make_case([("M1", 100.0, M1)], budget_ms=250), "remaining", merge=False)
    start = splitter.start()
    assert start is not None

    states = splitter.run(start, "efficiency")

    assert [state[0].latency_us for state in states] == [180_000, 240_000]


def test_batch_dispatch_needs_four_machines_where_round_robin_needs_five() -> None:
    module = make_module("M1", 100.0, M1)

    batches = schedule_module(module, 400_000, dummy=False)
    single = schedule_module(module, 400_000, reading="twice", dummy=False)

    assert machines(batches) == [(4, 8)]
    assert machines(single) == [(5, 4)]


def test_a_batch_of_one_waits_at_most_for_the_one_before() -> None:
    alone = make_candidate(1, 50)

    assert worst_case_us("remaining", alone, 0.5, 0.025) == 100_000


def test_a_walk_that_is_cut_short_says_so_and_states_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case([("M3", 198.0, M3)], budget_ms=1000)
    monkeypatch.setattr("headrace.planning.apps.solve.FIRST", Effort(3, 3))

    found = solve_app(case, "harpagon-optimal", time_limit_s=0.0)

    assert found is not None
    assert found.stopped == "time-limit"
    assert found.bound is not None
    assert found.bound <= 5.0 <= found.cost + 1e-9
