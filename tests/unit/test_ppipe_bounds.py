"""Bounds of `benchmarks.ppipe.best`: windows of arrivals, and what rate and room let expect."""

from itertools import combinations

import numpy as np
import pytest
from benchmarks.ppipe.artifact.hardware import Hardware
from benchmarks.ppipe.carried import ANY, OURS, THEIRS, Session, attaining, bucket, carried_rps
from benchmarks.ppipe.fluid import capacity_rps
from benchmarks.ppipe.room import Promise, any_plan_by_room
from benchmarks.ppipe.windows import LONGEST_US, NO_WINDOWS, admitted, windows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.domain.problem import PlanOptions
from headrace.planning import solve
from helpers.artifact_plans import make_hardware
from helpers.problems import make_problem, make_profile, whole_model_us

ENDLESS = (1e9, 1e9)
"""A bucket that forbids nothing."""

POOL = make_hardware([[(2, 10_000)]], slo_us=25_000)

stages = st.tuples(st.integers(1, 3), st.integers(1_000, 20_000))
some_hardware = st.builds(
    make_hardware,
    st.lists(st.lists(stages, min_size=1, max_size=2), min_size=1, max_size=2),
    slo_us=st.integers(20_000, 60_000),
    transfer_us=st.sampled_from([0, 700]),
    batch=st.integers(1, 3),
)


def test_windows_of_one_pool_by_hand() -> None:
    spans_us, counts = windows_of(POOL)
    # Each of two slots starts two in 15 ms, at 0 and 10, and one more for every 10 ms: the third
    # of a slot, the fifth in all, is in time where it comes 5 ms after the first.
    assert spans_us[:3].tolist() == [5_000, 15_000, 25_000]
    assert counts[:3].tolist() == [4, 6, 8]


def test_of_batches_the_last_need_only_begin_in_time() -> None:
    spans_us, counts = windows_of(make_hardware([[(1, 10_000)]], slo_us=25_000, batch=3))
    assert (spans_us[0], counts[0]) == (5_000, 6)


def test_windows_end_before_steps_do() -> None:
    uneven = make_hardware([[(2, 7_000)], [(1, 19_000), (3, 411_000)]], slo_us=600_000)
    spans_us, counts = windows_of(uneven)
    assert LONGEST_US / 2 < spans_us[-1] <= LONGEST_US
    # The longer, the less it matters what can wait, and never less than what is worked off.
    least = capacity_rps(uneven) * spans_us / 1e6
    assert (counts >= least).all()


def test_a_link_is_passed_one_batch_at_a_time() -> None:
    two = make_hardware(
        [[(9, 1_000), (9, 1_000)]],
        slo_us=12_000,
        transfer_us=5_000,
        links=[0] * 9 + [*range(1, 10)],
    )
    # 12 ms less 1 before and 1 behind hold two transfers of 5.
    assert windows_of(two).counts[0] == 2


@settings(max_examples=15, deadline=None)
@given(some_hardware, st.integers(0, 1_000))
def test_no_dispatcher_answers_more_than_windows_and_bucket_admit(
    hardware: Hardware, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rate_rps = 1.1 * capacity_rps(hardware)
    at_us = np.cumsum(rng.exponential(1e6 / rate_rps, 200)).astype(np.int64)
    ours, theirs, most = (attaining(hardware, "m", each)(at_us) for each in (OURS, THEIRS, ANY))
    assert max(ours, theirs * (1 - 1e-9)) <= most + 1e-9


def test_first_come_first_served_admits_as_many_as_windows_do_where_there_is_one_pool() -> None:
    session = Session(seed=3, seconds=4.0)
    ours, bound = (carried_rps(POOL, "m", each, session, 180.0) for each in (OURS, ANY))
    assert ours == pytest.approx(bound, rel=0.005)
    # The bucket alone lets more pass.
    at_us = np.cumsum(np.random.default_rng(1).exponential(5_000, 2_000)).astype(np.int64)
    alone = admitted(at_us, *bucket(POOL), *NO_WINDOWS)
    assert admitted(at_us, *bucket(POOL), *windows_of(POOL)) < alone


@settings(max_examples=20, deadline=None)
@given(some_hardware, st.lists(st.integers(0, 30_000), min_size=1, max_size=9))
def test_admitting_whoever_fits_admits_most(hardware: Hardware, gaps_us: list[int]) -> None:
    at_us = np.cumsum(np.array(gaps_us, dtype=np.int64))
    spans_us, counts = windows_of(hardware)

    def keeps(chosen_us: np.ndarray) -> bool:
        return all(
            (chosen_us[count:] - chosen_us[: len(chosen_us) - count] >= span_us).all()
            for span_us, count in zip(spans_us, counts, strict=True)
            if count < len(chosen_us)
        )

    most = next(
        size
        for size in range(len(at_us), -1, -1)
        if any(keeps(at_us[list(rows)]) for rows in combinations(range(len(at_us)), size))
    )
    assert admitted(at_us, *ENDLESS, spans_us, counts) == most


def test_rate_and_room_tell_what_a_pool_carries() -> None:
    # Ten slots of 20 ms: 500 a second, of which 500 x 40 ms = 20 may wait.
    hardware = make_hardware([[(10, 20_000)]], slo_us=60_000)
    promise = Promise.of(hardware)
    assert promise == (500.0, 20.0)
    sessions = [Session(seed=seed, seconds=30.0) for seed in (1, 2, 3)]
    carried = [carried_rps(hardware, "m", OURS, session, 480.0) for session in sessions]
    # Of 14,000 Poisson arrivals there are 0.8 % more or fewer, each time.
    assert np.mean(carried) == pytest.approx(promise.carried_rps, rel=0.015)


def test_no_plan_promises_more_by_room_than_the_estimate() -> None:
    profiles = [make_profile(model=name) for name in ("a", "b")]
    problem = make_problem(
        profiles,
        slo_us={each.model: 3 * whole_model_us(each) for each in profiles},
        options=PlanOptions(planner="pooled", objective="max-min", max_stages=2),
    )
    promised = []
    for margin in (0.0, 0.2, 0.4):
        options = replace(problem.options, margin=margin)
        plan = solve(replace(problem, options=options)).plan
        assert plan is not None
        promised.append(
            {
                each.model: Promise(
                    each.throughput_rps,
                    sum(
                        p.throughput_rps * (each.slo_us - p.latency_us) / 1e6
                        for p in each.pipelines
                    ),
                )
                for each in plan.deployments
            }
        )
    worth = [min(each.carried_rps for each in promises.values()) for promises in promised]
    best = promised[int(np.argmax(worth))]
    assert any_plan_by_room(problem, best) >= max(worth) * 0.999


def test_more_room_and_more_rate_carry_more() -> None:
    carried = [Promise(1_000.0, room).carried_rps for room in (0.0, 5.0, 20.0, 80.0)]
    assert carried == sorted(carried)
    assert Promise(1_100.0, 20.0).carried_rps == pytest.approx(1.1 * carried[2])
    assert Promise(1_000.0, 80.0).credit_per_us < Promise(1_000.0, 5.0).credit_per_us
