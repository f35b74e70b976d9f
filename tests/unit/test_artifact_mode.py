"""Artifact mode on cases small enough to compute by hand. Times in microseconds."""

from fractions import Fraction

import numpy as np
import pytest
from benchmarks.ppipe.artifact import Mode, Outcome, poisson_us, run_session
from benchmarks.ppipe.artifact.hardware import Hardware, stage_links
from benchmarks.ppipe.artifact.reactive import enqueue
from benchmarks.ppipe.artifact.reactive_state import (
    ARRIVAL,
    FRONT,
    LINK,
    QUEUE,
    SLOT,
    open_session,
)
from benchmarks.ppipe.artifact.reservation import least_first_size

from helpers.artifact_plans import make_hardware, make_reference

WHOLE, HALF = Fraction(1), Fraction(1, 2)
MODES: tuple[Mode, ...] = ("reservation", "reactive")


def run(hardware: Hardware, *arrivals_us: int, mode: Mode = "reservation") -> Outcome:
    return run_session(hardware, np.array(arrivals_us, dtype=np.int64), mode)


def links(
    partitions: list[tuple[str, Fraction, int]], per_server: dict[str, int], index: int
) -> list[int]:
    plan = make_reference(partitions, per_server=per_server)
    return stage_links(plan, plan.deployments[0].pipelines[0].partitions, index)


def test_a_server_of_slices_shares_a_link() -> None:
    pool = [("hi", HALF, 5), ("lo", WHOLE, 3)]

    assert links(pool, {"hi": 2, "lo": 1}, 0) == [0, 0, 0, 0, 1]


def test_the_larger_server_of_sender_and_receiver_shares_a_link() -> None:
    pool = [("lo", WHOLE, 5), ("hi", WHOLE, 3)]

    assert links(pool, {"hi": 4, "lo": 2}, 0) == [0, 0, 0, 0, 1]


def test_in_the_last_stage_every_slot_has_its_own_link() -> None:
    pool = [("lo", WHOLE, 5), ("hi", WHOLE, 3)]

    assert links(pool, {"hi": 4, "lo": 2}, 1) == [0, 1, 2]


def test_objects_are_numbered_as_the_artifact_creates_them() -> None:
    hardware = make_hardware([[(3, 10), (1, 10)]], slo_us=100, links=[0, 0, 1, 2])

    session = open_session(hardware, np.zeros(1, np.int64), np.arange(4))

    assert session.objects.tolist() == [
        [QUEUE, 0],
        [LINK, 0],
        [SLOT, 0],
        [SLOT, 1],
        [LINK, 1],
        [SLOT, 2],
        [QUEUE, 1],
        [LINK, 2],
        [SLOT, 3],
        [FRONT, 2],
        [ARRIVAL, 0],
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_lone_request_takes_its_latencies_and_transfer(mode: Mode) -> None:
    hardware = make_hardware([[(1, 100), (1, 50)]], slo_us=1_000, transfer_us=10)

    outcome = run(hardware, 7, mode=mode)

    assert (outcome.started_us.tolist(), outcome.done_us.tolist()) == ([7], [7 + 160])


@pytest.mark.parametrize("mode", MODES)
def test_requests_at_one_instant_take_slots_in_index_order(mode: Mode) -> None:
    hardware = make_hardware([[(2, 100)]], slo_us=250)

    outcome = run(hardware, 0, 0, 0, mode=mode)

    assert outcome.done_us.tolist() == [100, 100, 200]


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_cannot_be_in_time_is_dropped_at_once(mode: Mode) -> None:
    hardware = make_hardware([[(1, 100)]], slo_us=199)

    outcome = run(hardware, 0, 0, 150, mode=mode)

    assert outcome.done_us.tolist() == [100, -1, 250]
    assert (outcome.on_time, outcome.late, outcome.dropped) == (2, 0, 1)


@pytest.mark.parametrize("mode", MODES)
def test_the_deadline_itself_is_in_time(mode: Mode) -> None:
    hardware = make_hardware([[(1, 100)]], slo_us=200)

    assert run(hardware, 0, 0, mode=mode).on_time == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_waits_for_one_more_until_that_is_a_microsecond_too_late(mode: Mode) -> None:
    # A pair must start by 900; at 901 it cannot, and the head goes alone only if it still can.
    hardware = make_hardware([[(1, 100)]], slo_us=1_000, batch=2)
    rising = hardware._replace(latency_us=np.array([[0, 60, 100]], dtype=np.int64))

    assert run(rising, 0, mode=mode).started_us.tolist() == [901]
    assert run(rising, 0, 500, mode=mode).done_us.tolist() == [600, 600]


@pytest.mark.parametrize("mode", MODES)
def test_a_wake_up_comes_before_an_arrival_at_the_same_instant(mode: Mode) -> None:
    hardware = make_hardware([[(2, 100)]], slo_us=1_000, batch=2)
    rising = hardware._replace(latency_us=np.array([[0, 60, 100]], dtype=np.int64))

    # The arrival at 901 would otherwise find the head still waiting; it begins a wait of its own.
    assert run(rising, 0, 901, mode=mode).started_us.tolist() == [901, 901 + 901]


def test_the_pipeline_that_waits_least_is_taken_not_the_faster_one() -> None:
    hardware = make_hardware([[(1, 300)], [(1, 100)]], slo_us=1_000)

    # Nobody waits at first: the plan's first pipeline wins the tie. Then the second does.
    assert run(hardware, 0, 0).done_us.tolist() == [300, 100]


def test_a_pipeline_of_batch_size_one_that_would_be_late_counts_an_slo_of_waiting() -> None:
    hardware = make_hardware([[(1, 300)], [(1, 100)]], slo_us=250)

    # The second request would wait 100 for the second pipeline and be in time.
    assert run(hardware, 0, 0).done_us.tolist() == [100, 200]


def test_reservations_avoid_a_slot_whose_uplink_is_taken_for_longer() -> None:
    # Slots 0 and 1 share a link, slot 2 has its own.
    hardware = make_hardware(
        [[(3, 100), (3, 10)]], slo_us=5_000, transfer_us=500, links=[0, 0, 1, 2, 3, 4]
    )

    outcome = run(hardware, 0, 1)

    # Behind request 0 on link 0 it would be done at 600 + 500 + 10.
    assert outcome.done_us.tolist() == [610, 611]


def test_an_uplink_serves_in_the_order_in_which_batches_end() -> None:
    hardware = make_hardware(
        [[(2, 100), (2, 10)]], slo_us=5_000, transfer_us=50, links=[0, 0, 1, 2]
    )

    # Both end at 100; slot 0 was created first.
    assert run(hardware, 0, 0).done_us.tolist() == [160, 210]


def test_downlinks_are_reserved_but_not_simulated() -> None:
    hardware = make_hardware([[(2, 100), (1, 10)]], slo_us=165, transfer_us=50)

    # The second transfer is promised for after the first (done at 210 > 165): dropped, although
    # execution would have had both there at 150.
    assert run(hardware, 0, 0).done_us.tolist() == [160, -1]


def test_the_reactive_scheduler_finds_out_at_the_second_pool() -> None:
    hardware = make_hardware([[(2, 100), (1, 10)]], slo_us=165, transfer_us=50)

    outcome = run(hardware, 0, 0, mode="reactive")

    # Both arrive at 150; the second would be done at 170.
    assert outcome.started_us.tolist() == [0, 0]
    assert outcome.done_us.tolist() == [160, -1]


def test_a_later_pool_serves_by_deadline_whatever_arrives_first() -> None:
    hardware = make_hardware([[(2, 100), (1, 40)]], slo_us=1_000)
    session = open_session(hardware, np.array([10, 20, 20, 30]), np.arange(3))

    for request in (3, 2, 0, 1):
        enqueue(session, 1, request)

    # Requests 1 and 2 have one deadline: the one that came first stays first.
    assert session.queued[1].tolist() == [0, 2, 1, 3]


def test_idle_slots_are_reused_least_recently_used_first() -> None:
    hardware = make_hardware(
        [[(2, 100), (2, 10)]], slo_us=1_000, transfer_us=50, links=[0, 0, 1, 2]
    )
    slow_first = run(hardware, 0, 110, 111, mode="reactive")

    # Slot 1 (never used) takes the second, slot 0 the third; the uplink is shared.
    assert slow_first.done_us.tolist() == [160, 270, 320]


@pytest.mark.parametrize(("planned", "least"), [(1, 1), (2, 2), (9, 9), (10, 10), (11, 10)])
def test_a_first_look_needs_nearly_the_planned_size(planned: int, least: int) -> None:
    assert least_first_size(planned) == least


def test_arrivals_begin_at_zero_and_keep_their_rate() -> None:
    at_us = poisson_us(1_000, 10_000_000, np.random.default_rng(3))

    assert at_us[0] == 0
    assert at_us[-1] < 10_000_000
    assert (np.diff(at_us) >= 0).all()
    assert len(at_us) == pytest.approx(10_000, abs=400)


def test_late_requests_count_only_when_asked_and_the_first_millisecond_never() -> None:
    outcome = Outcome(
        arrivals_us=np.array([0, 2_000, 3_000, 4_000]),
        started_us=np.array([-1, 2_000, 3_000, -1]),
        done_us=np.array([-1, 2_050, 3_200, -1]),
        busy_us=np.zeros(1, np.int64),
        slo_us=100,
    )

    assert outcome.attainment(lateness_counted=False) == pytest.approx(2 / 3)
    assert outcome.attainment(lateness_counted=True) == pytest.approx(1 / 3)
