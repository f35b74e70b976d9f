"""What the reservation policy promises, one scenario each."""

import numpy as np
import pytest

from headrace.dispatch.topology import StageTable
from headrace.domain.events import Answered, Dispatched, Dropped, Ran
from helpers.sim import Sim, request
from helpers.topologies import assert_runs_as_logged, make_route, make_stage, make_topology


def runs(sim: Sim) -> list[tuple[int, int, int, int]]:
    """(batch, slot, started, ended) of every execution."""
    return [(e.batch, e.slot, e.started_at_us, e.at_us) for e in sim.events if isinstance(e, Ran)]


def sizes(sim: Sim) -> list[int]:
    return [len(e.requests) for e in sim.events if isinstance(e, Dispatched)]


def dropped(sim: Sim) -> list[int]:
    return [e.request for e in sim.events if isinstance(e, Dropped)]


def test_an_idle_path_starts_a_partial_batch_at_once() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [10, 12, 14]))]))
    sim.run([request(0, 5, 1_000)])
    assert runs(sim) == [(0, 0, 5, 15)]


def test_requests_that_wait_for_a_busy_slot_share_the_next_batch() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [10, 12, 14]))]))
    sim.run([request(i, i, 1_000) for i in range(4)])
    assert sizes(sim) == [1, 3]
    assert runs(sim)[1] == (1, 0, 10, 24)


def test_the_paper_s_rule_waits_until_a_fuller_batch_would_miss_its_deadline() -> None:
    # Two would still make it if they started at 88; from 89 on only one does, and it is there.
    route = make_route(make_stage([0], [10, 12]))
    sim = Sim(make_topology([route]), policy="reservation-fill")
    sim.run([request(0, 0, 100)])
    assert runs(sim) == [(0, 0, 89, 99)]


def test_a_tighter_request_is_not_kept_waiting_for_a_full_batch() -> None:
    route = make_route(make_stage([0], [10, 12, 14]))
    sim = Sim(make_topology([route]), policy="reservation-fill")
    sim.run([request(0, 0, 1_000), request(1, 5, 30, priority=1)])
    assert runs(sim) == [(0, 0, 17, 29)]


def test_a_full_batch_does_not_wait() -> None:
    route = make_route(make_stage([0], [10, 12]))
    sim = Sim(make_topology([route]), policy="reservation-fill")
    sim.run([request(0, 0, 100), request(1, 3, 100)])
    assert runs(sim) == [(0, 0, 3, 15)]


def test_the_batch_shrinks_to_what_the_first_deadline_allows() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [10, 20, 30, 40]))]))
    sim.run([request(0, 0, 1_000)] + [request(i, 1, 41) for i in range(1, 5)])
    # The slot is free at 10: three requests would end at 40, four at 50.
    assert sizes(sim) == [1, 3]
    assert dropped(sim) == [4]


def test_a_request_that_cannot_make_it_is_dropped_on_arrival_and_told_when_to_retry() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [100]))]))
    sim.run([request(0, 0, 1_000), request(1, 0, 150)])
    ((refused, reason, retry_after_us),) = sim.driver.refused
    assert (refused.id, reason, retry_after_us) == (1, "deadline", 50)


def test_the_spread_of_the_path_counts_against_the_deadline() -> None:
    stage = make_stage([0], [100], p99_us=[130])
    sim = Sim(make_topology([make_route(stage)]))
    sim.run([request(0, 0, 129), request(1, 0, 130)])
    assert dropped(sim) == [0]


def test_each_stage_takes_the_slot_on_which_it_ends_first() -> None:
    route = make_route(make_stage([0, 1], [10]), make_stage([2], [20]))
    sim = Sim(make_topology([route]))
    sim.run([request(0, 0, 1_000), request(1, 0, 1_000)])
    assert runs(sim) == [(0, 0, 0, 10), (1, 1, 0, 10), (0, 2, 10, 30), (1, 2, 30, 50)]


def test_the_least_waiting_pipeline_is_chosen() -> None:
    one = make_route(make_stage([0], [10]), name="p0")
    two = make_route(make_stage([1], [15]), name="p1")
    sim = Sim(make_topology([one, two]))
    sim.run([request(0, 0, 1_000), request(1, 0, 1_000)])
    assert [e.pipeline for e in sim.events if isinstance(e, Dispatched)] == [0, 1]


def test_another_pipeline_is_asked_before_a_request_is_dropped() -> None:
    slow_idle = make_route(make_stage([0], [100]), name="p0")
    fast_busy = make_route(make_stage([1], [10]), name="p1")
    sim = Sim(make_topology([slow_idle, fast_busy]))
    sim.run([request(0, 0, 50), request(1, 0, 50)])
    assert dropped(sim) == []
    assert [slot for _, slot, _, _ in runs(sim)] == [1, 1]


def test_a_transfer_waits_for_the_link_that_another_batch_was_promised() -> None:
    # Two senders on node 0 share its uplink; 100 bytes at 10 bytes/us take 10 us.
    route = make_route(make_stage([0, 1], [10]), make_stage([2, 3], [10], input_bytes=100))
    topology = make_topology([route], slot_node=[0, 0, 1, 2], bytes_per_us=10.0)
    sim = Sim(topology)
    sim.run([request(0, 0, 1_000), request(1, 0, 1_000)])
    assert runs(sim) == [(0, 0, 0, 10), (1, 1, 0, 10), (0, 2, 20, 30), (1, 2, 30, 40)]


def test_nothing_is_transferred_within_a_node() -> None:
    route = make_route(make_stage([0], [10]), make_stage([1], [10], input_bytes=10_000))
    sim = Sim(make_topology([route], slot_node=[0, 0], bytes_per_us=1.0))
    sim.run([request(0, 0, 1_000)])
    assert runs(sim) == [(0, 0, 0, 10), (0, 1, 10, 20)]


def test_a_gap_before_a_promise_is_filled_when_the_filler_fits() -> None:
    # Model 0 reaches slot 1 at 100; model 1 needs slot 1 alone, for 40.
    two_stages = make_route(make_stage([0], [100]), make_stage([1], [50]))
    short = make_route(make_stage([1], [40]))
    sim = Sim(make_topology([two_stages], [short]))
    sim.run([request(0, 0, 1_000), request(1, 10, 1_000, model=1)])
    assert runs(sim) == [(1, 1, 10, 50), (0, 0, 0, 100), (0, 1, 100, 150)]


def test_a_gap_that_is_too_short_is_left_alone() -> None:
    two_stages = make_route(make_stage([0], [100]), make_stage([1], [50]))
    long = make_route(make_stage([1], [95]))
    sim = Sim(make_topology([two_stages], [long]))
    sim.run([request(0, 0, 1_000), request(1, 10, 1_000, model=1)])
    assert runs(sim) == [(0, 0, 0, 100), (0, 1, 100, 150), (1, 1, 150, 245)]


def test_an_early_end_lets_the_next_batch_start_early() -> None:
    sim = Sim(
        make_topology([make_route(make_stage([0], [100]))]),
        durations=lambda stage, size: 60,
    )
    sim.run([request(0, 0, 1_000), request(1, 0, 1_000)])
    assert runs(sim) == [(0, 0, 0, 60), (1, 0, 60, 120)]


def test_after_an_overrun_new_promises_count_from_reality() -> None:
    # The first batch, promised to end at 100, runs until 200.
    took = iter([200, 100, 100])
    sim = Sim(make_topology([make_route(make_stage([0], [100]))]), durations=lambda *_: next(took))
    sim.run([request(0, 0, 1_000), request(1, 150, 251), request(2, 150, 1_000)])
    # At 150 the slot counts as busy a little longer: request 1 (needs a start by 151) is refused.
    assert dropped(sim) == [1]
    assert runs(sim) == [(0, 0, 0, 200), (1, 0, 200, 300)]


def test_a_batch_that_all_its_requests_find_too_late_is_dropped_between_stages() -> None:
    took = iter([95, 10])
    route = make_route(make_stage([0], [10]), make_stage([1], [10]))
    sim = Sim(make_topology([route]), durations=lambda *_: next(took))
    sim.run([request(0, 0, 100)])
    assert dropped(sim) == [0]
    assert len(runs(sim)) == 1


def test_priority_goes_before_deadline() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [100, 110, 120, 130]))], slo_us=10_000))
    sim.run(
        [
            request(0, 0, 10_000),
            request(1, 1, 9_000, priority=1),
            request(2, 2, 9_500, priority=1),
            request(3, 3, 10_000, priority=0),
        ]
    )
    answered = [e.request for e in sim.events if isinstance(e, Answered)]
    assert answered == [0, 3, 1, 2]


@pytest.mark.parametrize(("spread", "least"), [(1.1, 0.97), (1.3, 0.95), (1.6, 0.9)])
@pytest.mark.parametrize("pools", [([0], [1]), ([0, 1], [2, 3])])
def test_lateness_is_passed_on_so_that_overload_wastes_no_work(
    pools: tuple[list[int], list[int]], spread: float, least: float
) -> None:
    """At twice the capacity, whatever the spread, nearly all of it is used for answers in time."""
    first = make_stage(pools[0], [10_000], p99_us=[int(10_000 * spread)])
    second = make_stage(pools[1], [8_500], p99_us=[int(8_500 * spread)])
    sim = Sim(make_topology([make_route(first, second)]), jitter_seed=1)
    capacity_rps = len(pools[0]) / 0.010
    rng = np.random.default_rng(0)
    at_us = np.cumsum(rng.exponential(1e6 / (2 * capacity_rps), size=4_000)).astype(int).tolist()
    sim.run([request(i, at, at + 120_000) for i, at in enumerate(at_us)])
    in_time = sum(
        isinstance(event, Answered) and event.at_us <= at_us[event.request] + 120_000
        for event in sim.events
    )
    assert in_time / (at_us[-1] / 1e6) >= least * capacity_rps


def test_a_batch_that_ends_late_keeps_its_place_before_those_behind_it() -> None:
    # The first batch leaves stage 0 at 110 instead of 100; the second, promised the second
    # stage's slot right behind it, is still on stage 0 and must not make it wait.
    took = iter([110, 95, 100, 95])
    route = make_route(make_stage([0], [100]), make_stage([1], [95]))
    sim = Sim(make_topology([route]), durations=lambda *_: next(took))
    sim.run([request(0, 0, 10_000), request(1, 0, 10_000)])
    assert [(b, slot, start) for b, slot, start, _ in runs(sim)] == [
        (0, 0, 0),
        (0, 1, 110),
        (1, 0, 110),
        (1, 1, 210),
    ]


def test_a_slot_whose_uplink_is_free_is_preferred() -> None:
    # Slots 0 and 1 share node 0's uplink, which 200 bytes occupy for 20 us; slot 2 has its own.
    route = make_route(make_stage([0, 1, 2], [10]), make_stage([3, 4], [10], input_bytes=200))
    topology = make_topology([route], slot_node=[0, 0, 1, 2, 3], bytes_per_us=10.0)
    sim = Sim(topology)
    sim.run([request(0, 0, 1_000), request(1, 0, 1_000)])
    assert [slot for _, slot, start, _ in runs(sim) if start == 0] == [0, 2]


def test_under_lasting_overload_batches_stay_full() -> None:
    # Full batches carry one request per 10 us, single ones one per 18; 1.2 come per 10 us.
    route = make_route(make_stage([0], [18, 20]))
    sim = Sim(make_topology([route], slo_us=60))
    sim.run([request(i, i * 8, i * 8 + 60) for i in range(1_000)])
    single = sizes(sim).count(1)
    assert single <= 0.02 * len(sizes(sim))
    assert len(dropped(sim)) <= 0.22 * 1_000


def test_until_the_path_is_idle_again_one_batch_shrinks() -> None:
    # As many requests come as full batches carry, so that their deadlines are never far away.
    at_us = np.cumsum(np.random.default_rng(0).exponential(50, 4_000)).astype(int).tolist()
    sim = Sim(make_topology([make_route(make_stage([0, 1], [180, 200]))]))
    sim.run([request(i, at, at + 1_000) for i, at in enumerate(at_us)])
    shrunk = [0]
    for batch in (e for e in sim.events if isinstance(e, Dispatched)):
        if batch.path[0].start_at_us == batch.at_us:
            shrunk.append(0)
        elif len(batch.requests) == 1:
            shrunk[-1] += 1
    assert set(shrunk) == {0, 1}


def test_who_goes_on_by_another_slot_says_so_as_its_stage_begins() -> None:
    first, second = make_stage([0, 1], [100], p99_us=[200]), make_stage([2, 3], [100], p99_us=[200])
    sim = Sim(make_topology([make_route(first, second)]), jitter_seed=5)
    sim.run([request(i, i * 60, i * 60 + 1_000) for i in range(200)])
    assert_runs_as_logged(sim.events)
    paths = [e for e in sim.events if isinstance(e, Dispatched)]
    promised = {e.batch: e.path[1].slot for e in paths if e.first_stage == 0}
    later = [e for e in paths if e.first_stage]
    assert later, "some do"
    assert all(e.path[0].slot != promised[e.batch] for e in later), "not for other times alone"
    began = {e.batch: e.at_us for e in sim.events if isinstance(e, Ran) and e.stage == 0}
    assert [e.at_us for e in later] == [began[e.batch] for e in later]


NO_DEARER_US = [60, 104, 154, 200]
"""Per request 60, 52, 51.3 and 50: of the smaller sizes only a single one is dearer."""


def test_in_a_burst_sizes_that_take_hardly_longer_per_request_go_more_than_once() -> None:
    at_us = np.cumsum(np.random.default_rng(0).exponential(55, 4_000)).astype(int).tolist()
    sim = Sim(make_topology([make_route(make_stage([0], NO_DEARER_US))], slo_us=600))
    sim.run([request(i, at, at + 600) for i, at in enumerate(at_us)])
    since_idle: list[list[int]] = [[]]
    for batch in (e for e in sim.events if isinstance(e, Dispatched)):
        if batch.path[0].start_at_us == batch.at_us:
            since_idle.append([])
        elif len(batch.requests) < 4:
            since_idle[-1].append(len(batch.requests))
    assert max(len(smaller) for smaller in since_idle) > 3
    assert max(smaller.count(1) for smaller in since_idle) == 1


def test_under_lasting_overload_they_go_once_too() -> None:
    slo_us = 600
    sim = Sim(make_topology([make_route(make_stage([0], NO_DEARER_US))], slo_us=slo_us))
    sim.run([request(i, i * 40, i * 40 + slo_us) for i in range(1_000)])
    batches = [e for e in sim.events if isinstance(e, Dispatched)]
    early = [len(e.requests) for e in batches if 0 < e.at_us < 3 * slo_us]
    late = [len(e.requests) for e in batches if 6 * slo_us < e.at_us < 40_000 - slo_us]
    assert min(early) < 4
    assert len(late) > 100
    assert set(late) == {4}


def test_a_transfer_that_is_a_little_late_goes_before_those_promised_after_it() -> None:
    # The link is promised back to back: 0-10 to one batch, 10-20 to the next, and so on.
    route = make_route(make_stage([0], [10]), make_stage([1], [8], input_bytes=100))
    topology = make_topology([route], slot_node=[0, 1], bytes_per_us=10.0)

    def one_is_late(stage: StageTable, batch_size: int) -> int:
        late = 1 if stage.slots == (0,) and sim.clock.now_us() == 10 else 0
        return stage.p50_us[batch_size - 1] + late

    sim = Sim(topology, durations=one_is_late)
    sim.run([request(i, 0, 1_000) for i in range(4)])
    last = [batch for batch, slot, _, _ in runs(sim) if slot == 1]
    assert last == [0, 1, 2, 3]
    assert runs(sim)[-1][3] == 4 * 10 + 1 + 10 + 8
