"""Slots that are lost and come back, failures, cancellations, drain, a full queue."""

from headrace.dispatch.protocols import Batch
from headrace.domain.events import Answered, Dispatched, Dropped, Ran
from helpers.malleable import equal_depths, items_of
from helpers.sim import Sim, request
from helpers.topologies import assert_each_request_ended_once, make_route, make_stage, make_topology


def lose(sim: Sim, slot: int, at_us: int, back_at_us: int | None = None) -> None:
    sim.clock.call_at(at_us, lambda: sim.dispatcher.on_slot_lost(slot))
    if back_at_us is not None:
        sim.clock.call_at(back_at_us, lambda: sim.dispatcher.on_slot_gained(slot))


def ended(sim: Sim) -> dict[int, str]:
    return {
        e.request: "answered" if isinstance(e, Answered) else e.reason
        for e in sim.events
        if isinstance(e, Answered | Dropped)
    }


def test_work_on_a_lost_slot_is_run_again_elsewhere() -> None:
    sim = Sim(make_topology([make_route(make_stage([0, 1], [100]))]))
    lose(sim, 0, at_us=50)
    sim.run([request(0, 0, 1_000)])
    (run,) = [e for e in sim.events if isinstance(e, Ran)]
    assert (run.slot, run.started_at_us, run.at_us) == (1, 50, 150)
    assert ended(sim) == {0: "answered"}


def test_a_later_stage_is_run_again_from_its_input() -> None:
    route = make_route(make_stage([0], [100]), make_stage([1, 2], [100]))
    sim = Sim(make_topology([route]))
    lose(sim, 1, at_us=150)
    sim.run([request(0, 0, 1_000)])
    assert [(e.stage, e.slot, e.started_at_us) for e in sim.events if isinstance(e, Ran)] == [
        (0, 0, 0),
        (1, 2, 150),
    ]


def test_a_reservation_on_a_lost_slot_moves_before_the_batch_gets_there() -> None:
    route = make_route(make_stage([0], [100]), make_stage([1, 2], [100]))
    sim = Sim(make_topology([route]))
    lose(sim, 1, at_us=50)
    sim.run([request(0, 0, 1_000)])
    paths = [e for e in sim.events if isinstance(e, Dispatched)]
    assert [(e.first_stage, e.path[-1].slot) for e in paths] == [(0, 1), (1, 2)]
    assert ended(sim) == {0: "answered"}


def test_a_batch_whose_next_pool_was_lost_and_is_back_is_reserved_its_slot_anew() -> None:
    """Without a reservation there was no place to look for one; it goes on as soon as it can."""
    route = make_route(make_stage([0], [60]), make_stage([1], [100]))
    sim = Sim(make_topology([route]))
    lose(sim, 1, at_us=100, back_at_us=110)
    sim.run([request(0, 0, 1_000), request(1, 10, 1_000)])
    assert ended(sim) == {0: "no-slot", 1: "answered"}
    assert [(e.batch, e.at_us) for e in sim.events if isinstance(e, Ran)] == [
        (0, 60),
        (1, 120),
        (1, 220),
    ]


def test_a_retry_that_cannot_make_the_deadline_is_refused_not_run() -> None:
    sim = Sim(make_topology([make_route(make_stage([0, 1], [100]))]))
    lose(sim, 0, at_us=50)
    sim.run([request(0, 0, 120)])
    assert ended(sim) == {0: "deadline"}
    assert not any(isinstance(e, Ran) for e in sim.events)


def test_without_any_slot_left_requests_are_refused_at_once() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [100]))]))
    lose(sim, 0, at_us=50)
    sim.run([request(0, 0, 10_000), request(1, 60, 10_000)])
    assert ended(sim) == {0: "no-slot", 1: "no-slot"}


def test_a_batch_whose_next_pool_is_gone_goes_on_if_the_pool_is_back_in_time() -> None:
    route = make_route(make_stage([0], [100]), make_stage([1], [100]))
    sim = Sim(make_topology([route]))
    lose(sim, 1, at_us=20, back_at_us=90)
    sim.run([request(0, 0, 1_000)])
    assert ended(sim) == {0: "answered"}


def test_a_batch_whose_next_pool_stays_away_is_refused_and_its_slot_works_on() -> None:
    route = make_route(make_stage([0], [100]), make_stage([1], [100]))
    sim = Sim(make_topology([route]))
    lose(sim, 1, at_us=20, back_at_us=500)
    sim.run([request(0, 0, 1_000), request(1, 600, 1_600)])
    assert ended(sim) == {0: "no-slot", 1: "answered"}


def test_a_slot_that_is_back_takes_work_again() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [100]))]))
    lose(sim, 0, at_us=150, back_at_us=200)
    sim.run([request(0, 0, 1_000), request(1, 300, 1_000)])
    assert ended(sim) == {0: "answered", 1: "answered"}


def test_the_report_of_a_lost_slot_is_ignored() -> None:
    # The batch restarts on the same slot, so its first completion at 100 must not count.
    sim = Sim(make_topology([make_route(make_stage([0], [100]))]))
    sim.clock.call_at(50, lambda: sim.dispatcher.on_slot_lost(0))
    sim.run([request(0, 60, 1_000)])
    sim.dispatcher.on_slot_gained(0)
    assert ended(sim) == {0: "no-slot"}


def test_a_refusal_that_a_stale_report_brings_is_told_and_nothing_is_said_to_have_run() -> None:
    sim = Sim(equal_depths(10_000, blocks=1, slots=1), policy="malleable")
    lose(sim, 0, at_us=5_000)
    # The report of the first comes when the second must start, and no slot is there.
    sim.run_items([items_of(0, 0, 90_000, 1), items_of(1, 6_000, 19_999, 1)])
    assert not [event for event in sim.events if isinstance(event, Ran)]
    assert [(asked.id, reason) for asked, reason, _ in sim.driver.refused] == [
        (1, "no-slot"),
        (0, "no-slot"),
    ]
    assert_each_request_ended_once(sim.events)


def test_a_failed_batch_refuses_its_requests_and_frees_its_slot() -> None:
    topology = make_topology([make_route(make_stage([0], [100]))])
    for policy in ("reservation", "reactive"):
        sim = Sim(topology, policy=policy)
        started: list[Batch] = []
        sim.driver.start_stage = lambda batch, stage, s=started: s.append(batch)  # type: ignore[method-assign, misc]
        sim.run([request(0, 0, 1_000)])
        sim.dispatcher.on_failed(started[0], 0, 0)
        assert ended(sim) == {0: "failed"}
        sim.dispatcher.on_arrival(request(1, 0, 1_000))
        assert len(started) == 2


def test_a_cancelled_request_is_not_run_if_it_still_waits() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [100, 110]))], slo_us=10_000))
    sim.clock.call_at(20, lambda: sim.dispatcher.cancel(1))
    sim.run([request(0, 0, 10_000), request(1, 10, 10_000)])
    assert ended(sim) == {0: "answered", 1: "cancelled"}


def test_while_draining_new_requests_are_refused_and_accepted_ones_answered() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [100]))]))
    sim.clock.call_at(10, sim.dispatcher.drain)
    sim.run([request(0, 0, 1_000), request(1, 5, 1_000), request(2, 20, 1_000)])
    assert ended(sim) == {0: "answered", 1: "answered", 2: "draining"}
    assert sim.dispatcher.in_flight == 0


def test_a_full_queue_refuses() -> None:
    topology = make_topology([make_route(make_stage([0], [100, 110, 120, 130]))], slo_us=10_000)
    sim = Sim(topology, queue_limit=2)
    sim.run([request(i, i, 10_000) for i in range(5)])
    assert list(ended(sim).values()).count("queue-full") == 2
    assert_each_request_ended_once(sim.events)
