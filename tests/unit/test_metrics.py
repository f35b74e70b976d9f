"""Metrics against cases worked out by hand."""

import msgspec
import pytest

from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Dispatched,
    Dropped,
    EventLogHeader,
    Evicted,
    Loaded,
    LoadFailed,
    Loading,
    Ran,
    Reservation,
    SlotLost,
)
from headrace.domain.percentiles import percentile
from headrace.domain.request import Outcome
from headrace.metrics import (
    UNFINISHED,
    distribution,
    outcomes,
    run_report,
    slot_utilisation,
    summarise,
    weights_use,
)

HEADER = EventLogHeader(
    clock="virtual",
    policy="reservation",
    models=("a", "b"),
    pipelines=(("a/0",), ("b/0",)),
    slots=("s0", "s1", "s2"),
    nodes=("n0", "n0", "n1"),
)


def outcome(arrived: int, ended: int | None, slo: int = 100, reason: str = "") -> Outcome:
    return Outcome(
        arrived_at_us=arrived, deadline_at_us=arrived + slo, ended_at_us=ended, reason=reason
    )


FOUR = [
    outcome(0, 50),
    outcome(1_000_000, 1_000_100),  # on the deadline: in time
    outcome(2_000_000, 2_000_101),  # a microsecond late
    outcome(3_000_000, None, reason="deadline"),
]


def test_a_summary_of_four_requests_is_what_one_computes_by_hand() -> None:
    summary = summarise(FOUR)

    assert (summary.arrived, summary.answered, summary.in_time, summary.late) == (4, 3, 2, 1)
    assert summary.dropped == {"deadline": 1}
    assert summary.dropped_total == 1
    assert summary.slo_attainment == 0.5
    # Four arrivals in three seconds stand for four gaps of one second.
    assert summary.offer_span_us == 4_000_000
    assert summary.offered_rps == 1.0
    assert summary.throughput_rps == 0.75
    assert summary.goodput_rps == 0.5
    assert summary.latency is not None
    assert (summary.latency.p50_us, summary.latency.p99_us) == (100, 101)
    assert summary.latency.mean_us == pytest.approx(251 / 3)
    assert (summary.slack_p50_us, summary.slack_p1_us) == (0, -1)


def test_a_known_span_replaces_the_estimate() -> None:
    assert summarise(FOUR, span_us=8_000_000).offered_rps == 0.5


def test_latency_does_not_stretch_the_span_of_a_server_that_keeps_up() -> None:
    steady = [outcome(t * 1000, t * 1000 + 500_000, slo=600_000) for t in range(1000)]

    assert summarise(steady).throughput_rps == summarise(steady).offered_rps == 1000.0


def test_a_server_that_falls_behind_is_not_credited_with_the_offered_rate() -> None:
    falling = [outcome(t * 1000, t * 2000, slo=10_000_000) for t in range(1000)]

    summary = summarise(falling)

    assert summary.offered_rps == 1000.0
    assert summary.throughput_rps == 500.0


def test_nothing_arrived_leaves_ratios_and_rates_undefined() -> None:
    summary = summarise([])

    assert summary.arrived == 0
    assert summary.slo_attainment is None
    assert summary.latency is None
    assert summary.offered_rps is summary.goodput_rps is summary.slack_p50_us is None


def test_a_single_request_has_an_attainment_but_no_rate() -> None:
    summary = summarise([outcome(5, 20)])

    assert summary.slo_attainment == 1.0
    assert summary.offered_rps is None


@pytest.mark.parametrize(
    ("per_mille", "expected"), [(1, 1), (500, 50), (505, 51), (900, 90), (990, 99), (1000, 100)]
)
def test_percentiles_are_nearest_rank(per_mille: int, expected: int) -> None:
    assert percentile(range(1, 101), per_mille) == expected


def test_every_percentile_of_one_value_is_that_value() -> None:
    found = distribution([7])

    assert found is not None
    assert (found.p50_us, found.p999_us, found.max_us, found.mean_us) == (7, 7, 7, 7.0)


LOG: list[AnyEvent] = [
    Arrived(0, 0, 0, 1000),
    Arrived(10, 1, 0, 1010),
    Arrived(10, 2, 1, 1010),
    Dispatched(
        10, 0, 0, 0, 0, (0, 1), (Reservation(0, 0, 0, 10, 100), Reservation(2, 110, 5, 115, 50))
    ),
    Ran(110, 0, 0, 0, 10),
    Ran(170, 0, 1, 2, 120),
    Answered(170, 0, 0),
    Answered(170, 1, 0),
    Dropped(200, 2, "no-slot", 1000),
    Arrived(210, 3, 1, 1210),
]


def test_outcomes_follow_the_log_per_model_in_order_of_arrival() -> None:
    found = outcomes(HEADER, LOG)

    assert found["a"] == [outcome(0, 170, slo=1000), outcome(10, 170, slo=1000)]
    assert found["b"] == [
        outcome(10, None, slo=1000, reason="no-slot"),
        outcome(210, None, slo=1000, reason=UNFINISHED),
    ]


def test_slot_utilisation_is_busy_time_over_first_arrival_to_last_event() -> None:
    first, idle, last = slot_utilisation(HEADER, LOG)

    assert (first.slot, first.node, first.busy_us, first.batches) == ("s0", "n0", 100, 1)
    assert first.utilisation == pytest.approx(100 / 210)
    assert first.mean_batch_size == 2.0
    assert (idle.busy_us, idle.batches, idle.utilisation, idle.mean_batch_size) == (0, 0, 0.0, None)
    assert last.busy_us == 50


def test_a_load_whose_slot_is_lost_meanwhile_has_failed() -> None:
    log: list[AnyEvent] = [
        Loading(0, 0, 0, 0),
        Loading(0, 1, 1, 1),
        Loaded(100, 0, 0, 0, 10),
        SlotLost(200, 0),  # it had ended
        SlotLost(300, 1),
        Loading(400, 2, 1, 0),
        LoadFailed(500, 2, 1, 0),
        SlotLost(600, 1),  # it had failed
        Loading(700, 3, 0, 1),
        Loaded(800, 3, 0, 1, 710),
        Evicted(900, 0, 1),
        Loading(950, 4, 2, 0),  # it goes on
    ]
    use = weights_use(msgspec.structs.replace(HEADER, resident_bytes=(100, 200)), log)

    assert (use.loads, use.failed, use.evictions, use.moved_bytes) == (2, 2, 1, 300)


def test_a_report_has_every_model_and_their_total() -> None:
    report = run_report("simulated", HEADER, LOG)

    assert {name: s.arrived for name, s in report.models.items()} == {"a": 2, "b": 2}
    assert (report.total.arrived, report.total.in_time) == (4, 2)
    assert len(report.slots) == 3
